// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/wan"
	"crem.dev/crem/test/netns"
)

const mtu = 4300

// station is what stands at one end of the WAN: it sends numbered frames and notes when they come.
type station struct {
	t    *testing.T
	send *raw.Sender
	ring *raw.Ring
}

// span is a bridge in a namespace of its own with a station at either end.
type span struct {
	t       *testing.T
	end     [2]*station
	bridge  *Bridge
	middle  *netns.NS
	stop    chan struct{}
	stopped chan struct{}
	once    sync.Once
	stats   [2]Stats
}

func newSpan(t *testing.T, lines [2]wan.Settings, slots int) *span {
	t.Helper()
	s := &span{t: t, stop: make(chan struct{}), stopped: make(chan struct{})}
	middle := netns.New(t)
	s.middle = middle
	for i, name := range []string{"a0", "b0"} {
		ns := netns.New(t)
		index, _ := netns.Link(t, mtu, netns.End{NS: ns, Name: "eth0"}, netns.End{NS: middle, Name: name})
		st := &station{t: t}
		ns.Do(func() {
			var err error
			if st.send, err = raw.OpenSender(index); err == nil {
				st.ring, err = raw.OpenRing(index, mtu, slots, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		t.Cleanup(func() { _ = st.ring.Close(); _ = st.send.Close() })
		s.end[i] = st
	}
	middle.Do(func() {
		var err error
		if s.bridge, err = Open(Options{Interfaces: [2]string{"a0", "b0"}, Lines: lines, Slots: slots}); err != nil {
			t.Fatal(err)
		}
	})
	go func() {
		s.stats = s.bridge.Run(s.stop)
		close(s.stopped)
	}()
	t.Cleanup(func() { s.finish() })
	return s
}

// finish stops the bridge and returns its totals.
func (s *span) finish() [2]Stats {
	s.once.Do(func() { close(s.stop) })
	<-s.stopped
	return s.stats
}

// numbered makes the frame of a number: UDP to the RoCEv2 port, the number and the time of sending in the payload.
func numbered(frame []byte, n uint32, now time.Duration) {
	copy(frame, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 2})
	binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
	frame[23] = unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(frame[36:], 4791)
	binary.BigEndian.PutUint32(frame[50:], n)
	binary.BigEndian.PutUint64(frame[56:], uint64(now))
}

// arrival is one frame that came.
type arrival struct {
	number uint32
	delay  time.Duration
	at     time.Duration
	ce     bool
}

// exchange sends frames of the given size from one end, spaced by gap in batches of a millisecond, and returns what came to the other within
// patience after the last.
func (s *span) exchange(from, count, size int, gap, patience time.Duration) []arrival {
	epoch := time.Now()
	var got []arrival
	done := make(chan struct{})
	finished := make(chan time.Time, 1)
	go func() {
		defer close(done)
		ring, end := s.end[1-from].ring, time.Time{}
		for {
			select {
			case t := <-finished:
				end = t
			default:
			}
			wall := time.Now()
			f, ok := ring.Next(wall)
			if !ok {
				if !end.IsZero() && wall.Sub(end) > patience {
					return
				}
				time.Sleep(100 * time.Microsecond)
				continue
			}
			if len(f.Data) == size && binary.BigEndian.Uint16(f.Data[36:]) == 4791 {
				at := wall.Sub(epoch) - f.Age
				got = append(got, arrival{binary.BigEndian.Uint32(f.Data[50:]), at - time.Duration(binary.BigEndian.Uint64(f.Data[56:])), at, f.Data[15]&3 == 3})
			}
			ring.Release(f.Slot)
		}
	}()
	frames := make([][]byte, 64)
	for i := range frames {
		frames[i] = make([]byte, size)
	}
	for n := 0; n < count; {
		due := min(count, int(time.Since(epoch)/gap)+1)
		for k := 0; n < due && k < len(frames); k++ {
			numbered(frames[k], uint32(n), time.Since(epoch))
			s.end[from].send.Queue(frames[k])
			n++
		}
		s.end[from].send.Flush()
		if n == due {
			time.Sleep(200 * time.Microsecond)
		}
	}
	finished <- time.Now()
	<-done
	return got
}

// sound fails the test when the host, and not the line, lost frames; it skips it when the machine was so busy that times mean nothing.
func (s *span) sound(sent int) {
	s.t.Helper()
	a := s.finish()[0]
	if a.RingDropped+a.SendDropped > 0 || s.end[0].send.Dropped > 0 {
		s.t.Skipf("this machine is too busy: ring dropped %d, send dropped %d, sender %d", a.RingDropped, a.SendDropped, s.end[0].send.Dropped)
	}
	if got := a.In[wan.RoCEData].Packets; got != uint64(sent) {
		s.t.Fatalf("%d frames came to the bridge, %d were sent", got, sent)
	}
	if a.Unfinished > 0 {
		s.t.Errorf("%d frames are not what a wire carries", a.Unfinished)
	}
	if a.Out.Total()+a.LostRandom.Total()+a.LostBurst.Total()+a.DroppedFull.Total()+uint64(a.OnLine) != a.In.Total()+a.Duplicated.Total() {
		s.t.Errorf("the counters do not add up: %+v", a)
	}
}

func both(s wan.Settings) [2]wan.Settings { return [2]wan.Settings{s, s} }

func TestFramesPassUnchangedInOrder(t *testing.T) {
	s := newSpan(t, both(wan.Settings{}), 4096)
	for _, size := range []int{64, 1100, mtu + 14} {
		for from := range 2 {
			got := s.exchange(from, 500, size, 100*time.Microsecond, 200*time.Millisecond)
			if len(got) != 500 {
				t.Fatalf("%d octets: %d of 500 frames came", size, len(got))
			}
			for i, a := range got {
				if a.number != uint32(i) {
					t.Fatalf("frame %d came in place of %d", a.number, i)
				}
			}
		}
	}
}

func TestDelayIsKept(t *testing.T) {
	const delay = 20 * time.Millisecond
	s := newSpan(t, both(wan.Settings{Delay: wan.Duration(delay)}), 4096)
	got := s.exchange(0, 2000, 1000, 200*time.Microsecond, 300*time.Millisecond)
	s.sound(2000)
	if len(got) != 2000 {
		t.Fatalf("%d of 2000 frames came", len(got))
	}
	early, least := 0, time.Hour
	for _, a := range got {
		if a.delay < delay-100*time.Microsecond {
			early++
		}
		least = min(least, a.delay)
	}
	if early > 0 {
		t.Errorf("%d frames came early", early)
	}
	// How late the others are is the machine's affair; a line that is too long would delay all.
	if worst := time.Duration(s.finish()[0].LateMax); least > delay+worst+5*time.Millisecond {
		t.Errorf("no frame came before %v, though none left the line later than %v after it was due", least, worst)
	}
}

// TestArrivedWhenTheKernelSays: a bridge that the machine stopped after it looked at its clock takes frames that came since for what they are; otherwise
// they left the line early.
func TestArrivedWhenTheKernelSays(t *testing.T) {
	s := newSpan(t, both(wan.Settings{}), 64)
	before := time.Now()
	if got := s.exchange(0, 1, 100, time.Microsecond, 50*time.Millisecond); len(got) != 1 {
		t.Fatalf("%d frames came", len(got))
	}
	frame := make([]byte, 100)
	numbered(frame, 1, 0)
	s.end[0].send.Queue(frame)
	s.end[0].send.Flush()
	f, ok := s.end[1].ring.Next(before)
	for ; !ok; f, ok = s.end[1].ring.Next(before) {
		time.Sleep(time.Millisecond)
	}
	if f.Age > -50*time.Millisecond || f.Age < -time.Since(before) {
		t.Errorf("age %v, read %v before now", f.Age, time.Since(before))
	}
	if at := arrived(before, before, f.Age); at != -f.Age {
		t.Errorf("arrived after %v, at an age of %v", at, f.Age)
	}
	if at := arrived(before, before, -time.Hour); at > time.Since(before) {
		t.Errorf("arrives in %v", at-time.Since(before))
	}
	if at := arrived(before, before.Add(-time.Second), time.Millisecond); at != 999*time.Millisecond {
		t.Errorf("arrived after %v", at)
	}
}

func TestLossRateAndBursts(t *testing.T) {
	const n = 20_000
	for _, c := range []struct {
		name string
		set  wan.Settings
		p, b float64
	}{
		{"random", wan.Settings{Loss: 0.02, Seed: 1}, 0.02, 1 / 0.98},
		{"bursts", wan.Settings{BurstLoss: 0.02, BurstLength: 5, Seed: 2}, 0.02, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpan(t, both(c.set), 8192)
			got := s.exchange(0, n, 200, 50*time.Microsecond, 300*time.Millisecond)
			s.sound(n)
			lost, bursts, next := 0, 0, uint32(0)
			for _, a := range append(got, arrival{number: n}) {
				if a.number != next {
					lost += int(a.number - next)
					bursts++
				}
				next = a.number + 1
			}
			// Runs are geometric: the number lost has about the variance of (2 b - 1) independent losses each.
			if sd := math.Sqrt(n * c.p * (2*c.b - 1)); math.Abs(float64(lost)-n*c.p) > 6*sd {
				t.Errorf("lost %d, expected %.0f +- %.0f", lost, n*c.p, 6*sd)
			}
			mean := float64(lost) / float64(bursts)
			if sd := math.Sqrt(c.b * (c.b - 1) / float64(bursts)); math.Abs(mean-c.b) > 6*sd {
				t.Errorf("mean burst %.2f, expected %.2f +- %.2f", mean, c.b, 6*sd)
			}
			a := s.finish()[0] // the line loses some of what the kernel sends by itself as well
			if counted := a.LostRandom[wan.RoCEData].Packets + a.LostBurst[wan.RoCEData].Packets; counted != uint64(lost) {
				t.Errorf("%d lost, %d counted", lost, counted)
			}
		})
	}
}

// Sent at twice the rate: half of it comes, at the rate, the queue stays bounded, and its frames carry CE.
func TestRateQueueAndMarks(t *testing.T) {
	const size, n, rate, queue = 1000, 10_000, 40_000_000, 100_000
	s := newSpan(t, both(wan.Settings{Rate: rate, Queue: queue, CEThreshold: queue / 2, Delay: wan.Duration(5 * time.Millisecond)}), 8192)
	got := s.exchange(0, n, size, 100*time.Microsecond, 300*time.Millisecond)
	s.sound(n)
	a := s.finish()[0]
	// The first frame may have left late by LateMax, which shortens the span.
	span := got[len(got)-1].at - got[0].at + time.Duration(a.LateMax)
	if bps := float64(len(got)-1) * size * 8 / span.Seconds(); bps > 1.02*rate {
		t.Errorf("%.1f Mbit/s came over a line of %d", bps/1e6, rate/1_000_000)
	}
	if a.QueueMax > queue {
		t.Errorf("longest queue %d octets of %d", a.QueueMax, queue)
	}
	dropped := a.DroppedFull[wan.RoCEData].Packets
	if dropped+uint64(len(got)) != n {
		t.Errorf("%d dropped, %d came of %d", dropped, len(got), n)
	}
	if dropped < n/4 {
		t.Skipf("this machine is too busy to send at twice the rate of the line: %d of %d frames dropped", dropped, n)
	}
	if a.QueueMax < queue*9/10 {
		t.Errorf("frames were dropped, but the longest queue was %d octets of %d", a.QueueMax, queue)
	}
	marked := 0
	for _, f := range got {
		if f.ce {
			marked++
		}
	}
	if counted := a.Marked[wan.RoCEData].Packets; uint64(marked) != counted || marked < len(got)/2 {
		t.Errorf("%d of %d frames marked, %d counted", marked, len(got), counted)
	}
}

func TestSettingsChangeOnTheRun(t *testing.T) {
	s := newSpan(t, both(wan.Settings{}), 1024)
	server := httptest.NewServer(s.bridge.Handler(s.stopped))
	defer server.Close()
	patch := func(body string) int {
		req, _ := http.NewRequest(http.MethodPatch, server.URL+"/v1/settings", strings.NewReader(body))
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	if code := patch(`{"both":{"delay":"3ms"},"a_to_b":{"loss":1}}`); code != http.StatusOK {
		t.Fatalf("status %d", code)
	}
	if code := patch(`{"both":{"loss":2}}`); code != http.StatusBadRequest {
		t.Fatalf("a loss of 2: status %d", code)
	}
	if got := s.exchange(0, 100, 100, 100*time.Microsecond, 100*time.Millisecond); len(got) != 0 {
		t.Errorf("%d frames came over a line that loses all", len(got))
	}
	if got := s.exchange(1, 100, 100, 100*time.Microsecond, 200*time.Millisecond); len(got) != 100 || got[0].delay < 3*time.Millisecond {
		t.Errorf("%d frames of 100 came the other way", len(got))
	}
	answer, err := http.Get(server.URL + "/v1/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var r Report
	if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.AToB.LostRandom[wan.RoCEData].Packets != 100 || r.BToA.Out[wan.RoCEData].Packets != 100 {
		t.Errorf("%+v", r)
	}
}

func TestUnknownInterface(t *testing.T) {
	if _, err := Open(Options{Interfaces: [2]string{"no-such-a", "no-such-b"}}); err == nil || !strings.Contains(err.Error(), "no-such-a") {
		t.Errorf("error %v", err)
	}
	if _, err := net.InterfaceByName("no-such-a"); err == nil {
		t.Error("made one")
	}
}

var load = flag.Bool("load", false, "measure how many packets a second the bridge carries")

// TestLoad offers both directions at once as much as the generators can and reports what the bridge carried:
//
//	go test -v -run Load ./test/lab/bridge -args -load
func TestLoad(t *testing.T) {
	if !*load {
		t.Skip("a measurement: give -load")
	}
	for _, size := range []int{1100, mtu + 14} {
		for _, offered := range []int{50_000, 80_000} {
			s := newSpan(t, both(wan.Settings{Delay: wan.Duration(10 * time.Millisecond), Loss: 0.001, Jitter: wan.Duration(time.Millisecond)}), 8192)
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			var wg sync.WaitGroup
			var came [2]int
			const seconds = 4
			for from := range 2 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					came[from] = len(s.exchange(from, offered*seconds, size, time.Second/time.Duration(offered), 500*time.Millisecond))
				}()
			}
			wg.Wait()
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			r := s.finish()
			cpu := func(u syscall.Rusage) float64 {
				return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
			}
			t.Logf("%d octets, offered %d a second each way for %d s: bridge took %d and %d frames, lost for want of slots %d and %d, sent %d and %d; the sinks saw %d and %d; late > 1 ms %d and %d, worst %v; CPU %.1f s with generators and sinks",
				size, offered, seconds, r[0].In.Total(), r[1].In.Total(), r[0].RingDropped, r[1].RingDropped, r[0].Out.Total()-r[0].SendDropped, r[1].Out.Total()-r[1].SendDropped,
				came[0], came[1], r[0].Late, r[1].Late, max(time.Duration(r[0].LateMax), time.Duration(r[1].LateMax)), cpu(after)-cpu(before))
		}
	}
}

// TestInterfaceGoes: a bridge whose interface is taken away sleeps and still obeys; it must not take a processor from all others for ever.
func TestInterfaceGoes(t *testing.T) {
	s := newSpan(t, [2]wan.Settings{}, 64)
	s.middle.Do(func() {
		link, err := netlink.LinkByName("a0")
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	turns := func() (n uint64) {
		if !s.bridge.Do(s.stopped, func() { n = s.bridge.turns }) {
			t.Fatal("the bridge has ended")
		}
		return n
	}
	start, before := time.Now(), turns()
	for time.Since(start) < 200*time.Millisecond {
		turns()
		time.Sleep(20 * time.Millisecond)
	}
	n := turns() - before
	if most := uint64(time.Since(start) / time.Millisecond); n > most {
		t.Errorf("%d turns in %d ms: it does not sleep", n, most)
	}
}

// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
)

// frame builds an Ethernet frame of n octets with an IPv4 or IPv6 UDP packet; the first octet of the payload is the opcode.
func frame(v6 bool, n int, port uint16, opcode byte, tos byte) []byte {
	f := make([]byte, n)
	ip, udp := f[14:], f[34:]
	if v6 {
		udp = f[54:]
		binary.BigEndian.PutUint16(f[12:], 0x86dd)
		ip[0], ip[1], ip[6] = 0x60|tos>>4, tos<<4, 17
	} else {
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		ip[0], ip[1], ip[9] = 0x45, tos, 17
		binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
	binary.BigEndian.PutUint16(udp[2:], port)
	udp[8] = opcode
	return f
}

// sum is the ones' complement sum of 16-bit words, written plainly.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

func mustLine(t *testing.T, s Settings) *Line {
	t.Helper()
	l, err := NewLine(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPerfectWireKeepsOrderAndTime(t *testing.T) {
	l := mustLine(t, Settings{})
	f := frame(false, 100, 4791, 0, 0)
	for i := range uint32(10) {
		l.Offer(time.Duration(i), i, f)
	}
	for i := range uint32(10) {
		if l.Next() != time.Duration(i) {
			t.Fatalf("frame %d due at %v", i, l.Next())
		}
		if tok, ok := l.Pop(10); !ok || tok != i {
			t.Fatalf("got %d %v, want %d", tok, ok, i)
		}
	}
	if l.Next() != Never || l.Len() != 0 {
		t.Fatal("line not empty")
	}
}

func TestRateSpacesFramesExactly(t *testing.T) {
	// 7 Mbit/s and 333 octets: 380571.43 ns a frame; after 7000 frames the sum must be exact, no rounding may add up.
	l := mustLine(t, Settings{Rate: 7_000_000, Queue: 1 << 40, Delay: Duration(time.Millisecond)})
	f := frame(false, 333, 4791, 0, 0)
	for i := range uint32(7000) {
		l.Offer(0, i, f)
	}
	var due time.Duration
	for l.Len() > 0 {
		due = l.Next()
		l.Pop(due)
	}
	if want := 333*8*time.Millisecond + time.Millisecond; due != want {
		t.Fatalf("last frame at %v, want %v", due, want)
	}
}

func TestQueueIsBoundedInOctets(t *testing.T) {
	l := mustLine(t, Settings{Rate: 8_000_000, Queue: 10_000})
	f := frame(false, 1000, 4791, 0, 0)
	for i := range uint32(15) {
		l.Offer(0, i, f)
	}
	if got := l.count.DroppedFull[RoCEData].Packets; got != 5 {
		t.Fatalf("%d frames dropped of 15 into a queue of 10", got)
	}
	// One frame takes 1 ms: after 3.5 ms, 6.5 frames wait and three more fit.
	for i := range uint32(10) {
		l.Offer(3500*time.Microsecond, 20+i, f)
	}
	if got := l.count.DroppedFull[RoCEData].Packets; got != 5+7 {
		t.Fatalf("%d frames dropped", got)
	}
	if l.count.QueueMax != 10_000 {
		t.Fatalf("longest queue %d", l.count.QueueMax)
	}
}

func TestALostPacketHasUsedTheLink(t *testing.T) {
	l := mustLine(t, Settings{Rate: 8_000_000, Queue: 1 << 30, Loss: 0.5, Seed: 3})
	f := frame(false, 1000, 4791, 0, 0)
	for i := range uint32(1000) {
		l.Offer(0, i, f)
	}
	for l.Len() > 0 {
		due := l.Next()
		tok, _ := l.Pop(due)
		if want := time.Duration(tok+1) * time.Millisecond; due != want {
			t.Fatalf("frame %d leaves at %v, want %v: losses must not shorten the queue", tok, due, want)
		}
	}
}

// within fails unless got lies inside six standard deviations of a binomial mean.
func within(t *testing.T, what string, got uint64, n int, p float64) {
	t.Helper()
	mean, sd := float64(n)*p, math.Sqrt(float64(n)*p*(1-p))
	if math.Abs(float64(got)-mean) > 6*sd+1 {
		t.Errorf("%s: %d of %d, expected %.0f +- %.0f", what, got, n, mean, 6*sd)
	}
}

func TestRandomLossIsIndependent(t *testing.T) {
	const n, p = 400_000, 0.02
	l := mustLine(t, Settings{Loss: p, Seed: 7})
	f := frame(false, 100, 4791, 0, 0)
	lost, pairs, before := 0, uint64(0), false
	for i := range uint32(n) {
		gone := l.Offer(time.Duration(i), i, f) == 0
		if gone {
			lost++
			if before {
				pairs++
			}
		}
		before = gone
		l.Pop(time.Duration(i))
	}
	within(t, "lost", uint64(lost), n, p)
	within(t, "pairs in a row", pairs, n, p*p)
	if l.count.LostRandom[RoCEData].Packets != uint64(lost) {
		t.Error("counter differs")
	}
}

func TestGilbertElliottMeanLossAndBurstLength(t *testing.T) {
	const n = 2_000_000
	for _, c := range []struct{ p, length float64 }{{0.01, 5}, {0.05, 2}, {0.2, 20}, {0.01, 1}} {
		l := mustLine(t, Settings{BurstLoss: c.p, BurstLength: c.length, Seed: 11})
		f := frame(false, 100, 4791, 0, 0)
		hist := map[int]int{}
		run, lost, bursts := 0, 0, 0
		for i := range uint32(n) {
			if l.Offer(time.Duration(i), i, f) == 0 {
				run++
				lost++
				continue
			}
			if run > 0 {
				hist[run]++
				bursts++
				run = 0
			}
			l.Pop(time.Duration(i))
		}
		// The variance of a mean over bursts of geometric length: sd of the number lost is about sqrt(bursts * (2 L^2)).
		expect := float64(n) * c.p
		sd := math.Sqrt(expect/c.length*2) * c.length
		if math.Abs(float64(lost)-expect) > 6*sd {
			t.Errorf("%+v: lost %d, expected %.0f +- %.0f", c, lost, expect, 6*sd)
		}
		mean := float64(lost) / float64(bursts)
		if sd := math.Sqrt(c.length*(c.length-1)/float64(bursts)) + 1e-9; math.Abs(mean-c.length) > 6*sd+1e-3 {
			t.Errorf("%+v: mean burst %.3f, tolerance %.3f", c, mean, 6*sd)
		}
		within(t, "bursts of one", uint64(hist[1]), bursts, 1/c.length)
		if l.count.Bursts-uint64(bursts) > 1 {
			t.Errorf("%d bursts counted, %d seen", l.count.Bursts, bursts)
		}
	}
}

func TestJitterStaysInBoundsAndKeepsOrder(t *testing.T) {
	const delay, jitter = 10 * time.Millisecond, 2 * time.Millisecond
	l := mustLine(t, Settings{Delay: Duration(delay), Jitter: Duration(jitter), Seed: 5})
	f := frame(false, 100, 4791, 0, 0)
	const n, gap = 100_000, 20 * time.Microsecond
	last, low, high, mean := time.Duration(0), delay*2, time.Duration(0), 0.0
	for i := range uint32(n) {
		l.Offer(time.Duration(i)*gap, i, f)
	}
	for want := uint32(0); l.Len() > 0; want++ {
		due := l.Next()
		tok, _ := l.Pop(due)
		if tok != want || due < last {
			t.Fatalf("frame %d at %v after frame at %v", tok, due, last)
		}
		d := due - time.Duration(tok)*gap
		last, low, high, mean = due, min(low, d), max(high, d), mean+float64(d)/n
	}
	if low < delay-jitter || high > delay+jitter {
		t.Errorf("delay between %v and %v", low, high)
	}
	if high-low < jitter {
		t.Errorf("delay varies by %v only", high-low)
	}
	if math.Abs(mean-float64(delay)) > float64(jitter)/4 {
		t.Errorf("mean delay %v", time.Duration(mean))
	}
}

func TestReorderingLetsFollowersOvertake(t *testing.T) {
	const n, p = 100_000, 0.01
	l := mustLine(t, Settings{Delay: Duration(10 * time.Millisecond), Reorder: p, ReorderDelay: Duration(time.Millisecond), Seed: 9})
	f := frame(false, 100, 4791, 0, 0)
	for i := range uint32(n) {
		l.Offer(time.Duration(i)*100*time.Microsecond, i, f)
	}
	var late uint64
	for high := uint32(0); l.Len() > 0; {
		tok, _ := l.Pop(l.Next())
		if tok < high {
			late++
		}
		high = max(high, tok)
	}
	within(t, "reordered", l.count.Reordered[RoCEData].Packets, n, p)
	if got := l.count.Reordered[RoCEData].Packets; late > got || late < got*9/10 {
		t.Errorf("%d frames overtaken, %d drawn", late, got)
	}
}

func TestDuplicatesAreCountedAndComeOut(t *testing.T) {
	const n, p = 100_000, 0.05
	l := mustLine(t, Settings{Duplicate: p, Seed: 1})
	f := frame(false, 100, 4791, 0, 0)
	copies, out := 0, 0
	for i := range uint32(n) {
		copies += l.Offer(0, i, f)
	}
	for l.Len() > 0 {
		l.Pop(0)
		out++
	}
	within(t, "duplicated", uint64(copies-n), n, p)
	if out != copies || l.count.Out.Total() != uint64(out) {
		t.Errorf("%d copies promised, %d came out, %d counted", copies, out, l.count.Out.Total())
	}
}

func TestLossMaySpareOtherTraffic(t *testing.T) {
	l := mustLine(t, Settings{Loss: 1, Reorder: 1, ReorderDelay: 1, Duplicate: 1, ProtectedOnly: true, CREMPort: 52000})
	arp := make([]byte, 60)
	binary.BigEndian.PutUint16(arp[12:], 0x0806)
	for _, c := range []struct {
		name  string
		frame []byte
		left  int
	}{
		{"ARP", arp, 1},
		{"DNS", frame(false, 100, 53, 0, 0), 1},
		{"RoCE data", frame(false, 100, 4791, 4, 0), 0},
		{"RoCE ACK", frame(true, 100, 4791, 0x11, 0), 0},
		{"CREM", frame(false, 100, 52000, 0, 0), 0},
	} {
		if got := l.Offer(0, 0, c.frame); got != c.left {
			t.Errorf("%s: %d copies, want %d", c.name, got, c.left)
		}
	}
}

func TestClasses(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame []byte
		want  Class
	}{
		{"RC WRITE first", frame(false, 100, 4791, 0x06, 0), RoCEData},
		{"RC READ request", frame(true, 100, 4791, 0x0c, 0), RoCEData},
		{"RC READ response", frame(false, 100, 4791, 0x0d, 0), RoCEData},
		{"RC ACK", frame(false, 100, 4791, 0x11, 0), RoCEOther},
		{"CNP", frame(false, 100, 4791, 0x81, 0), RoCEOther},
		{"UD SEND", frame(false, 100, 4791, 0x64, 0), RoCEOther},
		{"XRC WRITE first", frame(false, 100, 4791, 0xa6, 0), RoCEData},
		{"veRoCE WRITE first", frame(false, 100, 4794, 0x06, 0), RoCEData},
		{"veRoCE ACK", frame(true, 100, 4794, 0x11, 0), RoCEOther},
		{"MRC WRITE first", frame(true, 100, 4791, 0xc6, 0), RoCEData},
		{"MRC SACK", frame(false, 100, 4791, 0xdc, 0), RoCEOther},
		{"CREM", frame(true, 100, 52000, 0, 0), CREM},
		{"short", make([]byte, 20), Other},
		{"other", frame(false, 100, 4792, 0, 0), Other},
	} {
		if got := Classify(c.frame, 52000); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	fragment := frame(false, 100, 4791, 0, 0)
	fragment[21] = 100
	if Classify(fragment, 52000) != Other {
		t.Error("a later fragment has no UDP header")
	}
}

func TestMarkCEKeepsTheChecksumRight(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		f := frame(false, 100, 4791, 0, byte(r.Uint32()))
		for i := 16; i < 24; i++ {
			f[i] = byte(r.Uint32())
		}
		f[23] = 17
		copy(f[24:26], []byte{0, 0})
		binary.BigEndian.PutUint16(f[24:], ^sum(f[14:34]))
		ecn := f[15] & 3
		marked := MarkCE(f)
		if marked != (ecn == 1 || ecn == 2) {
			t.Fatalf("ECN %d: marked %v", ecn, marked)
		}
		if marked && f[15]&3 != 3 || !marked && f[15]&3 != ecn {
			t.Fatalf("ECN %d became %d", ecn, f[15]&3)
		}
		if sum(f[14:34]) != 0xffff {
			t.Fatalf("header checksum wrong after marking: %x", f[14:34])
		}
	}
	for tos := range 256 {
		f := frame(true, 100, 4791, 0, byte(tos))
		marked := MarkCE(f)
		got := f[14]<<4 | f[15]>>4
		if want := tos&3 == 1 || tos&3 == 2; marked != want || got&^3 != byte(tos)&^3 || marked && got&3 != 3 {
			t.Fatalf("IPv6 traffic class %02x became %02x, marked %v", tos, got, marked)
		}
	}
}

func TestCEByProbabilityAndByQueue(t *testing.T) {
	const n, p = 50_000, 0.1
	l := mustLine(t, Settings{CEProbability: p, Seed: 2})
	for i := range uint32(n) {
		l.Offer(0, i, frame(false, 100, 4791, 0, 2))
	}
	within(t, "marked", l.count.Marked[RoCEData].Packets, n, p)

	l = mustLine(t, Settings{Rate: 8_000_000, Queue: 1 << 20, CEThreshold: 5000})
	marked := 0
	for i := range uint32(10) {
		f := frame(false, 1000, 4791, 0, 2)
		l.Offer(0, i, f)
		if f[15]&3 == 3 {
			marked++
		}
	}
	if marked != 4 { // the frames that met 6, 7, 8 and 9 thousand octets
		t.Errorf("%d frames marked over a queue of 5000 octets", marked)
	}
}

// WAN ECN: with two thresholds an average queue between them gives early warnings only, one over both CE too, one below both neither; Not-ECT is never marked.
func TestWANECN_TwoThresholds(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, c := range []struct {
			name        string
			gap         time.Duration // between frames of 1000 octets on a line of 1 octet a microsecond
			early, both bool
		}{{"below", 1100 * time.Microsecond, false, false}, {"between", 999 * time.Microsecond, true, false}, {"over", 500 * time.Microsecond, true, true}} {
			l := mustLine(t, Settings{Rate: 8_000_000, Queue: 1 << 20, EarlyThreshold: 1000, CEThreshold: 10_000})
			for i := range uint32(4000) {
				f := frame(v6, 1000, 4791, 0, 2)
				notECT := frame(v6, 1000, 4791, 0, 0)
				before := string(notECT)
				l.Offer(time.Duration(i)*c.gap, i, f)
				if l.tell(RoCEData, notECT); string(notECT) != before {
					t.Fatal("a packet that can not say so was marked")
				}
				n, _ := parseNetwork(f)
				if x := n.codepoint(f); x == ecn.NotECT || x == ecn.ECT1 && !c.early || x == ecn.CE && !c.both {
					t.Fatalf("%s: frame %d has %v", c.name, i, x)
				}
			}
			if (l.count.Warned.Total() > 0) != c.early || (l.count.Marked.Total() > 0) != c.both {
				t.Errorf("%s, IPv6 %v: %d early, %d CE", c.name, v6, l.count.Warned.Total(), l.count.Marked.Total())
			}
		}
	}
	if err := (&Settings{EarlyThreshold: 5, CEThreshold: 5}).Validate(); err == nil {
		t.Error("one threshold twice")
	}
}

func TestSameSeedSameLuck(t *testing.T) {
	pattern := func(s Settings) (p []int) {
		l := mustLine(t, s)
		f := frame(false, 100, 4791, 0, 0)
		for i := range uint32(10_000) {
			p = append(p, l.Offer(time.Duration(i)*time.Microsecond, i, f))
		}
		return p
	}
	differ := func(a, b []int) (n int) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	base := Settings{Loss: 0.05, Seed: 4}
	again := base
	again.Delay, again.Jitter, again.CEProbability = Duration(time.Second), Duration(time.Millisecond), 0.5
	if differ(pattern(base), pattern(again)) != 0 {
		t.Error("delay, jitter and marking changed which frames are lost")
	}
	other := base
	other.Seed = 5
	if differ(pattern(base), pattern(other)) == 0 {
		t.Error("another seed lost the same frames")
	}
}

func TestConfigureOnTheRun(t *testing.T) {
	l := mustLine(t, Settings{Delay: Duration(10 * time.Millisecond)})
	f := frame(false, 100, 4791, 0, 0)
	l.Offer(0, 1, f)
	if err := l.Configure(Settings{Delay: Duration(time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	l.Offer(0, 2, f)
	first, _ := l.Pop(time.Second)
	second, _ := l.Pop(time.Second)
	if first != 1 || second != 2 {
		t.Error("a frame overtook those that were on the line before the change")
	}
	if l.Configure(Settings{Loss: 2}) == nil || l.set.Delay != Duration(time.Millisecond) {
		t.Error("a refused change must change nothing")
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, s := range []Settings{
		{Loss: -0.1}, {Loss: math.NaN()}, {BurstLoss: 0.1}, {BurstLoss: 0.1, BurstLength: 0.5}, {BurstLoss: 0.9, BurstLength: 5},
		{Rate: 1}, {Rate: -1}, {Delay: -1}, {Jitter: 1}, {Reorder: 0.1}, {Queue: -1},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v accepted", s)
		}
	}
}

func TestOfferAndPopDoNotAllocate(t *testing.T) {
	l := mustLine(t, Settings{Rate: 1e9, Queue: 1 << 20, Delay: Duration(time.Millisecond), Jitter: Duration(100 * time.Microsecond), Loss: 0.1, BurstLoss: 0.01, BurstLength: 5, Duplicate: 0.1, CEProbability: 0.1})
	f := frame(false, 1000, 4791, 0, 2)
	now := time.Duration(0)
	step := func() {
		for range 1000 {
			now += 10 * time.Microsecond
			l.Offer(now, 1, f)
			for {
				if _, ok := l.Pop(now); !ok {
					break
				}
			}
		}
	}
	step()
	if n := testing.AllocsPerRun(10, step); n != 0 {
		t.Errorf("%v allocations in a thousand frames", n)
	}
}

// CREM messages may have a path that loses more; the packets of a flow meet the same luck with and without it.
func TestLossOfCREMAlone(t *testing.T) {
	const port = 52000
	a := mustLine(t, Settings{Loss: 0.01, Seed: 3, CREMPort: port})
	b := mustLine(t, Settings{Loss: 0.01, Seed: 3, CREMPort: port, CREMLoss: 0.2})
	data, crem := frame(false, 100, 4791, 0, 0), frame(false, 100, port, 0, 0)
	lost := 0
	for i := range uint32(20_000) {
		if a.Offer(0, i, data) != b.Offer(0, i, data) {
			t.Fatal("the luck of a packet depends on crem_loss")
		}
		a.Offer(0, i, crem)
		if b.Offer(0, i, crem) == 0 {
			lost++
		}
	}
	if share := float64(lost) / 20_000; math.Abs(share-0.208) > 0.01 {
		t.Errorf("%.3f of the messages lost, want 0.208", share)
	}
}

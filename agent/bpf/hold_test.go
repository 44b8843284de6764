// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// beatFor keeps a worker alive during a test.
func beatFor(o *bpf.Objects, d time.Duration) { o.Beat(0, packet.Now()+d) }

// Section 6.1, rule 7 (InOrder) on the wire: packets in order pass at once and are copied; after a gap they are held,
// and go on in order once user space has injected what was missing and handed the flow back.
func TestSection6_1_HoldOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name   string
		source func(uint32) frames.RoCE
	}{{"IPv4", source}, {"IPv6", source6}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			o := w.load(bpf.Config{})
			a := w.attach(o)
			if a.Ingress != bpf.Created || a.Egress != bpf.Created {
				t.Fatalf("%+v", a)
			}
			host, ring, inject := w.listen(), o.Ring(0), w.injector()
			index, err := o.RegisterFlow(keyOf(c.source(0)), 0, 1024, packet.InOrder)
			if err != nil {
				t.Fatal(err)
			}
			beatFor(o, time.Hour)

			for psn := range uint32(3) {
				w.send(c.source(100 + psn).Frame())
			}
			host.expect(100, 101, 102)
			for psn := range uint32(3) {
				f := nextFrame(t, ring)
				if psnOf(t, f) != 100+psn || f.Flags&packet.Held != 0 || f.Flow != index || f.Ifindex != w.up {
					t.Fatalf("%+v", f)
				}
			}
			ring.Release()

			w.send(c.source(105).Frame())
			w.send(c.source(106).Frame())
			w.send(c.source(101).Frame()) // a retransmission passes, hold or not
			host.expect(101)
			var held [2]packet.Frame
			for i := range held {
				held[i] = nextFrame(t, ring)
				if psnOf(t, held[i]) != 105+uint32(i) || held[i].Flags != packet.Held {
					t.Fatalf("%+v", held[i])
				}
			}
			if f := nextFrame(t, ring); f.Flags != packet.Behind {
				t.Fatalf("retransmission has flags %x", f.Flags)
			}
			word := packet.Word(o.Word(index).Load())
			if !word.Hold() || word.Held() != 2 || word.Expected() != 103 {
				t.Fatalf("word %#x", uint64(word))
			}
			if o.HandBack(index, 1, 107, false) {
				t.Error("handed back with a held packet that was not read")
			}

			for _, frame := range [][]byte{c.source(103).Frame(), c.source(104).Frame(), held[0].Data, held[1].Data} {
				head, payload := headOf(frame)
				inject.Inject(w.up, head, payload)
			}
			inject.Flush()
			host.expect(103, 104, 105, 106)
			if !o.HandBack(index, 2, 107, false) {
				t.Fatal("not handed back")
			}
			ring.Release()

			w.send(c.source(107).Frame())
			host.expect(107)
			if f := nextFrame(t, ring); f.Flags != 0 {
				t.Fatalf("after the hand-back: flags %x", f.Flags)
			}
			s, err := o.Stats()
			if err != nil {
				t.Fatal(err)
			}
			if s[bpf.Redirected] != 4 || s[bpf.Turned] != 4 || s[bpf.Held] != 2 || s[bpf.PassedInOrder] != 4 || s[bpf.PassedBehind] != 1 {
				t.Errorf("%v", s)
			}
			if n := inject.Stats(); n.Sent != 4 || n.Dropped != 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// Immediate delivery: everything passes, copied.
func TestImmediateOnTheWire(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{})
	w.attach(o)
	host, ring := w.listen(), o.Ring(0)
	if _, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.Immediate); err != nil {
		t.Fatal(err)
	}
	beatFor(o, time.Hour)
	for _, psn := range []uint32{5, 9, 7, 5} {
		w.send(source(psn).Frame())
	}
	host.expect(5, 9, 7, 5)
	for _, psn := range []uint32{5, 9, 7, 5} {
		if f := nextFrame(t, ring); psnOf(t, f) != psn || f.Flags != 0 {
			t.Fatalf("%+v", f)
		}
	}
}

// Without an agent that beats, and with a full ring, packets pass and the flow is not stuck: after a gap that passed,
// the next packet is in order.
func TestFailOpenOnTheWire(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{RingSlots: 4, StaleAfter: 50 * time.Millisecond})
	w.attach(o)
	host, ring := w.listen(), o.Ring(0)
	index, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	w.send(source(10).Frame()) // nobody ever beat
	host.expect(10)
	beatFor(o, 0)
	w.send(source(11).Frame())
	host.expect(11)

	time.Sleep(60 * time.Millisecond) // the kernel's clock has to run
	w.send(source(15).Frame())        // a gap, but the agent hangs
	host.expect(15)
	beatFor(o, time.Hour)
	w.send(source(16).Frame())
	host.expect(16)

	for psn := range uint32(6) { // two slots are used: the last four find no room
		w.send(source(17 + psn).Frame())
	}
	host.expect(17, 18, 19, 20, 21, 22)
	w.send(source(30).Frame()) // a gap, but the ring is full
	host.expect(30)
	var frames [8]packet.Frame
	if n := ring.Next(frames[:]); n != 4 {
		t.Fatalf("%d frames", n)
	}
	ring.Release()
	w.send(source(31).Frame())
	host.expect(31)
	if word := packet.Word(o.Word(index).Load()); word.Hold() || word.Expected() != 32 {
		t.Errorf("word %#x", uint64(word))
	}

	w.send(source(40).Frame()) // now there is room: held
	host.expect()
	o.SetBypass(true)
	w.send(source(41).Frame()) // bypass ends the hold
	host.expect(41)
	s, err := o.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s[bpf.OpenStale] != 2 || s[bpf.OpenRingFull] != 5 || s[bpf.OpenBypass] != 1 || s[bpf.Held] != 1 {
		t.Errorf("%v", s)
	}
	if ring.Missed() != 8 || o.Missed(index) != 8 {
		t.Errorf("missed %d of the ring, %d of the flow", ring.Missed(), o.Missed(index))
	}
}

// restorer stands in for a receiver function that can restore everything at once: it injects what is missing before what
// is held, and hands the flow back.
type restorer struct {
	w        *world
	o        *bpf.Objects
	index    int
	ring     packet.Ring
	inject   packet.Injector
	next     uint32
	learned  bool
	held     uint64
	restored int
	handed   int
}

func (r *restorer) turn() {
	r.o.Beat(0, packet.Now())
	var frames [64]packet.Frame
	for _, f := range frames[:r.ring.Next(frames[:])] {
		p, reason := roce.Parse(f.Data)
		if reason != roce.OK {
			r.w.t.Errorf("frame in the ring: %v", reason)
			continue
		}
		psn := uint32(p.PSN())
		if !r.learned {
			r.learned, r.next = true, psn
		}
		if f.Flags&packet.Held == 0 {
			r.next = max(r.next, psn+1)
			continue
		}
		r.held++
		for ; r.next < psn; r.next++ {
			head, payload := headOf(source(r.next).Frame())
			r.inject.Inject(r.w.up, head, payload)
			r.restored++
		}
		r.next = max(r.next, psn+1)
		head, payload := headOf(f.Data)
		r.inject.Inject(r.w.up, head, payload)
	}
	r.inject.Flush()
	r.ring.Release()
	if packet.Word(r.o.Word(r.index).Load()).Hold() && r.o.HandBack(r.index, r.held, r.next, false) {
		r.handed++
	}
}

// Section 6.1, rule 7: with losses under traffic, every packet arrives once and in order, whoever delivers it, and the
// flow goes back to the kernel again and again.
func TestSection6_1_HandBackUnderTraffic(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{RingSlots: 8192, StaleAfter: 10 * time.Second}) // a loaded machine must not fail the test
	w.attach(o)
	host := w.listen()
	index, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	const total, lossEvery = 6000, 61
	r := &restorer{w: w, o: o, index: index, ring: o.Ring(0), inject: w.injector()}
	r.turn()
	var done atomic.Bool
	var running sync.WaitGroup
	defer func() { done.Store(true); running.Wait() }()
	running.Go(func() {
		for !done.Load() {
			r.turn()
		}
	})
	running.Go(func() {
		for psn := range uint32(total) {
			if psn%lossEvery != 7 || psn == total-1 {
				if err := w.trySend(source(psn).Frame()); err != nil {
					t.Error(err)
				}
			}
			if psn%32 == 0 {
				time.Sleep(200 * time.Microsecond) // a flow that leaves time to hand back
			}
		}
	})
	for want := range uint32(total) {
		got, ok := host.next(soon)
		if !ok {
			t.Fatalf("PSN %d has not come", want)
		}
		if got != want {
			t.Fatalf("PSN %d came, want %d", got, want)
		}
	}
	done.Store(true)
	running.Wait()
	s, err := o.Stats()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d restored, %d held, %d handed back, %d in order in the kernel", r.restored, r.held, r.handed, s[bpf.PassedInOrder])
	if r.restored < total/lossEvery-1 || r.handed == 0 || s[bpf.PassedInOrder] == 0 || s[bpf.OpenRingFull] != 0 {
		t.Errorf("restored %d, handed back %d; %v", r.restored, r.handed, s)
	}
}

// Any CPU may write to any ring: two senders at once, each with its own flow, and every frame is whole, once there, and
// in its flow's order.
func TestRingWithManyWriters(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{RingSlots: 64, StaleAfter: 10 * time.Second})
	w.attach(o)
	const flows, total = 3, 4000
	flow := func(i int, psn uint32) frames.RoCE {
		p := source(psn)
		p.QPN = uint32(100 + i)
		p.Data = bytes.Repeat([]byte{byte(psn), byte(i)}, 100+int(psn%7)*150)
		return p
	}
	at := map[int]int{}
	for i := range flows {
		index, err := o.RegisterFlow(keyOf(flow(i, 0)), 0, 1024, packet.Immediate)
		if err != nil {
			t.Fatal(err)
		}
		at[index] = i
	}
	beatFor(o, time.Hour)
	var senders sync.WaitGroup
	defer senders.Wait()
	for i := range flows {
		senders.Go(func() {
			for psn := range uint32(total) {
				for o.Ring(0).Backlog() > 32 { // leave room: this is not about a full ring
					time.Sleep(50 * time.Microsecond)
				}
				if err := w.trySend(flow(i, psn).Frame()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ring := o.Ring(0)
	var next [flows]uint32
	batch := make([]packet.Frame, 16)
	got := 0
	for end := time.Now().Add(6 * soon); got < flows*total && time.Now().Before(end); {
		for _, f := range batch[:ring.Next(batch)] {
			i := at[f.Flow]
			want := flow(i, next[i]).Frame()
			if !bytes.Equal(f.Data, want) {
				t.Fatalf("flow %d: PSN %d is not what was sent", i, next[i])
			}
			next[i]++
			got++
		}
		ring.Release()
	}
	if got != flows*total || ring.Missed() != 0 {
		t.Errorf("%d of %d frames, %d missed", got, flows*total, ring.Missed())
	}
}

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"testing"
	"time"
)

// Each test names the sentence of the public description of MRC that it proves (docs/design/simulator.md lists them).

func TestMRCEachPacketOnce(t *testing.T) {
	eachPacketOnce(t, Config{Kind: MRC, Retries: -1})
	eachPacketOnce(t, Config{Kind: MRC, Range: 128, Retries: -1})
	eachPacketOnce(t, Config{Kind: MRC, Window: 16, Retries: -1})
	eachPacketOnce(t, Config{Kind: MRC, Range: 128, Room: 8, Retries: -1})
}

// "The responder limits by max_psn_range how far the requester may go." And it goes so far.
func TestMRCRangeBoundsTheRequester(t *testing.T) {
	d := newDuel(t, Config{Kind: MRC, Range: 256, Window: 10_000})
	d.post(2000)
	d.run(testRTT - testTick)
	if got := d.s.Stats().Sent; got != 256 {
		t.Errorf("%d packets left before the first SACK came, not 256", got)
	}
	d.run(time.Second)
	d.complete(1)
	for _, p := range d.forthLog {
		told := uint64(0) // the newest cumulative acknowledgement that can have come by then
		for _, a := range d.answers(SACK) {
			if a.at+testDelay <= p.at {
				told = max(told, a.Seq)
			}
		}
		if p.Seq >= told+256 {
			t.Fatalf("packet %d left when %d was acknowledged", p.Seq, told)
		}
	}
}

// "As long as a packet lies in the receive window it is taken and placed, even if its PSN is not the expected one." Only what was lost is sent
// again, with its PSN, and with the flag.
func TestMRCOutOfOrderIsPlaced(t *testing.T) {
	d := newDuel(t, Config{Kind: MRC})
	d.lose = lost(1, 0, 200, 201)
	d.post(1000).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); s.Retransmitted != 3 || s.Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	seen := map[uint64]bool{}
	for _, p := range d.forthLog {
		if p.Again != seen[p.Seq] {
			t.Errorf("packet %d left with the flag of a retransmission %v", p.Seq, p.Again)
		}
		seen[p.Seq] = true
	}
}

// "A trimmed packet and a PSN out of the window trigger a NACK, and the requester sends what nack_psn names." It does so at once.
func TestMRCNACKs(t *testing.T) {
	d := newDuel(t, Config{Kind: MRC})
	d.cut = lost(1, 30, 99) // the last one, which nothing follows, too
	d.post(100).run(time.Second)
	d.complete(1)
	for _, seq := range []uint64{30, 99} {
		if at := d.copies(seq); len(at) != 2 || at[1]-at[0] > testRTT+5*testTick {
			t.Errorf("packet %d left at %v", seq, at)
		}
	}
	for _, a := range d.answers(NACK) {
		if a.Reason != Trimmed || a.Other != a.Seq+1 {
			t.Errorf("NACK %+v", a)
		}
	}

	r := newMRCReceiver(Config{Range: 128, Room: 128})
	r.Handle(0, &Packet{Seq: 127})
	r.Handle(0, &Packet{Seq: 128})
	if p, _ := r.Next(0); p.Kind != NACK || p.Reason != OutOfWindow || p.Seq != 128 || r.Stats().Accepted != 1 || r.has(128) {
		t.Errorf("a packet out of the window: %+v", p)
	}
}

// "No bitmap or buffer at the receiver triggers a NACK": what comes when there is no room for more that came too early is named, and sent again; what fills
// the hole is always taken.
func TestMRCNACKWithoutBuffer(t *testing.T) {
	r := newMRCReceiver(Config{Range: 128, Room: 2, Distance: 16})
	for _, seq := range []uint64{1, 3, 5} {
		r.Handle(0, &Packet{Seq: seq})
	}
	if p, _ := r.Next(0); p.Kind != SACK || p.Seq != 0 || p.Bits[0] != 1<<1|1<<3 {
		t.Errorf("what has come is not told: %+v", p)
	}
	if p, _ := r.Next(0); p.Kind != NACK || p.Reason != NoBuffer || p.Seq != 5 || r.has(5) {
		t.Errorf("a third packet that came too early: %+v", p)
	}
	r.Handle(0, &Packet{Seq: 0})
	r.Handle(0, &Packet{Seq: 5})
	if s := r.Stats(); r.expected != 2 || !r.has(5) || s.Accepted != 4 || s.NAKsSent != 1 {
		t.Errorf("expected %d, %+v", r.expected, s)
	}
	d := newDuel(t, Config{Kind: MRC, Range: 1024, Room: 20})
	d.lose = lost(1, 100)
	d.post(300).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); len(d.answers(NACK)) == 0 || s.NAKs == 0 || s.Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	if _, _, err := New(Config{Kind: VeRoCE, Room: 1}, Path{MTU: 1, Packet: 1}); err == nil {
		t.Error("veRoCE has no such NAK")
	}
}

// "SACK and NACK are lost like others: later ones, or the timer, make up for them." A NACK that is lost leaves a hole like any other.
func TestMRCLostNACK(t *testing.T) {
	const timeout = 40 * time.Millisecond
	for _, c := range []struct {
		cut   uint64
		least time.Duration
		most  time.Duration
	}{{30, testRTT, testRTT + 100*testTick}, {99, timeout, timeout + 10*testTick}} { // SACKs of later packets; nothing follows the last
		d := newDuel(t, Config{Kind: MRC, Timeout: timeout})
		d.cut = lost(1, c.cut)
		d.lose = func(p Packet, _ int) bool { return p.Kind == NACK }
		d.post(100).run(time.Second)
		d.complete(1)
		if at := d.copies(c.cut); len(at) != 2 || at[1]-at[0] < c.least || at[1]-at[0] > c.most {
			t.Errorf("packet %d left at %v", c.cut, at)
		}
	}
}

// "A packet is sent again at most once because of what SACKs let infer"; a lost second copy waits for the local ACK timeout, which sends what is
// not acknowledged.
func TestMRCInfersOnce(t *testing.T) {
	const timeout = 40 * time.Millisecond
	d := newDuel(t, Config{Kind: MRC, Timeout: timeout})
	d.lose = lost(2, 70)
	d.post(30_000).run(time.Second)
	d.complete(1)
	at := d.copies(70)
	if len(at) != 3 {
		t.Fatalf("packet 70 left %d times", len(at))
	}
	if wait := at[1] - at[0]; wait < testRTT || wait > testRTT+100*testTick {
		t.Errorf("the first copy was missed after %v", wait)
	}
	if wait := at[2] - at[1]; wait < timeout || wait > timeout+100*testTick {
		t.Errorf("the second copy was missed after %v, not the timeout", wait)
	}
}

// Reordering within the distance is no loss.
func TestMRCReorderingIsNoLoss(t *testing.T) {
	r, s := newMRCReceiver(Config{Range: 1024, Room: 1024, Distance: 16}), newMRCSender(Config{Window: 1024, Range: 1024, Distance: 16, Timeout: time.Second}, Path{MTU: testMTU})
	s.Post(0, 100*testMTU)
	for range 64 {
		p, _ := s.Next(0)
		if p.Seq != 40 {
			r.Handle(0, &p)
		}
		if p.Seq == 56 {
			r.sack(p.Seq)
		}
	}
	p, _ := r.Next(0)
	for p.Seq != 40 || p.Kind != SACK {
		p, _ = r.Next(0)
	}
	first := p
	s.Handle(0, &first)
	if _, again := s.waiting(); again {
		t.Error("a packet that 16 have overtaken was taken for lost")
	}
	r.sack(63)
	for ok := true; ok; p, ok = r.Next(0) {
		s.Handle(0, &p)
	}
	if seq, again := s.waiting(); !again || seq != 40 {
		t.Error("a packet that 23 have overtaken was not taken for lost")
	}
}

// "Over the retry limit the QP enters the ERROR state." Nothing leaves any more.
func TestMRCRetryLimit(t *testing.T) {
	d := newDuel(t, Config{Kind: MRC, Retries: 3, Timeout: 30 * time.Millisecond})
	d.lose = func(p Packet, _ int) bool { return p.Kind == Data && p.Seq == 5 }
	d.post(100).run(10 * time.Second)
	if d.s.Err() == "" || len(d.done) > 0 {
		t.Fatalf("error %q, %d transfers completed", d.s.Err(), len(d.done))
	}
	// The first copy, that which SACKs let infer, and one for each of three timeouts.
	if n := len(d.copies(5)); n != 5 {
		t.Errorf("packet 5 left %d times", n)
	}
	if d.s.NextDeadline() < 1<<62 {
		t.Error("a failed connection still wants to send")
	}
}

// "A retransmission is no fast lane: max_psn_range, congestion window and retry counter bind it. To mark a packet is not to send it." (The retry counter:
// TestMRCRetryLimit.)
func TestMRCMarkedIsNotSent(t *testing.T) {
	s := newMRCSender(Config{Window: 4, Range: 128, Timeout: time.Second, Retries: 7}, Path{MTU: testMTU})
	s.Post(0, 100*testMTU)
	for range 4 {
		s.Next(0)
	}
	s.Handle(0, &Packet{Kind: NACK, Seq: 1, Other: 2})
	s.Handle(0, &Packet{Kind: NACK, Seq: 2, Other: 3})
	if p, ok := s.Next(0); !ok || p.Seq != 1 || !p.Again {
		t.Fatalf("after two NACKs: %+v %v", p, ok)
	}
	if p, ok := s.Next(0); !ok || p.Seq != 2 {
		t.Fatalf("after two NACKs: %+v %v", p, ok)
	}
	s.Handle(0, &Packet{Kind: NACK, Seq: 3, Other: 4})
	s.cfg.Window = 3 // congestion control has closed the window
	if p, ok := s.Next(0); ok {
		t.Errorf("packet %d left against the window", p.Seq)
	}
	if seq, ok := s.waiting(); !ok || seq != 3 {
		t.Error("the mark is gone")
	}
	s.cfg.Window, s.limit = 4, 3 // and the responder's range
	if p, ok := s.Next(0); ok || s.NextDeadline() <= 0 {
		t.Errorf("packet %d left against max_psn_range", p.Seq)
	}
	s.Handle(0, &Packet{Kind: SACK, Seq: 1, Other: 1, Edge: 1, Range: 128})
	if p, ok := s.Next(0); !ok || p.Seq != 3 || !p.Again {
		t.Errorf("in the range again: %+v %v", p, ok)
	}
}

// "The receiver must recognise duplicates: a retransmission after a timeout must not complete an action twice." And lost SACKs are made up for by
// later ones.
func TestMRCDuplicatesCompleteOnce(t *testing.T) {
	d := newDuel(t, Config{Kind: MRC, Timeout: 2 * time.Millisecond, Retries: -1})
	d.lose = func(p Packet, n int) bool { return p.Kind == SACK && p.Seq < 90 }
	d.post(100, 10).run(time.Second)
	d.complete(2)
	r := d.r.Stats()
	if r.Duplicates == 0 || r.Accepted != 110 {
		t.Errorf("%+v", r)
	}
}

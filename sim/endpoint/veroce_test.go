// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"testing"
	"time"
)

// Each test names the sentence of the public description of veRoCE that it proves (docs/design/simulator.md lists them).

func TestVeRoCEEachPacketOnce(t *testing.T) {
	eachPacketOnce(t, Config{Kind: VeRoCE, Retries: -1})
	eachPacketOnce(t, Config{Kind: VeRoCE, Window: 16, Retries: -1})
	eachPacketOnce(t, Config{Kind: VeRoCE, Range: 64, Distance: 1, Retries: -1})
}

// "The receiver needs no SACK for every packet out of order: it sends one when hPSN - aPSN is over a threshold." Below it only the transport timer
// helps.
func TestVeRoCELazySACK(t *testing.T) {
	const timeout = 40 * time.Millisecond
	for _, c := range []struct {
		lost uint64
		sack bool
	}{{50, true}, {83, true}, {95, false}} {
		d := newDuel(t, Config{Kind: VeRoCE, Timeout: timeout, Distance: 16})
		d.lose = lost(1, c.lost)
		d.post(100).run(time.Second)
		d.complete(1)
		if got := len(d.answers(SACK)) > 0; got != c.sack {
			t.Errorf("packet %d of 100 lost: SACK %v", c.lost, got)
		}
		wait := d.copies(c.lost)[1] - d.copies(c.lost)[0]
		if c.sack && wait > testRTT+70*testTick || !c.sack && wait < timeout {
			t.Errorf("packet %d was sent again after %v", c.lost, wait)
		}
	}
}

// "SACK adds a bitmap of 128 bits to the cumulative acknowledgement": it says which packets have come, and only those missing are sent again.
func TestVeRoCESelective(t *testing.T) {
	d := newDuel(t, Config{Kind: VeRoCE})
	d.lose = lost(1, 10, 12, 13, 90, 400)
	d.post(1000).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); s.Retransmitted != 5 || s.Timeouts != 0 {
		t.Errorf("%+v", s)
	}
	for _, a := range d.answers(SACK) {
		if a.Edge < a.Seq {
			t.Errorf("the bitmap begins at %d, before the cumulative acknowledgement %d", a.Edge, a.Seq)
		}
		if a.Edge == a.Seq && a.Bits[0]&1 != 0 {
			t.Errorf("the first packet after aPSN is said to have come: %+v", a)
		}
	}
}

// sackOf is a SACK: all before seq have come, and those named.
func sackOf(seq uint64, came ...uint64) *Packet {
	p := &Packet{Kind: SACK, Seq: seq, Other: seq, Edge: seq}
	for _, c := range came {
		p.Bits[(c-seq)/64] |= 1 << ((c - seq) % 64)
	}
	return p
}

// leaving returns the numbers of all packets that leave now.
func leaving(s Sender, now time.Duration) (out []uint64) {
	for p, ok := s.Next(now); ok; p, ok = s.Next(now) {
		out = append(out, p.Seq)
	}
	return out
}

// "RxtPSN records the highest PSN that the SACK before dealt with: only holes above it begin a new round. If it does not move for long, it is set
// back to aPSN, so that a second round is possible." By hand, SACK by SACK.
func TestVeRoCERxtPSN(t *testing.T) {
	s := newVeRoCESender(Config{Window: 100, Range: 100, Timeout: time.Second, Retries: 7}, Path{MTU: testMTU, RTT: testRTT})
	s.Post(0, 20*testMTU)
	leaving(s, 0)
	now := testRTT
	expect := func(what string, want ...uint64) {
		t.Helper()
		got := leaving(s, now)
		if len(got) != len(want) {
			t.Fatalf("%s: %v left, not %v", what, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s: %v left, not %v", what, got, want)
			}
		}
	}
	s.Handle(now, sackOf(3, 5, 8))
	expect("the first SACK", 3, 4, 6, 7)
	now += testRTT / 4
	s.Handle(now, sackOf(3, 5, 8))
	expect("the same SACK")
	s.Handle(now, sackOf(3, 5, 8, 11))
	expect("a SACK that goes further", 9, 10)
	now += testRTT
	s.Handle(now, sackOf(3, 5, 6, 8, 11))
	expect("a SACK before RxtPSN has stood still for long")
	now = s.NextDeadline()
	if wait := now - testRTT*5/4; wait < testRTT || wait > 2*testRTT {
		t.Errorf("a second round %v after the first, not after about a RTT", wait)
	}
	expect("RxtPSN has stood still for a round trip", 3, 4, 7, 9, 10)
	s.Handle(now, sackOf(3, 4, 5, 6, 8, 11))
	expect("the same SACK again")
}

// "A trimmed packet is answered by Packet Drop NAK, and each NAK triggers the retransmission of one PSN." At once.
func TestVeRoCEPacketDropNAK(t *testing.T) {
	d := newDuel(t, Config{Kind: VeRoCE})
	d.cut = lost(1, 20, 21, 99)
	d.post(100).run(time.Second)
	d.complete(1)
	if naks := d.answers(NACK); len(naks) != 3 {
		t.Errorf("%d NAKs for 3 trimmed packets", len(naks))
	}
	for _, seq := range []uint64{20, 21, 99} {
		if at := d.copies(seq); len(at) != 2 || at[1]-at[0] > testRTT+5*testTick {
			t.Errorf("packet %d left at %v", seq, at)
		}
	}
	s := newVeRoCESender(Config{Window: 100, Range: 100, Timeout: time.Second}, Path{MTU: testMTU, RTT: testRTT})
	s.Post(0, 20*testMTU)
	leaving(s, 0)
	s.Handle(testRTT, &Packet{Kind: NACK, Seq: 7, Other: 12})
	if got := leaving(s, testRTT); len(got) != 1 || got[0] != 7 {
		t.Errorf("a NAK of packet 7 sent %v again", got)
	}
}

// "If ACK, SACK and NAK themselves are lost, the transport timer helps." Later ones make up for those that were lost before.
func TestVeRoCETransportTimer(t *testing.T) {
	d := newDuel(t, Config{Kind: VeRoCE, Timeout: 40 * time.Millisecond})
	early := func(p Packet, _ int) bool { return p.Kind != Data && p.Seq < 100 }
	d.lose = early
	d.post(100).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); s.Timeouts != 0 || s.Sent != 100 {
		t.Errorf("a cumulative acknowledgement did not make up for lost ones: %+v", s)
	}
	d = newDuel(t, Config{Kind: VeRoCE, Timeout: 40 * time.Millisecond})
	d.lose = func(p Packet, n int) bool { return p.Kind != Data && n == 1 }
	d.post(100).run(time.Second)
	d.complete(1)
	if s := d.s.Stats(); s.Timeouts == 0 || d.r.Stats().Accepted != 100 {
		t.Errorf("%+v %+v", s, d.r.Stats())
	}
	d = newDuel(t, Config{Kind: VeRoCE, Timeout: 40 * time.Millisecond, Retries: 2})
	d.lose = func(p Packet, n int) bool { return p.Kind != Data }
	d.post(100).run(10 * time.Second)
	if d.s.Err() == "" {
		t.Error("no answer ever came, and the connection has not failed")
	}
}

// "At most 2^23 packets are outstanding", and "the bitmap is for retransmission and order, not a congestion window": packets beyond what it covers are
// not taken.
func TestVeRoCEBounds(t *testing.T) {
	if _, _, err := New(Config{Kind: VeRoCE, Window: 1<<23 + 1}, Path{MTU: 1, Packet: 1}); err == nil {
		t.Error("a window of more than 2^23 packets was accepted")
	}
	r := newVeRoCEReceiver(Config{Range: 128, Distance: 16})
	r.Handle(0, &Packet{Seq: 127})
	r.Handle(0, &Packet{Seq: 128})
	if r.Stats().OutOfWindow != 1 || r.has(128) || !r.has(127) {
		t.Errorf("%+v", r.Stats())
	}
	d := newDuel(t, Config{Kind: VeRoCE, Range: 128, Window: 1000})
	d.post(1000).run(testRTT - testTick)
	if got := d.s.Stats().Sent; got != 128 {
		t.Errorf("%d packets left before the first acknowledgement, the receiver keeps track of 128", got)
	}
}

// "The receiver must recognise duplicates, and not complete an action with side effects twice because of a retransmission." Here each is sent more than once.
func TestVeRoCEDuplicatesCompleteOnce(t *testing.T) {
	d := newDuel(t, Config{Kind: VeRoCE, Timeout: 2 * time.Millisecond, Retries: -1})
	d.post(100, 10).run(time.Second)
	d.complete(2)
	if r := d.r.Stats(); r.Duplicates == 0 || r.Accepted != 110 {
		t.Errorf("%+v", r)
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// fabric is the order in which PSNs from first on come out of a fabric that lets a packet be overtaken by up to late others.
func fabric(rng *rand.Rand, first roce.PSN, n, late int) []roce.PSN {
	type place struct{ psn, at int }
	places := make([]place, n)
	for i := range places {
		if places[i] = (place{i, i}); late > 0 {
			places[i].at += rng.IntN(late + 1)
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return a.at - b.at })
	out := make([]roce.PSN, n)
	for i, p := range places {
		out[i] = first.Add(p.psn)
	}
	return out
}

// sprayed gives packets in an order, gap apart.
func (w *world) sprayed(order []roce.PSN, gap time.Duration) {
	w.t.Helper()
	for i, psn := range order {
		w.give(w.multipath(psn, uint16(50000+i%1000), false, 1024))
		w.wait(gap)
	}
}

// coded is the positions that are in blocks, by PSN. A PSN in two blocks is a fault, and so is a REPAIR of a block after one of a later block.
func (w *world) coded() map[roce.PSN]bool {
	w.t.Helper()
	in := map[roce.PSN]bool{}
	var newest roce.PSN
	for i, m := range w.blocks() {
		if i > 0 && m.Start.Before(newest) {
			w.t.Fatalf("block %v after block %v", m.Start, newest)
		}
		newest = m.Start
		for pos := m.Present.First(); pos >= 0; pos = m.Present.Next(pos + 1) {
			psn := m.Start.Add(pos)
			if in[psn] {
				w.t.Fatalf("%v is in two blocks", psn)
			}
			in[psn] = true
		}
	}
	return in
}

// Section 4.4, rule 7: packets that a fabric in front of the CSF lets others overtake are coded all the same.
func TestSection4_4_OvertakenBeforeTheCSF(t *testing.T) {
	for _, kind := range []wire.FlowKind{wire.KindVeRoCE, wire.KindMRC} {
		for _, late := range []int{1, 2, 4, 8, 16, 32, 64, 128, 160} {
			rng := rand.New(rand.NewPCG(uint64(late), 1))
			w := newWorld(t, fixed(1))
			w.protectMultipath(kind)
			w.sprayed(fabric(rng, 1, 1024, late), time.Microsecond) // the flow learns
			w.wait(2 * time.Millisecond)
			w.log = nil
			const n = 4096
			w.sprayed(fabric(rng, 1025, n, late), time.Microsecond)
			w.wait(testRTT)
			if got := len(w.coded()); got < n*99/100 {
				t.Errorf("%v, up to %d late: %d of %d packets are coded", kind, late, got, n)
			}
		}
	}
}

// Without reordering nothing waits, and a flow that has been in order for a while waits no more. RoCEv2's go-back-N is no reordering.
func TestSection4_4_InOrderNothingWaits(t *testing.T) {
	prompt := func(w *world, first roce.PSN) bool {
		w.log = nil
		w.sprayed(fabric(nil, first, 31, 0), time.Microsecond)
		w.give(w.multipath(first.Add(31), 50000, false, 1024))
		return len(w.all(wire.TypeRepair)) == 1
	}
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindMRC)
	if !prompt(w, 1) {
		t.Error("a block of a flow in order waits")
	}
	next := roce.PSN(33)
	w.sprayed(append(fabric(nil, next.Add(1), 31, 0), next), time.Microsecond) // one was overtaken by 31
	if next = next.Add(32); w.f.skew.now() != 31 {
		t.Fatalf("skew %d", w.f.skew.now())
	}
	w.wait(2 * w.f.burstGap())
	hole := fabric(nil, next, 64, 0)
	w.log = nil
	w.sprayed(slices.Delete(hole[:63], 3, 4), time.Microsecond)
	if r := w.all(wire.TypeRepair); len(r) > 0 {
		t.Fatalf("a block with a hole did not wait: %v", r)
	}
	w.give(w.multipath(next.Add(63), 50000, false, 1024))
	if r := w.all(wire.TypeRepair); len(r) != 2 || r[0].Start != next {
		t.Fatalf("a block with a hole has been waited for by as many packets as the skew: %v", r)
	}
	next = next.Add(64)
	for range 2 * skewBlocks {
		w.sprayed(fabric(nil, next, 32, 0), time.Microsecond)
		next = next.Add(32)
	}
	if w.f.skew.now() != 0 {
		t.Errorf("skew %d after %d blocks in order", w.f.skew.now(), 2*skewBlocks)
	}

	w = protected(t, fixed(1), 1)
	for _, psn := range []roce.PSN{2, 3, 5, 6, 7, 4, 5, 6, 7} {
		w.write(psn)
	}
	if w.f.skew.now() != 0 {
		t.Errorf("skew %d of RoCEv2", w.f.skew.now())
	}
}

// What is overtaken by more than maxSkew packets, or says so, is a retransmission of a packet that was lost before the CSF: nobody waits for such.
func TestSection4_4_RetransmissionsAreNotOvertaken(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindMRC)
	w.sprayed(slices.Delete(fabric(nil, 1, 40, 0), 10, 11), time.Microsecond)
	w.give(w.multipath(11, 50000, true, 1024))
	if w.f.skew.now() != 0 {
		t.Fatalf("skew %d after a retransmission", w.f.skew.now())
	}
	w.sprayed(slices.Delete(fabric(nil, 41, 1+maxSkew+1, 0), 0, 1), time.Microsecond)
	w.give(w.multipath(41, 50000, false, 1024))
	if w.f.skew.now() != 0 {
		t.Fatalf("skew %d after a packet %d behind", w.f.skew.now(), maxSkew+1)
	}
	w.sprayed(slices.Delete(fabric(nil, 299, 1+maxSkew, 0), 0, 1), time.Microsecond)
	w.give(w.multipath(299, 50000, false, 1024))
	if w.f.skew.now() != maxSkew {
		t.Fatalf("skew %d after a packet %d behind", w.f.skew.now(), maxSkew)
	}
}

// Section 6, rule CSF 4: a block waits for burstGap at most, and never past SRTTmin/2 after its first packet.
func TestSection6_CSF4_GatheringEnds(t *testing.T) {
	for _, gap := range []time.Duration{time.Microsecond, 250 * time.Microsecond, 310 * time.Microsecond} {
		w := newWorld(t, fixed(1))
		w.protectMultipath(wire.KindMRC)
		w.f.skew.add(maxSkew)
		w.log = nil
		begin := w.now
		w.sprayed(slices.Delete(fabric(nil, 1, 31, 0), 5, 6), gap)
		closed := w.now
		w.give(w.multipath(32, 50000, false, 1024))
		w.wait(testRTT)
		want := min(closed+w.f.burstGap(), begin+testRTT/2)
		if r := w.all(wire.TypeRepair); len(r) != 1 || r[0].at != want || r[0].K != 32 {
			t.Errorf("gap %v: %v, want one at %v", gap, r, want)
		}
	}
}

// Blocks beyond those that may wait are coded as they are, oldest first; a pause of the flow ends all waiting.
func TestSection4_4_GatheringIsBounded(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.p.K = 4
	w.protectMultipath(wire.KindMRC)
	w.f.skew.add(maxSkew)
	w.log = nil
	for i := range roce.PSN(maxGathering + 2) {
		w.sprayed([]roce.PSN{1 + 4*i, 2 + 4*i, 4 + 4*i}, 0)
		if got, want := len(w.blocks()), max(int(i)+1-maxGathering, 0); got != want || len(w.f.gathering) > maxGathering {
			t.Fatalf("after %d blocks %d wait and %d are coded", i+1, len(w.f.gathering), got)
		}
	}
	last := 1 + roce.PSN(4*(maxGathering+2))
	w.sprayed([]roce.PSN{last, last + 2}, 0)
	w.wait(w.f.burstGap())
	if len(w.f.gathering) > 0 {
		t.Errorf("after a pause %d wait", len(w.f.gathering))
	}
	w.wait(testRTT)
	if got := len(w.coded()); got != 3*(maxGathering+2)+2 {
		t.Errorf("%d packets are coded; %v", got, w.f.Stats().Drops)
	}
}

// A block waits no longer than until it is whole, or as many packets have come after it as overtook others lately; both without any time.
func TestSection4_4_GatheringEndsAtOnce(t *testing.T) {
	for late := range 2 {
		w := newWorld(t, fixed(1))
		w.protectMultipath(wire.KindMRC)
		w.f.skew.add(20)
		w.log = nil
		w.sprayed(slices.Delete(fabric(nil, 1, 52, 0), 5, 6), 0)
		if n := len(w.blocks()); n > 0 {
			t.Fatalf("%d blocks did not wait", n)
		}
		w.sprayed([]roce.PSN{[]roce.PSN{53, 6}[late]}, 0)
		if b := w.blocks(); len(b) != 1 || b[0].Start != 1 || b[0].Present.Count() != 31+late {
			t.Errorf("after 21 more packets, or the one that was missing (%d): %v", late, b)
		}
	}
}

// A block begins where the one before ended, as long as packets between the two can have been overtaken.
func TestSection4_4_BlocksJoin(t *testing.T) {
	for skew, want := range map[int]roce.PSN{3: 33, 2: 36} {
		w := newWorld(t, fixed(1))
		w.protectMultipath(wire.KindMRC)
		w.f.skew.add(skew)
		w.sprayed(fabric(nil, 1, 32, 0), 0)
		w.sprayed([]roce.PSN{36}, 0)
		if w.f.open.start != want {
			t.Errorf("skew %d: the block of PSN 36 begins with %v", skew, w.f.open.start)
		}
	}
}

// Section 6.4: symbols and digest of a block do not depend on the order in which its packets came.
func TestSection6_4_DigestOfAGatheredBlock(t *testing.T) {
	var first message
	for i, order := range [][]roce.PSN{{5, 6, 7, 8}, {5, 6, 8, 7}, {6, 8, 5, 7}, {8, 7, 6, 5}} {
		w := newWorld(t, fixed(1))
		w.p.K = 4
		w.protectMultipath(wire.KindMRC)
		w.f.skew.add(8)
		w.sprayed([]roce.PSN{1, 2, 3, 4}, 0)
		w.wait(testRTT)
		w.log = nil
		for _, psn := range order {
			w.give(w.multipath(psn, 50000, false, 1024))
		}
		b := w.blocks()
		if len(b) != 1 || b[0].Start != 5 || !b[0].HasDigest {
			t.Fatalf("order %v: %v", order, b)
		}
		if i == 0 {
			first = b[0]
		}
		if b[0].Digest != first.Digest || !slices.Equal(b[0].Symbol, first.Symbol) {
			t.Errorf("order %v: digest %x, in order it is %x", order, b[0].Digest, first.Digest)
		}
	}
}

// Section 5.3, rule 6: when the message is over nothing is spread, also of a block that waited.
func TestSection5_3_GatheredEndOfAMessage(t *testing.T) {
	p := fixed(3)
	p.Spread, p.K = true, 4
	w := newWorld(t, p)
	w.protectMultipath(wire.KindVeRoCE)
	w.f.skew.add(8)
	w.log = nil
	w.sprayed([]roce.PSN{1, 2}, 0)
	end := w.multipath(4, 50000, false, 1024)
	end.P()[0] = byte(roce.WriteLast)
	w.give(end)
	w.sprayed([]roce.PSN{3}, w.f.burstGap()/2) // pacing
	if n := len(w.all(wire.TypeRepair)); n != 3 {
		t.Errorf("%d symbols at the end of the message, want 3", n)
	}
}

// Section 7: a request or a report that names a packet of a block that waits ends that, for the blocks before it too.
func TestSection7_RequestsHurry(t *testing.T) {
	hole := func() *world {
		w := newWorld(t, fixed(2))
		w.p.K = 4
		w.protectMultipath(wire.KindMRC)
		w.f.skew.add(maxSkew)
		w.sprayed([]roce.PSN{1, 2, 4, 5, 7, 8, 9, 11, 12}, 0)
		if w.log = nil; len(w.f.gathering) != 3 {
			t.Fatalf("%d blocks wait", len(w.f.gathering))
		}
		return w
	}
	w := hole()
	w.requestRanges(1, wire.Range{Start: 7, Count: 1})
	if b := w.blocks(); len(w.f.gathering) != 1 || len(b) != 2 || !slices.ContainsFunc(w.log, func(m message) bool { return m.Start == 5 && m.Retx }) {
		t.Errorf("after a request %d wait: %v", len(w.f.gathering), w.log)
	}
	w.sprayed([]roce.PSN{6}, 0)
	if b := w.f.find(6); b.occupied(1) {
		t.Error("a block changes after its first REPAIR")
	}
	w = hole()
	w.f.handleDrop(w.now, 7)
	if len(w.f.gathering) != 1 {
		t.Errorf("after a report %d wait", len(w.f.gathering))
	}
	w.f.discardAll()
	if w.env.Pool.Reclaim(); w.env.Pool.InUse() != 0 {
		t.Errorf("%d octets in use", w.env.Pool.InUse())
	}
}

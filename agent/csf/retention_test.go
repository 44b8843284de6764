// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection7_2_RetentionByAcknowledgement(t *testing.T) {
	w := protected(t, fixed(0), 1)
	w.burst(2, 96, 10*time.Microsecond)
	if w.f.Stats().Retained != 3 {
		t.Fatal(w.f.Stats().Retained)
	}
	w.f.HandleAck(w.now, 64) // covers the first block and all of the second but its last packet
	if s := w.f.Stats(); s.Retained != 2 || s.BlocksAcked != 1 {
		t.Fatalf("%d retained", s.Retained)
	}
	w.f.HandleAck(w.now, 65)
	w.f.HandleAck(w.now, 97)
	if s := w.f.Stats(); s.Retained != 0 || s.BlocksAcked != 3 {
		t.Fatalf("%d retained", s.Retained)
	}
	w.env.Pool.Reclaim()
	if w.env.Pool.InUse() != 0 {
		t.Errorf("%d octets", w.env.Pool.InUse())
	}
	if w.requestRanges(1, wire.Range{Start: 5, Count: 1}); len(w.all(wire.TypeRepair)) != 0 {
		t.Error("a freed block is answered for")
	}
}

func TestSection7_2_RetentionByTime(t *testing.T) {
	for _, c := range []struct {
		rtt   time.Duration
		acked bool
		keep  time.Duration
	}{
		{20 * time.Millisecond, false, 100 * time.Millisecond}, {50 * time.Millisecond, false, 200 * time.Millisecond},
		{20 * time.Millisecond, true, 160 * time.Millisecond},
	} {
		w := protected(t, fixed(0), 1)
		w.f.rtt.srtt = c.rtt
		if c.acked {
			w.f.HandleAck(w.now, 1)
		}
		w.burst(2, 32, 0)
		closed := w.now
		w.until(closed + c.keep - 1)
		if w.f.Stats().Retained != 1 {
			t.Errorf("SRTT %v: freed before %v", c.rtt, c.keep)
		}
		w.until(closed + c.keep)
		if s := w.f.Stats(); s.Retained != 0 || s.BlocksExpired != 1 || w.env.Pool.InUse() != 0 {
			t.Errorf("SRTT %v: kept after %v", c.rtt, c.keep)
		}
	}
}

func TestSection7_2_MemoryPressureFreesTheOldest(t *testing.T) {
	w := newWorld(t, fixed(0))
	cell := int64(fec.Stride(1064)) + 64 + 128
	w.env.Pool = fec.NewPool(10 * 32 * cell)
	w.protect(1)
	other := w.newFlow(wire.KindRoCEv2, gateway)
	other.descriptor.Label = testQPN
	mine := w.f
	w.f = other
	w.protect(1)
	w.burst(2, 32*4, 10*time.Microsecond) // the older blocks belong to the other flow
	w.f = mine
	before := w.f.Stats().Drops[DropNoMemory]
	w.burst(2, 32*20, 10*time.Microsecond)
	s, o := w.f.Stats(), other.Stats()
	if o.BlocksEvicted != 4 || o.Retained != 0 || s.BlocksEvicted == 0 {
		t.Errorf("evicted: %d of the other's, %d of ours", o.BlocksEvicted, s.BlocksEvicted)
	}
	if s.Drops[DropNoMemory] != before {
		t.Errorf("%d packets found no memory although old blocks could give way", s.Drops[DropNoMemory]-before)
	}
	if got := w.f.retained.at(0).start; got <= 2 {
		t.Errorf("the oldest block, %v, was kept", got)
	}
	if w.env.Pool.InUse() > w.env.Pool.Limit() {
		t.Error("over the limit")
	}
}

func TestNoMemoryMakesPositionsAbsent(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.env.Pool = fec.NewPool(12 * (int64(fec.Stride(1064)) + 64 + 128))
	w.protect(1)
	w.burst(2, 31, 0)
	w.wait(5 * time.Millisecond)
	s := w.f.Stats()
	if s.Drops[DropNoMemory] == 0 {
		t.Fatal("the pool was not used up")
	}
	for _, m := range w.all(wire.TypeRepair) {
		w.checkSymbol(m, nil)
	}
	w.wait(time.Second)
	w.report(30, 30, nil)
	w.log = nil
	w.burst(100, 4, 0) // and the flow recovers
	w.wait(5 * time.Millisecond)
	w.expectBlocks("after", wantBlock{100, 4, full(4)})
}

func TestRetainedSpanIsBounded(t *testing.T) {
	w := protected(t, fixed(0), 1)
	psn := roce.PSN(2)
	for range 12 {
		w.write(psn)
		w.wait(1100 * time.Microsecond)
		psn = psn.Add(1 << 20)
	}
	first := w.f.retained.at(0)
	if span := psn.Sub(first.start); span > maxSpan+1<<20 {
		t.Errorf("blocks reach back %d PSNs", span)
	}
}

func TestBlockQueue(t *testing.T) {
	var q blockQueue
	next, first := 0, 0
	for step := range 10000 {
		if step%7 < 4 || q.len() == 0 {
			q.push(&block{start: roce.PSN(next * 40).Add(0), k: 32})
			next++
		} else {
			if b := q.pop(); b.start != roce.PSN(first*40).Add(0) {
				t.Fatal("order")
			}
			first++
		}
		if q.len() != next-first {
			t.Fatal("length")
		}
		for _, probe := range []int{first, (first + next) / 2, next - 1} {
			if probe < first || probe >= next {
				continue
			}
			for _, off := range []int{0, 31} {
				if i := q.search(roce.PSN(probe * 40).Add(off)); i != probe-first {
					t.Fatalf("search gives %d, want %d", i, probe-first)
				}
			}
			if i := q.search(roce.PSN(probe * 40).Add(35)); i != probe-first+1 {
				t.Fatalf("between blocks: %d", i)
			}
		}
	}
}

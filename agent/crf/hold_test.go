// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

func (w *world) wantPSNs(want ...int) {
	w.t.Helper()
	got := w.psns()
	if len(got) != len(want) {
		w.t.Fatalf("delivered %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			w.t.Fatalf("delivered %v, want %v", got, want)
		}
	}
}

// Section 6.1, rule 7: held for at most maxHold, then all is released in order and the flow passes through.
func TestSection6_1_MaxHold(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.MaxHold = 30 * time.Millisecond }))
	w.packets(100, 8, 102)
	from := w.now
	w.wait(30*time.Millisecond - 1)
	w.wantPSNs(100, 101)
	w.wait(2)
	w.wantPSNs(100, 101, 103, 104, 105, 106, 107)
	for _, d := range w.out[2:] {
		if d.at > from+30*time.Millisecond {
			t.Errorf("%v held until %v", d.psn, d.at-from)
		}
	}
	if w.f.stats.Released[TimedOut] != 5 {
		t.Errorf("%+v", w.f.stats)
	}
	w.packets(108, 2) // the gap is behind: in order again, by the kernel itself
	w.wantPSNs(100, 101, 103, 104, 105, 106, 107, 108, 109)
	if !w.out[8].kernel {
		t.Error("the flow was not handed back to the kernel")
	}
	w.repair(w.src.repair(100, 8, 0)) // restored after all: it goes at once
	if got := w.psns(); got[len(got)-1] != 102 {
		t.Errorf("delivered %v", got)
	}
}

// maxHold counts for each gap from when it was seen.
func TestSection6_1_MaxHoldOfTheSecondGap(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.MaxHold = 15 * time.Millisecond }))
	w.packets(100, 4, 102)
	w.wait(10 * time.Millisecond)
	w.packets(104, 4, 105)
	w.packets(102, 1) // fills the first
	w.wantPSNs(100, 101, 102, 103, 104)
	w.wait(15*time.Millisecond - 1)
	w.wantPSNs(100, 101, 102, 103, 104)
	w.wait(2)
	w.wantPSNs(100, 101, 102, 103, 104, 106, 107)
}

func TestSection6_1_HoldMemory(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.HoldBytes, p.MaxHold = 100*cellOctets(testT), time.Second }))
	w.packets(100, 8, 102)
	most := int64(0)
	for i := 108; i < 400; i++ {
		w.packets(i, 1)
		most = max(most, w.f.memory())
	}
	if most > w.p.HoldBytes || w.f.stats.Drops[NoMemory] != 0 {
		t.Errorf("%d octets in use, the bound is %d", most, w.p.HoldBytes)
	}
	want := []int{100, 101}
	for i := 103; i < 400; i++ {
		want = append(want, i)
	}
	w.wantPSNs(want...)
	if w.f.stats.GaveWay == 0 {
		t.Error("nothing gave way")
	}
}

// No memory at all: every packet still gets through, in order.
func TestSection6_1_PoolEmpty(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 4, 102)
	w.env.Pool.SetLimit(0)
	w.packets(104, 20, 107)
	want := []int{100, 101, 103, 104, 105, 106}
	for i := 108; i < 124; i++ {
		want = append(want, i)
	}
	w.wantPSNs(want...)
	w.wantTrue()
	w.env.Pool.SetLimit(1 << 20)
	w.packets(124, 8, 126)
	w.repair(w.src.repair(124, 8, 0))
	if got := w.psns(); len(got) != len(want)+8 {
		t.Errorf("delivered %v", got)
	}
}

// The kernel passes packets while we hold: it has failed open, and what waits must go at once, in order.
func TestSection6_1_FailOpen(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 102)
	w.k.failOpen = true
	w.packets(108, 2) // passed without a copy
	w.k.failOpen = false
	w.wantPSNs(100, 101, 108, 109)
	w.packets(110, 1)
	w.wantPSNs(100, 101, 108, 109, 110, 103, 104, 105, 106, 107)
	if w.f.stats.Released[FailedOpen] != 5 {
		t.Errorf("%+v", w.f.stats)
	}
	w.packets(111, 2)
	if got := w.psns(); len(got) != 12 || !w.out[11].kernel {
		t.Errorf("delivered %v", got)
	}
}

// A retransmission that the kernel passes while we hold is no sign of failing open: it lies behind.
func TestSection6_1_RetransmissionPassesWhileHolding(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 104)
	w.packets(101, 2)
	w.wantPSNs(100, 101, 102, 103, 101, 102)
	if w.f.stats.Released[FailedOpen] != 0 || w.f.hold.waiting != 3 {
		t.Errorf("%+v", w.f.stats)
	}
}

// Retransmissions that arrive held, but lie behind what has been delivered, go at once.
func TestSection6_1_HeldButBehind(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.noHand = true // the kernel stays in HOLD and expects 102
	w.packets(100, 8, 102)
	w.packets(102, 1)
	w.wantPSNs(100, 101, 102, 103, 104, 105, 106, 107)
	w.packets(103, 2)
	w.packets(108, 2)
	w.wantPSNs(100, 101, 102, 103, 104, 105, 106, 107, 103, 104, 108, 109)
	if s := w.f.stats.Released; s[Behind] != 2 || s[InOrderAlready] != 3 || s[Filled] != 5 {
		t.Errorf("released %v", s)
	}
	if w.f.HeldCount() != w.k.held {
		t.Errorf("counted %d held packets, the kernel %d", w.f.HeldCount(), w.k.held)
	}
}

// Further copies of packets that wait leave right behind the first copy: none is swallowed, none overtakes the gap.
func TestSection6_1_DuplicatesOfHeldPackets(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 102)
	w.packets(105, 2)
	w.packets(104, 2)
	w.wantPSNs(100, 101)
	w.packets(102, 1)
	w.wantPSNs(100, 101, 102, 103, 104, 104, 105, 105, 105, 106, 106, 107)
}

func TestSection6_1_GivenUpReleases(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(func(p *Params) { p.MaxHold = time.Second }))
	w.packets(100, 8, 102, 105)
	w.wait(500 * time.Millisecond)
	w.wantPSNs(100, 101, 103, 104, 106, 107)
	if w.f.stats.Released[GaveUp] != 4 || w.f.stats.GivenUp != 2 {
		t.Errorf("%+v", w.f.stats)
	}
}

// A change to Immediate releases what is held; packets that the kernel still holds pass on at once.
func TestSetParamsToImmediate(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 102)
	w.noHand = true
	p := w.p
	p.Delivery = Immediate
	w.f.SetParams(w.now, &p, &w.acts)
	w.take()
	w.packets(108, 2, 108)
	w.wantPSNs(100, 101, 103, 104, 105, 106, 107, 109)
	w.repair(w.src.repair(100, 8, 0))
	if got := w.psns(); got[len(got)-1] != 102 {
		t.Errorf("delivered %v", got)
	}
}

// The flow goes back to the kernel as soon as nothing waits, with the next PSN, also when the end of a block was restored.
func TestIdleHandsBack(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	if _, ok := w.f.Idle(); ok {
		t.Error("idle before the first packet: the kernel's LEARN must stand")
	}
	w.packets(100, 8, 107)
	w.repair(w.src.repair(100, 8, 0))
	w.wait(time.Millisecond)
	w.wantOrder(100, 8)
	w.packets(108, 1) // a gap for the kernel, which has not seen 107
	if w.k.hold || w.k.expected != 109 {
		t.Errorf("kernel %+v", w.k)
	}
	w.packets(109, 3)
	w.wantOrder(100, 12)
	if !w.out[9].kernel {
		t.Error("not handed back")
	}
}

// Section 6.1, rule 8: when too many blocks are open the oldest gives way.
func TestSection6_1_OldestBlockGivesWay(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.MaxOpenBlocks, p.MaxHold = 2, time.Second }))
	w.packets(100, 24, 101, 102, 109, 110, 117, 118)
	for first := 100; first < 124; first += 8 {
		w.repair(w.src.repair(first, 8, 0))
	}
	if s := w.f.Stats(); s.OpenBlocks != 2 || s.GaveWay != 1 || s.GivenUp != 2 {
		t.Fatalf("%+v", *s)
	}
	w.wantPSNs(100, 103, 104, 105, 106, 107, 108)
	w.repair(w.src.repair(108, 8, 1))
	w.repair(w.src.repair(116, 8, 1))
	if got := w.psns(); len(got) != 22 {
		t.Errorf("delivered %v", got)
	}
}

// Section 4.2, rule 14: the newest PSN jumps ahead, or a run of packets far behind: everything is released, and the flow goes on.
func TestSection4_2_PSNRestart(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 102)
	ahead := 100 + 1<<20 + 100
	w.packets(ahead, 2)
	w.wantPSNs(100, 101, 103, 104, 105, 106, 107, ahead, ahead+1)
	w.reset()
	w.packets(ahead+2, 8, ahead+3)
	w.repair(w.src.repair(ahead, 8, 0))
	w.wantOrder(ahead+2, 8)
	w.reset()
	back := ahead + 1<<24 - 1<<22
	w.packets(back, restartRun+16, back+restartRun+3)
	w.repair(w.src.repair(back+restartRun, 8, 0))
	if w.f.stats.Restarts != 2 || w.f.stats.Restored != 2 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.wantTrue()
}

// A gap too large for the open blocks is not waited for.
func TestSection6_1_HugeGap(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 2)
	w.packets(100+64*8+100, 4)
	if got := w.psns(); len(got) != 6 || w.f.stats.Drops[GapTooLarge] != 1 || w.f.stats.Missing != 0 {
		t.Errorf("delivered %v, %+v", got, w.f.stats)
	}
}

func TestSection4_2_ReadRequest(t *testing.T) {
	read := func(w *world, at roce.PSN, n int) {
		op, data := w.src.opcode, w.src.data
		w.src.opcode = func(p roce.PSN) roce.Opcode {
			if p == at {
				return roce.ReadRequest
			}
			return op(p)
		}
		w.src.data = func(p roce.PSN) int {
			if p == at {
				return n*testMTU - 5
			}
			return data(p)
		}
	}
	t.Run("its PSNs are no gap", func(t *testing.T) {
		w := configured(t, fec.Cauchy, 8, 2)
		read(w, 101, 5000)
		w.packets(100, 2)
		w.packets(5101, 3)
		w.wantPSNs(100, 101, 5101, 5102, 5103)
		if w.f.stats.Missing != 0 || w.k.hold {
			t.Errorf("%+v", w.f.stats)
		}
	})
	t.Run("lost and restored", func(t *testing.T) {
		w := configured(t, fec.Cauchy, 8, 2)
		read(w, 101, 6)
		for j := 2; j < 7; j++ {
			w.src.absent[roce.PSN(100+j)] = true
		}
		w.packets(100, 1)
		w.packets(107, 3)
		w.wantPSNs(100)
		w.repair(w.src.repair(100, 8, 0))
		w.wantPSNs(100, 101, 107, 108, 109)
	})
	t.Run("lost, restored from a block that ends with it", func(t *testing.T) {
		w := configured(t, fec.Cauchy, 8, 2)
		read(w, 101, 300)
		w.packets(100, 1)
		w.packets(401, 3)
		w.wantPSNs(100)
		w.repair(w.src.repair(100, 2, 0))
		w.wantPSNs(100, 101, 401, 402, 403)
		if w.f.stats.Missing != 0 {
			t.Errorf("%+v", w.f.stats)
		}
	})
	t.Run("resumed on one of its PSNs", func(t *testing.T) {
		w := configured(t, fec.Cauchy, 8, 2)
		read(w, 101, 50)
		w.packets(100, 2)
		read(w, 120, 31)
		w.packets(120, 1)
		w.packets(151, 2)
		w.wantPSNs(100, 101, 120, 151, 152)
		if w.f.stats.Missing != 0 || w.f.stats.LateTotal() != 0 {
			t.Errorf("%+v", w.f.stats)
		}
	})
	t.Run("MTU guessed too small: the PSNs counted too many", func(t *testing.T) {
		w := configured(t, fec.Cauchy, 8, 2)
		read(w, 101, 40) // 10 PSNs with the true MTU of 4096
		w.packets(100, 2)
		w.packets(111, 8, 113)
		w.repair(w.src.repair(111, 8, 0))
		if got := w.psns(); len(got) != 10 || w.f.stats.Restored != 1 {
			t.Errorf("delivered %v, %+v", got, w.f.stats)
		}
	})
}

// A position that turns out to be missing later, behind packets that wait already, does not move their deadline.
func TestSection6_1_MaxHoldOfALateDiscovery(t *testing.T) {
	const hold = 25 * time.Millisecond
	w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.MaxHold = hold }))
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if p == 103 {
			return roce.ReadRequest // takes 103 to 105
		}
		return roce.SendOnly
	}
	w.src.data = func(p roce.PSN) int {
		if p == 103 {
			return 3 * testMTU
		}
		return 100
	}
	w.src.absent[105] = true
	w.packets(100, 1)
	w.packets(102, 2)
	w.packets(106, 2)
	from := w.now
	w.wait(3 * time.Millisecond)
	w.repair(w.src.info(100, 8)) // 104 carries a packet after all
	w.wait(time.Millisecond)
	w.packets(101, 1)
	w.wantPSNs(100, 101, 102, 103)
	w.wait(time.Second)
	w.wantPSNs(100, 101, 102, 103, 106, 107)
	if got := w.out[4].at - from; got > hold {
		t.Errorf("held for %v", got)
	}
}

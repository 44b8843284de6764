// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// sends gives the packets of one message, gap apart, and lets time pass after it.
func (w *world) sends(first roce.PSN, n int, gap, after time.Duration) {
	w.t.Helper()
	for i := range n {
		op := roce.SendMiddle
		switch {
		case n == 1:
			op = roce.SendOnly
		case i == 0:
			op = roce.SendFirst
		case i == n-1:
			op = roce.SendLast
		}
		w.give(packet(w.t, op, first.Add(i), w.mtu, 0))
		if i < n-1 {
			w.wait(gap)
		}
	}
	w.wait(after)
}

// sizes is the k of the blocks that have repair symbols, in order.
func (w *world) sizes() (k []int) {
	for _, m := range w.all(wire.TypeRepair) {
		if m.Index == 0 {
			k = append(k, int(m.K))
		}
	}
	return k
}

// Section 4.2, rule 8: inside a message silence is longer than the packets of a slow sender are apart, so they share blocks, as far as their age lets
// them; the end of the message closes after burstGap, as any block of a fast sender does.
func TestSection4_2_SlowSendersFillTheirBlocks(t *testing.T) {
	for _, c := range []struct {
		gap  time.Duration
		want int // packets of a block inside a message
	}{{100 * time.Microsecond, 32}, {1500 * time.Microsecond, 7}, {3 * time.Millisecond, 4}} {
		w := protected(t, fixed(1), 1)
		w.sends(2, 64, c.gap, 20*time.Millisecond) // its pace is learned
		w.log = nil
		w.sends(66, 4*c.want+1, c.gap, 0)
		w.wait(time.Millisecond - time.Microsecond)
		if k := w.sizes(); len(k) != 4 {
			t.Errorf("a packet every %v: blocks of %v before the end of the message", c.gap, k)
		}
		w.wait(time.Microsecond)
		k := w.sizes()
		if len(k) != 5 || k[4] != 1 {
			t.Fatalf("a packet every %v: blocks of %v", c.gap, k)
		}
		for _, n := range k[:4] {
			if n != c.want {
				t.Errorf("a packet every %v: blocks of %v, want %d packets", c.gap, k, c.want)
			}
		}
	}
}

// Pauses of a sender that waits for acknowledgements inside a message, and those between messages, are no pace: its blocks close after burstGap.
func TestSection4_2_PausesAreNoPace(t *testing.T) {
	for _, burst := range []int{3, 8, 20} {
		w := protected(t, fixed(1), 1)
		for i := range 40 {
			w.burst(roce.PSN(2+i*burst), burst, 10*time.Microsecond)
			w.log = nil
			w.wait(time.Millisecond - 10*time.Microsecond)
			if k := w.sizes(); i > 20 && (len(k) != 1 || k[0] != burst) {
				t.Fatalf("burst %d of %d packets: blocks of %v a burstGap after it", i, burst, k)
			}
			w.wait(testRTT)
		}
	}
}

// Section 5.3, rule 8: inside a message of a slow sender no block has more symbols than maxRepairRatio of its packets pays for, if the CRF holds
// packets for as long as a request takes; at the end of one it has what the target asks for.
func TestSection5_3_SlowSendersAreRepairedOnRequest(t *testing.T) {
	const answered = testRTT*5/4 + 4*time.Millisecond
	for _, c := range []struct {
		name   string
		gap    time.Duration
		ratio  float64
		change func(*wire.LossReport)
		inside int
	}{
		{"not told", 8 * time.Millisecond, 0.25, func(m *wire.LossReport) { m.Detailed = false }, 2},
		{"too short", 8 * time.Millisecond, 0.25, func(m *wire.LossReport) { m.Hold = uint32((answered - 1) / time.Microsecond) }, 2},
		{"long enough", 8 * time.Millisecond, 0.25, func(m *wire.LossReport) { m.Hold = uint32(answered / time.Microsecond) }, 0},
		{"unbounded", 8 * time.Millisecond, 0.25, func(m *wire.LossReport) { m.Hold = wire.HoldUnbounded }, 0},
		{"enough packets for one", 1500 * time.Microsecond, 0.25, func(m *wire.LossReport) { m.Hold = wire.HoldUnbounded }, 1},
		{"as many as are needed", 500 * time.Microsecond, 2, func(m *wire.LossReport) { m.Hold = wire.HoldUnbounded }, 3},
	} {
		p := defaults()
		p.MaxRepairRatio = c.ratio
		w := protected(t, p, 1)
		w.sends(2, 64, c.gap, testRTT)
		w.report(0, 0, func(m *wire.LossReport) { m.Detailed = true; c.change(m) })
		w.f.repairPath = newRepairPath() // the report told of no symbol
		w.setLoss(9e-3)
		w.log = nil
		w.sends(66, 64, c.gap, testRTT/2)
		count := map[roce.PSN]int{}
		for _, m := range w.all(wire.TypeRepair) {
			count[m.Start]++
		}
		last := w.lastOf(wire.TypeRepair)
		if last.Start.Add(int(last.K)) != 130 {
			t.Errorf("%s: the end of the message is not protected", c.name)
		}
		most := 0
		for start, n := range count {
			if start != last.Start {
				most = max(most, n)
			}
		}
		if most != c.inside {
			t.Errorf("%s: %d symbols a block inside the message, want %d", c.name, most, c.inside)
		}
		if sparse := w.f.redundancy.limit == WhySparse; sparse {
			t.Errorf("%s: the end of a message: %v", c.name, w.f.Explain())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// pathReport shows the flow a report of one measurement point.
func (w *world) pathReport(h wire.Hop) []message {
	w.t.Helper()
	m := wire.PathReport{Method: wire.MethodNodeDrops, Src: srcAddr, Dst: dstAddr, Label: testQPN, HopCount: 1}
	m.Hops[0] = h
	w.f.HandlePathReport(w.now, gateway2, &m, &w.acts)
	return w.take()
}

// lossAfter is p after a report of one measurement point and a LOSS_REPORT of five percent, in parts of what it was.
func lossAfter(t *testing.T, h wire.Hop, wait time.Duration) float64 {
	t.Helper()
	w := protected(t, defaults(), 1)
	w.setLoss(1e-3)
	w.pathReport(h)
	w.wait(wait)
	w.report(1000, 950, nil)
	return w.f.Stats().Loss / 1e-3
}

func TestSection5_3_PathReportsTellCongestion(t *testing.T) {
	const ms = 1000 // microseconds
	congestion, corruption := wire.CauseCongestion, wire.CauseCorruption
	for name, c := range map[string]struct {
		hop    wire.Hop
		wait   time.Duration
		raised bool
	}{
		"no report of congestion":            {wire.Hop{}, 0, true},
		"all lost by congestion":             {wire.Hop{Cause: congestion, Lost: 50}, 0, false},
		"more reported than lost":            {wire.Hop{Cause: congestion, Lost: 1 << 31}, 0, false},
		"dropped PSNs":                       {wire.Hop{Cause: congestion, PSNs: make(wire.PSNList, 4*50)}, 0, false},
		"a part of them":                     {wire.Hop{Cause: congestion, Lost: 10}, 0, true},
		"lost by corruption":                 {wire.Hop{Cause: corruption, Lost: 50}, 0, true},
		"congestion, nothing lost":           {wire.Hop{Cause: congestion}, 0, true},
		"queueing delay rose by over 10 %":   {wire.Hop{DelayChange: 2*ms + 1}, 0, false},
		"by 10 %":                            {wire.Hop{DelayChange: 2 * ms}, 0, true},
		"it fell":                            {wire.Hop{DelayChange: -2*ms - 1}, 0, true},
		"congestion, more than one SRTT ago": {wire.Hop{Cause: congestion, Lost: 50}, testRTT, true},
		"a rise, more than one SRTT ago":     {wire.Hop{DelayChange: 5 * ms}, testRTT, true},
	} {
		if got := lossAfter(t, c.hop, c.wait); (got > 1.01) != c.raised {
			t.Errorf("%s: p is %.2f times what it was", name, got)
		}
	}
	w := protected(t, defaults(), 1)
	w.pathReport(wire.Hop{Cause: congestion, Lost: 25})
	w.report(1000, 950, nil) // of an unknown path: p is about what was lost otherwise
	if p := w.f.Stats().Loss; p < 0.02 || p > 0.03 {
		t.Errorf("with half of 5 %% lost by congestion p = %g", p)
	}
}

// A node that counts its own drops and measures too has numbers of its own for each.
func TestSection8_2_NumbersAreOfANodeAndMethod(t *testing.T) {
	w := protected(t, defaults(), 1)
	m := wire.PathReport{Src: srcAddr, Dst: dstAddr, Label: testQPN, HopCount: 1}
	for _, r := range []struct {
		method wire.Method
		number uint32
	}{{wire.MethodNodeDrops, 1000}, {wire.MethodAlternateMarking, 5}, {wire.MethodNodeDrops, 1001}, {wire.MethodAlternateMarking, 6}} {
		m.Method, m.Hops[0] = r.method, wire.Hop{NodeID: 7, Period: r.number, Cause: wire.CauseCongestion, Lost: 10}
		w.f.HandlePathReport(w.now, gateway2, &m, &w.acts)
	}
	if s := w.f.Stats(); s.PathOutdated != 0 || w.f.path.counted != 40 {
		t.Errorf("%d outdated, %g counted", s.PathOutdated, w.f.path.counted)
	}
	m.Hops[0].Period = 5
	if w.f.HandlePathReport(w.now, gateway2, &m, &w.acts); w.f.Stats().PathOutdated != 1 {
		t.Error("an earlier number is not outdated")
	}
}

// The same report again, or an older one, changes nothing but a counter; a node that counts anew is believed after a while.
func TestSection8_2_OutdatedReportsChangeNothing(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.setLoss(1e-3)
	h := wire.Hop{NodeID: 7, Period: 100, Cause: wire.CauseCongestion, Lost: 20}
	w.pathReport(h)
	h.Lost = 50 // of the same period: 30 more
	w.pathReport(h)
	if n := w.f.path.counted; n != 50 {
		t.Errorf("%g packets counted as lost by congestion", n)
	}
	w.report(1000, 950, nil) // accounts for all of them
	for _, number := range []uint32{100, 99, (100 + 1<<31 + 1) & (1<<32 - 1)} {
		h.Period = number
		w.pathReport(h)
	}
	if s := w.f.Stats(); s.PathReports != 5 || s.PathOutdated != 3 || s.Loss > 1.01e-3 {
		t.Errorf("%d reports, %d outdated, p = %g", s.PathReports, s.PathOutdated, s.Loss)
	}
	w.report(1000, 950, nil)
	if p := w.f.Stats().Loss; p < 2e-3 {
		t.Errorf("an outdated report hides loss: p = %g", p)
	}
	w.wait(periodLives)
	h.Period = 1
	w.pathReport(h)
	if n := w.f.Stats().PathOutdated; n != 3 {
		t.Errorf("%d outdated", n)
	}
}

// A reporter that lies can do no more than keep m from rising and let ordinary symbols out within the limits of Section 10: whatever it says, at
// most one symbol leaves for each packet of a block, none twice, and nothing counts as delivered.
func TestSection8_2_LiesAreBounded(t *testing.T) {
	p := fixed(0)
	p.MaxRepairRatio = 0.1
	w := protected(t, p, 1)
	var events []event
	w.record(&events)
	for i := range 1000 {
		events = append(events, event{w.now, 1024 + 16, true})
		w.write(roce.PSN(2 + i))
		h := wire.Hop{NodeID: uint32(i), Period: uint32(i), Lost: 1 << 31, DelayChange: 1 << 30, Cause: wire.Cause(i % 4)}
		for psn := range wire.MaxPSNs {
			h.PSNs = h.PSNs.Append(w.f.newest.Add(-psn))
		}
		retained := w.f.Stats().Retained
		w.pathReport(h)
		if w.f.Stats().Retained < retained || w.f.State() != Protecting {
			t.Fatalf("%d blocks retained of %d, %v", w.f.Stats().Retained, retained, w.f.State())
		}
		w.wait(20 * time.Microsecond)
	}
	checkBudget(t, events, testRTT, p.MaxRepairRatio, w.f.symbolSize())
	used := map[roce.PSN]map[uint8]bool{}
	for _, m := range w.all(wire.TypeRepair) {
		if used[m.Start] == nil {
			used[m.Start] = map[uint8]bool{}
		}
		if used[m.Start][m.Index] = true; len(used[m.Start]) > m.Present.Count() {
			t.Fatalf("%d symbols for %d packets", len(used[m.Start]), m.Present.Count())
		}
	}
	if s := w.f.Stats(); s.Early < 10 || s.Drops[DropBudget] == 0 || s.Early != uint64(len(w.all(wire.TypeRepair))) {
		t.Errorf("%d early symbols, %d withheld: the test shows nothing", s.Early, s.Withheld)
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// trip lets a report come, which causes a probe, and the probe's answer after a while. It returns the probe.
func (w *world) trip(d time.Duration, expected, received uint32) message {
	w.t.Helper()
	w.write(w.f.newest.Add(1))
	var probe message
	for _, m := range w.report(expected, received, nil) {
		if m.typ == wire.TypeParamUpdate {
			probe = m
		}
	}
	if probe.typ != wire.TypeParamUpdate {
		w.t.Fatalf("no probe at %v", w.now)
	}
	w.wait(d)
	w.paramAck(probe.param.ConfigID, wire.StatusAccepted)
	w.wait(2*testRTT - d)
	return probe
}

// settled makes a protected flow that knows its usual round trip: 20 ms, more or less.
func settled(t *testing.T, jitter time.Duration) *world {
	w := protected(t, defaults(), 1)
	w.wait(probeLostRTTs * testRTT)
	for i := range 60 {
		w.trip(testRTT-jitter+2*jitter*time.Duration(i%2), 1000, 1000)
	}
	return w
}

func TestSection5_3_LossWithARiseOfQueueingDelayIsCongestion(t *testing.T) {
	for _, c := range []struct {
		name   string
		jitter time.Duration
		trip   time.Duration
		raised bool
	}{
		{"as usual", 0, testRTT, true},
		{"10 % longer", 0, testRTT * 11 / 10, true},
		{"more than that", 0, testRTT*11/10 + time.Microsecond, false},
		{"shorter", 0, testRTT / 2, true},
		{"a path that varies", time.Millisecond, testRTT + 4*time.Millisecond - 300*time.Microsecond, true},
		{"more than it varies", time.Millisecond, testRTT + 4*time.Millisecond + 300*time.Microsecond, false},
	} {
		w := settled(t, c.jitter)
		w.setLoss(1e-3)
		w.trip(c.trip, 1000, 1000)
		before := w.f.Stats().Loss
		w.report(1000, 950, nil)
		if got := w.f.Stats().Loss; (got > 1.01*before) != c.raised {
			t.Errorf("%s: p went from %g to %g", c.name, before, got)
		}
	}
}

// A path that became longer for good is not congested for ever.
func TestSection5_3_ALongerPathBecomesUsual(t *testing.T) {
	w := settled(t, 0)
	began := w.now
	for w.trip(2*testRTT, 1000, 1000); w.f.delay.risen && w.now < began+5*time.Minute; {
		w.trip(2*testRTT, 1000, 1000)
	}
	if took := w.now - began; took < risenFor || took > risenFor+10*testRTT {
		t.Errorf("it took %v", took)
	}
	w.trip(2*testRTT+2*time.Millisecond, 1000, 1000)
	if w.f.delay.risen {
		t.Error("5 % more than that is a rise")
	}
}

// A probe is the PARAM_UPDATE in force, unchanged; there is at most one under way and one a round trip, and none of an idle flow.
func TestSection5_2_Probes(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.write(2)
	if n := len(w.report(1000, 1000, nil)); n != 0 {
		t.Fatal("the acknowledgement of the PARAM_UPDATE that put the configuration in force may still come, and be taken for a probe's")
	}
	w.wait(probeLostRTTs * testRTT)
	in := *w.f.current
	p := w.trip(testRTT, 1000, 1000)
	if p.param.ConfigID != in.id || p.param.Effective != in.effective || int(p.param.K) != in.k || int(p.param.M) != in.m || int(p.param.T) != in.T {
		t.Errorf("%v, in force is %+v", p, in)
	}
	probes := func() uint64 { return w.f.Stats().Probes }
	before := probes()
	w.report(1000, 1000, nil)
	for range 20 {
		w.wait(testRTT / 4)
		w.report(1000, 1000, nil)
	}
	if probes() != before+1 {
		t.Errorf("%d probes, and none was answered", probes()-before)
	}
	w.wait(probeLostRTTs * testRTT)
	w.report(1000, 1000, nil)
	if probes() != before+2 {
		t.Error("no probe after one that was lost")
	}
	w.paramAck(in.id, wire.StatusAccepted)
	stale := w.f.Stats().Drops[DropStaleAck]
	w.paramAck(in.id, wire.StatusAccepted)
	if w.f.Stats().Drops[DropStaleAck] != stale+1 {
		t.Error("a second answer is not stale")
	}
	w.wait(time.Second)
	if probes() != before+2 || w.f.Stats().ParamUpdates != 1 {
		t.Errorf("%d probes of an idle flow, %d PARAM_UPDATEs", probes()-before-2, w.f.Stats().ParamUpdates)
	}
}

// During congestion the flow's repair traffic is at most what it was before, of its source traffic; with none before there is none.
func TestSection10_RestraintDuringCongestion(t *testing.T) {
	for _, m := range []int{0, 2} {
		p := fixed(m)
		w := protected(t, p, 1)
		psn := roce.PSN(2)
		round := func(marked uint32) {
			for range 320 {
				w.write(psn)
				psn = psn.Add(1)
				w.wait(testRTT / 320)
			}
			w.report(320, 320, func(r *wire.LossReport) { r.CEMarked, r.RepairsReceived = marked, uint32(10*m) })
		}
		for range 20 {
			round(0)
		}
		was := *w.f.Stats()
		round(10) // 3 %
		q := *p
		q.FixedM = 8
		w.setParams(&q)
		from := *w.f.Stats()
		for i := range 10 {
			w.requestRanges(uint16(i+1), wire.Range{Start: psn.Add(-200), Count: 100})
			round(10)
		}
		now := w.f.Stats()
		before := float64(was.RepairOctets) / float64(was.SourceOctets)
		during := float64(now.RepairOctets-from.RepairOctets) / float64(now.SourceOctets-from.SourceOctets)
		if during > before*1.02 || m > 0 && during < before/4 {
			t.Errorf("m %d before: %.4f of the source octets during congestion, %.4f before", m, during, before)
		}
		if w.f.Explain().Why != WhyRestrained {
			t.Error(w.f.Explain())
		}
		for range 4 {
			round(0)
		}
		if s := w.symbols(psn.Add(100), 32); s < 7 {
			t.Errorf("%d symbols after it", s)
		}
	}
}

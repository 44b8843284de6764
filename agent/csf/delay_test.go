// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// trip lets a report come, which causes a probe, and the probe's answer after a while. It returns the probe.
func (w *world) trip(d time.Duration, expected, received uint32) message {
	w.t.Helper()
	return w.tripMarked(d, expected, received, 0)
}

// tripMarked is a trip whose report tells of marks.
func (w *world) tripMarked(d time.Duration, expected, received, marked uint32) message {
	w.t.Helper()
	w.write(w.f.newest.Add(1))
	var probe message
	for _, m := range w.report(expected, received, func(r *wire.LossReport) { r.CEMarked = marked }) {
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

// A path that became longer is not congested for more than some round trips, if neither loss nor marks come with that and it becomes no longer
// still; and for a minute whatever comes.
func TestSection5_3_ALongerPathBecomesUsual(t *testing.T) {
	const longer = 2 * testRTT
	clean := func(w *world, _ int) { w.trip(longer, 1000, 999) }
	for _, c := range []struct {
		name  string
		trip  func(w *world, i int)
		grows int  // for so many round trips
		queue bool // it is none that became longer, as far as one can tell for a minute
	}{
		{"as much loss as before", clean, 0, false},
		{"a little more, always", func(w *world, _ int) { w.trip(longer, 1000, 996) }, 0, true},
		{"a burst now and then", func(w *world, i int) { w.trip(longer, 1000, 1000-uint32(i%settledTrips/(settledTrips-1)*30)) }, 0, true},
		{"marks now and then", func(w *world, i int) {
			w.tripMarked(longer, 1000, 999, uint32(i%settledTrips/(settledTrips-1)*20))
		}, 0, true},
		{"a reporter that names congestion", func(w *world, i int) {
			if i%settledTrips == 0 {
				w.pathReport(wire.Hop{Period: uint32(i + 1), Cause: wire.CauseCongestion, Lost: 1})
			}
			clean(w, i)
		}, 0, true},
		{"a queue that grows", func(w *world, i int) {
			w.trip(min(longer, testRTT+time.Duration(i+8)*testRTT/64), 1000, 999)
		}, 56, false},
	} {
		w := settled(t, 0)
		w.setLoss(1e-3)
		for range 100 {
			w.trip(testRTT, 1000, 999)
		}
		c.trip(w, 0)
		if !w.f.restrained(w.now) {
			t.Errorf("%s: no congestion when round trips rise", c.name)
		}
		began, trips := w.now, 1
		for ; (w.f.restrained(w.now) || trips < 64) && w.now < began+5*time.Minute; trips++ {
			if !w.f.restrained(w.now) && trips < c.grows {
				t.Fatalf("%s: no congestion after %d round trips", c.name, trips)
			}
			c.trip(w, trips)
		}
		took := w.now - began
		switch {
		case c.queue && (took < risenFor || took > risenFor+20*testRTT), !c.queue && took > 2*(64+settledTrips+4)*testRTT:
			t.Errorf("%s: restrained for %v, %d round trips", c.name, took, trips)
		}
		if c.queue {
			continue
		}
		p := w.f.Stats().Loss
		w.trip(longer, 1000, 950)
		if !w.f.restrained(w.now) || w.f.Stats().Loss > 1.01*p {
			t.Errorf("%s: loss within a minute of the rise is no congestion, p went from %g to %g", c.name, p, w.f.Stats().Loss)
		}
		for range 3 * int(time.Minute/testRTT) {
			w.trip(longer, 1000, 999)
		}
		w.trip(longer+2*time.Millisecond, 1000, 999)
		if w.f.delay.risen || w.f.restrained(w.now) {
			t.Errorf("%s: 5 %% more than usual is a rise", c.name)
		}
	}
}

// Restraint after a change of the route ends after settledTrips round trips, exactly.
func TestSection10_RestraintAfterALongerRouteIsShort(t *testing.T) {
	w := settled(t, 0)
	for i := 1; i <= settledTrips+1; i++ {
		w.trip(3*testRTT/2, 1000, 1000)
		if got := w.f.delay.congestion(); got != (i <= settledTrips) {
			t.Fatalf("after %d round trips: congestion %v", i, got)
		}
	}
	if w.until(w.now + 3*testRTT); w.f.restrained(w.now) {
		t.Error("restrained without congestion")
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

// However soon they are answered, probes are a round trip apart.
func TestSection5_2_ProbesAreARoundTripApart(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.wait(probeLostRTTs * testRTT)
	var last time.Duration
	for range 100 {
		w.write(w.f.newest.Add(1))
		for _, m := range w.report(100, 100, nil) {
			if m.typ != wire.TypeParamUpdate {
				continue
			}
			if last > 0 && w.now-last < probeGap {
				t.Fatalf("%v after the last one", w.now-last)
			}
			last = w.now
			w.wait(100 * time.Microsecond)
			w.paramAck(m.param.ConfigID, wire.StatusAccepted)
		}
		w.wait(time.Millisecond)
	}
	if n := w.f.Stats().Probes; n < 3 {
		t.Errorf("%d probes", n)
	}
}

// siblings makes n protected flows that share an Env, each with a configuration in force and nothing to wait for.
func (w *world) siblings(n int) (flows []*Flow) {
	w.t.Helper()
	for range n {
		w.f = w.newFlow(wire.KindRoCEv2, gateway, gateway2)
		w.protect(1)
		flows = append(flows, w.f)
	}
	w.now += probeLostRTTs * testRTT
	return flows
}

// Flows to the same peer with the same DSCP have one probe a round trip among them, and all learn from it; another peer or DSCP is another path.
func TestSection5_3_FlowsOfAPathShareItsProbes(t *testing.T) {
	const n, rounds = 200, 20
	w := newWorld(t, defaults())
	flows := w.siblings(n)
	var longer time.Duration
	round := func() (probes int) {
		var due []*Flow
		for _, w.f = range flows {
			w.write(w.f.newest.Add(1))
			for _, m := range w.report(100, 100, nil) {
				if m.typ == wire.TypeParamUpdate {
					due = append(due, w.f)
				}
			}
		}
		w.now += testRTT + longer
		for _, w.f = range due {
			w.paramAck(w.f.current.id, wire.StatusAccepted)
		}
		return len(due)
	}
	for i := range rounds {
		if got := round(); got != 1 {
			t.Fatalf("round %d: %d probes of %d flows", i, got, n)
		}
	}
	// The RTT that the flows know follows, also of those that never probed.
	longer = testRTT / 2
	for range rounds {
		round()
	}
	for i, f := range flows {
		if s := f.Stats(); s.SRTT < testRTT*5/4 || s.RTTSamples < rounds || !f.delay.rises() {
			t.Fatalf("flow %d: SRTT %v of %d samples, risen %v", i, s.SRTT, s.RTTSamples, f.delay.rises())
		}
	}
	// Those of another DSCP wait in other queues.
	for _, f := range flows[:n/2] {
		f.tos = testTOS &^ 3
	}
	for _, f := range flows[n/2:] {
		f.tos ^= 0x10
	}
	w.acts = nil
	probes := map[*delay]int{}
	for _, f := range flows {
		f.HandleLossReport(w.now, gateway, &wire.LossReport{FlowID: testID, Interval: 20000, Expected: 100, Received: 100}, &w.acts)
		if f.delay.prober == f {
			probes[f.delay]++
		}
	}
	if len(probes) != 2 || len(w.env.delays) != 2 {
		t.Errorf("%d paths are probed, %d known", len(probes), len(w.env.delays))
	}
}

// A flow that ends while its probe is under way leaves the next one to another; an answer that still comes says nothing.
func TestSection5_3_AnEndedFlowsProbe(t *testing.T) {
	w := newWorld(t, defaults())
	flows := w.siblings(2)
	w.f = flows[0]
	w.report(100, 100, nil)
	d := w.f.delay
	if d.prober != flows[0] {
		t.Fatal("no probe")
	}
	w.f.Close(w.now, wire.CloseIdle, &w.acts)
	w.take()
	w.now += testRTT
	w.f = flows[1]
	w.report(100, 100, nil)
	if d.prober != flows[1] || w.f.delay != d {
		t.Fatal("the other flow does not probe")
	}
	// What the paths of many peers leave behind is bounded.
	for i := range 3 * maxDelays {
		w.now += time.Millisecond
		w.env.delay(delayPath{gateway2, uint8(i)}).sentAt = w.now
		w.env.delay(delayPath{netip.AddrPortFrom(gateway2.Addr(), uint16(i)), 1}).sentAt = w.now
	}
	if len(w.env.delays) > maxDelays {
		t.Errorf("%d paths are remembered", len(w.env.delays))
	}
}

// Section 10, rule 3: while a full queue drops packets a flow halves its repair traffic with every SRTT, down to an eighth; what only marks or delay tell of
// leaves it at what it was, since what the path always loses is still lost. Afterwards it has all of it again.
func TestSection10_DropsByCongestionHalveRepairs(t *testing.T) {
	p := defaults()
	w := protected(t, p, 1)
	for range 50 {
		w.report(1000, 990, nil)
	}
	w.f.restraint.repair, w.f.restraint.source = 80, 1000
	limit := func() int64 { return w.f.restraint.limit(100_000, blockOctets{}) }
	marked := func(lost uint32) func(*wire.LossReport) {
		return func(m *wire.LossReport) { m.Received -= lost; m.CEMarked = 20 }
	}
	for i, c := range []struct {
		lost uint32
		want int64
	}{{10, 8000}, {10, 8000}, {100, 4000}, {100, 2000}, {100, 1000}, {100, 1000}, {10, 1000}} {
		w.wait(testRTT)
		w.report(1000, 1000, marked(c.lost))
		if got := limit(); got != c.want {
			t.Errorf("round trip %d, %d of 1000 lost: %d octets for repair, want %d", i, c.lost, got, c.want)
		}
	}
	for range 4 { // reports within one SRTT count once
		w.report(1000, 1000, marked(100))
	}
	w.wait(3 * testRTT)
	w.f.restraint.repairAt, w.f.restraint.sourceAt = w.f.stats.RepairOctets, w.f.stats.SourceOctets
	w.report(1000, 990, nil)
	if got := limit(); got != 8000 {
		t.Errorf("afterwards %d octets, want 8000", got)
	}
	w.report(1000, 1000, marked(100))
	w.report(1000, 1000, marked(100))
	if got := limit(); got != 4000 {
		t.Errorf("after two reports within an SRTT %d octets, want 4000", got)
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

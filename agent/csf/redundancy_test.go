// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// setLoss makes p the flow's estimate.
func (w *world) setLoss(p float64) {
	memory := float64(shortMemory)
	for i := range w.f.loss.by {
		if i == memories-1 {
			memory = 1e12 // so much evidence that the loss is known, until something contradicts it
		}
		w.f.loss.by[i] = seen{sent: memory, lost: p * memory}
		memory *= longerBy
	}
	w.f.redundancy.forget()
	w.f.redundancy.spare = 0
}

// symbols sends a block of n packets and returns how many ordinary symbols it gets.
func (w *world) symbols(first roce.PSN, n int) int {
	w.t.Helper()
	before := w.f.Stats().Ordinary
	for i := range n {
		w.write(first.Add(i))
		w.wait(30 * time.Microsecond)
	}
	w.wait(testRTT)
	return int(w.f.Stats().Ordinary - before)
}

// The table of Section 5.3 for epsilon 1e-4, as far as the bound lets it.
func TestSection5_3_SmallestM(t *testing.T) {
	for _, c := range []struct {
		k    int
		p    float64
		want int
	}{
		{8, 1e-5, 0}, {8, 1e-4, 1}, {8, 1e-3, 1}, {8, 5e-3, 2}, {8, 1e-2, 3}, {8, 2e-2, 3}, {8, 5e-2, 5}, {8, 1e-1, 7},
		{32, 0, 0}, {32, 1e-5, 1}, {32, 1e-4, 1}, {32, 1e-3, 2}, {32, 5e-3, 3}, {32, 1e-2, 4}, {32, 2e-2, 5}, {32, 5e-2, 8}, {32, 1e-1, 8},
		{128, 1e-5, 1}, {128, 1e-4, 1}, {128, 1e-3, 3}, {128, 5e-3, 5}, {128, 1e-2, 7}, {128, 2e-2, 8},
	} {
		p := defaults()
		p.K, p.MaxRepairRatio = c.k, 2 // not what bounds m here
		w := protected(t, p, 1)
		w.setLoss(c.p)
		if got := w.symbols(2, c.k); got != c.want {
			t.Errorf("k = %d, p = %g: m = %d, want %d", c.k, c.p, got, c.want)
		}
	}
}

func TestSection5_3_Explained(t *testing.T) {
	p := defaults()
	p.MaxRepairRatio = 1
	w := protected(t, p, 1)
	if e := w.f.Explain(); e.Why != WhyNoBlock {
		t.Errorf("%v", e)
	}
	w.setLoss(1e-2)
	w.symbols(2, 32)
	if e := w.f.Explain(); e.Why != WhyTarget || e.M != 4 || e.K != 32 || e.Epsilon != 1e-4 {
		t.Errorf("%+v", e)
	}
	w.setLoss(5e-2)
	w.symbols(34, 32)
	if e := w.f.Explain(); e.Why != WhyMaxM || e.M != 8 {
		t.Errorf("%+v", e)
	}
	q := *p
	q.MaxRepairRatio = 0.1
	w.setParams(&q)
	w.symbols(66, 320)
	if e := w.f.Explain(); e.Why != WhyBudget {
		t.Errorf("%+v", e)
	}
	w.setLoss(2e-3)
	w.p.PeerSite = "west"
	w.report(1000, 998, func(m *wire.LossReport) { m.CEMarked = 5 })
	e := w.f.Explain()
	for _, part := range []string{
		"of the flow's; raise maxRepairRatio", "packets of this flow lost, in runs of 1.0", "SRTT 20ms", "CE 0.5 %", "Proactive, Independent", "m up to 8",
		"repairs up to 0.1 of",
	} {
		if s := e.String(); !strings.Contains(s, part) || strings.Contains(s, "\n") {
			t.Errorf("%q is not in %q", part, s)
		}
	}
	for why := WhyNoPacket; why <= WhyRestrained; why++ {
		if s := (Explanation{Why: why}).String(); s == "" || s == "Unknown." {
			t.Errorf("no sentence for %d", why)
		}
	}
}

func TestSection5_3_EpsilonPerMessage(t *testing.T) {
	p := defaults()
	p.MaxRepairRatio, p.MessageSize = 1, 128<<20
	w := protected(t, p, 1)
	blocks := float64(128<<20) / (32 * 1024)
	want := 1 - math.Pow(1-1e-4, 1/blocks)
	if e := w.f.epsilon(); math.Abs(e-want) > 1e-3*want {
		t.Fatalf("%g a block, want %g", e, want)
	}
	w.setLoss(1e-3)
	if m := w.symbols(2, 32); m != naiveMin(32, 1e-3, want) || m <= 2 {
		t.Errorf("m = %d", m)
	}
}

// naiveMin is the smallest m by the plain binomial formula.
func naiveMin(k int, p, epsilon float64) int {
	for m := 0; ; m++ {
		tail := 0.0
		for x := m + 1; x <= k+m; x++ {
			lg := func(v int) float64 { r, _ := math.Lgamma(float64(v + 1)); return r }
			tail += math.Exp(lg(k+m) - lg(x) - lg(k+m-x) + float64(x)*math.Log(p) + float64(k+m-x)*math.Log1p(-p))
		}
		if tail < epsilon {
			return m
		}
	}
}

func TestSection5_3_ShortBlocksAreCountedByTheirSources(t *testing.T) {
	p := defaults()
	p.MaxRepairRatio = 4
	w := protected(t, p, 1)
	for _, n := range []int{1, 2, 5, 16, 31} {
		w.setLoss(9e-3)
		if m := w.symbols(roce.PSN(100*n), n); m != naiveMin(n, 9e-3, 1e-4) {
			t.Errorf("%d sources: m = %d, want %d", n, m, naiveMin(n, 9e-3, 1e-4))
		}
	}
}

func TestSection5_3_OnDemandHysteresis(t *testing.T) {
	p := defaults()
	p.Strategy, p.MaxRepairRatio = OnDemand, 1
	w := protected(t, p, 1)
	clean := math.Sqrt(1 - math.Pow(1-1e-4, 1.0/32)) // 1.77e-3 in fec's table
	if math.Abs(clean-1.77e-3) > 1e-5 {
		t.Fatal(clean)
	}
	psn := roce.PSN(2)
	for i, c := range []struct {
		p    float64
		zero bool
	}{{0.9, true}, {1.1, true}, {1.19, true}, {1.21, false}, {0.9, false}, {0.51, false}, {0.49, true}, {1.19, true}, {1.3, false}} {
		w.setLoss(c.p * clean)
		if m := w.symbols(psn, 32); (m == 0) != c.zero {
			t.Errorf("step %d, p = %g of the limit: m = %d", i, c.p, m)
		}
		psn = psn.Add(32)
	}
	w.setLoss(1e-6)
	w.symbols(psn, 32)
	if w.f.Explain().Why != WhyOnDemand {
		t.Error(w.f.Explain())
	}
}

func TestSection5_3_FixedM(t *testing.T) {
	w := protected(t, fixed(5), 1)
	w.setLoss(0)
	if m := w.symbols(2, 32); m != 5 {
		t.Errorf("m = %d", m)
	}
	if e := w.f.Explain(); e.Why != WhyFixed {
		t.Error(e)
	}
}

func TestSection5_3_Empirical(t *testing.T) {
	independent, bursty := defaults(), defaults()
	bursty.LossModel = Empirical
	for _, p := range []*Params{independent, bursty} {
		p.MaxM, p.MaxRepairRatio = 40, 4
	}
	m := map[*Params]int{}
	for _, p := range []*Params{independent, bursty} {
		w := protected(t, p, 1)
		rng := rand.New(rand.NewPCG(3, 4))
		for range 3000 { // one percent, in runs of five
			lost := 0
			for range 1000 {
				if rng.Float64() < 0.01/5 {
					for lost++; rng.Float64() < 0.8; lost++ {
					}
				}
			}
			w.report(1000, uint32(1000-min(lost, 1000)), func(m *wire.LossReport) { m.Interval = 1 })
		}
		if b := w.f.Stats().Burst; b < 2.5 || b > 10 {
			t.Errorf("mean run estimated at %.1f", b)
		}
		w.setLoss(0.01)
		m[p] = w.symbols(2, 32)
	}
	if m[independent] != 4 || m[bursty] < 10 {
		t.Errorf("independent %d, empirical %d", m[independent], m[bursty])
	}
	// Independent losses look independent.
	e := &lossEstimate{}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		lost := 0
		for range 1000 {
			if rng.Float64() < 0.01 {
				lost++
			}
		}
		e.add(interval{sent: 1000, lost: lost, raise: true})
	}
	if b := e.burst(); b > 1.6 {
		t.Errorf("mean run of independent losses estimated at %.1f", b)
	}
}

// reports feeds an estimate with reports of "each" packets at a loss rate, until it has seen n packets or done says so, and returns how many it has seen.
func reports(e *lossEstimate, rng *rand.Rand, n, each int, p float64, done func() bool) int {
	seen := 0
	for seen < n && !done() {
		lost := 0
		for range each {
			if rng.Float64() < p {
				lost++
			}
		}
		e.add(interval{sent: each, lost: lost, raise: true})
		seen += each
	}
	return seen
}

func never() bool { return false }

// On a steady path p becomes as exact as the losses that were seen allow, whatever it is: m is within one symbol of the best.
func TestSection5_3_SteadyLossIsKnownExactly(t *testing.T) {
	for _, p := range []float64{0, 1e-5, 1e-4, 1e-3, 1e-2, 5e-2} {
		e, rng := &lossEstimate{}, rand.New(rand.NewPCG(7, 8))
		reports(e, rng, 4_000_000, 500, p, never)
		best := fec.MinRepair(32, p, 1e-4, 100)
		off := 0
		for range 1000 {
			reports(e, rng, 500, 500, p, never)
			a, b := e.known().beta()
			if m := fec.MinRepairGiven(32, a, b, 1e-4, 100); m < best-1 || m > best+1 {
				off++
			}
		}
		if off > 20 {
			t.Errorf("p = %g: in %d of 1000 intervals m is more than one off %d; p is estimated at %g", p, off, best, e.p())
		}
	}
}

// A step up is followed within some hundred packets, a step down as fast as packets can tell; whatever evidence there was before.
func TestSection5_3_StepsAreFollowed(t *testing.T) {
	for _, c := range []struct {
		from, to float64
		within   int // packets
	}{{0, 1e-2, 2000}, {1e-4, 1e-3, 20_000}, {1e-3, 1e-2, 1500}, {1e-2, 5e-2, 600}, {5e-2, 1e-3, 1500}, {1e-2, 1e-4, 8000}} {
		var took []int
		const tries = 51
		for i := range tries {
			e, rng := &lossEstimate{}, rand.New(rand.NewPCG(uint64(i), 9))
			reports(e, rng, 1_000_000, 1000, c.from, never)
			want := fec.MinRepair(32, c.to, 1e-4, 100)
			n := reports(e, rng, 20*c.within, 100, c.to, func() bool {
				a, b := e.known().beta()
				m := fec.MinRepairGiven(32, a, b, 1e-4, 100)
				if c.to > c.from {
					return m >= want
				}
				return m <= want+1
			})
			took = append(took, n)
		}
		slices.Sort(took)
		if median := took[tries/2]; median > c.within {
			t.Errorf("%g to %g: m fits after %d packets in the median, want %d; the worst of %d: %d", c.from, c.to, median, c.within, tries, took[tries-1])
		}
	}
}

// Ten packets prove nothing: a single loss among few is no loss rate of ten percent, and none among few no clean path.
func TestSection5_3_LittleEvidenceMovesLittle(t *testing.T) {
	clean := &lossEstimate{}
	clean.add(interval{sent: 10, lost: 0, raise: true})
	a, b := clean.known().beta()
	if m := fec.MinRepairGiven(32, a, b, 1e-4, 100); m < 1 {
		t.Errorf("m = %d after ten packets", m)
	}
	one := &lossEstimate{}
	one.add(interval{sent: 10, lost: 1, raise: true})
	if p := one.p(); p > 0.011 {
		t.Errorf("p = %g after one loss among ten packets", p)
	}
	known := &lossEstimate{}
	known.add(interval{sent: 1_000_000, lost: 1000, raise: true})
	before := known.p()
	known.add(interval{sent: 10, lost: 1, raise: true})
	if p := known.p(); math.Abs(p-before) > 0.01*before {
		t.Errorf("p went from %g to %g for ten packets", before, p)
	}
	known.add(interval{sent: 0, lost: 0, raise: true})
	if p := known.p(); math.Abs(p-before) > 0.01*before {
		t.Errorf("an empty interval changes p to %g", p)
	}
}

// Marks that last for long change nothing of what is known of a path: intervals with less loss than usual are no better one. A path that is better by more than
// chance is.
func TestSection5_3_LastingMarksLeaveTheEstimate(t *testing.T) {
	for _, each := range []int{100, 1000, 10_000} {
		var e lossEstimate
		rng := rand.New(rand.NewPCG(7, uint64(each)))
		add := func(packets int, p float64, raise bool) {
			for range packets / each {
				lost := 0
				for range each {
					if rng.Float64() < p {
						lost++
					}
				}
				e.add(interval{sent: each, lost: lost, raise: raise})
			}
		}
		add(500_000, 1e-2, true)
		before, least, most := e.p(), 1.0, 0.0
		for range 300 {
			add(10_000, 1e-2, false)
			least, most = min(least, e.p()), max(most, e.p())
		}
		if least < 0.4*before || e.p() < 0.9*before || most > before {
			t.Errorf("reports of %d packets: p from %.5f to %.5f and then %.5f during lasting marks, %.5f before", each, least, most, e.p(), before)
		}
		add(100_000, 1e-3, false)
		if p := e.p(); p < 0.7e-3 || p > 1.4e-3 {
			t.Errorf("reports of %d packets: p = %.5f on a better path", each, p)
		}
		add(100_000, 1e-3, true)
		if p := e.p(); p < 0.7e-3 || p > 1.4e-3 {
			t.Errorf("reports of %d packets: p = %.5f on a better path without marks", each, p)
		}
	}
}

func TestSection5_3_CongestionNeverRaisesM(t *testing.T) {
	p := defaults()
	p.MaxRepairRatio = 1
	w := protected(t, p, 1)
	w.setLoss(1e-3)
	for range 50 {
		w.report(1000, 950, func(m *wire.LossReport) { m.CEMarked = 10 }) // 1.05 %
	}
	if got := w.f.Stats().Loss; got != 1e-3 {
		t.Errorf("p = %g", got)
	}
	for range 40 { // less loss counts all the same, when it is more than chance
		w.report(1000, 1000, func(m *wire.LossReport) { m.CEMarked = 500 })
	}
	if got := w.f.Stats().Loss; got >= 1e-3 {
		t.Errorf("p = %g", got)
	}
	w.setLoss(1e-3)
	w.report(1000, 950, func(m *wire.LossReport) { m.CEMarked = 9 }) // under 1 %: transmission loss
	if got := w.f.Stats().Loss; got <= 1e-3 {
		t.Errorf("p = %g", got)
	}
	if got := w.f.Stats().Congested; got != 90 {
		t.Errorf("%d intervals", got)
	}
}

func TestSection5_3_NewFlowStartsFromThePath(t *testing.T) {
	p := defaults()
	p.PeerSite = "west"
	w := protected(t, p, 1)
	for range 40 {
		w.report(1000, 980, nil)
	}
	second := w.newFlow(wire.KindRoCEv2, gateway)
	if got := second.Stats().Loss; math.Abs(got-0.02) > 0.001 {
		t.Errorf("a new flow starts at p = %g", got)
	}
	q := *p
	q.PeerSite = "north"
	w.p = &q
	if got := w.newFlow(wire.KindRoCEv2, gateway).Stats().Loss; got != priorLost/priorPackets {
		t.Errorf("a flow to another site starts at p = %g", got)
	}
}

// What others of the pair of sites see is no evidence against a flow's own losses: paths may differ.
func TestSection5_3_OwnLossesOverrule(t *testing.T) {
	p := defaults()
	p.PeerSite = "west"
	w := protected(t, p, 1)
	for range 5 {
		w.report(1000, 990, nil)
	}
	for range 200 {
		w.env.learn("west", interval{sent: 1000, lost: 0, raise: true}) // of other flows
	}
	if site := w.env.path("west").known(); site.sent < 50_000 || site.rate() > 5e-4 {
		t.Fatalf("the others saw %+v", site)
	}
	if got := w.f.Stats().Loss; got < 5e-3 {
		t.Errorf("p = %g", got)
	}
	if got := w.newFlow(wire.KindRoCEv2, gateway).Stats().Loss; got > 5e-4 {
		t.Errorf("a new flow starts at p = %g", got)
	}
}

func TestSection5_3_CleanPathNeedsNothing(t *testing.T) {
	p := defaults()
	w := protected(t, p, 1)
	if m := w.symbols(2, 32); m != 4 {
		t.Errorf("m = %d on an unknown path", m)
	}
	for range 40 {
		w.report(1000, 1000, nil)
	}
	if m := w.symbols(34, 32); m != 0 {
		t.Errorf("m = %d after 40,000 packets without loss", m)
	}
}

func TestSection8_1_ReportsThatMakeNoSense(t *testing.T) {
	w := protected(t, defaults(), 1)
	before := w.f.Stats().Loss
	w.report(0, 0, nil)
	w.report(0, 100, func(m *wire.LossReport) { m.Interval = 0 })
	if got := w.f.Stats().Loss; got != before {
		t.Errorf("p = %g", got)
	}
	w.report(10, math.MaxUint32, func(m *wire.LossReport) { m.RepairsReceived = math.MaxUint32; m.RepairsCEMarked = math.MaxUint32 })
	w.report(math.MaxUint32, 0, func(m *wire.LossReport) { m.Interval = 1 })
	if s := w.f.Stats(); !(s.Loss >= 0 && s.Loss <= 1) || !(s.RepairShare > 0 && s.RepairShare <= 1) {
		t.Errorf("p = %g, share %g", s.Loss, s.RepairShare)
	}
	w.f.HandlePathReport(w.now, gateway, &wire.PathReport{}, &w.acts)
	if w.take(); w.f.Stats().PathReports != 1 {
		t.Error("PATH_REPORT is not counted")
	}
}

// Section 5.3, rule 4: symbols are whole, so the smallest m leaves a part of epsilon. A tenth of it is saved up, and every block that has one symbol
// fewer is paid from it: over any run of blocks the target holds on average, and fewer symbols are sent.
func TestSection5_3_WhatIsLeftOfEpsilonIsSpent(t *testing.T) {
	const blocks, n = 2000, 32
	for _, loss := range []float64{1e-5, 1e-4, 1e-3, 1e-2} {
		p := defaults()
		p.MaxRepairRatio = 4
		w := protected(t, p, 1)
		w.setLoss(loss)
		best, sent, risk := naiveMin(n, loss, 1e-4), 0, 0.0
		for i := range blocks {
			m := w.f.redundancy.spend(w.choice(n), 1e-4)
			if i == 0 && m != best || m < best-1 || m > best {
				t.Fatalf("a loss of %g: block %d has %d symbols, the smallest m is %d", loss, i, m, best)
			}
			sent += m
			if risk += fec.Tail(n+m, m, loss); risk > float64(i+1)*1e-4*1.001 {
				t.Fatalf("a loss of %g: after %d blocks %g of them are incomplete", loss, i+1, risk/float64(i+1))
			}
		}
		left := 1e-4 - fec.Tail(n+best, best, loss)
		share := savedPart * left / (savedPart*left + fec.Tail(n+best-1, best-1, loss) - 1e-4) // of blocks with one fewer
		if got, want := float64(sent)/blocks, float64(best)-share; math.Abs(got-want) > 0.01 {
			t.Errorf("a loss of %g: %.3f symbols a block, want %.3f", loss, got, want)
		}
	}
}

// choice is the choice for a block of n sources.
func (w *world) choice(n int) *choiceOfM {
	c := &w.f.redundancy.byCount[n]
	if !c.known {
		w.f.choose(c, n)
	}
	return c
}

// What was saved at another loss rate pays for one block at most, and what is withheld by a limit uses it up.
func TestSection5_3_LittleIsSaved(t *testing.T) {
	p := defaults()
	p.MaxRepairRatio = 4
	w := protected(t, p, 1)
	w.setLoss(1e-5)
	for range 1000 {
		w.f.redundancy.spend(w.choice(32), 1e-4)
	}
	spare := w.f.redundancy.spare
	w.setLoss(5e-3)
	w.f.redundancy.spare = 1
	best, fewer := naiveMin(32, 5e-3, 1e-4), 0
	for range 10 {
		if w.f.redundancy.spend(w.choice(32), 1e-4) < best {
			fewer++
		}
	}
	if fewer != 1 || spare > 1e-3 {
		t.Errorf("%d of 10 blocks have a symbol fewer; %g was saved", fewer, spare)
	}
	q := *p
	q.MaxRepairRatio = 0
	w.setParams(&q)
	w.setLoss(2e-2)
	w.f.redundancy.spare = 1e-3
	for i := range 10 {
		w.symbols(roce.PSN(1000+32*i), 32)
	}
	if w.f.redundancy.limit != WhyBudget || w.f.redundancy.spare > 1e-4 {
		t.Errorf("limit %d, %g saved", w.f.redundancy.limit, w.f.redundancy.spare)
	}
}

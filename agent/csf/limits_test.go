// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// event is octets that left at a time.
type event struct {
	at     time.Duration
	octets int64
	source bool
}

// checkBudget applies Section 10, rule 1, at every repair by adding up what was sent in the SRTT before it.
func checkBudget(t testing.TB, events []event, srtt time.Duration, ratio float64, symbol int64) {
	t.Helper()
	for i, e := range events {
		if e.source {
			continue
		}
		var source, repair int64
		for _, x := range events[:i+1] {
			if x.at > e.at-srtt {
				if x.source {
					source += x.octets
				} else {
					repair += x.octets
				}
			}
		}
		if limit := max(ratio*float64(source), float64(4*max(symbol, 1024))); float64(repair) > limit {
			t.Fatalf("at %v: %d octets of repairs for %d of sources in one SRTT, limit %.0f", e.at, repair, source, limit)
		}
	}
}

func (w *world) record(events *[]event) {
	w.probe = func(m message) {
		if m.typ == wire.TypeRepair && !m.Info {
			*events = append(*events, event{m.at, int64(m.size), false})
		}
	}
}

func TestSection10_RatioOfAnySRTT(t *testing.T) {
	for _, ratio := range []float64{0.05, 0.25} {
		p := fixed(8)
		p.MaxRepairRatio, p.Spread = ratio, true
		w := protected(t, p, 1)
		var events []event
		w.record(&events)
		rng := rand.New(rand.NewPCG(1, 1))
		psn := roce.PSN(2)
		id := uint16(0)
		for range 150 {
			for range rng.IntN(80) {
				events = append(events, event{w.now, 1024 + 16, true})
				w.write(psn)
				psn++
				w.wait(time.Duration(rng.IntN(60)) * time.Microsecond)
			}
			if rng.IntN(2) == 0 {
				id++
				w.requestRanges(id, wire.Range{Start: psn.Add(-rng.IntN(200)), Count: uint8(1 + rng.IntN(60))})
			}
			w.wait(time.Duration(rng.IntN(4000)) * time.Microsecond)
		}
		checkBudget(t, events, testRTT, ratio, w.f.symbolSize())
		s := w.f.Stats()
		if s.Withheld == 0 || s.Drops[DropBudget] == 0 || s.Ordinary+s.Coded < 100 {
			t.Errorf("ratio %g: %d ordinary, %d coded, %d withheld", ratio, s.Ordinary, s.Coded, s.Withheld)
		}
	}
}

// In steady state the ratio is used: with m = 8 of 32 wanted and 0.25 allowed nearly all symbols leave.
func TestSection10_RatioIsUsed(t *testing.T) {
	p := fixed(8)
	p.MaxRepairRatio, p.Spread = 0.25, true
	w := protected(t, p, 1)
	w.burst(2, 32*200, 20*time.Microsecond)
	s := w.f.Stats()
	used := float64(s.RepairOctets) / float64(s.SourceOctets)
	if used > 0.25 || used < 0.22 {
		t.Errorf("repairs are %.3f of the sources", used)
	}
}

// Four symbols in any SRTT, however little the flow sends: three of them ordinary ones at most, so that a request is answered. Fallen silent, the
// flow still answers with all four.
func TestSection10_FloorOfFourSymbols(t *testing.T) {
	p := fixed(8)
	p.MaxRepairRatio = 0
	w := protected(t, p, 1)
	sent := func(want int, when string) {
		t.Helper()
		if n := len(w.all(wire.TypeRepair)); n != want {
			t.Fatalf("%s: %d symbols, want %d", when, n, want)
		}
	}
	w.burst(2, 32, 10*time.Microsecond)
	w.wait(2 * time.Millisecond)
	sent(3, "after the burst")
	r := w.lastOf(wire.TypeRepair).Repair
	w.request(1, &r, 6, 0, 1, 2, 3, 4, 5)
	sent(4, "with the answer in the same SRTT")
	w.wait(2 * testRTT)
	w.request(2, &r, 6, 0, 1, 2, 3, 4, 5)
	sent(8, "later")
	w.wait(testRTT / 2)
	w.request(3, &r, 6, 0, 1, 2, 3, 4, 5)
	sent(8, "in the same SRTT")
}

// A flow of READ requests sends few octets, and the loss of one costs a whole READ again: its symbols are reckoned at 1,024 octets, so that the
// floor lets as many leave as its blocks want.
func TestSection10_READRequestsAreRepaired(t *testing.T) {
	p := fixed(3)
	p.MaxRepairRatio = 0.25
	w := newWorld(t, p)
	w.give(readRequest(t, 1, 1<<16))
	w.give(readRequest(t, 65, 1<<16))
	w.answerHello(gateway, nil)
	w.wait(testRTT)
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.log = nil
	for i := range 20 {
		w.give(readRequest(t, roce.PSN(129+64*i), 1<<16))
		w.wait(2 * time.Millisecond)
	}
	w.wait(testRTT)
	if n := len(w.all(wire.TypeRepair)); n != 60 || w.f.Stats().Withheld != 0 {
		t.Errorf("%d symbols, %d withheld", n, w.f.Stats().Withheld)
	}
}

// What requests asked for in the last SRTT is kept free of ordinary symbols.
func TestSection10_RetransmissionsFirst(t *testing.T) {
	p := fixed(8)
	p.MaxRepairRatio = 0.10
	w := protected(t, p, 1)
	psn := roce.PSN(2)
	var id uint16
	answered, asked := 0, 0
	for range 150 {
		w.burst(psn, 32, 30*time.Microsecond)
		psn = psn.Add(32)
		id++
		before := w.f.Stats().Coded
		w.requestRanges(id, wire.Range{Start: psn.Add(-64), Count: 1})
		w.wait(200 * time.Microsecond)
		if id > 50 {
			asked++
			answered += int(w.f.Stats().Coded - before)
		}
	}
	if answered < asked*9/10 {
		t.Errorf("%d of %d requests were answered while ordinary symbols took the budget", answered, asked)
	}
	if w.f.Stats().Ordinary == 0 {
		t.Error("no ordinary symbols at all")
	}
}

func TestSection10_OrdinaryOnlyForAFlowThatSends(t *testing.T) {
	p := fixed(4)
	w := protected(t, p, 1)
	w.f.pacer.tokens, w.f.pacer.filled = -1e9, w.now // hold everything back for long
	w.burst(2, 32, 10*time.Microsecond)
	w.now += 2 * testRTT
	w.f.pacer.tokens = 1e9
	w.f.Poll(w.now, &w.acts)
	if w.take(); len(w.all(wire.TypeRepair)) != 0 {
		t.Error("ordinary symbols two SRTTs after the flow fell silent")
	}
}

func TestSection10_NodeBudgetIsSharedByRate(t *testing.T) {
	p := fixed(8)
	p.MaxRepairRatio = 1
	w := newWorld(t, p)
	w.env.Node = NewBudget(2 << 20)
	w.protect(1)
	fast := w.f
	w.f = w.newFlow(wire.KindRoCEv2, gateway)
	w.protect(1)
	slow := w.f
	psn := roce.PSN(2)
	begin := w.now
	for w.now < begin+time.Second/2 { // 3 to 1
		for _, f := range []*Flow{fast, fast, fast, slow} {
			w.f = f
			w.write(f.newest.Add(1))
			w.now += 25 * time.Microsecond
			w.f.Poll(w.now, &w.acts)
			w.take()
		}
		if psn++; psn%1000 == 0 {
			for _, f := range []*Flow{fast, slow} {
				w.f = f
				w.report(100, 100, nil)
			}
		}
	}
	a, b := float64(fast.Stats().RepairOctets), float64(slow.Stats().RepairOctets)
	if rate := (a + b) * 2; rate > 1.1*(2<<20) || rate < 0.7*(2<<20) {
		t.Errorf("%.0f octets a second, the bound is %d", rate, 2<<20)
	}
	if r := a / b; r < 2 || r > 4.5 {
		t.Errorf("shares are %.2f to 1", r)
	}
	if got := w.env.Node.SourceRate(); got < 20e6 {
		t.Errorf("source rate %d", got)
	}
	// Flows that have stopped no longer count.
	for _, f := range []*Flow{fast, slow} {
		w.f = f
		w.until(w.now + time.Second)
	}
	if got := w.env.Node.SourceRate(); got != 0 {
		t.Errorf("source rate %d of silent flows", got)
	}
}

func TestSection10_NodeBudgetAlsoBoundsAnswers(t *testing.T) {
	p := fixed(0)
	w := newWorld(t, p)
	w.env.Node = NewBudget(100)
	w.protect(1)
	for i := range 40 {
		w.burst(roce.PSN(2+32*i), 32, 10*time.Microsecond)
		w.requestRanges(uint16(i), wire.Range{Start: roce.PSN(2 + 32*i), Count: 32})
	}
	w.wait(time.Second)
	if got := w.f.Stats().RepairOctets; got > nodeFloor || got == 0 {
		t.Errorf("%d octets", got)
	}
}

func TestSection10_Pacing(t *testing.T) {
	p := fixed(8)
	w := protected(t, p, 1)
	const gap = 100 * time.Microsecond
	w.burst(2, 32*30, gap)
	w.wait(10 * time.Millisecond)
	r := w.all(wire.TypeRepair)
	if len(r) != 8*30 {
		t.Fatalf("%d symbols", len(r))
	}
	// Never more than four symbols at once, and the rest no faster than the flow: 1040 octets in 100 microseconds.
	rate := 1040 / gap.Seconds() * 17 / 16 // a slot may hold one packet more than its time
	for i := range r {
		octets := 0
		for j := i; j < len(r); j++ {
			octets += r[j].size
			if allowed := float64(5*r[j].size) + rate*(r[j].at-r[i].at).Seconds(); float64(octets) > allowed {
				t.Fatalf("%d octets from %v to %v", octets, r[i].at, r[j].at)
			}
		}
	}
}

func TestSection10_AnswersOfASilentFlowKeepItsPace(t *testing.T) {
	w := protected(t, fixed(0), 1)
	w.burst(2, 640, 20*time.Microsecond)
	w.wait(5 * time.Millisecond)
	w.requestRanges(1, wire.Range{Start: 2, Count: 100})
	begin := w.now
	w.wait(50 * time.Millisecond)
	r := w.all(wire.TypeRepair)
	last := r[len(r)-1].at - begin
	if want := time.Duration(len(r)-4) * 21 * time.Microsecond; last > 2*want || last < want/2 {
		t.Errorf("%d symbols took %v, the flow's pace would be about %v", len(r), last, want)
	}
}

func TestSection10_CEOnRepairsLowersTheirRate(t *testing.T) {
	w := protected(t, fixed(8), 1)
	f := w.f
	f.repairPath.shareAt(w.now, testRTT)
	ce := func(marked uint32) {
		w.report(1000, 1000, func(m *wire.LossReport) { m.RepairsReceived, m.RepairsCEMarked = 100, marked })
	}
	ce(40)
	if got := f.repairPath.share; math.Abs(got-0.8) > 1e-9 {
		t.Fatalf("share %g after F = 0.4", got)
	}
	ce(40) // once per SRTT
	if got := f.repairPath.share; math.Abs(got-0.8) > 1e-9 {
		t.Fatalf("share %g after a second report in the same SRTT", got)
	}
	w.wait(testRTT)
	ce(100)
	if got, want := f.repairPath.share, (0.8+1.0/16)/2; math.Abs(got-want) > 1e-9 {
		t.Fatalf("share %g, want %g", got, want)
	}
	// The share shows in the number of symbols: fractions are carried over.
	before := f.Stats().Ordinary
	for i := range 20 {
		f.repairPath.share, f.repairPath.grown = 0.45, w.now
		w.burst(roce.PSN(2+32*i), 32, 10*time.Microsecond)
		w.wait(time.Millisecond / 2)
	}
	got := f.Stats().Ordinary - before
	if got < 65 || got > 80 {
		t.Errorf("%d symbols of 160 at a share of 0.45", got)
	}
	if f.Explain().Why != WhyCongestion {
		t.Error(f.Explain())
	}
	w.wait(9 * testRTT)
	if got := f.repairPath.shareAt(w.now, testRTT); got != 1 {
		t.Errorf("share %g after it should have grown back", got)
	}
}

// path simulates a path of the repairs: reports come once per SRTT, one way later, and name what arrived.
func (w *world) path(t *testing.T, loss, repairLoss float64, rounds int) (cuts int) {
	rng := rand.New(rand.NewPCG(7, 7))
	var arrived []time.Duration
	w.probe = func(m message) {
		if m.typ == wire.TypeRepair && rng.Float64() >= repairLoss {
			arrived = append(arrived, m.at+testRTT/2)
		}
	}
	begin := w.now
	next := begin + testRTT
	from := begin
	psn := w.f.newest.Add(1)
	lost := uint32(0)
	n := uint32(0)
	for w.now < begin+time.Duration(rounds)*testRTT {
		w.write(psn)
		psn = psn.Add(1)
		n++
		if rng.Float64() < loss {
			lost++
		}
		w.wait(100 * time.Microsecond)
		if w.now >= next {
			got := uint32(0)
			edge := w.now - testRTT/2
			for _, a := range arrived {
				if a > from && a <= edge {
					got++
				}
			}
			before := w.f.repairPath.cutAt
			w.report(n, n-lost, func(m *wire.LossReport) {
				m.Interval, m.RepairsReceived = uint32((edge - from).Microseconds()), got
			})
			if w.f.repairPath.cutAt != before {
				cuts++
			}
			from, next, n, lost = edge, w.now+testRTT, 0, 0
		}
	}
	return cuts
}

func TestSection10_ExcessLossOnTheRepairPath(t *testing.T) {
	p := fixed(2)
	p.Spread = true
	if cuts := protected(t, p, 1).path(t, 0.02, 0.02, 200); cuts > 2 {
		t.Errorf("%d cuts in 200 SRTTs although the repairs fare as the flow does (Section 8.1, rule 4)", cuts)
	}
	w := protected(t, p, 1)
	if cuts := w.path(t, 0.01, 0.30, 60); cuts < 5 {
		t.Errorf("%d cuts although 30 %% of the repairs are lost and 1 %% of the flow", cuts)
	}
	if w.f.repairPath.share > 0.6 {
		t.Errorf("share %g", w.f.repairPath.share)
	}
}

func TestSection10_BreakerOpensAndRecovers(t *testing.T) {
	p := fixed(2)
	w := protected(t, p, 1)
	psn := roce.PSN(2)
	second := func(expected, received, ce uint32) {
		for range 4 { // intervals of 250 ms: only together they cover a second
			for range 40 {
				w.write(psn)
				psn = psn.Add(1)
				w.wait(250 * time.Millisecond / 40)
			}
			w.report(expected, received, func(m *wire.LossReport) { m.Interval, m.CEMarked = 250000, ce })
		}
	}
	for range 3 {
		w.report(100, 80, func(m *wire.LossReport) { m.Interval = 250000 })
	}
	if w.f.State() != Protecting {
		t.Fatal("opened before a second was covered")
	}
	w.report(1000, 1000, func(m *wire.LossReport) { m.Interval = 1e6 })
	second(100, 90, 0)
	if w.f.State() != Protecting {
		t.Fatal("opened at 10 %, which is not above ten percent")
	}
	w.report(100, 80, func(m *wire.LossReport) { m.Interval = 250000 })
	if w.f.State() != Suspended || w.f.Stats().BreakerOpened != 1 || w.f.Explain().Why != WhyBreaker {
		t.Fatalf("state %v after a second of 20 %%", w.f.State())
	}
	w.log = nil
	second(100, 95, 0)
	if len(w.all(wire.TypeRepair)) != 0 {
		t.Error("symbols while the breaker is open")
	}
	opened := w.now
	for w.f.State() == Suspended && w.now < opened+30*time.Second {
		second(100, 95, 0)
	}
	// The second that ended with the last but one report before `opened` was good: a quarter of it had a loss of 20 %, the rest of 5 %.
	if got := w.now - opened + 250*time.Millisecond; got < 10*time.Second || got > 10*time.Second+time.Second {
		t.Errorf("back after %v", got)
	}
	second(100, 100, 51) // CE over 50 %
	if w.f.State() != Suspended {
		t.Error("CE over 50 % does not open it")
	}
}

// Section 10, rule 5: a mark counts whoever made it, this node too, by the queue of its uplink or the rate that congestion left the flow. A sender that
// heeds none of them gets no repair traffic on top, until ten seconds after half of its packets or less are marked.
func TestSection10_OwnMarksOpenTheBreaker(t *testing.T) {
	w := protected(t, fixed(2), 1)
	psn := roce.PSN(2)
	second := func(ce uint32) {
		w.f.SetWarning(Warning{Early: true, Congested: true, Withheld: 7.0 / 8}) // what the node knows of its own marks
		for range 40 {
			w.write(psn)
			psn = psn.Add(1)
			w.wait(time.Second / 40)
		}
		w.report(1000, 1000, func(m *wire.LossReport) { m.Interval, m.CEMarked = 1e6, ce })
	}
	second(500)
	if w.f.State() != Protecting {
		t.Fatalf("state %v with half of the packets marked, which is not above fifty percent", w.f.State())
	}
	second(501)
	if w.f.State() != Suspended || w.f.Explain().Why != WhyBreaker {
		t.Fatalf("state %v with more than half of the packets marked", w.f.State())
	}
	for range 9 {
		second(500)
		if w.f.State() != Suspended {
			t.Fatal("back before ten seconds")
		}
	}
	for range 3 {
		second(500)
	}
	if w.f.State() != Protecting {
		t.Errorf("state %v twelve seconds later", w.f.State())
	}
}

func TestSection10_BreakerStartsAnewWithEveryBadWindow(t *testing.T) {
	var b breaker
	now := start
	feed := func(lost uint32) verdict {
		now += time.Second
		return b.add(now, &wire.LossReport{Interval: 1e6, Expected: 1000, Received: 1000 - lost})
	}
	if feed(500) != opened {
		t.Fatal("not opened")
	}
	for range 9 {
		feed(0)
	}
	feed(500)
	for i := range 11 {
		if v := feed(0); (v == recovered) != (i == 10) {
			t.Fatalf("%v after %d good windows", v, i+1)
		}
	}
}

// A slow flow on a path that loses 5 %: some of its seconds lose more than a tenth, by chance. They open nothing, while a loss of 20 % opens it within
// the packets that it takes to know, and a flow without packets is taken for good after ten seconds.
func TestSection10_FewPacketsDoNotOpenTheBreaker(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, perSecond := range []int{1, 20, 50, 150, 400} {
		var b breaker
		now := start
		second := func(p float64) verdict {
			lost := 0
			for range perSecond {
				if rng.Float64() < p {
					lost++
				}
			}
			now += time.Second
			return b.add(now, &wire.LossReport{Interval: 1e6, Expected: uint32(perSecond), Received: uint32(perSecond - lost)})
		}
		for i := range 3600 {
			if second(0.05) != unchanged {
				t.Fatalf("%d packets a second: opened after %d s of 5 %%", perSecond, i)
			}
		}
		if perSecond < 20 {
			continue // too little to harm anybody
		}
		for i := 1; second(0.20) != opened; i++ {
			if i*perSecond > 2*breakerEvidence {
				t.Fatalf("%d packets a second: still closed after %d s of 20 %%", perSecond, i)
			}
		}
		perSecond = 0
		for i := 1; second(0) != recovered; i++ {
			if i == 20 {
				t.Fatal("still open after 20 s without packets")
			}
		}
	}
}

// Whatever the reports are, the window is the newest of them that say enough, and at most two steps more.
func TestSection10_BreakerWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, c := range []struct{ longest, packets int }{{100, 50}, {20_000, 400}, {20_000, 4}, {300_000, 20}, {3_000_000, 100}} {
		var b breaker
		var reports []sample
		longest := time.Duration(c.longest) * time.Microsecond
		for range 10_000 {
			x := sample{span: time.Duration(rng.IntN(c.longest)) * time.Microsecond, expected: uint64(rng.IntN(c.packets))}
			x.received = x.expected
			reports = append(reports, x)
			b.add(start, &wire.LossReport{Interval: uint32(x.span / time.Microsecond), Expected: uint32(x.expected), Received: uint32(x.received)})
			var enough sample
			for i := len(reports) - 1; i >= 0 && !enough.window(); i-- {
				enough.add(&reports[i])
			}
			more := b.sum.span - enough.span
			if b.n > len(b.steps) || more < 0 || more > 2*(breakerRecover/breakerSteps+longest) || b.sum.expected < enough.expected {
				t.Fatalf("%+v: the window is %+v in %d steps, enough is %+v", c, b.sum, b.n, enough)
			}
		}
	}
}

func TestSection10_PersistentImpairmentCloses(t *testing.T) {
	w := protected(t, fixed(2), 1)
	psn := roce.PSN(2)
	begin := w.now
	for w.f.ID() != 0 && w.now < begin+2*time.Minute {
		for range 10 {
			w.write(psn)
			psn++
			w.wait(100 * time.Millisecond)
		}
		w.report(100, 50, func(m *wire.LossReport) { m.Interval = 1e6 })
	}
	c := w.lastOf(wire.TypeClose)
	if c.close.Reason != wire.CloseImpaired || c.at-begin <= 60*time.Second || c.at-begin > 60*time.Second+2*time.Second {
		t.Fatalf("%v after %v", c, c.at-begin)
	}
	if w.f.State() != Idle || w.f.Explain().Why != WhyImpaired || !w.f.Impaired() {
		t.Fatal(w.f.State())
	}
	w.log = nil
	closed := w.now
	for len(w.log) == 0 && w.now < closed+2*time.Minute {
		w.write(psn)
		psn++
		w.wait(100 * time.Millisecond)
	}
	if w.log[0].typ != wire.TypeHello || w.log[0].at < closed+impairedPause || w.f.Impaired() {
		t.Errorf("%v", w.log[0])
	}
}

// When SRTT grows the slots in the record are too many for it; what they hold must not be forgotten.
func TestWindowKeepsWhatAGrowingSRTTNeeds(t *testing.T) {
	var w window
	now := start
	for range 4 * maxSlots { // slots of 125 microseconds
		w.at(now, 2*time.Millisecond).answers++
		now += 130 * time.Microsecond
	}
	kept := w.sum(now, time.Second).answers
	grown := now
	for i := range 12 {
		w.at(now, testRTT).source++
		now += 1300 * time.Microsecond
		if got := w.sum(now, testRTT).answers; now-grown < testRTT-maxSlots*130*time.Microsecond && got < kept {
			t.Fatalf("step %d: %d of %d repairs are remembered", i, got, kept)
		}
	}
}

// The record reaches back two SRTTs, so that the budget holds in any of them while SRTT grows up to twofold; also when bursts after silence divide
// the sixteenths of an SRTT into more slots than there are.
func TestWindowReachesBackTwoSRTTs(t *testing.T) {
	type sent struct {
		at     time.Duration
		octets int64
	}
	rng := rand.New(rand.NewPCG(3, 9))
	for range 300 {
		var w window
		var repairs []sent
		now := start
		for range 10 {
			now += time.Duration(rng.IntN(int(testRTT / 3)))
			for range 1 + rng.IntN(60) {
				now += time.Duration(rng.IntN(3)) * time.Microsecond
				w.at(now, testRTT).source += int64(1 + rng.IntN(1000))
				if rng.IntN(3) == 0 {
					repairs = append(repairs, sent{now, int64(1 + rng.IntN(1000))})
					w.at(now, testRTT).answers += repairs[len(repairs)-1].octets
				}
			}
		}
		for srtt := testRTT; srtt <= 2*testRTT; srtt += testRTT / 8 {
			var want int64
			for _, r := range repairs {
				if r.at > now-srtt {
					want += r.octets
				}
			}
			if got := w.sum(now, srtt).answers; got < want {
				t.Fatalf("SRTT grows from %v to %v: %d octets of repairs are remembered, %d were sent", testRTT, srtt, got, want)
			}
		}
	}
}

func TestWindowErrsOnTheSafeSide(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	var w window
	var events []event
	now := start
	for range 20000 {
		now += time.Duration(rng.IntN(2000)) * time.Microsecond
		if rng.IntN(50) == 0 {
			now += 100 * time.Millisecond
		}
		e := event{now, int64(1 + rng.IntN(1000)), rng.IntN(3) > 0}
		if s := w.at(now, testRTT); e.source {
			s.source += e.octets
		} else {
			s.answers += e.octets
		}
		events = append(events, e)
		var source, repair int64
		for i := len(events) - 1; i >= 0 && events[i].at > now-testRTT; i-- {
			if events[i].source {
				source += events[i].octets
			} else {
				repair += events[i].octets
			}
		}
		got := w.sum(now, testRTT)
		if got.source > source || got.answers < repair {
			t.Fatalf("at %v: sources %d of %d, repairs %d of %d", now, got.source, source, got.answers, repair)
		}
	}
}

// An engine hands over a millisecond's packets with one time: their repairs must not pile up until the queue is full.
func TestSection10_PacingOfABatch(t *testing.T) {
	p := fixed(4)
	p.Spread = true
	w := protected(t, p, 1)
	psn := roce.PSN(2)
	for range 8 {
		for range 32 * 40 {
			w.write(psn)
			psn = psn.Add(1)
		}
		w.wait(time.Millisecond)
	}
	s := w.f.Stats()
	if want := uint64(8 * 40 * 4); s.Ordinary < want*98/100 || s.Withheld > want/50 {
		t.Errorf("%d of %d symbols, %d withheld: %v", s.Ordinary, want, s.Withheld, s.Drops)
	}
}

// A flow that sends one short burst a round trip is seen as sending it: of a burst that is partly inside the last SRTT, the part that is counts. Else the
// repairs of the burst before would stand against nothing when the next one begins.
func TestWindowSeesIntoBursts(t *testing.T) {
	const packets, gap, octets = 64, 3 * time.Microsecond, 4096
	for _, period := range []time.Duration{testRTT - 150*time.Microsecond, testRTT - 20*time.Microsecond, testRTT, testRTT + 20*time.Microsecond} {
		var w window
		var sent []time.Duration
		for burst := range 40 {
			for i := range packets {
				now := start + time.Duration(burst)*period + time.Duration(i)*gap
				w.at(now, testRTT).source += octets
				sent = append(sent, now)
				want := int64(0)
				for j := len(sent) - 1; j >= 0 && sent[j] > now-testRTT; j-- {
					want += octets
				}
				got := w.sum(now, testRTT).source
				if got > want || burst > 2 && got < want-packets*octets/slotsPerRTT-octets {
					t.Fatalf("period %v, burst %d, packet %d: %d octets, want %d and at most a sixteenth less", period, burst, i, got, want)
				}
			}
		}
		if w.measure(start+40*period, testRTT); w.rate > packets*octets/(testRTT/slotsPerRTT).Seconds() {
			t.Errorf("period %v: rate %.0f", period, w.rate)
		}
	}
}

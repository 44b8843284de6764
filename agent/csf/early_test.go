// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// drops shows the flow a report of packets that a node dropped by queue overflow. Each report is of a new period.
func (w *world) drops(psns ...roce.PSN) []message {
	w.t.Helper()
	h := wire.Hop{NodeID: 7, Period: uint32(w.f.Stats().PathReports), Cause: wire.CauseCongestion}
	for _, p := range psns {
		h.PSNs = h.PSNs.Append(p)
	}
	return w.pathReport(h)
}

// clean is a flow on a path so clean that its blocks carry no repair symbol.
func clean(t testing.TB, change func(*Params)) *world {
	p := defaults()
	p.FixedM = 0
	if change != nil {
		change(p)
	}
	w := protected(t, p, 1)
	w.burst(2, 32*20, 10*time.Microsecond)
	w.log = nil
	return w
}

// indices are those of REPAIRs, which must be ordinary, of one block, and right.
func (w *world) indices(list []message, start roce.PSN) (out []int) {
	w.t.Helper()
	for _, m := range list {
		if m.typ != wire.TypeRepair || m.Retx || m.Info || m.Session != 0 || m.Scheme != fec.Cauchy || m.Start != start || m.Last {
			w.t.Fatalf("%v", m)
		}
		w.checkSymbol(m, func(psn roce.PSN) []byte { return packet(w.t, roce.WriteMiddle, psn, w.mtu, 0).P() })
		out = append(out, int(m.Index))
	}
	return out
}

func TestSection8_2_ReportedDropsAreRepairedAtOnce(t *testing.T) {
	w := clean(t, nil)
	start := w.f.retained.at(3).start
	m := w.f.retained.at(3).config.m
	if got := w.indices(w.drops(start.Add(4)), start); !slices.Equal(got, []int{m}) {
		t.Fatalf("indices %v, m = %d", got, m)
	}
	if got := w.indices(w.drops(start.Add(5), start.Add(9)), start); !slices.Equal(got, []int{m + 1, m + 2}) {
		t.Fatalf("indices %v, m = %d", got, m)
	}
	if s := w.f.Stats(); s.Early != 3 || s.Ordinary != 0 || s.DropsReported != 3 || s.DropsUnused != 0 || s.M != 0 {
		t.Errorf("%+v", s)
	}
}

// One report names packets of several blocks, and of the open one, which it closes as a request would.
func TestSection8_2_ReportedDropsOfSeveralBlocks(t *testing.T) {
	w := clean(t, nil)
	w.burst(w.f.newest.Add(1), 7, 10*time.Microsecond) // of the open block
	open := w.f.open.start
	first := w.f.retained.at(0).start
	sent := w.drops(first, open.Add(3), first.Add(31))
	if w.f.open != nil || w.f.Stats().BlocksClosed[ByReport] != 1 {
		t.Fatal("the open block is still open")
	}
	w.wait(time.Millisecond)
	by := map[roce.PSN]int{}
	for _, m := range append(slices.Clone(sent), w.log[len(sent):]...) {
		by[m.Start]++
	}
	if by[first] != 2 || by[open] != 1 || len(by) != 2 {
		t.Errorf("symbols by block: %v", by)
	}
}

// Ordinary symbols of the block that wait for packets of the next one leave at once; only what they do not cover is added.
func TestSection8_2_OrdinarySymbolsCountFirst(t *testing.T) {
	p := fixed(2)
	p.Spread = true
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond)
	start := w.f.retained.at(0).start
	if n := len(w.all(wire.TypeRepair)); n != 1 {
		t.Fatalf("%d symbols, one is spread", n)
	}
	w.log = nil
	w.drops(start, start.Add(1), start.Add(2))
	w.wait(time.Millisecond)
	got := w.all(wire.TypeRepair)
	if len(got) != 2 || w.f.Stats().Early != 1 {
		t.Fatalf("%v", got)
	}
	for i, m := range got {
		if ordinary := i == 1; m.Last != ordinary || ordinary != (m.Index == 1) {
			t.Errorf("%v", m)
		}
	}
}

func TestSection8_2_LateAndRepeatedDropsChangeNothing(t *testing.T) {
	w := clean(t, nil)
	b := w.f.retained.at(3)
	start := b.start
	unused := func(name string, sent []message) {
		t.Helper()
		if len(sent) != 0 {
			t.Errorf("%s: %v", name, sent)
		}
	}
	w.drops(start.Add(4))
	unused("the same PSN in a later period", w.drops(start.Add(4)))
	unused("the same PSN twice", w.drops(start.Add(4), start.Add(4)))
	h := wire.Hop{NodeID: 7, Period: uint32(w.f.Stats().PathReports - 1), Cause: wire.CauseCongestion}
	h.PSNs = h.PSNs.Append(start.Add(5)).Append(start.Add(5))
	before := w.f.Stats().DropsReported
	unused("the same period", w.pathReport(h))
	if w.f.Stats().DropsReported != before {
		t.Error("an outdated entry was read")
	}
	unused("a PSN that is far from being sent", w.drops(w.f.newest.Add(foretoldReach+1)))
	unused("a PSN before all blocks", w.drops(w.f.retained.at(0).start.Add(-5)))
	w.f.HandleAck(w.now, start.Add(6))
	unused("an acknowledged packet", w.drops(start.Add(6)))
	if got := w.drops(start.Add(7)); len(got) != 1 {
		t.Errorf("the one after it: %v", got)
	}
	other := w.f.retained.at(5).start
	if got := w.requestRanges(1, wire.Range{Start: other, Count: 1}); len(got) != 1 || !got[0].Retx {
		t.Fatalf("%v", got)
	}
	unused("a block that was asked for", w.drops(other.Add(1)))
	h = wire.Hop{NodeID: 9, Cause: wire.CausePolicy}
	h.PSNs = h.PSNs.Append(w.f.retained.at(7).start)
	unused("refused by a policy", w.pathReport(h))
	w.wait(w.f.keep())
	unused("an expired block", w.drops(w.f.newest))
	if s := w.f.Stats(); s.DropsUnused != 8 || s.Early != 2 {
		t.Errorf("%d unused, %d sent", s.DropsUnused, s.Early)
	}
}

// A report may be faster than the copy of the packet that it names: the drop counts when that is seen, within an SRTT. What is kept for it is
// bounded.
func TestSection8_2_AReportOvertakesTheCopy(t *testing.T) {
	w := clean(t, nil)
	lost := w.f.newest.Add(3)
	if sent := w.drops(lost, lost.Add(4), lost); len(sent) != 0 || w.f.Stats().DropsUnused != 1 {
		t.Fatalf("%v, %d unused", sent, w.f.Stats().DropsUnused)
	}
	for psn := w.f.newest.Add(1); psn != lost; psn = psn.Add(1) {
		if sent := w.write(psn); len(sent) != 0 {
			t.Fatalf("%v before the packet was seen", sent)
		}
	}
	sent := w.write(lost)
	if len(sent) != 1 || !sent[0].Present.Has(lost.Sub(sent[0].Start)) || sent[0].Session != 0 {
		t.Fatalf("%v", sent)
	}
	w.wait(testRTT)
	w.burst(lost.Add(1), 8, 10*time.Microsecond)
	if s := w.f.Stats(); s.Early != 1 || s.DropsUnused != 2 || len(w.f.foretold.psns) != 0 {
		t.Errorf("%d sent, %d unused, %d still kept", s.Early, s.DropsUnused, len(w.f.foretold.psns))
	}
	before := w.f.Stats().DropsUnused
	var many []roce.PSN
	for i := range wire.MaxPSNs {
		many = append(many, w.f.newest.Add(i+10))
	}
	w.drops(many...)
	if n := len(w.f.foretold.psns); n != maxForetold || w.f.Stats().DropsUnused-before != wire.MaxPSNs-maxForetold {
		t.Errorf("%d are kept, %d unused", n, w.f.Stats().DropsUnused-before)
	}
	w.f.HandleClose(w.now, gateway, &wire.Close{FlowID: testID, Reason: wire.CloseRestarted}, &w.acts)
	if n := len(w.f.foretold.psns); n != 0 || w.f.Stats().DropsUnused-before != wire.MaxPSNs {
		t.Errorf("%d are kept over the end of the flow, %d unused", n, w.f.Stats().DropsUnused-before)
	}
}

// A report before PARAM_ACK, or after CLOSE, finds no block.
func TestSection8_2_ReportsWithoutABlock(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	if sent := w.drops(1); len(sent) != 0 {
		t.Errorf("%v", sent)
	}
	w.f.Close(w.now, wire.CloseAdministrative, &w.acts)
	w.take()
	if sent := w.drops(1); len(sent) != 0 || w.f.Stats().DropsUnused != 2 {
		t.Errorf("%v", sent)
	}
}

func TestSection8_2_SchemesWithoutFurtherSymbols(t *testing.T) {
	for _, scheme := range []fec.Scheme{fec.XOR, fec.SourceCopy} {
		w := clean(t, func(p *Params) { p.Schemes = []fec.Scheme{scheme} })
		if sent := w.drops(w.f.retained.at(3).start); len(sent) != 0 || w.f.Stats().Early != 0 {
			t.Errorf("%v: %v", scheme, sent)
		}
	}
}

// k + Repair Index never passes the bound of the code, whatever is reported.
func TestSection4_3_2_EarlySymbolsEndWithTheIndices(t *testing.T) {
	w := clean(t, func(p *Params) { p.K, p.MaxRepairRatio = 200, 10 })
	b := w.f.retained.at(0)
	for i := range 200 {
		w.drops(b.start.Add(i))
		w.wait(20 * time.Microsecond)
		w.write(w.f.newest.Add(1)) // the flow goes on: budget and pace follow it
	}
	most := 0
	for _, m := range w.all(wire.TypeRepair) {
		if m.Start == b.start {
			most = max(most, int(m.Index))
		}
	}
	if most+b.k != fec.MaxIndexSum {
		t.Errorf("k %d, the last index is %d", b.k, most)
	}
}

// After a copy with other octets, no further ordinary symbol of the block leaves (Section 6, rule CSF 3), unless a digest guards it.
func TestSection6_CSF3_EndsEarlySymbols(t *testing.T) {
	for _, digest := range []bool{false, true} {
		w := clean(t, func(p *Params) { p.Digest = digest })
		start := w.f.retained.at(3).start
		w.drops(start)
		w.give(packet(t, roce.WriteMiddle, start.Add(1), w.mtu, 1))
		if sent := w.drops(start.Add(2)); (len(sent) == 1) != digest {
			t.Errorf("digest %v: %v", digest, sent)
		}
	}
}

func TestSection10_BreakerStopsEarlySymbols(t *testing.T) {
	w := clean(t, nil)
	for range 60 {
		w.wait(testRTT)
		w.write(w.f.newest.Add(1))
		w.report(1000, 800, nil)
	}
	w.burst(w.f.newest.Add(1), 64, 10*time.Microsecond)
	if !w.f.Stats().BreakerOpen {
		t.Fatal("the breaker is closed")
	}
	if sent := w.drops(w.f.retained.at(w.f.retained.len() - 1).start); len(sent) != 0 || w.f.Stats().Drops[DropBreaker] == 0 {
		t.Errorf("%v", sent)
	}
}

// Congestion on the repair path takes from early symbols as from all ordinary ones (Section 10, rule 3).
func TestSection10_CongestionReducesEarlySymbols(t *testing.T) {
	w := clean(t, func(p *Params) { p.MaxRepairRatio = 1 })
	w.f.repairPath.share, w.f.repairPath.grown = 0.5, w.now
	for i := range 16 {
		w.drops(w.f.retained.at(i).start)
	}
	w.wait(time.Millisecond)
	if s := w.f.Stats(); s.Early < 7 || s.Early > 9 || s.Withheld+s.Early != 16 {
		t.Errorf("%d of 16 symbols, %d withheld", s.Early, s.Withheld)
	}
	if w.f.redundancy.limit == WhyCongestion {
		t.Error("explain speaks of m")
	}
}

// ends is a CSF and a CRF with a path between them, on which a reporter drops packets and says so.
type ends struct {
	*world
	oneWay  time.Duration
	at      time.Duration      // from the CSF to the reporter
	reports *reporter.Reporter // nil: the node says nothing
	said    []reporter.Action
	drop    map[roce.PSN]bool
	crf     *crf.Flow
	crfEnv  *crf.Env
	crfActs []crf.Action
	events  []onPath
	arrived []roce.PSN // at the receiver, in order
	early   []time.Duration
	told    []time.Duration // when reports came
}

type onPath struct {
	at time.Duration
	do func()
}

func (e *ends) after(d time.Duration, do func()) {
	ev := onPath{e.now + d, do}
	i, _ := slices.BinarySearchFunc(e.events, ev, func(a, b onPath) int {
		if a.at <= b.at {
			return -1
		}
		return 1
	})
	e.events = slices.Insert(e.events, i, ev)
}

// run lets time pass at both ends and between them.
func (e *ends) run(d time.Duration) {
	end := e.now + d
	for {
		next := min(e.f.NextDeadline(), e.deadline())
		if len(e.events) > 0 {
			next = min(next, e.events[0].at)
		}
		if next > end {
			e.now = end
			return
		}
		e.now = max(e.now, next)
		if len(e.events) > 0 && e.events[0].at <= e.now {
			do := e.events[0].do
			e.events = e.events[1:]
			do()
		}
		e.f.Poll(e.now, &e.acts)
		if e.crf != nil {
			e.crf.Poll(e.now, &e.crfActs)
		}
		e.carry()
	}
}

func (e *ends) deadline() time.Duration {
	if e.crf == nil {
		return roce.Never
	}
	return e.crf.NextDeadline()
}

// carry sends what both machines want sent.
func (e *ends) carry() {
	for _, a := range e.acts {
		msg := bytes.Clone(a.Msg)
		if r, err := wire.ParseRepair(msg); err == nil && int(r.Index) >= 8 && !r.Retx {
			e.early = append(e.early, e.now)
		}
		e.after(e.oneWay, func() { e.toCRF(msg) })
	}
	e.acts = e.acts[:0]
	e.env.Pool.Reclaim()
	for _, a := range e.crfActs {
		if a.Kind == crf.Inject {
			e.deliver(slices.Concat(a.Head, a.Payload))
			continue
		}
		msg := bytes.Clone(a.Msg)
		e.after(e.oneWay, func() { e.toCSF(msg) })
	}
	e.crfActs = e.crfActs[:0]
	e.crfEnv.Pool.Reclaim()
}

func (e *ends) toCRF(msg []byte) {
	h, err := wire.ParseHeader(msg)
	if err != nil {
		e.t.Fatal(err)
	}
	switch h.Type {
	case wire.TypeHello:
		m, _ := wire.ParseHello(msg)
		if e.crf == nil {
			p := crf.Params{
				MaxHold: 100 * time.Millisecond, HoldBytes: 64 << 20, MaxOpenBlocks: 64, MaxK: 255, MaxM: 8, MaxT: 9000,
				Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy, Digest: true, Delivery: crf.Immediate,
			}
			e.crf = crf.New(e.now, testID, &m, gateway, dstAddr, &p, e.crfEnv)
		}
		e.crf.HandleHello(e.now, &m, &e.crfActs)
	case wire.TypeParamUpdate:
		m, _ := wire.ParseParamUpdate(msg)
		e.crf.HandleParamUpdate(e.now, &m, &e.crfActs)
	case wire.TypeRepair:
		m, _ := wire.ParseRepair(msg)
		e.crf.HandleRepair(e.now, &m, false, &e.crfActs)
	default:
		e.t.Fatalf("%v", h.Type)
	}
}

func (e *ends) toCSF(msg []byte) {
	h, err := wire.ParseHeader(msg)
	if err != nil {
		e.t.Fatal(err)
	}
	switch h.Type {
	case wire.TypeHelloAck:
		m, _ := wire.ParseHelloAck(msg)
		e.f.HandleHelloAck(e.now, gateway, &m, &e.acts)
	case wire.TypeParamAck:
		m, _ := wire.ParseParamAck(msg)
		e.f.HandleParamAck(e.now, gateway, &m, &e.acts)
	case wire.TypeRepairRequest:
		m, _ := wire.ParseRepairRequest(msg)
		e.f.HandleRequest(e.now, gateway, &m, &e.acts)
	case wire.TypeLossReport:
		m, _ := wire.ParseLossReport(msg)
		e.f.HandleLossReport(e.now, gateway, &m, &e.acts)
	case wire.TypePathReport:
		m, err := wire.ParsePathReport(msg)
		if err != nil {
			e.t.Fatal(err)
		}
		e.told = append(e.told, e.now)
		e.f.HandlePathReport(e.now, gateway2, &m, &e.acts)
	default:
		e.t.Fatalf("%v", h.Type)
	}
}

// source sends the packet of a PSN by the reporter to the CRF.
func (e *ends) source(psn roce.PSN) {
	p := packet(e.t, roce.WriteMiddle, psn, e.mtu, 0)
	e.f.HandleSource(e.now, p, &e.acts)
	e.carry()
	if e.drop[psn] {
		e.after(e.at, func() { e.report(psn) })
		return
	}
	e.after(e.oneWay, func() {
		e.arrived = append(e.arrived, psn)
		if e.crf != nil {
			e.crf.HandleSource(e.now, p, false, &e.crfActs)
		}
	})
}

func (e *ends) report(psn roce.PSN) {
	if e.reports == nil {
		return
	}
	e.reports.HandleDrop(e.now, reporter.Flow{Src: srcAddr, Dst: dstAddr, Label: testQPN}, psn, wire.CauseCorruption)
	e.after(e.reports.NextDeadline()-e.now, func() {
		e.reports.Poll(e.now, &e.said)
		for _, a := range e.said {
			msg := bytes.Clone(a.Msg)
			e.after(e.at, func() { e.toCSF(msg) })
		}
		e.said = e.said[:0]
	})
}

func (e *ends) deliver(frame []byte) {
	p, reason := roce.Parse(frame)
	if reason != roce.OK || !bytes.Equal(p.P(), packet(e.t, roce.WriteMiddle, p.PSN(), e.mtu, 0).P()) {
		e.t.Fatalf("PSN %v restored wrong (%v)", p.PSN(), reason)
	}
	e.arrived = append(e.arrived, p.PSN())
}

// newEnds is a protected flow on a path of which nothing is lost but what the reporter drops.
func newEnds(t testing.TB, reports bool) *ends {
	p := defaults()
	p.FixedM = 0
	e := &ends{
		world: newWorld(t, p), oneWay: testRTT / 2, at: 200 * time.Microsecond, drop: map[roce.PSN]bool{},
		crfEnv: crf.NewEnv(fec.NewPool(64 << 20)),
	}
	if reports {
		e.reports = reporter.New(reporter.Config{Node: 7, MTU: 1500, Flows: 4, Pending: 4, PerSecond: 1000})
	}
	e.source(1)
	e.run(5 * testRTT)
	for psn := roce.PSN(2); psn < 66; psn++ {
		e.source(psn)
		e.run(10 * time.Microsecond)
	}
	e.run(testRTT)
	if e.f.State() != Protecting || e.crf.State() != crf.Protecting {
		t.Fatalf("%v, %v", e.f.State(), e.crf.State())
	}
	e.arrived = nil
	return e
}

// A drop that a node near the sender reports is restored before the CRF would have asked: no REPAIR_REQUEST at all. Without the report the CRF
// asks, and the packet comes a round trip later.
func TestSection8_2_RestoredBeforeTheCRFAsks(t *testing.T) {
	restoredAt := map[bool]time.Duration{}
	for _, reports := range []bool{false, true} {
		e := newEnds(t, reports)
		first := e.f.newest.Add(1)
		for i := range 320 {
			if i == 100 || i == 101 || i == 170 {
				e.drop[first.Add(i)] = true
			}
		}
		began := e.now
		for i := range 320 {
			e.source(first.Add(i))
			e.run(10 * time.Microsecond)
		}
		for s := e.crf.Stats(); s.Restored < 3 && e.now < began+10*testRTT; s = e.crf.Stats() {
			e.run(10 * time.Microsecond)
		}
		restoredAt[reports] = e.now - began
		e.run(4 * testRTT)
		slices.Sort(e.arrived)
		if len(e.arrived) != 320 || e.arrived[0] != first || e.arrived[319] != first.Add(319) || len(slices.Compact(e.arrived)) != 320 {
			t.Fatalf("reports %v: %d packets arrived", reports, len(e.arrived))
		}
		s := e.crf.Stats()
		if requests := s.BlockRequests + s.RangeRequests; (requests == 0) != reports {
			t.Errorf("reports %v: %d requests for blocks, %d for ranges", reports, s.BlockRequests, s.RangeRequests)
		}
		if !reports {
			continue
		}
		if len(e.early) != 3 || e.f.Stats().Coded != 0 {
			t.Fatalf("%d early symbols, %d coded", len(e.early), e.f.Stats().Coded)
		}
		for _, at := range e.early {
			came, _ := slices.BinarySearch(e.told, at+1)
			if d := at - e.told[came-1]; d > time.Millisecond {
				t.Errorf("%v from the report to the repair", d)
			}
		}
		if len(e.told) != 2 {
			t.Errorf("%d reports for drops at two times", len(e.told))
		}
	}
	if restoredAt[true]+testRTT/2 > restoredAt[false] {
		t.Errorf("all restored after %v, without reports after %v", restoredAt[true], restoredAt[false])
	}
	t.Logf("all restored after %v, without reports after %v", restoredAt[true], restoredAt[false])
}

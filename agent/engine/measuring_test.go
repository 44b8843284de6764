// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
)

// counted is what the programs of tunnels counted, in memory.
type counted struct {
	arrived map[bpf.TunnelFlow]*bpf.FlowCounts
	entered map[bpf.TunnelFlow]reporter.Counts
	jumped  bool
	forgot  []uint32

	enteredBy *bpf.Tunnel // nil: the first tunnel of the plan
	looks     int         // at all that entered
}

func byQPN(a, b bpf.TunnelFlow) int { return cmp.Compare(a.QPN, b.QPN) }

func (c *counted) SetClock() (bool, error) { j := c.jumped; c.jumped = false; return j, nil }
func (c *counted) Arrived(yield func(*bpf.FlowCounts)) error {
	for _, f := range slices.SortedFunc(maps.Keys(c.arrived), byQPN) {
		yield(c.arrived[f])
	}
	return nil
}

func (c *counted) EnteredOf(_ bpf.Tunnel, f bpf.TunnelFlow) (reporter.Counts, bool, error) {
	x, ok := c.entered[f]
	return x, ok, nil
}

func (p *passages) Entered(yield func(*bpf.FlowCounts)) error {
	p.looks++
	by := p.plan.Sites[0].Tunnels[0]
	if p.enteredBy != nil {
		by = *p.enteredBy
	}
	for _, f := range slices.SortedFunc(maps.Keys(p.entered), byQPN) {
		yield(&bpf.FlowCounts{Tunnel: by, Flow: f, Counts: p.entered[f]})
	}
	return nil
}

func (c *counted) ForgetCounts(since uint32) error {
	c.forgot = append(c.forgot, since)
	return nil
}

// measuringBench is a bench with a tunnel that is measured, up both ways since long ago, and a Unix clock of its own.
type measuringBench struct {
	*tunnelBench
	unix    time.Duration
	ahead   time.Duration // of the other end's clock
	periods reporter.Periods
	notices []string
}

const (
	firstPeriod = uint32(1_800_000_001)
	trip        = 40 * time.Millisecond
)

func newMeasuringBench(t *testing.T) *measuringBench {
	t.Helper()
	b := &measuringBench{tunnelBench: newTunnelBench(t, false), periods: reporter.NewPeriods(markingPeriod)}
	b.unix = time.Duration(firstPeriod-10) * markingPeriod
	b.w.e.measuring.unix = func() time.Duration { return b.unix }
	b.w.e.opts.Notice = func(text string) { b.notices = append(b.notices, text) }
	b.measure(t, true)
	b.w.e.tendTunnels()
	asked := b.said()
	b.pass(trip)
	b.hears(ecn.Lease{Answer: true, Nonce: asked[0].Nonce, For: ecn.MaxLease}, westGateway)
	b.hears(ecn.Lease{Nonce: 99}, westGateway)
	b.tick()
	return b
}

func (b *measuringBench) measure(t *testing.T, on bool) {
	t.Helper()
	c := tunnelled(true)
	c.Domains[0].WAN.Measure = on
	if _, err := b.w.e.Apply(c); err != nil {
		t.Fatal(err)
	}
	b.w.now = b.clock
	b.w.obey()
}

func (b *measuringBench) pass(d time.Duration) { b.clock += d; b.unix += d }

// until lets time pass until period n is over, and lets the control side look. The lease is renewed.
func (b *measuringBench) until(n uint32) {
	for b.periods.Over(b.unix) != n {
		b.pass(b.periods.UntilOver(b.unix))
	}
	for _, x := range b.w.e.tunnels.byEnds {
		x.until = b.clock + time.Second
	}
}

// tick is one look of the control side; it returns the readings that are told.
func (b *measuringBench) tick() (told []ecn.Readings) {
	b.box.sent = nil
	b.w.e.afterPeriod()
	b.w.speak()
	for _, m := range b.box.sent {
		if x, err := ecn.ParseReadings(m.msg); err == nil {
			told = append(told, x)
		}
	}
	return told
}

// hearsReadings is a message of the other end.
func (b *measuringBench) hearsReadings(from string, n uint32, list ...ecn.Reading) {
	m := ecn.Readings{Period: n, Time: uint64((b.unix + b.ahead - trip/2).Microseconds()), List: list}
	b.hearsRaw(from, m.Append(nil))
}

func (b *measuringBench) hearsRaw(from string, msg []byte) {
	b.w.now = b.clock
	b.w.wanMessage(52000, &packet.Message{Data: msg, From: netip.AddrPortFrom(netip.MustParseAddr(from), 52000), To: netip.MustParseAddr("192.0.2.1"), Ifindex: 7})
	for {
		select {
		case x := <-b.w.e.measuring.inbox:
			b.w.e.takeReadings(x)
			b.w.takeMeasurements()
			continue
		default:
		}
		return
	}
}

// enter counts packets of the flow that leaves.
func (b *measuringBench) enter(since uint32, periods map[uint32]uint32) {
	b.kernel.entered[tunnelFlow(leaving)] = countsOf(since, periods)
}

func countsOf(since uint32, periods map[uint32]uint32) (c reporter.Counts) {
	c.Since = since
	for n, packets := range periods {
		c.Periods[n%reporter.Kept] = reporter.PeriodCounts{Number: n, Packets: packets, Sum: time.Duration(packets) * markingPeriod / 2}
	}
	return c
}

func (b *measuringBench) drops() map[string]uint64 { return b.w.e.Overview().Unmeasured }

func readingOf(packets uint32, late time.Duration) ecn.Reading {
	return ecn.Reading{
		Flow: ecn.Flow{Src: leaving.Src, Dst: leaving.Dst, Label: uint32(leaving.QPN)}, Packets: packets,
		Sum: time.Duration(packets) * (markingPeriod/2 + late),
	}
}

// What the other end counted is compared with what this one did, and goes to the CSF here as a report (Section 8.2).
func TestRFC9341_MeasurementsReachTheCSF(t *testing.T) {
	b := newMeasuringBench(t)
	for i, x := range []struct {
		entered, arrived uint32
		late             time.Duration
		reports          uint64
	}{{100, 100, 0, 0}, {100, 100, 0, 0}, {100, 98, 0, 1}, {100, 100, 0, 1}, {100, 100, 500 * time.Microsecond, 2}, {100, 100, 500 * time.Microsecond, 2}} {
		n := firstPeriod + uint32(i)
		b.until(n)
		b.enter(firstPeriod-5, map[uint32]uint32{n: x.entered})
		unprotected := readingOf(x.arrived/2, x.late)
		unprotected.Flow.Label++
		b.kernel.entered[bpf.TunnelFlow{Src: leaving.Src, Dst: leaving.Dst, QPN: unprotected.Flow.Label}] = countsOf(firstPeriod-5, map[uint32]uint32{n: x.entered / 2})
		b.hearsReadings(westGateway, n, readingOf(x.arrived, x.late), unprotected)
		b.w.now += 20 * time.Millisecond
		b.w.pollTimers()
		if got := b.csf().PathReports; got != x.reports {
			t.Errorf("period %d: %d reports, want %d; %v", i, got, x.reports, b.drops())
		}
	}
	s := b.w.e.Overview()
	if m := s.Tunnels[0].Measured; m == nil || m.Packets != 750 || m.Lost != 3 || m.DelayChange != 500 || m.Problem != "" || s.Counters["measured_packets"] != 750 || s.Counters["measured_lost"] != 3 {
		t.Errorf("%+v, %v", m, s.Counters)
	}
	if n := b.w.drops[dropUnknownFlow]; n != 0 {
		t.Errorf("%d reports about a flow without a CSF", n)
	}
	if b.drops()["flow_unproven"] != 2 {
		t.Errorf("%v", b.drops())
	}
}

// Readings are believed from the other end of a tunnel that is measured and open, once, not too many, and while the clocks fit.
func TestRFC9341_WhoseReadingsAreBelieved(t *testing.T) {
	b := newMeasuringBench(t)
	b.until(firstPeriod)
	b.enter(firstPeriod-50, map[uint32]uint32{firstPeriod: 9, firstPeriod - 1: 9})
	b.hearsReadings(westGateway, firstPeriod-1, readingOf(9, 0))
	good := func() { b.hearsReadings(westGateway, firstPeriod, readingOf(8, 0)) }
	for _, x := range []struct {
		name, drop string
		do         func()
	}{
		{"of an endpoint", "message_no_tunnel", func() { b.hearsReadings("10.2.0.5", firstPeriod, readingOf(0, 0)) }},
		{"malformed", "message_malformed", func() { b.hearsRaw(westGateway, []byte{0x1e, 0, 0, 4}) }},
		{"of another flow", "flow_unknown_flow", func() {
			r := readingOf(0, 0)
			r.Flow.Label++
			b.hearsReadings(westGateway, firstPeriod, r)
		}},
		{"of a period that is not over", "flow_early", func() { b.hearsReadings(westGateway, firstPeriod+3, readingOf(0, 0)) }},
		{"of a period before it was measured", "flow_partial_period", func() { b.hearsReadings(westGateway, firstPeriod-9, readingOf(0, 0)) }},
		{"of clocks apart", "message_clocks", func() { b.ahead = -time.Second; good(); b.ahead = 0 }},
		{"after the lease", "message_no_tunnel", func() {
			x := b.w.e.tunnels.byEnds[packet.Ends{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr(westGateway)}]
			until := x.until
			x.until = b.clock
			good()
			x.until = until
		}},
	} {
		before := b.drops()[x.drop]
		x.do()
		if s := b.w.e.Overview(); s.Unmeasured[x.drop] != before+1 || s.Counters["measured_packets"] != 0 {
			t.Errorf("%s: %v, %v", x.name, s.Unmeasured, s.Counters)
		}
	}
	good()
	if n := b.w.e.Overview().Counters["measured_lost"]; n != 1 {
		t.Fatalf("%d lost: %v", n, b.drops())
	}
	for range 2 * readingsTaken {
		good()
	}
	if s := b.w.e.Overview(); s.Counters["measured_lost"] != 1 || s.Unmeasured["flow_repeated"] == 0 || s.Unmeasured["message_limit"] == 0 {
		t.Errorf("after replays: %v, %v", s.Counters, s.Unmeasured)
	}
	b.measure(t, false)
	before := b.w.e.measuring.refusals[refusedTunnel].Load()
	good()
	if b.w.e.measuring.refusals[refusedTunnel].Load() != before+1 || b.w.e.Overview().Tunnels[0].Measured != nil {
		t.Error("without measurement")
	}
}

// Clocks that differ by too much, colours that the WAN changes, and packets that are too many are told: once in the log, and in the status while it is so.
func TestRFC9341_FaultsAreTold(t *testing.T) {
	b := newMeasuringBench(t)
	problem := func() string { return b.w.e.Overview().Tunnels[0].Measured.Problem }
	n := firstPeriod
	hear := func(arrived uint32) {
		n++
		b.until(n)
		b.tick()
		b.enter(firstPeriod-5, map[uint32]uint32{n: 9})
		b.hearsReadings(westGateway, n, readingOf(arrived, 0))
	}
	recolour := func(x uint32) {
		c := countsOf(firstPeriod-50, nil)
		c.Recoloured = x
		b.kernel.arrived[tunnelFlow(arriving)] = &bpf.FlowCounts{Tunnel: b.kernel.plan.Sites[0].Tunnels[0], Flow: tunnelFlow(arriving), Counts: c}
	}
	for _, x := range []struct {
		says       string
		begin, end func()
	}{
		{"within 375ms", func() { b.ahead = time.Second }, func() { b.ahead = 0 }},
		{"within 375ms", func() { b.ahead = -400 * time.Millisecond }, func() { b.ahead = -300 * time.Millisecond }},
		{"came out of the tunnel than went in", func() { hear(10) }, func() {}},
		{"another DSCP outside", func() { recolour(n + 1) }, func() { recolour(n - 5) }},
	} {
		b.notices = nil
		x.begin()
		if x.says != "came out of the tunnel than went in" {
			hear(9)
		}
		if !strings.Contains(problem(), x.says) || len(b.notices) != 1 || !strings.Contains(b.notices[0], x.says) {
			t.Errorf("%s: %q, %q", x.says, problem(), b.notices)
		}
		x.end()
		if b.ahead == 0 && x.says == "within 375ms" { // nothing more is heard
			for range tellSilent + 2 {
				n++
				b.until(n)
				b.tick()
			}
			if problem() != "" {
				t.Errorf("%s, long ago: %q", x.says, problem())
			}
		}
		for range 3 {
			hear(9)
		}
		if problem() != "" || len(b.notices) != 1 {
			t.Errorf("after %s: %q, %q", x.says, problem(), b.notices)
		}
	}
}

// The end of a tunnel tells its beginning once a period what came out, in messages that fit every path and no more than so many; silence is told for
// a while, and what is not whole never.
func TestRFC9341_ReadingsAreTold(t *testing.T) {
	b := newMeasuringBench(t)
	x := b.kernel.plan.Sites[0].Tunnels[0]
	flow := func(i int) bpf.TunnelFlow {
		f := tunnelFlow(arriving)
		f.QPN = uint32(i)
		return f
	}
	arrive := func(i int, c reporter.Counts) {
		b.kernel.arrived[flow(i)] = &bpf.FlowCounts{Tunnel: x, Flow: flow(i), Counts: c}
	}
	n := firstPeriod
	arrive(1, countsOf(n-5, map[uint32]uint32{n: 7}))
	arrive(2, countsOf(n-1, map[uint32]uint32{n: 7})) // not whole
	arrive(3, countsOf(n-90, map[uint32]uint32{n - 1: 7}))
	arrive(4, countsOf(n-90, map[uint32]uint32{n - 5: 7})) // silent since long
	b.until(n)
	told := b.tick()
	if len(told) != 1 || told[0].Period != n || len(told[0].List) != 2 || told[0].Time != uint64(b.unix.Microseconds()) {
		t.Fatalf("%+v", told)
	}
	for _, r := range told[0].List {
		if want := map[uint32]uint32{1: 7, 3: 0}[r.Flow.Label]; r.Packets != want || r.Flow.Label != 1 && r.Flow.Label != 3 {
			t.Errorf("%+v", r)
		}
	}
	if m := b.box.sent[0]; m.to != netip.MustParseAddrPort(westGateway+":52000") || m.from != (packet.Source{Addr: netip.MustParseAddr("192.0.2.1")}) {
		t.Errorf("to %v from %v", m.to, m.from)
	}
	if again := b.tick(); len(again) != 0 {
		t.Errorf("told again: %+v", again)
	}
	for i := range 3000 {
		arrive(i, countsOf(n-5, map[uint32]uint32{n + 1: 7}))
	}
	b.until(n + 1)
	told = b.tick()
	for _, m := range b.box.sent {
		if len(m.msg) > reportMTU-40-8 {
			t.Errorf("%d octets", len(m.msg))
		}
	}
	if len(told) != readingsSent || len(told[0].List) != 50 {
		t.Errorf("%d messages", len(told))
	}
	seen := map[uint32]int{}
	for p := n + 2; p < n+22; p++ {
		for i := range 2000 {
			arrive(i, countsOf(n-5, map[uint32]uint32{p: 7}))
		}
		b.until(p)
		for _, m := range b.tick() {
			for _, r := range m.List {
				seen[r.Flow.Label] |= 1 << (p & 1)
			}
		}
	}
	for i := range uint32(2000) {
		if seen[i] != 3 {
			t.Fatalf("flow %d was told with the colours %b", i, seen[i])
		}
	}
	n += 20
	b.kernel.jumped = true
	b.until(n + 2)
	if told := b.tick(); len(told) != 0 {
		t.Errorf("after a jump of the clock: %d", len(told))
	}
	b.clock -= markingPeriod // so Unix time jumps
	for range 3 {
		b.until(b.periods.Over(b.unix) + 1)
		if told := b.tick(); len(told) != 0 {
			t.Errorf("after a jump of Unix time: %d", len(told))
		}
	}
	for _, x := range b.w.e.tunnels.byEnds {
		x.theirs = 0 // the other end has no use for its tunnel to here
	}
	b.kernel.forgot = nil
	for range 2 * forgetEvery {
		b.until(b.periods.Over(b.unix) + 1)
		b.tick()
	}
	if over := b.periods.Over(b.unix); len(b.kernel.forgot) != 2 || over-b.kernel.forgot[1] > countsKept+forgetEvery || over-b.kernel.forgot[1] < countsKept {
		t.Errorf("forgotten before %v in period %d", b.kernel.forgot, over)
	}
}

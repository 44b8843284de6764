// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	testNode  = 0xc0a80001
	testStart = 1000 * time.Second
	testUnix  = 1_800_000_000 * time.Second
)

var src6, dst6 = netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::1")

func testFlow(n int) Flow {
	return Flow{Src: netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), Dst: netip.MustParseAddr("10.2.0.1"), Label: uint32(n)}
}

func testConfig() Config {
	return Config{Node: testNode, Unix: testUnix, MTU: 1500, Flows: 64, Pending: 16, PerSecond: 1e6}
}

// bench runs one Reporter under virtual time.
type bench struct {
	t    testing.TB
	now  time.Duration
	r    *Reporter
	acts []Action
}

func newBench(t testing.TB, c Config) *bench { return &bench{t: t, now: testStart, r: New(c)} }

// sent is a report with the time at which it left.
type sent struct {
	at time.Duration
	wire.PathReport
}

// until lets time pass and returns what is sent. Poll must always move the deadline on.
func (b *bench) until(at time.Duration) (out []sent) {
	b.t.Helper()
	for b.r.NextDeadline() <= at {
		b.now = max(b.now, b.r.NextDeadline())
		out = append(out, b.poll()...)
		if d := b.r.NextDeadline(); d <= b.now {
			b.t.Fatalf("after Poll at %v the next deadline is %v", b.now, d)
		}
	}
	b.now = at
	return out
}

func (b *bench) wait(d time.Duration) []sent { b.t.Helper(); return b.until(b.now + d) }

// poll checks that each message fits the path and is about the flow that the action names.
func (b *bench) poll() (out []sent) {
	b.t.Helper()
	b.r.Poll(b.now, &b.acts)
	for _, a := range b.acts {
		if n := len(a.Msg) + 40 + 8; n > b.r.config.MTU {
			b.t.Fatalf("a report of %d octets on a path of %d", n, b.r.config.MTU)
		}
		x, err := wire.ParsePathReport(append([]byte(nil), a.Msg...))
		if err != nil {
			b.t.Fatal(err)
		}
		if a.Flow != (Flow{Src: x.Src, Dst: x.Dst, Label: x.Label}) {
			b.t.Fatalf("%v in a report for %v", x, a.Flow)
		}
		out = append(out, sent{b.now, x})
	}
	b.acts = b.acts[:0]
	return out
}

// psns are those of an entry.
func psns(h wire.Hop) (out []roce.PSN) {
	for i := range h.PSNs.Len() {
		out = append(out, h.PSNs.At(i))
	}
	return out
}

func TestSection8_2_OwnDropsAreReported(t *testing.T) {
	b := newBench(t, testConfig())
	b.r.HandleDrop(b.now, testFlow(1), 7, wire.CauseCongestion)
	b.wait(aggregation - time.Microsecond)
	b.r.HandleDrop(b.now, testFlow(1), 9, wire.CauseCongestion)
	b.r.HandleDrop(b.now, testFlow(1), 8, wire.CauseCorruption)
	got := b.wait(time.Second)
	if len(got) != 1 {
		t.Fatalf("%d reports", len(got))
	}
	x := got[0]
	if x.at != testStart+aggregation || x.Method != wire.MethodNodeDrops || x.Truncated || x.HopCount != 2 {
		t.Fatalf("%+v", x)
	}
	for i, want := range []struct {
		cause wire.Cause
		psns  []roce.PSN
	}{{wire.CauseCongestion, []roce.PSN{7, 9}}, {wire.CauseCorruption, []roce.PSN{8}}} {
		h := x.Hops[i]
		if h.NodeID != testNode || h.Cause != want.cause || int(h.Lost) != len(want.psns) || !reflect.DeepEqual(psns(h), want.psns) {
			t.Errorf("entry %d: %+v, PSNs %v", i, h, psns(h))
		}
	}
	if x.Hops[0].Period == x.Hops[1].Period {
		t.Error("two entries of a node with the same number: the second would be outdated")
	}
	if s := b.r.Stats(); s.Dropped != 3 || s.Reports != 1 {
		t.Errorf("%+v", s)
	}
}

// At most 1 report per flow and 10 ms; one per 100 microseconds when a drop occurs; other flows are not held up.
func TestSection8_2_RateLimitsOfAFlow(t *testing.T) {
	for _, c := range []struct {
		name  string
		event func(*bench)
		gap   time.Duration
	}{
		{"drops", func(b *bench) { b.r.HandleDrop(b.now, testFlow(1), 7, wire.CauseUnknown) }, 100 * time.Microsecond},
		{"a rise of delay", func(b *bench) { b.r.HandleMeasurement(b.now, &Measurement{Flow: testFlow(1), DelayChange: 500}) }, 10 * time.Millisecond},
		{"merged entries without drops", func(b *bench) { b.r.Merge(b.now, downstream(1, wire.Hop{NodeID: 2, DelayChange: 9})) }, 10 * time.Millisecond},
		{"merged drops", func(b *bench) { b.r.Merge(b.now, downstream(1, wire.Hop{NodeID: 2, Lost: 1})) }, 100 * time.Microsecond},
	} {
		b := newBench(t, testConfig())
		var got []sent
		for range 8000 {
			c.event(b)
			got = append(got, b.wait(5*time.Microsecond)...)
		}
		for i := 1; i < len(got); i++ {
			if d := got[i].at - got[i-1].at; d < c.gap {
				t.Fatalf("%s: two reports within %v", c.name, d)
			}
		}
		if want := int(40 * time.Millisecond / c.gap); len(got) < want*9/10 || len(got) > want+1 {
			t.Errorf("%s: %d reports in 40 ms", c.name, len(got))
		}
		b.r.HandleDrop(b.now, testFlow(2), 1, wire.CauseUnknown)
		if got := b.wait(aggregation); len(got) == 0 || got[len(got)-1].Label != 2 {
			t.Errorf("%s: another flow waits", c.name)
		}
	}
}

// A drop does not wait for the 10 ms after a report without one.
func TestSection8_2_DropsGoBeforeTheUsualGap(t *testing.T) {
	b := newBench(t, testConfig())
	rise := Measurement{Flow: testFlow(1), DelayChange: 500}
	b.r.HandleMeasurement(b.now, &rise)
	b.wait(aggregation)
	b.r.HandleMeasurement(b.now, &rise)
	b.r.HandleDrop(b.now, testFlow(1), 7, wire.CauseUnknown)
	got := b.wait(time.Second)
	if len(got) != 2 || got[0].Method != wire.MethodNodeDrops || got[0].at != testStart+aggregation+dropGap || got[1].at != got[0].at+usualGap {
		t.Errorf("%+v", got)
	}
}

func TestSection8_2_RateLimitOfThePort(t *testing.T) {
	c := testConfig()
	c.PerSecond = 1000
	b := newBench(t, c)
	var got []sent
	for range 1000 {
		for n := range 10 {
			b.r.HandleDrop(b.now, testFlow(n), 7, wire.CauseUnknown)
		}
		got = append(got, b.wait(time.Millisecond)...)
	}
	if n := len(got); n < 1099 || n > 1100 {
		t.Errorf("%d reports in a second", n)
	}
	if s := b.r.Stats(); s.Deferred == 0 || s.Drops[DropPending] != 0 {
		t.Errorf("%+v", s)
	}
}

// The lists are cut to what the path MTU takes, the flag says so, and the count stays what it is.
func TestSection8_2_TruncatedToThePathMTU(t *testing.T) {
	for _, mtu := range []int{0, 576, 1280, 1500, 9000} {
		for _, v6 := range []bool{false, true} {
			c := testConfig()
			c.MTU = mtu
			b := newBench(t, c)
			k := testFlow(1)
			if v6 {
				k.Src, k.Dst = src6, dst6
			}
			for i := range 5000 {
				b.r.HandleDrop(b.now, k, roce.PSN(i), wire.Cause(i%2))
			}
			x := b.wait(time.Second)[0]
			listed := x.Hops[0].PSNs.Len() + x.Hops[1].PSNs.Len()
			if !x.Truncated || x.Hops[0].Lost != 2500 || x.Hops[1].Lost != 2500 || listed == 0 {
				t.Fatalf("MTU %d: %+v", mtu, x)
			}
			if n := int(b.r.Stats().Drops[DropTruncated]); n != 5000-listed {
				t.Errorf("MTU %d: %d of 5000 PSNs listed, %d counted as cut", mtu, listed, n)
			}
			if mtu == 9000 && listed != 2*wire.MaxPSNs {
				t.Errorf("%d PSNs listed where 255 of an entry fit", listed)
			}
			if full := len(x.Append(nil)) + 48 + 4; mtu == 1500 && full <= 1500 {
				t.Errorf("one PSN more would have fitted: %d octets", full)
			}
		}
	}
}

// downstream is a report that comes from further down the path.
func downstream(n int, hops ...wire.Hop) *wire.PathReport {
	k := testFlow(n)
	x := &wire.PathReport{Method: wire.MethodNodeDrops, Src: k.Src, Dst: k.Dst, Label: k.Label, HopCount: len(hops)}
	copy(x.Hops[:], hops)
	return x
}

func TestSection8_2_DownstreamReportsAreMerged(t *testing.T) {
	b := newBench(t, testConfig())
	b.r.HandleDrop(b.now, testFlow(1), 7, wire.CauseCongestion)
	for i := range 20 {
		h := wire.Hop{NodeID: uint32(i), Period: uint32(100 + i), Lost: 3, DelayChange: -5, Cause: wire.CauseFailure}
		h.PSNs = h.PSNs.Append(roce.PSN(i))
		if ok := b.r.Merge(b.now, downstream(1, h)); ok != (i < 15) {
			t.Fatalf("entry %d is taken: %v", i, ok)
		}
	}
	other := downstream(1, wire.Hop{NodeID: 99, Lost: 1})
	other.Method = wire.MethodAlternateMarking
	if !b.r.Merge(b.now, other) {
		t.Fatal("of another method, so of another report")
	}
	got := b.wait(aggregation + dropGap)
	if len(got) != 2 || got[0].HopCount != wire.MaxHops || got[1].Method != wire.MethodAlternateMarking || got[1].HopCount != 1 {
		t.Fatalf("%+v", got)
	}
	for i, h := range got[0].Hops[1:] {
		if h.NodeID != uint32(i) || h.Period != uint32(100+i) || h.Lost != 3 || h.DelayChange != -5 || h.Cause != wire.CauseFailure || h.PSNs.At(0) != roce.PSN(i) {
			t.Errorf("%+v", h)
		}
	}
	if s := b.r.Stats(); s.Merged != 16 || s.Drops[DropForwarded] != 5 {
		t.Errorf("%+v", s)
	}
}

// What cannot be merged whole goes on by itself: nothing of another's report is ever cut.
func TestSection8_2_WhatIsNotMerged(t *testing.T) {
	b := newBench(t, testConfig())
	long := wire.Hop{NodeID: 2, PSNs: make(wire.PSNList, 4*wire.MaxPSNs)}
	none, method, family, label := downstream(1), downstream(1, long), downstream(1, long), downstream(2, long)
	method.Method, family.Dst, label.Label = 9, netip.MustParseAddr("fd00::1"), label.Label|0xff<<24
	for name, c := range map[string]struct {
		x   *wire.PathReport
		why DropReason
	}{
		"no entry": {none, DropMalformed}, "unknown method": {method, DropMalformed}, "two families": {family, DropMalformed},
		"this node's own": {downstream(1, wire.Hop{NodeID: testNode}), DropOwnNode},
	} {
		before := b.r.Stats().Drops[c.why]
		if b.r.Merge(b.now, c.x) || b.r.Stats().Drops[c.why] != before+1 {
			t.Errorf("%s: merged, or not counted", name)
		}
	}
	if got := b.wait(time.Second); len(got) != 0 || b.r.pending != 0 {
		t.Fatalf("%+v, %d pending", got, b.r.pending)
	}
	b.r.HandleDrop(b.now, testFlow(3), 7, wire.CauseCongestion)
	k := testFlow(3)
	rest := testConfig().MTU - overhead(&k) - 2*entryOctets - len(long.PSNs)
	beside := downstream(3, long, wire.Hop{NodeID: 3, PSNs: make(wire.PSNList, rest/psnOctets*psnOctets)})
	for !b.r.Merge(b.now, beside) {
		beside.Hops[1].PSNs = beside.Hops[1].PSNs[psnOctets:] // too long beside the node's own drop, not by itself
	}
	if s := b.r.Stats(); s.Drops[DropForwarded] == 0 || s.Drops[DropTruncated] != 0 {
		t.Errorf("%+v", s)
	}
	b.wait(time.Second)
	if !b.r.Merge(b.now, label) {
		t.Fatal("the upper octet of the Flow Label is reserved")
	}
	label.Truncated = true
	b.r.Merge(b.now, downstream(2, wire.Hop{NodeID: 3}))
	if got := b.wait(time.Second); len(got) != 1 || got[0].HopCount != 2 || got[0].Truncated {
		t.Fatalf("%+v", got)
	}
	b.r.Merge(b.now, label)
	if got := b.wait(time.Second); len(got) != 1 || !got[0].Truncated {
		t.Fatal("Truncated got lost")
	}
}

// A report that would not fit the path MTU by itself is cut: no entry is lost, and the Truncated flag set (Section 8.2, rule 3).
func TestSection8_2_LongDownstreamReportsAreCut(t *testing.T) {
	b := newBench(t, testConfig())
	long := wire.Hop{NodeID: 2, Lost: 1000, PSNs: make(wire.PSNList, 4*wire.MaxPSNs)}
	x := downstream(1, long, long, long, long, long, long)
	if !b.r.Merge(b.now, x) || b.r.Forward(b.now, x) || b.r.Stats().Drops[DropTooLong] != 1 {
		t.Fatal("not merged, or forwarded although it does not fit the path")
	}
	got := b.wait(time.Second)
	if len(got) != 1 || !got[0].Truncated || got[0].HopCount != 6 || got[0].Hops[5].Lost != 1000 {
		t.Fatalf("%+v", got)
	}
	named := 0
	for _, h := range got[0].Hops[:6] {
		named += h.PSNs.Len()
	}
	if most := (testConfig().MTU - overhead(&Flow{Src: x.Src, Dst: x.Dst}) - 6*entryOctets) / psnOctets; named != most || b.r.Stats().Drops[DropTruncated] != uint64(6*wire.MaxPSNs-most) {
		t.Errorf("%d PSNs, %d fit", named, most)
	}
}

// What goes on as it is obeys the limits of the flow and of the port, and never comes round.
func TestSection8_2_ForwardedReportsAreLimited(t *testing.T) {
	c := testConfig()
	c.PerSecond = 100 // and 10 at once
	b := newBench(t, c)
	one := func(flow int, h wire.Hop) bool { return b.r.Forward(b.now, downstream(flow, h)) }
	lost := wire.Hop{NodeID: 2, Lost: 1}
	if !one(1, lost) || one(1, lost) {
		t.Error("two at once about one flow")
	}
	b.now += dropGap
	if !one(1, lost) {
		t.Error("none after the gap of drops")
	}
	b.now += dropGap
	if one(1, wire.Hop{NodeID: 2, DelayChange: 500}) {
		t.Error("one without a drop before the usual gap")
	}
	for i := 2; i < 10; i++ {
		if !one(i, lost) {
			t.Errorf("flow %d is over the limit of the port", i)
		}
	}
	if one(10, lost) {
		t.Error("more than the port may send")
	}
	b.now += time.Second
	if one(1, wire.Hop{NodeID: testNode, Lost: 1}) {
		t.Error("a report of this node came round")
	}
	if s := b.r.Stats(); s.Forwarded != 10 || s.Drops[DropPaced] != 3 {
		t.Errorf("%+v", s)
	}
}

// Section 8.2, rule 3: the upper octet of a Flow Label is reserved, so it makes no other flow; what says nothing goes nowhere; what is as long as the path
// carries goes on.
func TestSection8_2_WhatGoesOn(t *testing.T) {
	b := newBench(t, testConfig())
	lost := wire.Hop{NodeID: 2, Lost: 1}
	wide := downstream(1, lost)
	wide.Label |= 0xff << 24
	if !b.r.Forward(b.now, wide) || b.r.Forward(b.now, downstream(1, lost)) {
		t.Error("the upper octet of a Flow Label is not left out")
	}
	if b.r.Forward(b.now, downstream(2)) {
		t.Error("a report without an entry goes on")
	}
	k := testFlow(3)
	room := (testConfig().MTU - overhead(&k) - entryOctets) / psnOctets * psnOctets
	c := testConfig()
	c.MTU = overhead(&k) + entryOctets + room
	for i, x := range []struct {
		octets int
		on     bool
	}{{room, true}, {room + psnOctets, false}} {
		b := newBench(t, c)
		if got := b.r.Forward(b.now, downstream(3, wire.Hop{NodeID: 2, Lost: 1, PSNs: make(wire.PSNList, x.octets)})); got != x.on {
			t.Errorf("%d: goes on %v", i, got)
		}
	}
}

// Section 9.7: causes that the message does not know are told as one, so that an entry of every cause always fits.
func TestSection8_2_UnknownCauses(t *testing.T) {
	b := newBench(t, testConfig())
	for cause := wire.CausePolicy; cause < 9; cause++ {
		b.r.HandleDrop(b.now, testFlow(1), 7, cause)
	}
	got := b.wait(time.Second)
	if len(got) != 1 || got[0].HopCount != 2 || got[0].Hops[0].Cause != wire.CausePolicy || got[0].Hops[1].Cause != wire.CauseUnknown || got[0].Hops[1].Lost != 4 {
		t.Errorf("%+v", got)
	}
}

// Section 9.7: what was lost is told up to the largest number that the message has.
func TestSection8_2_MoreLostThanANumberHolds(t *testing.T) {
	b := newBench(t, testConfig())
	c := Counters{}
	b.r.HandleCounters(b.now, c)
	for range 2 {
		c.Passed, c.Dropped = c.Passed+1, c.Dropped+3<<30
		b.r.Count(testFlow(1), 1)
		b.r.HandleCounters(b.now, c)
	}
	if got := b.wait(time.Second); len(got) != 1 || got[0].Hops[0].Lost != math.MaxUint32 {
		t.Errorf("%+v", got)
	}
}

// Counters of which only one goes back are those of another interface too.
func TestSection8_2_EitherCounterGoesBack(t *testing.T) {
	for _, c := range []Counters{{Passed: 1200, Dropped: 5}, {Passed: 900, Dropped: 100}} {
		b := newBench(t, testConfig())
		b.r.HandleCounters(b.now, Counters{Passed: 1000, Dropped: 50})
		b.r.Count(testFlow(1), 100)
		b.r.HandleCounters(b.now, c)
		if got := b.wait(time.Second); len(got) != 0 || b.r.Stats().PortRestarts != 1 || b.r.Stats().PortDropped != 0 {
			t.Errorf("%+v: %+v, %+v", c, got, *b.r.Stats())
		}
	}
}

// A CSF takes a report with a number that is not above the last one for outdated (Section 8.2, rule 8): numbers grow with every report, after
// the flow was forgotten, and after a restart.
func TestSection8_2_NumbersGrow(t *testing.T) {
	c := testConfig()
	c.Flows = 1
	b := newBench(t, c)
	last := uint32(0)
	check := func(what string, got []sent) {
		t.Helper()
		if len(got) != 1 {
			t.Fatalf("%s: %d reports", what, len(got))
		}
		for _, h := range got[0].Hops[:got[0].HopCount] {
			if last != 0 && int32(h.Period-last) <= 0 {
				t.Fatalf("%s: number %d after %d", what, h.Period, last)
			}
			last = h.Period
		}
	}
	drop := func() []sent {
		for cause := range wire.Cause(9) {
			b.r.HandleDrop(b.now, testFlow(1), 7, cause)
		}
		return b.wait(dropGap)
	}
	for range 100 {
		check("one after the other", drop())
	}
	b.r.HandleDrop(b.now, testFlow(2), 7, 0)
	if b.wait(aggregation); b.r.Stats().Evicted != 1 {
		t.Fatal("not evicted")
	}
	check("after the flow was forgotten", drop())
	c.Unix += b.now + time.Second
	b.now, b.r = 0, New(c)
	check("after a restart", drop())
}

func TestSection8_2_PortCountersAreSharedOut(t *testing.T) {
	b := newBench(t, testConfig())
	total := map[uint32]uint64{}
	c := Counters{Passed: 5000, Dropped: 77}
	b.r.Count(testFlow(1), 1000)
	b.r.HandleCounters(b.now, c) // the first: what was before is not known
	for range 100 {
		b.r.Count(testFlow(1), 300)
		b.r.Count(testFlow(2), 100)
		c.Passed, c.Dropped = c.Passed+1000, c.Dropped+10 // 600 of other traffic
		b.r.HandleCounters(b.now, c)
		for _, x := range b.wait(time.Millisecond) {
			h := x.Hops[0]
			if x.HopCount != 1 || h.Cause != wire.CauseCongestion || h.PSNs.Len() != 0 || x.Method != wire.MethodNodeDrops {
				t.Fatalf("%+v", x)
			}
			total[x.Label] += uint64(h.Lost)
		}
	}
	if total[1] < 299 || total[1] > 300 || total[2] < 99 || total[2] > 100 || len(total) != 2 {
		t.Errorf("lost by flow: %v", total)
	}
	s := b.r.Stats()
	if s.PortDropped != 1000 || s.Attributed != total[1]+total[2] {
		t.Errorf("%+v", s)
	}
	b.r.Count(testFlow(1), 300)
	b.r.HandleCounters(b.now, Counters{Passed: 1, Dropped: 1e6}) // the interface is another one
	b.r.HandleCounters(b.now, Counters{Passed: 2, Dropped: 1e6 + 50})
	if got := b.wait(time.Second); len(got) != 0 || s.PortRestarts != 1 {
		t.Errorf("%+v, %d restarts", got, s.PortRestarts)
	}
}

// What is wrong, and what there is no room for, is refused and counted.
func TestSection8_2_Refusals(t *testing.T) {
	c := testConfig()
	c.Pending, c.Flows = 2, 3
	b := newBench(t, c)
	mixed := testFlow(1)
	mixed.Dst = netip.MustParseAddr("fd00::1")
	wide := testFlow(1)
	wide.Label = 1 << 24
	b.r.HandleDrop(b.now, mixed, 1, 0)
	b.r.HandleDrop(b.now, Flow{}, 1, 0)
	b.r.Count(wide, 1)
	b.r.Count(testFlow(1), -1)
	b.r.HandleMeasurement(b.now, &Measurement{Flow: mixed, Lost: 1})
	s := b.r.Stats()
	if s.Drops[DropMalformed] != 5 || s.Dropped != 0 || b.r.flows.Len() != 0 {
		t.Errorf("%+v", s)
	}
	for n := range 3 {
		b.r.HandleDrop(b.now, testFlow(n), 1, 0)
	}
	if b.r.HandleMeasurement(b.now, &Measurement{Flow: testFlow(2), Lost: 1}); s.Drops[DropPending] != 2 || s.Dropped != 3 {
		t.Errorf("%+v", s)
	}
	b.r.Count(testFlow(9), 1) // forgets flow 0 and its report
	if s.Drops[DropEvicted] != 1 || s.Evicted != 1 || b.r.pending != 1 {
		t.Errorf("%+v, %d pending", s, b.r.pending)
	}
	if got := b.wait(time.Second); len(got) != 1 || got[0].Label != 1 {
		t.Errorf("%+v", got)
	}
}

func TestNothingAllocates(t *testing.T) {
	b := newBench(t, testConfig())
	x := downstream(1, wire.Hop{NodeID: 2, Lost: 1, PSNs: make(wire.PSNList, 40)})
	c := Counters{}
	m, period := NewComparer(NewPeriods(time.Second), 4), uint32(1)
	b.acts = make([]Action, 0, 16)
	if n := testing.AllocsPerRun(1000, func() {
		b.r.Count(testFlow(1), 3)
		b.r.HandleDrop(b.now, testFlow(1), 7, wire.CauseCongestion)
		b.r.Merge(b.now, x)
		c.Passed, c.Dropped = c.Passed+3, c.Dropped+3
		b.r.HandleCounters(b.now, c)
		b.now += time.Millisecond
		b.r.Poll(b.now, &b.acts)
		b.acts = b.acts[:0]
		period++
		m.Compare(Reading{Flow: testFlow(1), Period: period, Packets: 4}, Reading{Flow: testFlow(1), Period: period, Packets: 3})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if b.r.Stats().Reports < 1000 {
		t.Errorf("%d reports", b.r.Stats().Reports)
	}
}

func TestEveryReasonHasAName(t *testing.T) {
	seen := map[string]bool{}
	for why := range DropReasons {
		if name := why.String(); name == "" || name == "unknown" || seen[name] {
			t.Errorf("reason %d: %q", why, name)
		} else {
			seen[name] = true
		}
	}
	if fmt.Sprint(DropReasons) != "unknown" {
		t.Error("beyond the last")
	}
}

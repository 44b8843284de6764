// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math"
	"time"

	"crem.dev/crem/agent/internal/flowtable"
	"crem.dev/crem/agent/wire"
)

// noteworthy is the change of delay, in microseconds, from which on a period without loss is reported: less is no rise to a CSF (Section 5.3,
// rule 2).
const noteworthy = 100

// Measurement is what happened to a flow between two measurement points in a period.
type Measurement struct {
	Flow        Flow
	Period      uint32
	Entered     uint32
	Lost        uint32
	DelayChange int32 // of the mean delay since the last period that had one, microseconds; the difference of clocks drops out
}

// Comparer finds what was lost between two measurement points, and how delay changed. It is at the first of them.
type Comparer struct {
	periods Periods
	flows   *flowtable.Table[compared]
	stats   ComparerStats
}

// ComparerStats is the counters of a Comparer.
type ComparerStats struct {
	Packets, Lost uint64 // that entered in the periods of a flow that were compared, and of these
	Evicted       uint64 // flows forgotten for others
	Drops         [DropReasons]uint64
}

// compared is what is known of a flow from its earlier periods.
type compared struct {
	newest  uint32 // period that was compared last
	any     bool
	plain   [2]bool // by colour: in the last period of it no more packets came than had entered
	delay   time.Duration
	slack   time.Duration // how much the delay may be wrong because of packets that were lost
	delayed bool          // there was a delay
}

// NewComparer returns a Comparer of so many flows at most that has compared nothing.
func NewComparer(p Periods, flows int) *Comparer {
	return &Comparer{periods: p, flows: flowtable.New[compared](flows)}
}

// Stats returns the counters, alive as long as the comparer.
func (c *Comparer) Stats() *ComparerStats { return &c.stats }

// Compare takes the readings of both measurement points of one flow and period, and returns what lies between, or why nothing can be said.
//
// More packets than entered show that colours are not what they were: the clocks differ by more than half a period, or a node changes DSCPs. Then packets
// of one colour are missed where those of the other are too many, so a period counts only if the last one of the other colour had not too many.
func (c *Comparer) Compare(up, down Reading) (Measurement, DropReason) {
	if up.Flow != down.Flow || up.Period != down.Period || !valid(&up.Flow) {
		return Measurement{}, c.Drop(DropMalformed)
	}
	f := c.flow(up.Flow)
	if f.any && int32(up.Period-f.newest) <= 0 {
		return Measurement{}, c.Drop(DropRepeated)
	}
	f.newest, f.any = up.Period, true
	colour := up.Period & 1
	switch {
	case down.Packets > up.Packets:
		f.plain[colour], f.delayed = false, false
		return Measurement{}, c.Drop(DropExcess)
	case up.Packets == 0:
		return Measurement{}, c.Drop(DropIdle)
	}
	f.plain[colour] = true
	if !f.plain[colour^1] {
		return Measurement{}, c.Drop(DropUnproven)
	}
	x := Measurement{Flow: up.Flow, Period: up.Period, Entered: up.Packets, Lost: up.Packets - down.Packets, DelayChange: c.change(f, &up, &down)}
	c.stats.Packets += uint64(x.Entered)
	c.stats.Lost += uint64(x.Lost)
	return x, DropNone
}

// change is that of the mean delay, as far as it is beyond what loss may explain: the mean time of those that arrived differs from that of all by no
// more than the part of a period that the lost ones are of all.
func (c *Comparer) change(f *compared, up, down *Reading) int32 {
	if down.Packets == 0 {
		return 0
	}
	delay := down.Sum/time.Duration(down.Packets) - up.Sum/time.Duration(up.Packets)
	slack := time.Duration(float64(c.periods.length) * float64(up.Packets-down.Packets) / float64(up.Packets))
	last, slop, known := f.delay, slack+f.slack, f.delayed
	f.delay, f.slack, f.delayed = delay, slack, true
	if !known {
		return 0
	}
	change := delay - last
	change = max(change-slop, 0) + min(change+slop, 0)
	return int32(min(max(change.Microseconds(), math.MinInt32), math.MaxInt32))
}

// flow returns what is known of a flow.
func (c *Comparer) flow(k Flow) *compared {
	if f := c.flows.Get(k); f != nil {
		return f
	}
	if c.flows.MakeRoom() {
		c.stats.Evicted++
	}
	return c.flows.Add(k)
}

// Drop counts a reading that says nothing, and returns why.
func (c *Comparer) Drop(why DropReason) DropReason {
	c.stats.Drops[why]++
	return why
}

// HandleMeasurement takes what was measured by Alternate Marking. A period without loss and without a noteworthy change is not reported.
func (r *Reporter) HandleMeasurement(now time.Duration, x *Measurement) {
	if !valid(&x.Flow) {
		r.drop(DropMalformed)
		return
	}
	if x.Lost == 0 && x.DelayChange > -noteworthy && x.DelayChange < noteworthy {
		return
	}
	p := r.report(now, x.Flow, r.flow(x.Flow), wire.MethodAlternateMarking)
	if p == nil {
		return
	}
	h := wire.Hop{NodeID: r.config.Node, Period: x.Period, Lost: x.Lost, DelayChange: x.DelayChange}
	if p.entry(h, true) < 0 {
		r.drop(DropPending)
		return
	}
	r.stats.Measured++
	r.arm(p, false)
}

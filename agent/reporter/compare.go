// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math"
	"time"

	"crem.dev/crem/agent/wire"
)

// noteworthy is the change of delay, in microseconds, from which on a period without loss is reported: less is no rise to a CSF (Section 5.3,
// rule 2).
const noteworthy = 100

// Measurement is what happened to a flow between two measurement points in a period.
type Measurement struct {
	Flow        Flow
	Period      uint32
	Lost        uint32
	DelayChange int32 // of the mean delay since the last period that had one, microseconds; the difference of clocks drops out
}

// Compare takes the reading of the measurement point before this one, and returns what lies between, or why nothing can be said.
func (m *Meter) Compare(wall uint64, up Reading) (Measurement, DropReason) {
	f := m.flows.Get(up.Flow)
	switch over := m.periods.offset(wall, up.Period); {
	case f == nil:
		return Measurement{}, m.drop(DropUnknownFlow)
	case !m.whole(f, up.Period):
		return Measurement{}, m.drop(DropPartial)
	case over < int64(m.periods.length+m.periods.length/2):
		return Measurement{}, m.drop(DropEarly) // packets of it may still come
	case over >= kept*int64(m.periods.length):
		return Measurement{}, m.drop(DropOutdated)
	}
	c := f.at(up.Period)
	switch {
	case c == nil:
		return Measurement{}, m.drop(DropOutdated)
	case c.compared:
		return Measurement{}, m.drop(DropRepeated)
	}
	c.compared = true
	x := Measurement{Flow: up.Flow, Period: up.Period}
	if c.packets < up.Packets {
		x.Lost = up.Packets - c.packets
	}
	x.DelayChange = f.change(c, &up)
	return x, DropNone
}

// change is that of the mean delay. If a packet was lost whose time counts, or doubled, there is none: the sums are about others then.
func (f *metered) change(c *counts, up *Reading) int32 {
	if c.carried == 0 || c.carried != up.Carried {
		return 0
	}
	delay := (c.sum - up.Sum) / int64(c.carried)
	last, known := f.delay, f.delayed
	f.delay, f.delayed = delay, true
	if !known {
		return 0
	}
	return int32(min(max(delay-last, math.MinInt32), math.MaxInt32))
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

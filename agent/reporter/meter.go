// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"time"

	"crem.dev/crem/agent/internal/flowtable"
)

// kept is how many periods of a flow are counted at a time: the present one, its neighbours, and one that is read.
const kept = 4

// MeterConfig is what a Meter is made with; both measurement points need the same Period and Double.
type MeterConfig struct {
	Period time.Duration
	Double bool // times of some packets only, which carry the second mark; else of all (RFC 9341: single marking, mean delay)
	Flows  int  // most flows that are counted
}

// MeterStats is the counters of a Meter.
type MeterStats struct {
	Packets uint64 // that were counted
	Evicted uint64 // flows forgotten for others
	Drops   [DropReasons]uint64
}

// Meter is the counters of one measurement point: packets by flow and marking period (RFC 9341). Times are Unix times in microseconds.
type Meter struct {
	config  MeterConfig
	periods Periods
	flows   *flowtable.Table[metered]
	stats   MeterStats
}

// metered is the counters of a flow.
type metered struct {
	since   uint64 // periods that began before are not whole
	counts  [kept]counts
	delay   int64 // mean of the last period that had one, microseconds; with an unknown difference of clocks
	delayed bool  // there was one
}

// counts is those of a period.
type counts struct {
	number           uint32
	used             bool
	told, compared   bool
	packets, carried uint32 // packets, and those whose times are summed
	sum              int64  // of their times after the start of the period, microseconds
	parts            int    // of the period that have had their second mark
}

// Reading is what one measurement point counted of a flow in a period that is over.
type Reading struct {
	Flow    Flow
	Period  uint32
	Packets uint32
	Carried uint32 // packets whose times are in Sum
	Sum     int64  // of times after the start of the period, microseconds
}

// NewMeter returns a meter that has counted nothing.
func NewMeter(c MeterConfig) *Meter {
	return &Meter{config: c, periods: NewPeriods(c.Period), flows: flowtable.New[metered](c.Flows)}
}

// Stats returns the counters, alive as long as the meter.
func (m *Meter) Stats() *MeterStats { return &m.stats }

// Mark counts a packet of a flow that enters the domain, and returns its mark.
func (m *Meter) Mark(wall uint64, k Flow) Mark {
	n := m.periods.At(wall)
	c := m.counts(wall, k, n)
	mark := Mark{Colour: coloured(n)}
	if c == nil {
		return mark
	}
	if part := m.periods.part(wall); m.config.Double && part >= c.parts {
		mark.Delay, c.parts = true, part+1
	}
	m.count(c, wall, mark)
	return mark
}

// Count counts a packet of a flow that carries a mark.
func (m *Meter) Count(wall uint64, k Flow, mark Mark) {
	if c := m.counts(wall, k, m.periods.Of(wall, mark.Colour)); c != nil {
		m.count(c, wall, mark)
	}
}

func (m *Meter) count(c *counts, wall uint64, mark Mark) {
	m.stats.Packets++
	c.packets++
	if mark.Delay || !m.config.Double {
		c.carried++
		c.sum += m.periods.offset(wall, c.number)
	}
}

// counts returns those of a flow and period, nil if the period is not kept any more.
func (m *Meter) counts(wall uint64, k Flow, n uint32) *counts {
	if !valid(&k) {
		m.drop(DropMalformed)
		return nil
	}
	f := m.flows.Get(k)
	if f == nil {
		if m.flows.MakeRoom() {
			m.stats.Evicted++
		}
		f = m.flows.Add(k)
		f.since = wall
	}
	c := f.at(n)
	if c == nil {
		m.drop(DropOutdated)
	}
	return c
}

// at returns the counters of a period, which are emptied if those of an earlier one were there, and nil if they are of a later one.
func (f *metered) at(n uint32) *counts {
	c := &f.counts[n%kept]
	switch {
	case c.used && c.number == n:
	case c.used && int32(n-c.number) < 0:
		return nil
	default:
		*c = counts{number: n, used: true}
	}
	return c
}

// whole reports whether the flow was counted from the start of a period on.
func (m *Meter) whole(f *metered, n uint32) bool { return m.periods.offset(f.since, n) <= 0 }

// Readings calls yield for every period of a flow that has been over for as long as it lasted, each once. It is called at least once a period.
func (m *Meter) Readings(wall uint64, yield func(Reading)) {
	present := m.periods.At(wall)
	for k, f := range m.flows.All {
		for i := range f.counts {
			c := &f.counts[i]
			if !c.used || c.told || int32(present-c.number) < 2 {
				continue
			}
			c.told = true
			if m.whole(f, c.number) {
				yield(Reading{Flow: k, Period: c.number, Packets: c.packets, Carried: c.carried, Sum: c.sum})
			}
		}
	}
}

func (m *Meter) drop(why DropReason) DropReason {
	m.stats.Drops[why]++
	return why
}

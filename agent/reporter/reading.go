// SPDX-License-Identifier: Apache-2.0

package reporter

import "time"

// Kept is how many periods of a flow are counted at a time: the present one, its neighbours, and one that is read.
const Kept = 4

// Counts is what a measurement point has counted of a flow lately.
type Counts struct {
	Since      uint32             // period in which counting began: as much of it as was before is missing, and of its neighbours
	Recoloured uint32             // newest period in which a packet came whose DSCP was not as it was sent, so that its colour says nothing; 0: none did
	Periods    [Kept]PeriodCounts // period n at n modulo Kept
}

// PeriodCounts is what was counted of a flow and period.
type PeriodCounts struct {
	Number  uint32 // period
	Packets uint32
	Sum     time.Duration // of the packets' times after the start of the period
}

// Reading is what one measurement point counted of a flow in a whole period that is over.
type Reading struct {
	Flow    Flow
	Period  uint32
	Packets uint32
	Sum     time.Duration // of the packets' times after the start of the period
}

// Reading returns what was counted of period n, no packets where nothing came, or why it is not known. over is the newest period that is over.
func (c *Counts) Reading(k Flow, over, n uint32) (Reading, DropReason) {
	p := &c.Periods[n%Kept]
	r := Reading{Flow: k, Period: n}
	switch {
	case int32(over-n) < 0:
		return Reading{}, DropEarly
	case int32(n-c.Since) < 2:
		return Reading{}, DropPartial
	case c.Recoloured != 0 && int32(n-c.Recoloured) < 2:
		return Reading{}, DropRecoloured
	case p.Packets == 0 || int32(p.Number-n) < 0:
		return r, DropNone
	case p.Number != n:
		return Reading{}, DropOutdated
	}
	r.Packets, r.Sum = p.Packets, p.Sum
	return r, DropNone
}

// Newest is the newest period in which the flow had packets, counted or not.
func (c *Counts) Newest() uint32 {
	newest := c.Since
	if c.Recoloured != 0 && int32(c.Recoloured-newest) > 0 {
		newest = c.Recoloured
	}
	for i := range c.Periods {
		if p := &c.Periods[i]; p.Packets > 0 && int32(p.Number-newest) > 0 {
			newest = p.Number
		}
	}
	return newest
}

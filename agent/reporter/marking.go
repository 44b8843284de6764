// SPDX-License-Identifier: Apache-2.0

package reporter

import "time"

// Mark is what the outer packet carries through the domain, put on at its one edge and taken off at the other (RFC 9341, 9343). It never lies
// in a protected packet.
type Mark struct {
	Colour bool // changes with every period
	Delay  bool // double marking: this packet's time is compared
}

// marks is how many packets of a flow and period carry the second mark.
const marks = 4

// Periods divides time into marking periods. Clocks of measurement points may differ by less than half a period, less what packets need
// from one to the other (RFC 9341, Synchronization and Timing). Times are Unix times in microseconds.
type Periods struct{ length uint64 }

// NewPeriods returns periods of a length, at least a millisecond.
func NewPeriods(length time.Duration) Periods {
	return Periods{uint64(max(length, time.Millisecond).Microseconds())}
}

// At returns the number of the period at a time.
func (p Periods) At(wall uint64) uint32 { return uint32(wall / p.length) }

// Of returns the number of the period that a packet with this colour belongs to when it is seen at a time: the nearest one of its colour.
func (p Periods) Of(wall uint64, colour bool) uint32 {
	n := p.At(wall)
	switch {
	case coloured(n) == colour:
		return n
	case wall%p.length < p.length/2:
		return n - 1
	default:
		return n + 1
	}
}

// offset is how long after the start of period n a time is, in microseconds; negative for one before it.
func (p Periods) offset(wall uint64, n uint32) int64 {
	return int64(wall%p.length) + int64(int32(p.At(wall)-n))*int64(p.length)
}

// part is in which of as many parts as there are second marks a time lies.
func (p Periods) part(wall uint64) int { return int(wall % p.length * marks / p.length) }

// coloured is the colour of a period.
func coloured(n uint32) bool { return n&1 == 1 }

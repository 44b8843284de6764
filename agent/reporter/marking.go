// SPDX-License-Identifier: Apache-2.0

package reporter

import "time"

// Periods divides Unix time into marking periods of one length. Every packet carries the colour of its period from one measurement point to the other
// (RFC 9341). The time from one to the other, as their two clocks see it, must be within half a period, also of packets that overtake others.
type Periods struct{ length time.Duration }

// NewPeriods returns periods of a length, at least a millisecond.
func NewPeriods(length time.Duration) Periods { return Periods{max(length, time.Millisecond)} }

// At returns the number of the period at a Unix time.
func (p Periods) At(unix time.Duration) uint32 { return uint32(unix / p.length) }

// Of returns the number of the period that a packet with this colour belongs to when it is seen at a Unix time: the nearest one of its colour.
func (p Periods) Of(unix time.Duration, colour bool) uint32 {
	n := p.At(unix)
	switch {
	case Colour(n) == colour:
		return n
	case unix%p.length < p.length/2:
		return n - 1
	default:
		return n + 1
	}
}

// Since is how long after the start of period n a Unix time is; negative before it.
func (p Periods) Since(unix time.Duration, n uint32) time.Duration {
	return unix%p.length + time.Duration(int32(p.At(unix)-n))*p.length
}

// Over returns the newest period that has been over for half a period or more: none of its packets is on its way any more.
func (p Periods) Over(unix time.Duration) uint32 { return p.At(unix-p.length/2) - 1 }

// UntilOver is how long after a Unix time Over changes next.
func (p Periods) UntilOver(unix time.Duration) time.Duration {
	return p.length - (unix-p.length/2)%p.length
}

// Colour is the colour of a period.
func Colour(n uint32) bool { return n&1 == 1 }

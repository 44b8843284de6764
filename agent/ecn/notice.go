// SPDX-License-Identifier: Apache-2.0

package ecn

import "time"

// Notices limits what is logged of odd combinations: each combination once in an interval (RFC 6040, Section 4.2: SHOULD log, rate-limited).
type Notices struct {
	every      time.Duration
	cells      [4][4]noticed
	suppressed uint64
}

type noticed struct {
	until time.Duration // the next one may be logged from then on
	since uint64        // not logged since the last one
}

// NewNotices returns a limiter of one line a combination and interval.
func NewNotices(every time.Duration) *Notices { return &Notices{every: every} }

// Log reports whether the caller should log a packet with this notice now, and how many of its kind were not logged since the last.
func (n *Notices) Log(now time.Duration, inner, outer Codepoint, notice Notice) (bool, uint64) {
	if notice == Usual {
		return false, 0
	}
	c := &n.cells[inner&codepointMask][outer&codepointMask]
	if now < c.until {
		c.since++
		n.suppressed++
		return false, 0
	}
	since := c.since
	c.until, c.since = now+n.every, 0
	return true, since
}

// Suppressed returns how many notices were not logged.
func (n *Notices) Suppressed() uint64 { return n.suppressed }

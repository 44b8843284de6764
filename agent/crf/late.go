// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// lateness judges the first copy of a position by rule CRF 1 (Section 6.2): may it be one that the transport sent again, with
// other octets than those that the CSF coded? T_reorder is below half a round trip, so no retransmission is as early as a
// reordered first copy. b is the open block of the position, nil if there is none.
//
// A position that nobody missed before (it lay in what a READ request consumed, or was given up) counts as an old gap: there is
// no telling how long a higher PSN has been here.
func (f *Flow) lateness(now time.Duration, p pos, s *segment, b *block) LateCause {
	switch {
	case f.mixCopies:
		return NotLate
	case s.has(p, named):
		return LateNamed
	case p < f.newest && (!s.has(p, missing) || now-s.since[p.index()] > f.rtt.reorder()):
		return LateGap
	case b != nil && now-b.opened > f.rtt.reorder():
		return LateAfterRepair
	case f.burst && p < f.newest:
		return LateBurst
	}
	return NotLate
}

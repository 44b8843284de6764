// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// lateness judges the first copy of a position by rule CRF 1 (Section 6.2): may it be one that the transport sent again, with
// other octets than those that the CSF coded? T_reorder is below half a round trip, so no retransmission is as early as a
// reordered first copy. b is the open block of the position, nil if there is none.
//
// A position that nobody missed before (it lay in what a READ request consumed, or was given up) counts as an old gap: there is
// no telling how long a higher PSN has been here.
//
// Where the transport itself says that a packet is a retransmission, nothing else counts; where it doesn't, that proves nothing. A multipath
// transport repeats single packets while others go on, so a burst of duplicates says nothing about those between them.
func (f *Flow) lateness(now time.Duration, p pos, s *segment, b *block, pkt *roce.Packet) LateCause {
	switch {
	case f.mixCopies:
		return NotLate
	case pkt.Retransmitted():
		return LateFlagged
	case s.has(p, named):
		return LateNamed
	case p < f.newest && (!s.has(p, missing) || now-s.since[p.index()] > f.reorder()):
		return LateGap
	case b != nil && now-b.opened > f.reorder():
		return LateAfterRepair
	case f.burst && p < f.newest && !f.overtakes():
		return LateBurst
	}
	return NotLate
}

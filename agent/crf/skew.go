// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// skew is how late a packet comes that others overtook, as the flow has shown it. Packets of a multipath transport take several paths, so for them it is
// no exception (Section 4.4, rule 4): what is missing for less than this is not restored yet, and for less than twice this not asked for. Without
// any reordering it is zero, and both happen as soon as for other flows.
type skew struct{ most time.Duration }

// skewMemory is the part of the skew that is forgotten with each report, which is once per SRTT.
const skewMemory = 64

// take notes that a packet came so long after it was missed.
func (s *skew) take(late time.Duration) { s.most = max(s.most, late) }

// fadeSkew forgets a little of what lies back when a report is due. Poll does so first: it makes the tolerance shorter, by which blocks are due.
func (f *Flow) fadeSkew(now time.Duration) {
	if f.report.active && now >= f.report.due {
		f.skew.most -= f.skew.most / skewMemory
	}
}

// overtakes says whether reordering is normal for the flow.
func (f *Flow) overtakes() bool { return f.transport.Multipath() }

// window is how long a missing packet may be on its way still. It is no more than an eighth of a round trip: to restore a packet that comes after all
// costs nothing but a duplicate, and the sender sends again what is missing for longer than a round trip.
func (f *Flow) window() time.Duration {
	if !f.overtakes() {
		return 0
	}
	return min(f.skew.most, f.rtt.smooth/8)
}

// tolerance is how long a position is missing before it is asked for (Section 7.1, rule 3).
func (f *Flow) tolerance() time.Duration {
	t := f.rtt.tolerance()
	if f.overtakes() {
		t = max(t, min(2*f.skew.most, f.rtt.smooth/2))
	}
	return t
}

// reorder is T_reorder of rule CRF 1. A retransmission comes no sooner than a round trip after its packet was missed, so half of the shortest one
// is on the safe side where packets overtake each other as a rule.
func (f *Flow) reorder() time.Duration {
	t := f.rtt.reorder()
	if f.overtakes() {
		t = max(t, f.rtt.least/2)
	}
	return t
}

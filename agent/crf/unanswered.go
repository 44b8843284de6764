// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// vainHolds is how many times in a row packets may wait for a gap in vain while no symbol comes.
const vainHolds = 2

// unanswered says that nobody repairs at present: the sender's circuit breaker is open, its budget is used up, or what it sends is lost. Waiting
// for repairs would then cost every gap all rounds of requests, which is worse than no protection, so packets pass until a symbol comes
// (Section 6.1, rule 7). Gaps are still asked for: the first answer ends this.
func (f *Flow) unanswered() bool { return f.hold.vain >= vainHolds }

// heard notes that a symbol came.
func (f *Flow) heard(now time.Duration) {
	f.hold.heard = now
	f.hold.vain = 0
}

// endWait notes that the waiting for the positions first..end-1 is over, and what waited for them did so in vain if no symbol came meanwhile.
func (f *Flow) endWait(first, end pos) {
	if f.hold.waiting == 0 || f.next < first || f.next >= end {
		return
	}
	s := f.win.at(f.next)
	if s != nil && s.has(f.next, missing) && f.hold.heard < s.since[f.next.index()] {
		f.hold.vain++
	}
}

// releaseUnanswered lets everything go that waits while nobody repairs.
func (f *Flow) releaseUnanswered(acts *[]Action) {
	if f.unanswered() && f.hold.waiting > 0 {
		f.releaseAll(Unanswered, acts)
	}
}

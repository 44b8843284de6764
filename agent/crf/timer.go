// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// idleTimeout ends a flow without packets (Section 5.1, rule 11).
const idleTimeout = 30 * time.Second

// wake says that the time of the next deadline must be reckoned anew.
func (f *Flow) wake() { f.dirty = true }

// Poll does what is due. The engine calls it when NextDeadline has come; calling it earlier does no harm.
func (f *Flow) Poll(now time.Duration, acts *[]Action) {
	if f.state == Closed {
		return
	}
	if now >= f.active+idleTimeout {
		f.Close(now, wire.CloseIdle, acts)
		return
	}
	f.fadeSkew(now)
	f.releaseOverdue(now, acts)
	if f.state == Protecting {
		f.pollBlocks(now, acts)
		f.pollGaps(now, acts)
		f.releaseOverdue(now, acts) // behind a gap that was given up just now there may be an older one
		f.releaseUnanswered(acts)
		f.releaseConfigs(now)
		if now >= f.pauseEnd() {
			f.settleAll()
		}
	}
	f.sendReport(now, acts)
	f.wake()
}

// releaseOverdue lets everything go on if the first gap is as old as packets may wait.
func (f *Flow) releaseOverdue(now time.Duration, acts *[]Action) {
	if now >= f.holdDeadline() {
		f.endWait(f.next, f.next+1)
		f.releaseAll(TimedOut, acts)
	}
}

// pauseEnd is when what is kept of a paused flow is of no use any more: the CSF has freed its blocks too (Section 7.2, rule 4).
func (f *Flow) pauseEnd() time.Duration {
	if f.cells == 0 || f.trail > f.newest {
		return roce.Never
	}
	return f.active + max(4*f.rtt.smooth, 100*time.Millisecond)
}

// NextDeadline is when Poll must be called next, roce.Never if not at all. It is asked after every other call. It may be
// earlier than anything really due, never later, and Poll always moves it past its now.
func (f *Flow) NextDeadline() time.Duration {
	if f.state == Closed {
		return roce.Never
	}
	if f.dirty {
		f.dirty = false
		f.due = f.reckon()
	}
	return f.due
}

// reckon returns the earliest time at which anything is due. What moves with every packet (idle timeout, pause) is taken as it was
// when it was last reckoned: Poll finds out that it has moved on.
func (f *Flow) reckon() time.Duration {
	due := min(f.active+idleTimeout, f.holdDeadline(), f.pauseEnd())
	if f.report.active {
		due = min(due, f.report.due)
	}
	for _, b := range f.blocks {
		due = min(due, f.blockDue(b))
	}
	for i := range f.gaps {
		due = min(due, f.gaps[i].due)
	}
	return due
}

// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// maxDoubts bounds the restored packets of a flow whose loss is in doubt; with more the oldest count as lost at once.
const maxDoubts = 256

// doubt is a restored position. Its packet may only be late: others and the REPAIRs of its block overtook it on the path. It is lost when
// T_reorder has passed since it was missed; a packet that comes before that is no retransmission of the transport unless it says so (CRF 1).
type doubt struct {
	p     pos
	until time.Duration
}

// doubts is a queue, oldest first.
type doubts struct {
	list []doubt
	head int
}

func (q *doubts) len() int { return len(q.list) - q.head }

// doubtLost counts a restored position as lost, unless its packet comes in time.
func (f *Flow) doubtLost(now time.Duration, s *segment, p pos) {
	if s.has(p, lost) {
		return // it was asked for before
	}
	q := &f.doubts
	if q.len() == maxDoubts {
		f.settleDoubt(now)
	}
	if q.head == maxDoubts {
		q.list, q.head = q.list[:copy(q.list, q.list[q.head:])], 0
	}
	s.set(p, doubted)
	q.list = append(q.list, doubt{p, s.since[p.index()] + f.reorder()})
	f.reporting(now)
}

// settleDoubts counts the restored positions whose packets did not come in time.
func (f *Flow) settleDoubts(now time.Duration) {
	for q := &f.doubts; q.len() > 0 && now > q.list[q.head].until; {
		f.settleDoubt(now)
	}
}

func (f *Flow) settleDoubt(now time.Duration) {
	q := &f.doubts
	p := q.list[q.head].p
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	if s := f.win.at(p); s != nil && s.has(p, doubted) {
		s.clear(p, doubted)
		f.countLost(now, s, p)
	}
}

// overtaken says that a packet comes for a position that was restored and is not counted as lost yet. It counts as received.
func (f *Flow) overtaken(now time.Duration, p pos) bool {
	s := f.win.at(p)
	if s == nil || !s.has(p, doubted) || now > s.since[p.index()]+f.reorder() {
		return false
	}
	s.clear(p, doubted)
	f.skew.take(now - s.since[p.index()])
	r := f.reporting(now)
	r.received++
	r.expected++
	f.stats.Reordered++
	return true
}

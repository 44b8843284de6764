// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// timed is what waits in a deadline heap: it remembers its place, so that a changed deadline is moved, not searched.
type timed struct {
	at    time.Duration
	place int // index in the heap; -1: not in it
	poll  poller
}

// poller is a flow of either role.
type poller interface {
	poll(now time.Duration)
	nextDeadline() time.Duration
}

// deadlines is a binary heap over the flows of one worker, earliest first.
type deadlines struct{ heap []*timed }

// next is the earliest deadline, roce.Never when there is none.
func (d *deadlines) next() time.Duration {
	if len(d.heap) == 0 {
		return roce.Never
	}
	return d.heap[0].at
}

// set moves t to its new deadline; roce.Never takes it out.
func (d *deadlines) set(t *timed, at time.Duration) {
	switch {
	case at == roce.Never && t.place < 0:
	case at == roce.Never:
		d.remove(t)
	case t.place < 0:
		t.at, t.place = at, len(d.heap)
		d.heap = append(d.heap, t)
		d.up(t.place)
	case at != t.at:
		earlier := at < t.at
		t.at = at
		if earlier {
			d.up(t.place)
		} else {
			d.down(t.place)
		}
	}
}

func (d *deadlines) remove(t *timed) {
	i, last := t.place, len(d.heap)-1
	d.swap(i, last)
	d.heap[last] = nil
	d.heap = d.heap[:last]
	t.place = -1
	if i < last {
		d.up(i)
		d.down(d.heap[i].place)
	}
}

func (d *deadlines) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if d.heap[parent].at <= d.heap[i].at {
			return
		}
		d.swap(parent, i)
		i = parent
	}
}

func (d *deadlines) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(d.heap) {
			return
		}
		if r := child + 1; r < len(d.heap) && d.heap[r].at < d.heap[child].at {
			child = r
		}
		if d.heap[i].at <= d.heap[child].at {
			return
		}
		d.swap(i, child)
		i = child
	}
}

func (d *deadlines) swap(i, j int) {
	d.heap[i], d.heap[j] = d.heap[j], d.heap[i]
	d.heap[i].place, d.heap[j].place = i, j
}

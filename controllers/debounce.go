// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"
)

// debounce gathers changes: the work is done when nothing changed for quiet, and no later than most after the first change. It is safe for
// concurrent use, as handlers of several informers report to one.
type debounce struct {
	quiet, most time.Duration

	mu          sync.Mutex
	first, last time.Time // zero: no change waits
}

// touch reports a change.
func (d *debounce) touch(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first.IsZero() {
		d.first = now
	}
	d.last = now
}

// wait gives how long the work has to wait; at 0 it takes the changes that came so far.
func (d *debounce) wait(now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first.IsZero() {
		return 0
	}
	if left := min(d.quiet-now.Sub(d.last), d.most-now.Sub(d.first)); left > 0 {
		return left
	}
	d.first, d.last = time.Time{}, time.Time{}
	return 0
}

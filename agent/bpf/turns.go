// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// turnCounts mirrors struct turns of maps.h.
type turnCounts struct {
	redirected atomic.Uint64
	turned     atomic.Uint64
}

var _ = [1]struct{}{}[unsafe.Sizeof(turnCounts{})-unsafe.Sizeof(cremTurns{})]

// turns tells whether all injected frames have come through the receive path. Between the egress and the ingress program
// they wait in a queue of the kernel; a flow that is handed back too early would overtake its own packets there.
type turns struct {
	counts *turnCounts

	mu     sync.Mutex
	lost   uint64 // frames that the kernel dropped between the programs: its queue was full
	turned uint64 // when last looked at
	since  time.Duration
}

// lossTime is how long no frame came through when the missing ones are taken for lost.
const lossTime = 5 * time.Millisecond

// settled tells whether no injected frame is under way.
func (t *turns) settled(now time.Duration) bool {
	turned := t.counts.turned.Load()
	redirected := t.counts.redirected.Load()
	t.mu.Lock()
	defer t.mu.Unlock()
	under := int64(redirected - turned - t.lost)
	switch {
	case under <= 0:
		t.lost += uint64(under) // those came after all
		t.since = 0
		return true
	case t.turned != turned || t.since == 0:
		t.turned, t.since = turned, now
		return false
	case now-t.since < lossTime:
		return false
	}
	t.lost += uint64(under)
	t.since = 0
	return true
}

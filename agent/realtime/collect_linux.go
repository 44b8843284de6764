// SPDX-License-Identifier: Apache-2.0

package realtime

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookEvery    = time.Second
	collectEvery = 2 * time.Minute // as the runtime does
	slack        = 16 << 20        // octets that the heap may grow by, however small it is
)

// Collect takes garbage collection over from the Go runtime until stop is closed, and does it with ordinary scheduling. At its end the runtime's sweeper
// waits in a loop for a thread that the kernel has woken already: at real-time priority, and with one core for both, that thread waits for the end of the
// sweeper's turn, 100 ms, and so does every packet worker.
//
// The heap may double between collections, and slack more, as with the runtime's own rule. Should it grow faster than Collect looks, the runtime's memory
// limit makes the runtime collect by itself.
func Collect(stop <-chan struct{}) {
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(-1)
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last time.Time
	for {
		if live, heap := heapSize(); due(live, heap, time.Since(last)) {
			// Without the right to change priorities back and forth, collecting late is better than not at all.
			if err := Ordinarily(runtime.GC); err != nil {
				runtime.GC()
			}
			live, heap = heapSize()
			debug.SetMemoryLimit(min(limit, total()-int64(heap)+2*roof(live)))
			last = time.Now()
		}
		select {
		case <-stop:
			return
		case <-look.C:
		}
	}
}

// Ordinarily runs f while no thread of this process is a real-time one, and all of them are the first among ordinary ones. Prefer must have succeeded.
func Ordinarily(f func()) error {
	if err := change(&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: -20}); err != nil {
		return err
	}
	f()
	return Prefer()
}

// due says whether to collect: live octets were found by the last collection, since ago, and heap octets are in use or garbage now.
func due(live, heap uint64, since time.Duration) bool {
	return since >= collectEvery || int64(heap) >= roof(live)
}

// roof is how large the heap may become until the next collection.
func roof(live uint64) int64 {
	return int64(min(live, math.MaxInt64/8))*2 + slack
}

// heapSize returns the octets that the last collection left, and those of all objects now, garbage included.
func heapSize() (live, heap uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}

// total returns the octets that count for the runtime's memory limit.
func total() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// SPDX-License-Identifier: Apache-2.0

package realtime

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookEvery    = 100 * time.Millisecond
	collectEvery = 100 * time.Second // before the runtime would, after two minutes
	slack        = 8 << 20           // octets that the heap may grow by, however small it is
	// ownPercent is the runtime's own rule meanwhile: for a heap that grows faster than Collect looks. It is later than due for heaps of any size.
	ownPercent = 400
)

// Collect takes garbage collection over from the Go runtime until stop is closed, and does it with ordinary scheduling, if the process has one core. At
// the end of a collection the runtime's sweeper waits in a loop for a thread that the kernel has woken already: at real-time priority, and with one core for
// both, that thread waits for the end of the sweeper's turn, 100 ms, and so does every packet worker. With more cores the thread runs on another, and Collect
// returns at once: meanwhile real-time threads of others would keep the workers waiting.
func Collect(stop <-chan struct{}, cores int) {
	if cores > 1 {
		return
	}
	percent := debug.SetGCPercent(ownPercent)
	defer debug.SetGCPercent(percent)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var last time.Time
	for {
		if live, heap := heapSize(); due(live, heap, time.Since(last)) {
			// Without the right to change priorities back and forth, collecting late is better than not at all.
			if err := Ordinarily(runtime.GC); err != nil {
				runtime.GC()
			}
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
	return since >= collectEvery || heap >= slack && heap-slack >= live && heap-slack-live >= live
}

// heapSize returns the octets that the last collection left, and those of all objects now, garbage included.
func heapSize() (live, heap uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}

// SPDX-License-Identifier: Apache-2.0

package realtime

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCollectedWithOrdinaryScheduling: no thread is a real-time one while f runs, and all are afterwards.
func TestCollectedWithOrdinaryScheduling(t *testing.T) {
	threads(t, 4)
	prefer(t)
	ran := false
	err := Ordinarily(func() {
		ran = true
		for tid, policy := range policies(t) {
			if policy != unix.SCHED_NORMAL {
				t.Errorf("meanwhile thread %d has the scheduling %d", tid, policy)
			}
		}
	})
	if err != nil || !ran {
		t.Fatal(err, ran)
	}
	for tid, policy := range policies(t) {
		if policy != unix.SCHED_RR {
			t.Errorf("afterwards thread %d has the scheduling %d", tid, policy)
		}
	}
}

// TestCollectTakesOver: while Collect works the runtime's own rule is a later one, and it is as before afterwards.
func TestCollectTakesOver(t *testing.T) {
	percent := debug.SetGCPercent(90)
	defer debug.SetGCPercent(percent)
	before := collections()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		Collect(stop, 1)
	}()
	for collections() == before { // the first one is due at once
		runtime.Gosched()
	}
	if got := debug.SetGCPercent(ownPercent); got != ownPercent {
		t.Errorf("meanwhile the runtime's rule is %d %%", got)
	}
	close(stop)
	<-stopped
	if got := debug.SetGCPercent(90); got != 90 {
		t.Errorf("afterwards the runtime's rule is %d %%", got)
	}
	if err := Release(); err != nil {
		t.Error(err)
	}
}

// TestMoreCores: with a second core the runtime collects as it always does.
func TestMoreCores(t *testing.T) {
	percent := debug.SetGCPercent(90)
	defer debug.SetGCPercent(percent)
	before := collections()
	Collect(nil, 2) // returns, though nothing stops it
	if got := debug.SetGCPercent(90); got != 90 || collections() != before {
		t.Errorf("the runtime's rule is %d %%, %d collections", got, collections()-before)
	}
}

func collections() int64 {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return s.NumGC
}

// TestWhenToCollect: a heap that doubles, and a little more, is due, and so before the runtime's own rule.
func TestWhenToCollect(t *testing.T) {
	const least = 4 << 20 * ownPercent / 100 // the runtime starts no collection for a heap below that
	for _, live := range []uint64{0, 1, 1 << 20, 4 << 20, 256 << 20, 1 << 40, math.MaxUint64} {
		first := 2*live + slack
		if live < 1<<62 && (due(live, first-1, time.Second) || !due(live, first, time.Second)) {
			t.Errorf("live %d: %v, %v", live, due(live, first-1, time.Second), due(live, first, time.Second))
		}
		if own := max(least, live+live/100*ownPercent); live < 1<<62 && first >= own {
			t.Errorf("live %d: due at %d, the runtime collects at %d", live, first, own)
		}
		if due(live, live, collectEvery-1) && live == 0 || !due(live, live, collectEvery) {
			t.Errorf("live %d: wrong time", live)
		}
	}
	if !due(0, 0, 119*time.Second) { // the runtime collects after 120 s
		t.Error("an idle heap is left to the runtime")
	}
	if due(math.MaxUint64, math.MaxUint64, time.Second) {
		t.Error("a heap that has not grown is due")
	}
}

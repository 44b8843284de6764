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
	if err := Prefer(); err != nil {
		t.Skip("needs the capability SYS_NICE:", err)
	}
	t.Cleanup(func() {
		if err := Release(); err != nil {
			t.Error(err)
		}
	})
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

// TestCollectTakesOver: the runtime collects no more by itself while Collect does, and does again afterwards.
func TestCollectTakesOver(t *testing.T) {
	percent := debug.SetGCPercent(100)
	defer debug.SetGCPercent(percent)
	limit := debug.SetMemoryLimit(-1)
	before := collections()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		Collect(stop)
	}()
	for collections() == before { // the first one is due at once
		runtime.Gosched()
	}
	close(stop)
	<-stopped
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("afterwards the runtime's rule is %d %%", got)
	}
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("afterwards the memory limit is %d, was %d", got, limit)
	}
	if err := Release(); err != nil {
		t.Error(err)
	}
}

func collections() int64 {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return s.NumGC
}

func TestWhenToCollect(t *testing.T) {
	for _, x := range []struct {
		live, heap uint64
		since      time.Duration
		want       bool
	}{
		{4 << 20, 8 << 20, time.Second, false},
		{4 << 20, 24<<20 - 1, time.Second, false},
		{4 << 20, 24 << 20, time.Second, true},
		{256 << 20, 500 << 20, time.Second, false},
		{256 << 20, 528 << 20, time.Second, true},
		{4 << 20, 4 << 20, 2*time.Minute - 1, false},
		{4 << 20, 4 << 20, 2 * time.Minute, true},
		{math.MaxUint64, 1 << 40, time.Second, false},
	} {
		if got := due(x.live, x.heap, x.since); got != x.want {
			t.Errorf("live %d, heap %d, after %v: %v", x.live, x.heap, x.since, got)
		}
	}
}

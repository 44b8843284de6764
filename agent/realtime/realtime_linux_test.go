// SPDX-License-Identifier: Apache-2.0

package realtime

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAllThreadsOrNone: threads that exist, and those made afterwards, have one scheduling.
func TestAllThreadsOrNone(t *testing.T) {
	threads(t, 4)
	prefer(t)
	threads(t, 4)
	seen := policies(t)
	if len(seen) < 9 {
		t.Fatalf("%d threads, 8 locked ones were made", len(seen))
	}
	for tid, policy := range seen {
		if policy != unix.SCHED_RR {
			t.Errorf("thread %d has the scheduling %d", tid, policy)
		}
	}
}

// prefer makes all threads real-time ones, and ordinary ones again at the end of the test.
func prefer(t *testing.T) {
	if err := Prefer(); err != nil {
		t.Skip("needs the capability SYS_NICE:", err)
	}
	t.Cleanup(func() {
		if err := Release(); err != nil {
			t.Error(err)
		}
		for tid, policy := range policies(t) {
			if policy != unix.SCHED_NORMAL {
				t.Errorf("thread %d has the scheduling %d after the release", tid, policy)
			}
		}
	})
}

// threads makes n threads that last as long as the test.
func threads(t *testing.T, n int) {
	var started sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	for range n {
		started.Add(1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			started.Done()
			<-stop
		}()
	}
	started.Wait()
}

func policies(t *testing.T) map[int]uint32 {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int]uint32)
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			continue // it ended
		}
		found[tid] = attr.Policy
	}
	return found
}

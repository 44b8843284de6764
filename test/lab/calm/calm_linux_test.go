// SPDX-License-Identifier: Apache-2.0

package calm

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/test/netns"
)

// away takes the processor of the watching thread away for a time, as a host does.
func away(t *testing.T, d time.Duration) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		var all unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			done <- err
			return
		}
		cpu := 0
		for !all.IsSet(cpu) {
			cpu++
		}
		err := settle(cpu)
		for from := time.Now(); time.Since(from) < d; {
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAProcessorIsAway(t *testing.T) {
	netns.NeedRoot(t)
	w, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	away(t, 4*Limit) // the scheduler of Go may divide it
	if worst := w.Worst(); worst < Limit {
		t.Errorf("away for %v, seen %v", 4*Limit, worst)
	}
}

// failures counts the failures of a test that shall fail.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(string, ...any) { f.n++ }

// TestJudge: what is wrong fails a test only if the machine let it be; what is right in any round is right.
func TestJudge(t *testing.T) {
	netns.NeedRoot(t)
	n := 0
	round := func(wrong, disturbed string, until int) func() (string, string) {
		n = 0
		return func() (string, string) {
			if n++; n == until {
				return "", ""
			}
			return wrong, disturbed
		}
	}
	if why := Judge(t, round("late", "busy", rounds)); why != "" || n != 3 {
		t.Errorf("right in the last round: %d rounds, %q", n, why)
	}
	if why := Judge(t, round("late", "busy", 0)); why == "" || n != rounds {
		t.Errorf("always disturbed: %d rounds, %q", n, why)
	}
	if why := Judge(t, func() (string, string) { n++; away(t, 4*Limit); return "late", "" }); why == "" || n != 2*rounds {
		t.Errorf("a processor was away each time: %d rounds, %q", n-rounds, why)
	}
	judged := &failures{TB: t}
	n = 0
	why := Judge(judged, func() (string, string) {
		if n++; n == 1 {
			return "late", "busy"
		}
		return "wrong", ""
	})
	if judged.n == 0 && why == "" {
		t.Error("wrong in calm, and no failure")
	}
}

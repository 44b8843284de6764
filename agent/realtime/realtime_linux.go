// SPDX-License-Identifier: Apache-2.0

// Package realtime lets a whole Go process run before ordinary programs.
//
// It is all threads or none. The Go runtime waits for its own threads by yielding the processor in a loop, for instance when a garbage collector scans
// the stack of a goroutine that returns from a system call: a real-time thread that does so never lets an ordinary one run on its core, and both stand
// until the kernel throttles real-time threads, 950 ms later.
package realtime

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// priority is the least of the real-time ones: before every ordinary program, behind every thread that the kernel itself or an operator runs as
// real-time.
const priority = 1

// sweeps bounds how often a change looks for threads that were made while it looked.
const sweeps = 8

// Prefer asks for all threads of this process, and all that they make, to run before ordinary programs, in turn with each other. It needs the
// capability SYS_NICE, or a limit RLIMIT_RTPRIO, and is bounded by the kernel's real-time throttling.
func Prefer() error {
	return change(&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: priority})
}

// Release takes back what Prefer did.
func Release() error {
	return change(&unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL})
}

// change sets every thread's scheduling. A thread that another makes meanwhile has its maker's scheduling, which may be the old one: so it looks again
// until it finds no thread that it has not seen.
func change(attr *unix.SchedAttr) error {
	done := make(map[int]bool)
	for range sweeps {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list the threads of this process: %w", err)
		}
		before := len(done)
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil || done[tid] {
				continue
			}
			if err := unix.SchedSetAttr(tid, attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set the scheduling of thread %d: %w", tid, err)
			}
			done[tid] = true
		}
		if len(done) == before {
			break
		}
	}
	return nil
}

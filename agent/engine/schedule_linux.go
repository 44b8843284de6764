// SPDX-License-Identifier: Apache-2.0

package engine

import "golang.org/x/sys/unix"

// realtimePriority is the least of the real-time ones: before every ordinary program, behind every thread that the kernel itself or an operator
// runs as real-time.
const realtimePriority = 1

// preferThread asks for the calling thread to run before ordinary programs, in turn with its equals. A worker that is kept waiting for 10 ms counts
// as dead to the kernel program, and its flows pass unprotected; on a busy node that happens often without this. It needs the capability SYS_NICE
// and is bounded by the kernel's real-time throttling.
func preferThread() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realtimePriority}, 0)
}

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

// pinThread keeps the calling thread on one of the processors that it may use: worker 0 on the first, and so on. Frames that a thread injects from two
// processors can overtake each other in the kernel's backlogs. With more workers than processors there is nothing to choose.
func pinThread(worker, workers int) error {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	if workers > may.Count() {
		return nil
	}
	for cpu := 0; ; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		if worker--; worker < 0 {
			var one unix.CPUSet
			one.Set(cpu)
			return unix.SchedSetaffinity(0, &one)
		}
	}
}

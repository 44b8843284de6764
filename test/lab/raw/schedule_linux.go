// SPDX-License-Identifier: Apache-2.0

package raw

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Hardware locks the calling goroutine to its thread and lets it run before ordinary programs, with sleeps as short as the kernel can, until release is
// called: it stands for a network card or a line, which do not wait for a processor. Without the right to do so it runs as everyone does. The
// goroutine must sleep often.
func Hardware() (release func()) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)
	}
	return func() {
		if err == nil {
			_ = unix.SchedSetAttr(0, before, 0)
		}
		runtime.UnlockOSThread()
	}
}

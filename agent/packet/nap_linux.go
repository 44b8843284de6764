// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Nap sleeps for d, or less after a signal. It is for sleeps below a millisecond by a goroutine that has a thread and a processor of the runtime for
// itself: it keeps both, while an ordinary system call gives the processor away and fights for it afterwards, which costs more than the sleep
// when it happens thousands of times a second. A garbage collection waits for its end.
func Nap(d time.Duration) {
	ts := unix.NsecToTimespec(max(int64(d), 0))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   uint32
}

const (
	// A full queue is tried again so often, with this pause between.
	mostRetries = 16
	retryPause  = 20 * time.Microsecond
)

// sendmmsg hands messages to the kernel in order. refused is called for the message that it did not take, and tells
// whether that one is to be tried again.
func sendmmsg(fd int, msgs []mmsghdr, refused func(i int, err unix.Errno) (again bool)) {
	for done := 0; done < len(msgs); {
		n, _, err := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&msgs[done])),
			uintptr(len(msgs)-done), unix.MSG_DONTWAIT, 0, 0)
		if err == 0 {
			done += int(n)
			continue
		}
		if err != unix.EINTR && !refused(done, err) {
			done++
		}
	}
	runtime.KeepAlive(msgs)
}

// recvmmsg takes what is there; 0 when nothing is.
func recvmmsg(fd int, msgs []mmsghdr) int {
	n, _, err := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(msgs))),
		uintptr(len(msgs)), unix.MSG_DONTWAIT, 0, 0)
	runtime.KeepAlive(msgs)
	if err != 0 {
		return 0
	}
	return int(n)
}

// full tells the answers of a full queue.
func full(err unix.Errno) bool {
	return err == unix.EAGAIN || err == unix.ENOBUFS || err == unix.ENOMEM
}

func pause() {
	ts := unix.NsecToTimespec(int64(retryPause))
	_ = unix.Nanosleep(&ts, nil) // cut short by a signal: no harm
}

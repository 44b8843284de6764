// SPDX-License-Identifier: Apache-2.0

package raw

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// maxBatch is how many frames one system call sends.
const maxBatch = 64

// tries is how often a full device queue is met before the frame is dropped.
const tries = 50

// Sender sends frames out of an interface.
type Sender struct {
	fd      int
	msgs    [maxBatch]mmsghdr
	iovs    [maxBatch]unix.Iovec
	n       int
	Sent    uint64 // frames
	Dropped uint64 // frames that the device refused
}

// OpenSender opens a sender on an interface. Frames go straight to the device, past its queueing discipline.
func OpenSender(ifindex int) (*Sender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	s := &Sender{fd: fd}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("PACKET_QDISC_BYPASS: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: ifindex}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("bind: %w", err)
	}
	for i := range s.msgs {
		s.msgs[i].hdr.Iov = &s.iovs[i]
		s.msgs[i].hdr.SetIovlen(1)
	}
	return s, nil
}

// Queue adds a frame, which must stay valid and unchanged until Flush returns. A full batch is sent at once.
func (s *Sender) Queue(frame []byte) {
	s.iovs[s.n].Base = &frame[0]
	s.iovs[s.n].SetLen(len(frame))
	if s.n++; s.n == maxBatch {
		s.Flush()
	}
}

// Flush sends what is queued, in order. A frame that the device refuses many times is dropped and counted.
func (s *Sender) Flush() {
	for from, refused := 0, 0; from < s.n; {
		n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.msgs[from])), uintptr(s.n-from), 0, 0, 0)
		switch {
		case e == 0:
			from += int(n)
			s.Sent += uint64(n)
			refused = 0
		case e == unix.EINTR:
		case refused < tries && (e == unix.ENOBUFS || e == unix.EAGAIN):
			refused++
		default:
			from++
			s.Dropped++
			refused = 0
		}
	}
	s.n = 0
}

// Close frees the socket.
func (s *Sender) Close() error { return unix.Close(s.fd) }

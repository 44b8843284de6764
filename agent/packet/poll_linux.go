// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"time"

	"golang.org/x/sys/unix"
)

// Poller waits for file descriptors.
type Poller struct {
	fds []unix.PollFd
}

// NewPoller waits for any of fds to become readable.
func NewPoller(fds ...int) *Poller {
	p := &Poller{fds: make([]unix.PollFd, len(fds))}
	for i, fd := range fds {
		p.fds[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	return p
}

// Wait waits until a descriptor is readable (true) or d is over. It may return early without one: after a signal, or when
// a socket has an error, such as that its interface went down. It does not allocate.
func (p *Poller) Wait(d time.Duration) bool {
	ts := unix.NsecToTimespec(max(int64(d), 0))
	n, err := unix.Ppoll(p.fds, &ts, nil)
	if err != nil || n == 0 {
		return false
	}
	readable := false
	for i := range p.fds {
		switch events := p.fds[i].Revents; {
		case events&unix.POLLNVAL != 0:
			p.fds[i].Fd = -1 // closed: no longer of interest
		case events&unix.POLLERR != 0:
			// Reading the error clears it; it would end every wait from now on.
			_, _ = unix.GetsockoptInt(int(p.fds[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
		}
		readable = readable || p.fds[i].Revents&unix.POLLIN != 0
	}
	return readable
}

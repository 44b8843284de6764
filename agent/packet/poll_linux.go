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

// Wait waits until a descriptor is readable (true) or d is over. It does not allocate.
func (p *Poller) Wait(d time.Duration) bool {
	ts := unix.NsecToTimespec(max(int64(d), 0))
	n, err := unix.Ppoll(p.fds, &ts, nil)
	return err == nil && n > 0
}

// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InjectorConfig says how to inject. Mark is required; Batch is the most frames per system call, default 64.
type InjectorConfig struct {
	Mark  uint32
	Batch int
}

// injector sends marked frames on the uplink; the uplink's egress program turns them round into its receive path. The
// socket must not bypass the queueing layer (PACKET_QDISC_BYPASS): it would bypass that program, too.
type injector struct {
	fd    int
	queue []mmsghdr
	parts []unix.Iovec // two a frame
	to    []unix.RawSockaddrLinklayer
	n     int

	tries   int // of the frame that the kernel refused last
	refused func(i int, err unix.Errno) bool
	stats   InjectStats
}

const sendBuffer = 4 << 20

// OpenInjector opens an injector for all uplinks of the calling thread's network namespace, one a worker.
// It needs the capabilities NET_RAW and NET_ADMIN.
func OpenInjector(c InjectorConfig) (Injector, error) {
	if c.Batch == 0 {
		c.Batch = 64
	}
	if c.Mark == 0 || c.Batch < 1 {
		return nil, fmt.Errorf("packet: injector with mark %#x, batch %d", c.Mark, c.Batch)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // protocol 0: receives nothing
	if err != nil {
		return nil, fmt.Errorf("packet: open injector: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(c.Mark)),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet: set up injector: %w", err), unix.Close(fd))
	}
	j := &injector{
		fd: fd, queue: make([]mmsghdr, c.Batch), parts: make([]unix.Iovec, 2*c.Batch),
		to: make([]unix.RawSockaddrLinklayer, c.Batch),
	}
	j.refused = j.refuse
	for i := range j.queue {
		j.to[i] = unix.RawSockaddrLinklayer{Family: unix.AF_PACKET}
		h := &j.queue[i].hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&j.to[i])), uint32(unsafe.Sizeof(j.to[i]))
		h.Iov = &j.parts[2*i]
	}
	return j, nil
}

func (j *injector) Inject(ifindex int, head, payload []byte) {
	if len(head) == 0 {
		return
	}
	j.to[j.n].Ifindex = int32(ifindex)
	// With an Ethernet header the kernel wants the protocol only to classify the packet, and the redirect reads the frame
	// anew; without one it is all that tells what the packet is.
	if len(head) >= ethernetLen {
		j.to[j.n].Protocol = *(*uint16)(unsafe.Pointer(&head[2*macLen]))
		head = withoutBareHeader(head)
	}
	iov := j.parts[2*j.n : 2*j.n+2]
	iov[0].Base = unsafe.SliceData(head)
	iov[0].SetLen(len(head))
	iov[1].Base = unsafe.SliceData(payload)
	iov[1].SetLen(len(payload))
	j.queue[j.n].hdr.SetIovlen(len(iov))
	j.n++
	if j.n == len(j.queue) {
		j.Flush()
	}
}

func (j *injector) Flush() {
	if j.n == 0 {
		return
	}
	before := j.stats.Dropped
	sendmmsg(j.fd, j.queue[:j.n], j.refused)
	j.stats.Sent += uint64(j.n) - (j.stats.Dropped - before)
	j.n = 0
	j.tries = 0
}

// refuse decides about a frame that the kernel did not take.
func (j *injector) refuse(_ int, err unix.Errno) bool {
	if full(err) && j.tries < mostRetries {
		j.tries++
		j.stats.Retries++
		pause()
		return true
	}
	j.tries = 0
	j.stats.Dropped++
	return false
}

func (j *injector) Stats() InjectStats { return j.stats }

func (j *injector) Close() error {
	fd := j.fd
	j.fd = -1
	return unix.Close(fd)
}

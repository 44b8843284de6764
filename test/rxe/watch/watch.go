// SPDX-License-Identifier: Apache-2.0

// Package watch copies every frame of one interface to a handler, and knows which way it went.
package watch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	buffer = 64 << 20 // octets of socket buffer: seconds of traffic of an emulated machine
	poll   = 20 * time.Millisecond
)

// Watcher reads a packet socket until Close.
type Watcher struct {
	fd   int
	stop atomic.Bool
	seen atomic.Uint64
	done chan struct{}
}

// Open starts watching the named interface of the calling thread's network namespace. handle is called from one goroutine with each frame, which is
// valid during the call; out: the frame leaves this host by the interface, else it came in.
func Open(name string, handle func(frame []byte, out bool)) (*Watcher, error) {
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // network byte order
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // protocol 0: nothing arrives before Bind
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	timeout := unix.NsecToTimeval(poll.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}))
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("packet socket on %s: %w", name, err)
	}
	w := &Watcher{fd: fd, done: make(chan struct{})}
	go w.read(handle)
	return w, nil
}

func (w *Watcher) read(handle func([]byte, bool)) {
	defer close(w.done)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		switch {
		case err == nil:
			ll, ok := from.(*unix.SockaddrLinklayer)
			handle(buf[:n], ok && ll.Pkttype == unix.PACKET_OUTGOING)
			w.seen.Add(1)
		case w.stop.Load():
			return
		case err != unix.EAGAIN && err != unix.EINTR:
			return
		}
	}
}

// Settle waits until no frame came for the given time.
func (w *Watcher) Settle(quiet time.Duration) {
	for seen := w.seen.Load(); ; {
		time.Sleep(quiet)
		now := w.seen.Load()
		if now == seen {
			return
		}
		seen = now
	}
}

// Close reads what is waiting, ends the watch and returns how many frames it missed because its buffer was full. The handler is not called afterwards.
func (w *Watcher) Close() (missed uint64, err error) {
	w.stop.Store(true)
	<-w.done
	stats, err := unix.GetsockoptTpacketStats(w.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err == nil {
		missed = uint64(stats.Drops)
	}
	if err := unix.Close(w.fd); err != nil {
		return missed, os.NewSyscallError("close", err)
	}
	return missed, err
}

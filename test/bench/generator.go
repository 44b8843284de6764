// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/lab/topology"
)

const (
	batchPackets = 64
	batchExtra   = 64 // messages among them
	// refusedPause is how long the generator leaves a gateway alone whose input queue is full: a few packets' time, so that the queue never runs empty.
	refusedPause = 4 * time.Microsecond
)

type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

// companion goes with the generator's packets: it sees each before it is sent, and may add messages behind it.
type companion interface {
	// begin is called before a batch.
	begin(now time.Duration)
	// packet returns messages to send behind the packet: valid until done.
	packet(now time.Duration, frame []byte) []message
	// done is called when the batch has been sent.
	done()
}

// message is a frame in two parts.
type message struct{ head, body []byte }

// generator sends packets with rising PSNs as fast as the gateway takes them. None is left out: one that finds the queue full is sent again.
type generator struct {
	fd      int
	packets *numbered
	with    companion // nil: none
	psn     roce.PSN
	frames  [batchPackets][]byte
	msgs    [batchPackets + batchExtra]mmsghdr
	iovs    [batchPackets + batchExtra][2]unix.Iovec
	n       int

	newest  atomic.Uint32 // PSN of the last packet sent
	sent    atomic.Uint64
	refused atomic.Uint64 // a packet found the queue full
	stop    atomic.Bool
	ended   chan error
}

// startGenerator starts sending from an interface of a namespace.
func startGenerator(ns *topology.Namespace, device string, packets *numbered, with companion) (*generator, error) {
	g := &generator{packets: packets, with: with, ended: make(chan error, 1)}
	err := ns.Do(func() (err error) {
		g.fd, err = openRaw(device, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("generator on %s: %w", device, err)
	}
	for i := range g.frames {
		g.frames[i] = append([]byte(nil), packets.model...)
	}
	for i := range g.msgs {
		g.msgs[i].hdr.Iov = &g.iovs[i][0]
	}
	go func() {
		runtime.LockOSThread()
		g.ended <- g.run()
		_ = unix.Close(g.fd)
	}()
	return g, nil
}

// openRaw opens a packet socket on an interface of the calling thread's namespace. protocol 0 receives nothing.
func openRaw(device string, protocol uint16) (int, error) {
	index, err := deviceIndex(device)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16 << 20},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			_ = unix.Close(fd)
			return 0, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: index}); err != nil {
		_ = unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func (g *generator) run() error {
	for !g.stop.Load() {
		now := packet.Now()
		if g.with != nil {
			g.with.begin(now)
		}
		for i := range g.frames {
			g.packets.set(g.frames[i], g.psn)
			g.queue(g.frames[i], nil)
			if g.with != nil {
				for _, m := range g.with.packet(now, g.frames[i]) {
					g.queue(m.head, m.body)
				}
			}
			g.psn = g.psn.Add(1)
			if g.n >= batchPackets { // with its messages the batch is full
				if err := g.flush(); err != nil {
					return err
				}
			}
		}
		if err := g.flush(); err != nil {
			return err
		}
		if g.with != nil {
			g.with.done()
		}
		g.sent.Add(batchPackets)
		g.newest.Store(uint32(g.psn.Add(-1)))
	}
	return nil
}

func (g *generator) queue(head, body []byte) {
	v := &g.iovs[g.n]
	v[0].Base, v[1].Base = &head[0], nil
	v[0].SetLen(len(head))
	g.msgs[g.n].hdr.SetIovlen(1)
	if len(body) > 0 {
		v[1].Base = &body[0]
		v[1].SetLen(len(body))
		g.msgs[g.n].hdr.SetIovlen(2)
	}
	g.n++
}

// flush sends what is queued, in order.
func (g *generator) flush() error {
	for from := 0; from < g.n && !g.stop.Load(); {
		n, _, e := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(g.fd), uintptr(unsafe.Pointer(&g.msgs[from])), uintptr(g.n-from), 0, 0, 0)
		switch e {
		case 0:
			from += int(n)
		case unix.EINTR:
		case unix.ENOBUFS, unix.EAGAIN:
			g.refused.Add(1)
			for until := packet.Now() + refusedPause; packet.Now() < until; {
			}
		default:
			return fmt.Errorf("send: %w", e)
		}
	}
	g.n = 0
	return nil
}

// end stops the generator and waits.
func (g *generator) end() error {
	g.stop.Store(true)
	return <-g.ended
}

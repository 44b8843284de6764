// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/multipath"
	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/lab/raw"
)

// Host is the NIC: it carries frames between an interface and the queue pairs.
type Host struct {
	o       *Options
	ring    *raw.Ring
	send    *raw.Sender
	mute    []net.PacketConn
	qps     []queuePair
	reads   *roce.Transports // how packets are read
	first   roce.QPN
	batch   *rc.Batch
	meter   meter
	stall   time.Duration
	refused map[string]uint64 // frames of the UDP port that are no packets of the transport, by reason
}

// queuePair is a queue pair of any transport; see rc.QP.
type queuePair interface {
	Post(now time.Duration, op rc.Op, size int) bool
	HandlePacket(now time.Duration, p *roce.Packet)
	Poll(now time.Duration, out *rc.Batch)
	NextDeadline() time.Duration
	Completions(dst []rc.Completion) []rc.Completion
	Outstanding() int
	Err() string
	Stats() *rc.Stats
	Audit() int
}

// connect makes a queue pair, and says how long its frames can be.
func (o *Options) connect(c rc.Config, reads *roce.Transports) (q queuePair, frame int, err error) {
	if !o.Transport.Multipath() {
		q, err = rc.New(c)
		return q, c.FrameSize(), err
	}
	m := multipath.Config{RC: c, Operation: o.Op, Transport: o.Transport, Settings: reads, Paths: o.Multipath.Paths, RTT: o.Multipath.RTT}
	q, err = multipath.New(m)
	return q, m.FrameSize(), err
}

// port is the UDP destination port of the transport.
func (o *Options) port() uint16 {
	if o.Transport == roce.VeRoCE {
		return o.Multipath.Port
	}
	return roce.Port
}

const ringSlots = 4096

// Open makes the queue pairs and opens the interface, in the network namespace of the calling thread.
func Open(o Options) (*Host, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	device, err := net.InterfaceByName(o.Device)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", o.Device, err)
	}
	nextHop, err := findNextHop(&o)
	if err != nil {
		return nil, err
	}
	h := &Host{o: &o, first: requesterQPN, refused: map[string]uint64{}}
	if !o.Requester {
		h.first = responderQPN
	}
	if o.Transport.Multipath() {
		h.reads = o.Multipath.settings()
	}
	longest := 0
	for i := range o.Connections {
		q, frame, err := o.connect(o.connection(i, [6]byte(device.HardwareAddr), nextHop), h.reads)
		if err != nil {
			return nil, err
		}
		h.qps, longest = append(h.qps, q), frame
	}
	h.batch = rc.NewBatch(64, longest)
	if h.mute, err = muteKernel(o.port()); err != nil {
		h.Close()
		return nil, err
	}
	filter, err := bpf.Assemble(portFilter(o.port()))
	if err != nil {
		return nil, err
	}
	code := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		code[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	if h.ring, err = raw.OpenRing(device.Index, device.MTU, ringSlots, code); err != nil {
		h.Close()
		return nil, err
	}
	if h.send, err = raw.OpenSender(device.Index); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close frees what Open took.
func (h *Host) Close() {
	if h.ring != nil {
		_ = h.ring.Close()
	}
	if h.send != nil {
		_ = h.send.Close()
	}
	for _, c := range h.mute {
		_ = c.Close()
	}
}

// portFilter passes unfragmented UDP to a port over IPv4 and IPv6.
func portFilter(port uint16) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x0800, SkipFalse: 6},
		bpf.LoadAbsolute{Off: 23, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 17, SkipFalse: 9},
		bpf.LoadAbsolute{Off: 20, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 7},
		bpf.LoadAbsolute{Off: 36, Size: 2},
		bpf.Jump{Skip: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x86dd, SkipFalse: 4},
		bpf.LoadAbsolute{Off: 20, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 17, SkipFalse: 2},
		bpf.LoadAbsolute{Off: 56, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(port), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 0x40000},
	}
}

// muteKernel keeps the kernel from answering packets with "port unreachable": sockets on the port that throw everything away. Several endpoints
// on one host may have them.
func muteKernel(port uint16) ([]net.PacketConn, error) {
	drop := [1]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	prog := unix.SockFprog{Len: 1, Filter: &drop[0]}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog),
			)
		}); e != nil {
			return e
		}
		return err
	}}
	var mute []net.PacketConn
	for _, network := range []string{"udp4", "udp6"} {
		c, err := config.ListenPacket(context.Background(), network, fmt.Sprintf(":%d", port))
		if err != nil {
			return mute, fmt.Errorf("take UDP port %d: %w", port, err)
		}
		mute = append(mute, c)
	}
	return mute, nil
}

// findNextHop returns the link address to which frames for the other end go.
func findNextHop(o *Options) (mac [6]byte, err error) {
	if o.NextHop != "" {
		hw, err := net.ParseMAC(o.NextHop)
		if err != nil || len(hw) != 6 {
			return mac, fmt.Errorf("-next-hop %q is no Ethernet address", o.NextHop)
		}
		return [6]byte(hw), nil
	}
	routes, err := netlink.RouteGet(o.Remote.AsSlice())
	if err != nil || len(routes) == 0 {
		return mac, fmt.Errorf("no route to %v: %w", o.Remote, err)
	}
	hop := routes[0].Gw
	if hop == nil {
		hop = o.Remote.AsSlice()
	}
	neighbours, err := netlink.NeighList(routes[0].LinkIndex, 0)
	if err != nil {
		return mac, fmt.Errorf("neighbours: %w", err)
	}
	for _, n := range neighbours {
		if n.IP.Equal(hop) && len(n.HardwareAddr) == 6 {
			return [6]byte(n.HardwareAddr), nil
		}
	}
	return mac, fmt.Errorf("the link address of %v is not known; give -next-hop", hop)
}

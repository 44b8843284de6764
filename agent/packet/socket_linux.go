// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SocketConfig says what to listen on. Port, Workers and at least one of IPv4 and IPv6 are required.
type SocketConfig struct {
	Port       uint16
	Workers    int
	MaxMessage int // largest message to receive, default 9216
	Batch      int // most messages per system call, default 32
	IPv4, IPv6 bool
}

// socket is the CREM port of one worker: a UDP socket of each IP version.
type socket struct {
	versions []*version
	stats    SocketStats
}

// OpenSockets opens the sockets of a CREM port, one a worker. Of the messages that arrive, REPAIR goes to the worker that
// is the remainder of its Flow ID by Workers, every other message to worker 0.
// It needs the capability NET_ADMIN, to send from addresses that are not the node's own.
func OpenSockets(c SocketConfig) (sockets []Socket, err error) {
	if c.MaxMessage == 0 {
		c.MaxMessage = 9216
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	if c.Port == 0 || c.Workers < 1 || c.MaxMessage < 1 || c.Batch < 1 || !c.IPv4 && !c.IPv6 {
		return nil, fmt.Errorf("packet: socket for port %d, %d workers, messages of %d octets", c.Port, c.Workers, c.MaxMessage)
	}
	defer func() {
		if err != nil {
			for _, s := range sockets {
				err = errors.Join(err, s.Close())
			}
			sockets = nil
		}
	}()
	for range c.Workers {
		s := &socket{}
		sockets = append(sockets, s)
		for _, family := range c.families() {
			v, err := openVersion(c, family, &s.stats)
			if err != nil {
				return sockets, fmt.Errorf("packet: open port %d: %w", c.Port, err)
			}
			s.versions = append(s.versions, v)
		}
	}
	if c.Workers == 1 {
		return sockets, nil
	}
	// The members of a group are numbered in the order of their bind.
	filter, err := socketFilter(c.Workers)
	if err != nil {
		return sockets, err
	}
	for _, fd := range sockets[0].FDs() {
		if err := setFilter(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, filter); err != nil {
			return sockets, fmt.Errorf("packet: share port %d: %w", c.Port, err)
		}
	}
	return sockets, nil
}

func (c SocketConfig) families() (f []int) {
	if c.IPv4 {
		f = append(f, unix.AF_INET)
	}
	if c.IPv6 {
		f = append(f, unix.AF_INET6)
	}
	return f
}

func (s *socket) Recv(msgs []Message) int {
	n := 0
	for _, v := range s.versions {
		n += v.recv(msgs[n:])
	}
	s.stats.Received += uint64(n)
	return n
}

func (s *socket) Send(to netip.AddrPort, from Source, tos uint8, msg []byte) {
	for _, v := range s.versions {
		if v.ipv6 == to.Addr().Is6() {
			v.send(to, from, tos, msg)
			return
		}
	}
	s.stats.Failed++
}

func (s *socket) Flush() {
	for _, v := range s.versions {
		v.flush()
	}
}

func (s *socket) FDs() []int {
	fds := make([]int, len(s.versions))
	for i, v := range s.versions {
		fds[i] = v.fd
	}
	return fds
}

func (s *socket) Stats() SocketStats { return s.stats }

func (s *socket) Close() error {
	var err error
	for _, v := range s.versions {
		err = errors.Join(err, unix.Close(v.fd))
	}
	s.versions = nil
	return err
}

// version is the UDP socket of one IP version, with all memory for its batches.
type version struct {
	fd    int
	ipv6  bool
	stats *SocketStats
	in    inbox
	out   outbox
}

const (
	socketBuffer = 8 << 20
	controlLen   = 128 // room for the control messages of one datagram
	nameLen      = unix.SizeofSockaddrInet6
)

func openVersion(c SocketConfig, family int, stats *SocketStats) (*version, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	v := &version{fd: fd, ipv6: family == unix.AF_INET6, stats: stats}
	if err := v.setUp(c); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	v.in.init(c.Batch, c.MaxMessage)
	v.out.init(c.Batch * segmentsPerSlot)
	return v, nil
}

func (v *version) setUp(c SocketConfig) error {
	options := [][3]int{
		{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer},
	}
	var address unix.Sockaddr = &unix.SockaddrInet4{Port: int(c.Port)}
	if v.ipv6 {
		address = &unix.SockaddrInet6{Port: int(c.Port)}
		options = append(options, [][3]int{
			{unix.SOL_IPV6, unix.IPV6_V6ONLY, 1},
			{unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1},
			{unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1},
			{unix.SOL_IPV6, unix.IPV6_RECVTCLASS, 1},
			{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
			{unix.SOL_IPV6, unix.IPV6_DONTFRAG, 1},
		}...)
	} else {
		options = append(options, [][3]int{
			{unix.SOL_IP, unix.IP_TRANSPARENT, 1},
			{unix.SOL_IP, unix.IP_PKTINFO, 1},
			{unix.SOL_IP, unix.IP_RECVTOS, 1},
			{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO},
		}...)
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(v.fd, o[0], o[1], o[2]); err != nil {
			return fmt.Errorf("socket option %d/%d: %w", o[0], o[1], err)
		}
	}
	return unix.Bind(v.fd, address)
}

// inbox is the memory of received messages.
type inbox struct {
	msgs    []mmsghdr
	parts   []unix.Iovec
	names   [][nameLen]byte
	control [][controlLen]byte
	data    []byte
	size    int // octets of data a message
}

func (in *inbox) init(n, size int) {
	in.msgs = make([]mmsghdr, n)
	in.parts = make([]unix.Iovec, n)
	in.names = make([][nameLen]byte, n)
	in.control = make([][controlLen]byte, n)
	in.data, in.size = make([]byte, n*size), size
	for i := range in.msgs {
		in.parts[i].Base = &in.data[i*size]
		in.parts[i].SetLen(size)
		h := &in.msgs[i].hdr
		h.Iov = &in.parts[i]
		h.SetIovlen(1)
		h.Name, h.Control = &in.names[i][0], &in.control[i][0]
	}
}

func (v *version) recv(msgs []Message) int {
	in := &v.in
	ask := min(len(msgs), len(in.msgs))
	for i := range ask {
		h := &in.msgs[i].hdr
		h.Namelen = nameLen
		h.SetControllen(controlLen)
	}
	n := 0
	for i := range recvmmsg(v.fd, in.msgs[:ask]) {
		h := &in.msgs[i].hdr
		if h.Flags&unix.MSG_TRUNC != 0 {
			v.stats.Truncated++
			continue
		}
		m := &msgs[n]
		*m = Message{Data: in.data[i*in.size:][:in.msgs[i].n], From: addrPort(&in.names[i])}
		readControl(m, in.control[i][:h.Controllen])
		n++
	}
	return n
}

// addrPort reads a socket address.
func addrPort(name *[nameLen]byte) netip.AddrPort {
	port := uint16(name[2])<<8 | uint16(name[3])
	if *(*uint16)(unsafe.Pointer(name)) == unix.AF_INET6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(name[8:24])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
}

// readControl reads destination, interface and TOS.
func readControl(m *Message, control []byte) {
	for len(control) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		end := int(h.Len)
		if end < unix.SizeofCmsghdr || end > len(control) {
			return
		}
		switch data := control[unix.CmsgLen(0):end]; {
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
			m.To, m.Ifindex = netip.AddrFrom4(info.Addr), int(info.Ifindex)
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
			m.To, m.Ifindex = netip.AddrFrom16(info.Addr), int(info.Ifindex)
		case h.Level == unix.SOL_IP && h.Type == unix.IP_TOS && len(data) >= 1:
			m.TOS = data[0]
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_TCLASS && len(data) >= 4:
			m.TOS = uint8(*(*int32)(unsafe.Pointer(&data[0])))
		}
		control = control[min(unix.CmsgSpace(end-unix.CmsgLen(0)), len(control)):]
	}
}

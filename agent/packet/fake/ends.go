// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// mostQueued bounds what a tap or socket keeps unread.
const mostQueued = 1 << 16

// tap is a packet.Tap.
type tap struct {
	node *Node

	mu        sync.Mutex
	closed    bool
	queue     []packet.Frame
	delivered int
	stats     packet.TapStats
}

// answerable says whether taps copy a packet that arrives: it acknowledges packets, or is a request whose responses take PSNs of the other direction.
func answerable(p *roce.Packet) bool {
	if p.Transport() != roce.RoCEv2 {
		_, _, ok := p.Acked()
		return ok
	}
	reliable := p.Opcode().Class() == roce.ClassRC || p.Opcode().Class() == roce.ClassXRC
	return reliable && (p.Opcode().Operation() == roce.Acknowledge || p.Opcode().Answered())
}

// tapped gives a copy of a frame to the tap of its worker, if it is one that taps copy.
func (node *Node) tapped(frame []byte, flags packet.FrameFlags) {
	p, reason := node.program.Transports.Parse(frame)
	if reason != roce.OK {
		return
	}
	data := append([]byte{}, frame...)
	if flags&packet.Outgoing == 0 {
		if !answerable(&p) {
			return
		}
		const cut = 128
		if len(data) > cut {
			data, flags = data[:cut], flags|packet.Cut
		}
	}
	ifindex := node.Ifindex()
	taps := node.taps[ifindex]
	t := taps[packet.PairWorker(p.Src(), p.Dst(), len(taps))]
	f := packet.Frame{Data: data, Len: len(frame), Time: node.network.Now(), Flags: flags, Ifindex: ifindex, Flow: packet.NoFlow}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
	case len(t.queue) >= mostQueued:
		t.stats.Dropped++
	default:
		t.queue = append(t.queue, f)
	}
}

func (t *tap) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = false
}

func (t *tap) Next(frames []packet.Frame) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := copy(frames, t.queue[t.delivered:])
	t.delivered += n
	t.stats.Frames += uint64(n)
	return n
}

func (t *tap) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.queue[:t.delivered] {
		poison(f.Data)
	}
	t.queue = append([]packet.Frame{}, t.queue[t.delivered:]...)
	t.delivered = 0
}

// LookIntoTunnels changes nothing: the network has no tunnels.
func (t *tap) LookIntoTunnels(bool) error { return nil }
func (t *tap) Gone() bool                 { return false }

// FD is no descriptor: a poller ignores it.
func (t *tap) FD() int { return -1 }

func (t *tap) Stats() packet.TapStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

func (t *tap) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.queue, t.delivered = true, nil, 0
	return nil
}

// injector is a packet.Injector.
type injector struct {
	node  *Node
	queue [][2][]byte
	stats packet.InjectStats
}

func (j *injector) Inject(_ int, head, payload []byte) {
	j.queue = append(j.queue, [2][]byte{head, payload})
}

func (j *injector) Flush() {
	for _, parts := range j.queue {
		j.node.deliver(append(append([]byte{}, parts[0]...), parts[1]...))
		j.stats.Sent++
	}
	j.queue = j.queue[:0]
}

func (j *injector) Stats() packet.InjectStats { return j.stats }

func (j *injector) Close() error { return nil }

// socket is a packet.Socket.
type socket struct {
	node *Node
	port uint16
	out  []outgoing

	mu    sync.Mutex
	queue []packet.Message
	stats packet.SocketStats
}

type outgoing struct {
	to   netip.AddrPort
	from netip.Addr
	tos  uint8
	msg  []byte
}

func (s *socket) put(m packet.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) < mostQueued {
		s.queue = append(s.queue, m)
	}
}

func (s *socket) Recv(msgs []packet.Message) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(msgs, s.queue)
	s.queue = s.queue[n:]
	s.stats.Received += uint64(n)
	return n
}

func (s *socket) Send(to netip.AddrPort, from packet.Source, tos uint8, msg []byte) {
	s.out = append(s.out, outgoing{to, from.Addr, tos, msg})
}

func (s *socket) Flush() {
	for _, o := range s.out {
		frame := s.datagram(o)
		s.mu.Lock()
		switch {
		case frame == nil:
			s.stats.Failed++
		case s.node.config.MTU > 0 && len(frame)-ethernetLen > s.node.config.MTU:
			s.stats.TooBig++
			frame = nil
		default:
			s.stats.Sent++
		}
		s.mu.Unlock()
		if frame != nil {
			s.node.network.transmit(s.node, frame, o.to.Addr())
		}
	}
	s.out = s.out[:0]
}

// datagram builds the frame of a message; nil when the node has no address of the destination's kind.
func (s *socket) datagram(o outgoing) []byte {
	from := o.from
	for _, own := range s.node.config.Addrs {
		if !from.IsValid() && own.Is4() == o.to.Addr().Is4() {
			from = own
		}
	}
	if !from.IsValid() {
		return nil
	}
	udp := make([]byte, udpLen, udpLen+len(o.msg))
	binary.BigEndian.PutUint16(udp, s.port)
	binary.BigEndian.PutUint16(udp[2:], o.to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+len(o.msg)))
	udp = append(udp, o.msg...)
	frame := make([]byte, ethernetLen)
	if o.to.Addr().Is4() {
		frame[12], frame[13] = 0x08, 0
		ip := make([]byte, 20)
		ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, o.tos, 0x40, 64, protocolUDP
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
		copy(ip[12:], from.AsSlice())
		copy(ip[16:], o.to.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip))
		frame = append(frame, ip...)
	} else {
		frame[12], frame[13] = 0x86, 0xdd
		ip := make([]byte, 40)
		ip[0], ip[1], ip[6], ip[7] = 0x60|o.tos>>4, o.tos<<4, protocolUDP, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(udp)))
		copy(ip[8:], from.AsSlice())
		copy(ip[24:], o.to.Addr().AsSlice())
		frame = append(frame, ip...)
	}
	return append(frame, udp...)
}

// FDs is empty: there is nothing to poll.
func (s *socket) FDs() []int { return nil }

func (s *socket) Stats() packet.SocketStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Close takes the port from the node, unless it was opened again meanwhile.
func (s *socket) Close() error {
	s.node.mu.Lock()
	defer s.node.mu.Unlock()
	if group := s.node.sockets[s.port]; len(group) > 0 && slices.Contains(group, s) {
		delete(s.node.sockets, s.port)
	}
	return nil
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// SPDX-License-Identifier: Apache-2.0

// Package frames builds Ethernet frames for tests: RoCEv2 packets, CREM messages, and the odd ones that must be told
// from them. It shares no code with the parsers under test but the invariant CRC.
package frames

import (
	"encoding/binary"
	"net/netip"

	"crem.dev/crem/agent/roce"
)

// MAC is an Ethernet address.
type MAC [6]byte

// Headers are the headers of a UDP datagram. Zero fields take a sensible value.
type Headers struct {
	SrcMAC, DstMAC MAC
	Src, Dst       netip.Addr
	SrcPort        uint16 // default 49152
	DstPort        uint16 // default 4791
	TOS            uint8
	TTL            uint8 // default 64
	ID             uint16
	FlowLabel      uint32 // IPv6
	Checksum       bool   // compute the UDP checksum; without it the field is 0
	Partial        bool   // leave it to the device: the field is the sum of the pseudo header
	Options        int    // IPv4: octets of options, a multiple of 4. IPv6: destination option headers of 8 octets each
	FragmentOffset int    // octets, a multiple of 8
	MoreFragments  bool
	VLAN           []uint16 // tags, the outer one first
}

// RoCE is a packet of RoCEv2, or with another port, opcode and extension headers of a transport with the same BTH.
type RoCE struct {
	Headers
	Opcode    roce.Opcode
	QPN       uint32
	PSN       uint32
	AckReq    bool
	DMALength uint32 // of a RETH
	Syndrome  uint8  // of an AETH
	Flags     uint8  // of BTH octet 8, beside AckReq
	Extension []byte // extension headers in place of those that the opcode has with RC
	Data      []byte
}

// Frame builds the packet with a right invariant CRC.
func (r RoCE) Frame() []byte {
	p := make([]byte, 12, 64+len(r.Data))
	p[0] = uint8(r.Opcode)
	pad := (4 - len(r.Data)%4) % 4
	p[1] = 0x40 | uint8(pad)<<4
	binary.BigEndian.PutUint16(p[2:], 0xffff)
	binary.BigEndian.PutUint32(p[4:], r.QPN)
	binary.BigEndian.PutUint32(p[8:], r.PSN&0xffffff)
	p[8] |= r.Flags
	if r.AckReq {
		p[8] |= 0x80
	}
	if r.Extension != nil {
		p = append(p, r.Extension...)
	} else {
		p = append(p, r.extension()...)
	}
	p = append(p, r.Data...)
	p = append(p, make([]byte, pad+4)...)
	// The invariant CRC is that of the packet without what a test adds to its headers.
	plain := r.Headers
	plain.VLAN, plain.Options, plain.FragmentOffset, plain.MoreFragments = nil, 0, 0, false
	frame := plain.Frame(p)
	binary.LittleEndian.PutUint32(p[len(p)-4:], roce.ICRC(frame[:len(frame)-len(p)], p))
	return r.Headers.Frame(p)
}

// extension is the extension headers that the opcode asks for.
func (r RoCE) extension() []byte {
	var b []byte
	if r.Opcode.Class() == roce.ClassXRC && r.Opcode.Operation() != roce.Acknowledge {
		if space, ok := r.Opcode.Space(); ok && space == roce.Request {
			b = append(b, 0, 0, 0, 9) // XRCETH
		}
	}
	switch r.Opcode.Operation() {
	case roce.WriteFirst, roce.WriteOnly, roce.WriteOnlyImm, roce.ReadRequest:
		reth := make([]byte, 16)
		binary.BigEndian.PutUint32(reth[12:], r.DMALength)
		b = append(b, reth...)
	case roce.ReadResponseFirst, roce.ReadResponseLast, roce.ReadResponseOnly, roce.Acknowledge:
		b = append(b, r.Syndrome, 0, 0, 1)
	case roce.AtomicAcknowledge:
		b = append(b, r.Syndrome, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
	case roce.CompareSwap, roce.FetchAdd:
		b = append(b, make([]byte, 28)...)
	default: // the others have no extension headers, or none that a test needs
	}
	return b
}

// Frame builds the datagram with a payload. A fragment that isn't the first has no UDP header.
func (h Headers) Frame(payload []byte) []byte {
	frame := append([]byte{}, h.DstMAC[:]...)
	frame = append(frame, h.SrcMAC[:]...)
	for _, tag := range h.VLAN {
		frame = append(frame, 0x81, 0, byte(tag>>8), byte(tag))
	}
	udp := h.udp(payload)
	if h.Dst.Is4() {
		frame = append(frame, 0x08, 0x00)
		frame = append(frame, h.ipv4(len(udp))...)
	} else {
		frame = append(frame, 0x86, 0xdd)
		frame = append(frame, h.ipv6(len(udp))...)
	}
	return append(frame, udp...)
}

func (h Headers) udp(payload []byte) []byte {
	if h.FragmentOffset > 0 {
		return payload
	}
	udp := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(udp[0:], or(h.SrcPort, 49152))
	binary.BigEndian.PutUint16(udp[2:], or(h.DstPort, roce.Port))
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	udp = append(udp, payload...)
	var pseudo []byte
	pseudo = append(pseudo, h.Src.AsSlice()...)
	pseudo = append(pseudo, h.Dst.AsSlice()...)
	pseudo = append(pseudo, 0, 17, udp[4], udp[5])
	switch {
	case h.Partial:
		binary.BigEndian.PutUint16(udp[6:], ^Checksum(pseudo))
	case h.Checksum:
		sum := Checksum(append(pseudo, udp...))
		if sum == 0 {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(udp[6:], sum)
	}
	return udp
}

func (h Headers) ipv4(payload int) []byte {
	ip := make([]byte, 20+h.Options)
	ip[0] = 0x40 | uint8(len(ip)/4)
	ip[1] = h.TOS
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+payload))
	binary.BigEndian.PutUint16(ip[4:], h.ID)
	switch {
	case h.MoreFragments:
		binary.BigEndian.PutUint16(ip[6:], 0x2000|uint16(h.FragmentOffset/8))
	case h.FragmentOffset > 0:
		binary.BigEndian.PutUint16(ip[6:], uint16(h.FragmentOffset/8))
	default:
		ip[6] = 0x40
	}
	ip[8] = or(h.TTL, 64)
	ip[9] = 17
	copy(ip[12:], h.Src.AsSlice())
	copy(ip[16:], h.Dst.AsSlice())
	for i := range h.Options {
		ip[20+i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(ip[10:], Checksum(ip))
	return ip
}

func (h Headers) ipv6(payload int) []byte {
	ip := make([]byte, 40)
	binary.BigEndian.PutUint32(ip, 0x60000000|uint32(h.TOS)<<20|h.FlowLabel)
	ip[7] = or(h.TTL, 64)
	copy(ip[8:], h.Src.AsSlice())
	copy(ip[24:], h.Dst.AsSlice())
	const udp, destination, fragment = 17, 60, 44
	chain := make([]byte, 0, 8*(h.Options+1))
	announce := []byte{} // the protocols in the order of their headers
	for range h.Options {
		announce = append(announce, destination)
		chain = append(chain, 0, 0, 1, 4, 0, 0, 0, 0)
	}
	if h.MoreFragments || h.FragmentOffset > 0 {
		announce = append(announce, fragment)
		f := []byte{0, 0, 0, 0, 0, 0, 0, 7}
		binary.BigEndian.PutUint16(f[2:], uint16(h.FragmentOffset))
		if h.MoreFragments {
			f[3] |= 1
		}
		chain = append(chain, f...)
	}
	announce = append(announce, udp)
	ip[6] = announce[0]
	for i, next := range announce[1:] {
		chain[8*i] = next
	}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(chain)+payload))
	return append(ip, chain...)
}

// Checksum is the Internet checksum of b.
func Checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func or[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

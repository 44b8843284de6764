// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"net/netip"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Octets of the headers in front of P, and the least and the most that P can have.
const (
	EthernetLen = 14
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8
	icrcLen     = 4

	// MinPayload is a BTH and an ICRC: the shortest UDP payload of a RoCEv2 packet.
	MinPayload = bthLen + icrcLen
	// MaxHead is the longest head: Ethernet, IPv6 and UDP header.
	MaxHead = EthernetLen + ipv6Len + udpLen

	headIPv4 = EthernetLen + ipv4Len + udpLen
	headIPv6 = MaxHead
)

// Fields of the Base Transport Header, as offsets in P.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    Opcode     |S|M|Pad| TVer  |             P_Key             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|F|B| Reserved  |        Destination Queue Pair (QPN)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|A|  Reserved   |        Packet Sequence Number (PSN)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// S solicited event, M migration request, Pad octets added to the data, TVer transport version,
// F and B forward and backward congestion notification, A acknowledgement requested.
const (
	bthOpcode = 0
	bthFlags  = 1
	bthPKey   = 2
	bthFECN   = 4 // masked out of the ICRC
	bthQPN    = 4 // with bthFECN in its upper octet
	bthAck    = 8
	bthPSN    = 8 // with bthAck in its upper octet

	flagsPadShift = 4
	flagsPadMask  = 0x03
	flagsTVerMask = 0x0f
	fecnReserved  = 0x3f
	ackRequest    = 0x80
	ackReserved   = 0x7f
)

// RDMA Extended Transport Header (RETH):
//
//	+---------------------------------------------------------------+
//	|                     Virtual Address (64)                      |
//	+-------------------------------+-------------------------------+
//	|        Remote Key (32)        |        DMA Length (32)        |
//	+-------------------------------+-------------------------------+
const rethDMALength = 12

// FlowKey names one PSN space of one direction of a queue pair: what CREM calls a flow. It is comparable.
type FlowKey struct {
	Src, Dst  netip.Addr
	QPN       QPN // of the destination
	Space     Space
	Transport Transport
}

// HostPair is the two ends of a direction, whatever the queue pair.
type HostPair struct{ Src, Dst netip.Addr }

// Hosts returns the ends of the flow.
func (k FlowKey) Hosts() HostPair { return HostPair{k.Src, k.Dst} }

// Reverse returns the ends of the opposite direction. The queue pair number that answers carry is the other
// side's own, which a packet of this direction doesn't tell.
func (k FlowKey) Reverse() HostPair { return HostPair{k.Dst, k.Src} }

// Packet is a view of one RoCEv2 frame. It aliases the frame it was parsed from and is valid as long as that is.
// The zero Packet has no octets; only what Parse returned with reason OK may be asked.
type Packet struct {
	frame     []byte // Ethernet header to ICRC, Ethernet padding cut off
	head      int    // octets before P: headIPv4 or headIPv6
	transport Transport
	rules     *Transports // what it was recognised by; nil: RoCEv2
}

// Transport returns what protocol the packet is of.
func (p *Packet) Transport() Transport { return p.transport }

// P returns the UDP payload, BTH to ICRC. It aliases the frame.
func (p *Packet) P() []byte { return p.frame[p.head:] }

// Head returns Ethernet, IP and UDP header. It aliases the frame.
func (p *Packet) Head() []byte { return p.frame[:p.head:p.head] }

// IPv6 says that the packet is of IPv6, otherwise it is of IPv4.
func (p *Packet) IPv6() bool { return p.head == headIPv6 }

// Src returns the IP source address.
func (p *Packet) Src() netip.Addr {
	if p.IPv6() {
		return netip.AddrFrom16([16]byte(p.frame[EthernetLen+8:]))
	}
	return netip.AddrFrom4([4]byte(p.frame[EthernetLen+12:]))
}

// Dst returns the IP destination address.
func (p *Packet) Dst() netip.Addr {
	if p.IPv6() {
		return netip.AddrFrom16([16]byte(p.frame[EthernetLen+24:]))
	}
	return netip.AddrFrom4([4]byte(p.frame[EthernetLen+16:]))
}

// TOS returns the IPv4 TOS octet or the IPv6 traffic class: DSCP and ECN.
func (p *Packet) TOS() uint8 {
	ip := p.frame[EthernetLen:]
	if p.IPv6() {
		return ip[0]<<4 | ip[1]>>4
	}
	return ip[1]
}

// ECN returns the two ECN bits: 0 Not-ECT, 1 ECT(1), 2 ECT(0), 3 CE.
func (p *Packet) ECN() uint8 { return p.TOS() & ecnMask }

// TTL returns the IPv4 time to live or the IPv6 hop limit.
func (p *Packet) TTL() uint8 {
	if p.IPv6() {
		return p.frame[EthernetLen+7]
	}
	return p.frame[EthernetLen+8]
}

// ID returns the IPv4 Identification, which the ICRC covers; 0 for IPv6.
func (p *Packet) ID() uint16 {
	if p.IPv6() {
		return 0
	}
	return binary.BigEndian.Uint16(p.frame[EthernetLen+4:])
}

// FlowLabel returns the IPv6 flow label, 0 for IPv4.
func (p *Packet) FlowLabel() uint32 {
	if !p.IPv6() {
		return 0
	}
	return binary.BigEndian.Uint32(p.frame[EthernetLen:]) & flowLabelMask
}

// SrcPort returns the UDP source port.
func (p *Packet) SrcPort() uint16 { return binary.BigEndian.Uint16(p.frame[p.head-udpLen:]) }

func (p *Packet) dstPort() uint16 { return binary.BigEndian.Uint16(p.frame[p.head-udpLen+2:]) }

// UDPChecksum returns the UDP checksum field, 0 if the sender left it out.
func (p *Packet) UDPChecksum() uint16 { return binary.BigEndian.Uint16(p.frame[p.head-2:]) }

// Opcode returns the BTH opcode.
func (p *Packet) Opcode() Opcode { return Opcode(p.frame[p.head+bthOpcode]) }

// PSN returns the packet sequence number.
func (p *Packet) PSN() PSN { return PSN(binary.BigEndian.Uint32(p.frame[p.head+bthPSN:]) & psnMask) }

// QPN returns the destination queue pair number.
func (p *Packet) QPN() QPN { return QPN(binary.BigEndian.Uint32(p.frame[p.head+bthQPN:]) & psnMask) }

// PKey returns the partition key.
func (p *Packet) PKey() uint16 { return binary.BigEndian.Uint16(p.frame[p.head+bthPKey:]) }

// AckReq says that the sender asks for an acknowledgement.
func (p *Packet) AckReq() bool { return p.frame[p.head+bthAck]&ackRequest != 0 }

// Reserved returns the seven bits of BTH octet 8 beside AckReq: zero in RoCEv2, one of them the flag of a retransmission elsewhere.
func (p *Packet) Reserved() uint8 { return p.frame[p.head+bthAck] & ackReserved }

// Retransmitted says that the transport's flag of a retransmission is set. RoCEv2 has none, others only where its bit is known: a packet without
// it proves nothing.
func (p *Packet) Retransmitted() bool {
	return p.rules != nil && p.frame[p.head+bthAck]&p.rules.retransmission(p.transport) != 0
}

// Source returns the PSN space in which the packet is a source packet. It is false for what CREM never protects:
// everything that Transport.Space refuses, and the management queue pairs.
func (p *Packet) Source() (Space, bool) {
	space, ok := p.transport.Space(p.Opcode())
	return space, ok && !p.QPN().Management()
}

// Key returns the flow of the packet. For a packet that is no source it is the flow of the request space with the
// same addresses and queue pair.
func (p *Packet) Key() FlowKey {
	space, _ := p.transport.Space(p.Opcode())
	return FlowKey{Src: p.Src(), Dst: p.Dst(), QPN: p.QPN(), Space: space, Transport: p.transport}
}

// Data returns the octets after the extension headers, without pad and ICRC; nil if their layout is unknown, which it is for all opcodes of veRoCE
// and MRC, or the packet too short for its headers. It aliases the frame.
func (p *Packet) Data() []byte {
	if p.transport != RoCEv2 {
		return nil
	}
	b := p.P()
	from, to := p.Opcode().HeaderLen(), len(b)-icrcLen-padCount(b)
	if from == 0 || from > to {
		return nil
	}
	return b[from:to:to]
}

// DMALength returns the length of the transfer that the RETH announces, in octets; false without a RETH, or where it is not known where it lies.
func (p *Packet) DMALength() (uint32, bool) {
	b := p.P()
	at := int(kinds[p.Opcode()].reth)
	if p.transport != RoCEv2 || at == 0 || at+rethLen > len(b)-icrcLen {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[at+rethDMALength:]), true
}

// Advance returns how many PSNs the packet consumes in its space: a READ request one for every packet of its response,
// max(1, ceil(DMA length / mtu)), everything else one, and so does a READ request of veRoCE, whose responses have numbers of their own (Section
// 4.2, rules 3 and 13). mtu is the RDMA MTU in octets; with an unknown one (0) a READ request counts one. More than half the PSN space can't be
// outstanding, so no larger number is returned.
func Advance(p *Packet, mtu int) int {
	n, ok := p.DMALength()
	if !ok || p.Opcode().Operation() != ReadRequest || mtu <= 0 {
		return 1
	}
	packets := (int64(n) + int64(mtu) - 1) / int64(mtu)
	return int(min(max(packets, 1), 1<<(psnBits-1)))
}

func padCount(p []byte) int { return int(p[bthFlags] >> flagsPadShift & flagsPadMask) }

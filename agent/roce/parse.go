// SPDX-License-Identifier: Apache-2.0

package roce

import "encoding/binary"

// Reason says why a frame is not a RoCEv2 packet that CREM can protect.
type Reason uint8

// Reasons of Parse. All but NotRoCE and Short are given only for frames that are RoCEv2 otherwise, so that a
// counter of them means traffic that could have been protected.
const (
	OK              Reason = iota
	NotRoCE                // another protocol or port, or a fragment that doesn't show its ports
	Short                  // not enough octets for the headers, or for BTH and ICRC
	VLAN                   // behind a VLAN tag
	Fragment               // first fragment of an IP datagram
	IPOptions              // IPv4 header longer than 20 octets
	ExtensionHeader        // IPv6 extension header before UDP
	LengthMismatch         // IP length beyond the frame, or UDP length that is not the IP payload's
	Padding                // UDP payload that is no multiple of 4
	Version                // BTH transport version other than 0
	reasons
)

var reasonNames = [reasons]string{
	"ok", "not RoCEv2", "short", "VLAN tag", "IP fragment", "IPv4 options", "IPv6 extension header",
	"length mismatch", "length not a multiple of 4", "transport version",
}

// String returns the reason in words.
func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return "unknown reason"
}

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100 // IEEE 802.1Q
	etherTypeQinQ = 0x88a8 // IEEE 802.1ad
	vlanTagLen    = 4

	protocolUDP = 17
)

// Parse reads one frame of RoCEv2, the transport that is always recognised: Transports.Parse without any other.
func Parse(frame []byte) (Packet, Reason) { return (*Transports)(nil).Parse(frame) }

// Parse reads one frame. The reason is OK for a whole packet of a transport that is recognised, otherwise the Packet is zero. Octets after the
// IP packet (Ethernet pads short frames to 60 octets) are not part of the Packet, which aliases frame.
func (t *Transports) Parse(frame []byte) (Packet, Reason) {
	if len(frame) < EthernetLen {
		return Packet{}, Short
	}
	etherType, ip, tagged := untag(frame)
	var head, size int // octets of the IP header and of the IP packet
	var reason Reason
	switch etherType {
	case etherTypeIPv4:
		head, size, reason = t.parseIPv4(ip)
	case etherTypeIPv6:
		head, size, reason = t.parseIPv6(ip)
	default:
		return Packet{}, NotRoCE
	}
	switch {
	case reason == NotRoCE || reason == Short:
		return Packet{}, reason
	case tagged:
		return Packet{}, VLAN
	case reason != OK:
		return Packet{}, reason
	}
	if reason = checkUDP(ip, head, size); reason != OK {
		return Packet{}, reason
	}
	p := Packet{frame: frame[: EthernetLen+size : EthernetLen+size], head: EthernetLen + head + udpLen}
	if t != nil {
		p.transport, p.rules = t.transportOf(&p), t
	}
	return p, OK
}

// transportOf tells the transport of a packet whose port is one that is recognised.
func (t *Transports) transportOf(p *Packet) Transport {
	transport, _ := t.port(p.dstPort())
	if op := p.Opcode(); transport == RoCEv2 && t.MRC.Enabled && op >= MRCWriteFirst && op <= MRCProbe {
		return MRC
	}
	return transport
}

// untag returns the EtherType and the octets after it, past at most two VLAN tags.
func untag(frame []byte) (etherType uint16, ip []byte, tagged bool) {
	etherType, ip = binary.BigEndian.Uint16(frame[12:]), frame[EthernetLen:]
	for range 2 {
		if etherType != etherTypeVLAN && etherType != etherTypeQinQ || len(ip) < vlanTagLen {
			break
		}
		etherType, ip, tagged = binary.BigEndian.Uint16(ip[2:]), ip[vlanTagLen:], true
	}
	return etherType, ip, tagged
}

// parseIPv4 finds UDP to a recognised port in an IPv4 packet, and returns the octets of the header and the packet.
//
//	|Version| IHL  |     TOS       |         Total Length          |
//	|         Identification       |Flags|     Fragment Offset     |
//	|     TTL      |   Protocol    |        Header Checksum        |
//	|                        Source Address                        |
//	|                     Destination Address                      |
func (t *Transports) parseIPv4(ip []byte) (head, size int, reason Reason) {
	const moreFragments, offsetMask = 0x2000, 0x1fff
	if len(ip) < ipv4Len {
		return 0, 0, Short
	}
	head = int(ip[0]&0x0f) * 4
	fragment := binary.BigEndian.Uint16(ip[6:])
	if ip[0]>>4 != 4 || head < ipv4Len || ip[9] != protocolUDP || fragment&offsetMask != 0 {
		return 0, 0, NotRoCE
	}
	if reason = t.checkPort(ip, head); reason != OK {
		return 0, 0, reason
	}
	switch {
	case fragment&moreFragments != 0:
		return 0, 0, Fragment
	case head > ipv4Len:
		return 0, 0, IPOptions
	}
	return head, int(binary.BigEndian.Uint16(ip[2:])), OK
}

// parseIPv6 finds UDP to a recognised port in an IPv6 packet, and returns the octets of the header and the packet.
//
//	|Version| Traffic Class |              Flow Label              |
//	|        Payload Length        |  Next Header  |   Hop Limit   |
//	|                     Source Address (128)                     |
//	|                   Destination Address (128)                  |
func (t *Transports) parseIPv6(ip []byte) (head, size int, reason Reason) {
	if len(ip) < ipv6Len {
		return 0, 0, Short
	}
	if ip[0]>>4 != 6 {
		return 0, 0, NotRoCE
	}
	next, head, reason := skipExtensions(ip)
	if next != protocolUDP {
		return 0, 0, NotRoCE
	}
	if r := t.checkPort(ip, head); r != OK {
		return 0, 0, r
	}
	return head, ipv6Len + int(binary.BigEndian.Uint16(ip[4:])), reason
}

// skipExtensions walks the extension headers of an IPv6 packet and returns the protocol after them and its offset.
// The reason is OK when there are none.
func skipExtensions(ip []byte) (next uint8, at int, reason Reason) {
	const hopByHop, routing, fragment, destination, most = 0, 43, 44, 60, 8
	next, at = ip[6], ipv6Len
	for range most {
		switch next {
		case hopByHop, routing, destination, fragment:
		default:
			return next, at, reason
		}
		if len(ip) < at+8 {
			return next, at, NotRoCE
		}
		size := 8
		if next == fragment {
			const offsetMask = 0xfff8
			if binary.BigEndian.Uint16(ip[at+2:])&offsetMask != 0 {
				return next, at, NotRoCE // the ports are in another fragment
			}
			reason = Fragment
		} else {
			size += int(ip[at+1]) * 8
			if reason == OK {
				reason = ExtensionHeader
			}
		}
		next, at = ip[at], at+size
	}
	return next, at, reason
}

// checkPort says whether the UDP header at an offset is there and goes to a port of a transport that is recognised.
func (t *Transports) checkPort(ip []byte, at int) Reason {
	if len(ip) < at+udpLen {
		return Short
	}
	if _, ok := t.port(binary.BigEndian.Uint16(ip[at+2:])); !ok {
		return NotRoCE
	}
	return OK
}

// checkUDP checks the lengths of IP and UDP against each other and the BTH's version.
func checkUDP(ip []byte, head, size int) Reason {
	udp := int(binary.BigEndian.Uint16(ip[head+4:]))
	switch payload := udp - udpLen; {
	case size > len(ip) || head+udp != size:
		return LengthMismatch
	case payload < MinPayload:
		return Short
	case payload%4 != 0:
		return Padding
	case ip[head+udpLen+bthFlags]&flagsTVerMask != 0:
		return Version
	}
	return OK
}

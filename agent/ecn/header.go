// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/binary"
	"net/netip"
)

const (
	ipv4Len = 20
	ipv6Len = 40

	protocolIPv4   = 4 // IPv4 in IP (RFC 2003, RFC 2473)
	protocolIPv6   = 41
	hopByHop       = 0
	destinationOpt = 60

	dontFragment = 1 << 14
	fragmentMask = 0x3fff // More Fragments and offset
)

func version(p []byte) int { return int(p[0] >> 4) }

// length returns the octets of the packet that its header names; 0 if p holds no whole IPv4 or IPv6 header or less than that.
func length(p []byte) int {
	n := 0
	switch {
	case len(p) >= ipv4Len && version(p) == 4 && headerLen4(p) >= ipv4Len:
		n = int(binary.BigEndian.Uint16(p[2:]))
		if n < headerLen4(p) {
			return 0
		}
	case len(p) >= ipv6Len && version(p) == 6:
		n = ipv6Len + int(binary.BigEndian.Uint16(p[4:]))
	}
	if n > len(p) {
		return 0
	}
	return n
}

func headerLen4(p []byte) int { return int(p[0]&0x0f) * 4 }

// trafficClass returns DSCP and ECN field of a packet.
func trafficClass(p []byte) uint8 {
	if version(p) == 4 {
		return p[1]
	}
	return p[0]<<4 | p[1]>>4
}

// SetCodepoint sets the ECN field of a packet that begins with a whole IPv4 or IPv6 header. An IPv4 header checksum follows by the
// difference (RFC 1624), so a wrong one stays wrong.
func SetCodepoint(p []byte, c Codepoint) {
	if version(p) == 6 {
		p[1] = p[1]&^0x30 | uint8(c&codepointMask)<<4
		return
	}
	was := binary.BigEndian.Uint16(p)
	p[1] = p[1]&^codepointMask | uint8(c&codepointMask)
	sum := uint32(^binary.BigEndian.Uint16(p[10:])) + uint32(^was) + uint32(binary.BigEndian.Uint16(p))
	binary.BigEndian.PutUint16(p[10:], ^fold(sum))
}

// CodepointOf returns the ECN field of a packet that begins with a whole IPv4 or IPv6 header.
func CodepointOf(p []byte) Codepoint { return Codepoint(trafficClass(p) & codepointMask) }

func hops(p []byte) uint8 {
	if version(p) == 4 {
		return p[8]
	}
	return p[7]
}

// addresses returns source and destination of a packet with a whole header.
func addresses(p []byte) (src, dst netip.Addr) {
	if version(p) == 4 {
		return netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	}
	return netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
}

// sum4 returns the one's complement sum of an IPv4 header: 0xffff if its checksum is right.
func sum4(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	return fold(sum)
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

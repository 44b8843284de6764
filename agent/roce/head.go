// SPDX-License-Identifier: Apache-2.0

package roce

import "encoding/binary"

const (
	ecnMask = 0x03
	ecnECT0 = 0x02
	ecnCE   = 0x03
)

// BuildHead appends Ethernet, IP and UDP header of a restored packet to dst and returns it (Section 6, rules 4 and 5).
//
// model is the head of an arrived packet of the flow (Packet.Head): addresses, UDP ports, IPv4 flags, TTL or hop limit
// and flow label are taken from it. payloadLen is the length of P; id the IPv4 Identification, ignored for IPv6. tos is TOS
// or traffic class; CE in it becomes ECT(0), since a restored packet carries no mark of congestion. With checksum the UDP
// checksum is computed over p, otherwise it is zero and p is not read.
func BuildHead(dst []byte, model []byte, payloadLen int, id uint16, tos uint8, checksum bool, p []byte) []byte {
	start := len(dst)
	dst = append(dst, model...)
	h := dst[start:]
	if tos&ecnMask == ecnCE {
		tos = tos&^ecnMask | ecnECT0
	}
	ip, udp := h[EthernetLen:len(h)-udpLen], h[len(h)-udpLen:]
	if len(h) == headIPv4 {
		setIPv4(ip, payloadLen, id, tos)
	} else {
		setIPv6(ip, payloadLen, tos)
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+payloadLen))
	binary.BigEndian.PutUint16(udp[6:], 0)
	if checksum {
		binary.BigEndian.PutUint16(udp[6:], checksumUDP(h, p))
	}
	return dst
}

func setIPv4(ip []byte, payloadLen int, id uint16, tos uint8) {
	ip[1] = tos
	binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Len+udpLen+payloadLen))
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
}

func setIPv6(ip []byte, payloadLen int, tos uint8) {
	ip[0] = 6<<4 | tos>>4
	ip[1] = tos<<4 | ip[1]&0x0f
	binary.BigEndian.PutUint16(ip[4:], uint16(udpLen+payloadLen))
}

// checksumUDP returns the checksum of a UDP datagram with the pseudo header of its IP version, as the field must hold
// it (never zero). head is Ethernet, IP and UDP header, whose checksum field is not read; p is the UDP payload.
func checksumUDP(head, p []byte) uint16 {
	ip, udp := head[EthernetLen:len(head)-udpLen], head[len(head)-udpLen:]
	addresses := ip[len(ip)-8:]
	if len(ip) == ipv6Len {
		addresses = ip[len(ip)-32:]
	}
	s := sum(0, addresses) + protocolUDP + uint64(udpLen+len(p))
	s = sum(s, udp[:6])
	if c := ^fold(sum(s, p)); c != 0 {
		return c
	}
	return 0xffff
}

// sum adds the 16-bit words of b; an odd last octet counts as the upper half of a word.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 8; b = b[8:] {
		v := binary.BigEndian.Uint64(b)
		s += v>>32 + v&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

// fold returns the ones' complement sum of the words of s.
func fold(s uint64) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

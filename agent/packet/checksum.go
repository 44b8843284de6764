// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

const (
	ethernetLen = 14
	ipv4Len     = 20
	ipv6Len     = 40
	udpLen      = 8
	protocolUDP = 17
)

// FinishChecksum computes the UDP checksum of a whole frame that left it to a network device, and tells whether it did.
// Such a frame has the sum of the pseudo header where the checksum belongs; it never went over a wire. Frames with IPv4
// options or IPv6 extension headers are left as they are, as are all others.
func FinishChecksum(frame []byte) bool {
	if len(frame) < ethernetLen+ipv4Len+udpLen {
		return false
	}
	var sum uint32 // of the pseudo header's addresses
	var udp []byte
	switch ip := frame[ethernetLen:]; {
	case binary.BigEndian.Uint16(frame[12:]) == 0x0800 && ip[0] == 0x45 && ip[9] == protocolUDP:
		sum, udp = addOctets(0, ip[12:ipv4Len]), ip[ipv4Len:]
	case binary.BigEndian.Uint16(frame[12:]) == 0x86dd && len(ip) >= ipv6Len+udpLen && ip[0]>>4 == 6 && ip[6] == protocolUDP:
		sum, udp = addOctets(0, ip[8:ipv6Len]), ip[ipv6Len:]
	default:
		return false
	}
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if length < udpLen || length > len(udp) {
		return false
	}
	pseudo := fold(sum + protocolUDP + uint32(length))
	if field := binary.BigEndian.Uint16(udp[6:]); field == 0 || field != pseudo {
		return false
	}
	// The field holds the pseudo header's sum, so the sum of the datagram is that of both.
	checksum := ^fold(addOctets(0, udp[:length]))
	if checksum == 0 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], checksum)
	return true
}

// addOctets adds big-endian 16-bit words; at most 64 KB, so that sum does not overflow.
func addOctets(sum uint32, b []byte) uint32 {
	for len(b) >= 2 {
		sum += uint32(b[0])<<8 | uint32(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

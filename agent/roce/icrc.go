// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The invariant CRC (Section 6.5) is the CRC-32 of Ethernet over eight octets of ones (in place of an InfiniBand local route
// header) and the packet from the IP header to the octet before the ICRC, with the fields that the network may
// change taken as ones: IPv4 TOS, TTL and header checksum; IPv6 traffic class, flow label and hop limit; UDP
// checksum; FECN, BECN and reserved bits of the BTH. It is stored least significant octet first.

// crcOfOnes is the CRC state after the eight octets of ones.
const crcOfOnes = 0x2144df1c

// ICRC returns the invariant CRC of a packet as the number that is stored in its last four octets, least
// significant octet first. head is Ethernet, IPv4 (without options) or IPv6 (without extension headers) and UDP header,
// as Packet.Head returns it; p is the UDP payload, BTH to ICRC, at least MinPayload octets. Nothing is checked.
func ICRC(head, p []byte) uint32 {
	var b [ipv6Len + udpLen + bthLen]byte
	n := mask(b[:], head[EthernetLen:])
	return finish(crcOfOnes, b[:n+bthLen], n, p)
}

// CutShort says that the network trimmed a packet: it cut off the data, and put the lengths right, so that only the ICRC is missing. longest is the most
// octets that P of a packet of the flow has. Only networks of multipath transports trim, and they leave little of a packet: so no other than one of these,
// of half that length or less, is worth the reckoning of its ICRC.
func CutShort(p *Packet, longest int) bool {
	return p.transport.Multipath() && 2*len(p.P()) <= longest && !CheckICRC(p)
}

// CheckICRC says whether the ICRC in the packet is right.
func CheckICRC(p *Packet) bool {
	b := p.P()
	return ICRC(p.Head(), b) == storedICRC(b)
}

// mask copies IP and UDP header to b, the fields outside the ICRC set to ones, and returns their length.
func mask(b, ipudp []byte) int {
	n := copy(b, ipudp)
	if n == ipv4Len+udpLen {
		b[1] = 0xff
		b[8] = 0xff
		b[10], b[11] = 0xff, 0xff
	} else {
		b[0] |= 0x0f
		b[1], b[2], b[3] = 0xff, 0xff, 0xff
		b[7] = 0xff
	}
	b[n-2], b[n-1] = 0xff, 0xff
	return n
}

// finish runs the CRC over masked headers, the BTH of p, for which b has room at n, and the rest of p.
func finish(crc uint32, b []byte, n int, p []byte) uint32 {
	copy(b[n:], p[:bthLen])
	b[n+bthFECN] = 0xff
	return crc32.Update(updateShort(crc, b), crc32.IEEETable, p[bthLen:len(p)-icrcLen])
}

func storedICRC(p []byte) uint32 { return binary.LittleEndian.Uint32(p[len(p)-icrcLen:]) }

// slicing has the CRC of one octet followed by 0 to 7 zero octets.
var slicing = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range t[0] {
		for j := 1; j < 8; j++ {
			t[j][i] = t[0][t[j-1][i]&0xff] ^ t[j-1][i]>>8
		}
	}
	return t
}()

// updateShort is crc32.Update for the few octets of masked headers. crc32.Update would move its argument, an array on
// the caller's stack, to the heap: its implementation is a function variable.
func updateShort(crc uint32, b []byte) uint32 {
	crc = ^crc
	for ; len(b) >= 8; b = b[8:] {
		crc ^= binary.LittleEndian.Uint32(b)
		crc = slicing[7][crc&0xff] ^ slicing[6][crc>>8&0xff] ^ slicing[5][crc>>16&0xff] ^ slicing[4][crc>>24] ^
			slicing[3][b[4]] ^ slicing[2][b[5]] ^ slicing[1][b[6]] ^ slicing[0][b[7]]
	}
	for _, v := range b {
		crc = slicing[0][byte(crc)^v] ^ crc>>8
	}
	return ^crc
}

// SPDX-License-Identifier: Apache-2.0

package ecn

import "encoding/binary"

// Decapsulate reads a packet that arrived from the other end and returns the inner packet, which aliases it, with the ECN field of the
// decapsulation table. Octets after the packet's length are ignored (Ethernet pads). With a reason there is no inner packet. Outer
// hop-by-hop and destination options are passed over: an AltMark option may be there.
func (t *Tunnel) Decapsulate(packet []byte) ([]byte, Verdict, DropReason) {
	n := length(packet)
	if n == 0 {
		return nil, Verdict{}, t.drop(DropMalformed)
	}
	packet = packet[:n:n]
	if src, dst := addresses(packet); src != t.config.Remote || dst != t.config.Local {
		return nil, Verdict{}, t.drop(DropNotOurs)
	}
	inner, why := payload(packet)
	if why != DropNone {
		return nil, Verdict{}, t.drop(why)
	}
	outer := CodepointOf(packet)
	v := Inner(CodepointOf(inner), outer)
	t.stats.Arrived[CodepointOf(inner)][outer]++
	if v.Drop {
		return nil, v, t.drop(DropNotECT)
	}
	if CodepointOf(inner) != v.Inner {
		SetCodepoint(inner, v.Inner)
	}
	t.stats.Decapsulated++
	if v.Light {
		t.stats.Light++
	}
	return inner, v, DropNone
}

// payload returns the inner packet of an outer one whose length is right.
func payload(packet []byte) ([]byte, DropReason) {
	var inner []byte
	var protocol uint8
	if version(packet) == 4 {
		header := packet[:headerLen4(packet)]
		switch {
		case sum4(header) != 0xffff:
			return nil, DropChecksum
		case binary.BigEndian.Uint16(packet[6:])&fragmentMask != 0:
			return nil, DropFragment
		}
		inner, protocol = packet[len(header):], packet[9]
	} else {
		inner, protocol = packet[ipv6Len:], packet[6]
		if inner, protocol = skipOptions(inner, protocol); inner == nil {
			return nil, DropMalformed
		}
	}
	var want int
	switch protocol {
	case protocolIPv4:
		want = 4
	case protocolIPv6:
		want = 6
	default:
		return nil, DropProtocol
	}
	if n := length(inner); n == 0 || n != len(inner) || version(inner) != want {
		return nil, DropMalformed
	}
	return inner, DropNone
}

// skipOptions passes over hop-by-hop and destination options headers. It returns nil if one is cut.
func skipOptions(b []byte, next uint8) ([]byte, uint8) {
	for next == hopByHop || next == destinationOpt {
		if len(b) < 8 || len(b) < 8+8*int(b[1]) {
			return nil, next
		}
		b, next = b[8+8*int(b[1]):], b[0]
	}
	return b, next
}

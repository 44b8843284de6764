// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"encoding/binary"
	"net/netip"
)

// datagram is a UDP datagram in a frame.
type datagram struct {
	from, to netip.AddrPort
	tos      uint8
	payload  []byte
	head     int  // octets of the frame before the payload
	plain    bool // no IPv4 options, no IPv6 extension headers
	fragment bool // the first one
	tagged   bool // VLAN
}

const (
	ethernetLen = 14
	udpLen      = 8
	protocolUDP = 17
)

// parseDatagram finds the UDP datagram of a frame whose ports are there.
func parseDatagram(frame []byte) (d datagram, ok bool) {
	if len(frame) < ethernetLen+20+udpLen {
		return d, false
	}
	at := ethernetLen
	kind := binary.BigEndian.Uint16(frame[12:])
	if kind == 0x8100 {
		d.tagged = true
		kind, at = binary.BigEndian.Uint16(frame[16:]), at+4
	}
	ip := frame[at:]
	var src, dst netip.Addr
	var udp int
	switch {
	case kind == 0x0800 && ip[0]>>4 == 4 && ip[9] == protocolUDP:
		fragment := binary.BigEndian.Uint16(ip[6:])
		if fragment&0x1fff != 0 {
			return d, false
		}
		d.fragment = fragment&0x2000 != 0
		d.tos = ip[1]
		udp = int(ip[0]&15) * 4
		d.plain = udp == 20
		src, _ = netip.AddrFromSlice(ip[12:16])
		dst, _ = netip.AddrFromSlice(ip[16:20])
	case kind == 0x86dd && len(ip) >= 40+udpLen:
		d.tos = ip[0]<<4 | ip[1]>>4
		next := ip[6]
		udp = 40
		d.plain = next == protocolUDP
		for range 8 {
			if next == protocolUDP || len(ip) < udp+8 {
				break
			}
			size := 8 + 8*int(ip[udp+1])
			switch next {
			case 0, 43, 60:
			case 44:
				if binary.BigEndian.Uint16(ip[udp+2:])&0xfff8 != 0 {
					return d, false
				}
				d.fragment, size = true, 8
			case 51:
				size = 4 * (int(ip[udp+1]) + 2)
			default:
				return d, false
			}
			next, udp = ip[udp], udp+size
		}
		if next != protocolUDP {
			return d, false
		}
		src, _ = netip.AddrFromSlice(ip[8:24])
		dst, _ = netip.AddrFromSlice(ip[24:40])
	default:
		return d, false
	}
	if len(ip) < udp+udpLen {
		return d, false
	}
	d.from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(ip[udp:]))
	d.to = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ip[udp+2:]))
	d.head = at + udp + udpLen
	d.payload = frame[d.head:]
	if size := int(binary.BigEndian.Uint16(ip[udp+4:])) - udpLen; size >= 0 && size < len(d.payload) {
		d.payload = d.payload[:size]
	}
	return d, true
}

// messageWorker is the worker of a CREM message: REPAIR by Flow ID, every other one the first.
func messageWorker(message []byte, workers int) int {
	const repair = 1
	if len(message) < 8 || message[0]&15 != repair {
		return 0
	}
	return int(binary.BigEndian.Uint32(message[4:]) % uint32(workers))
}

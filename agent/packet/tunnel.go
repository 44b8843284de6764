// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
)

const (
	protocolIPv4 = 4 // IPv4 in IP (RFC 2003, RFC 2473)
	protocolIPv6 = 41
)

// openTunnel takes the outer header of an IP-in-IP packet off, in place: the Ethernet header moves to the inner packet. A frame that
// is none, or is cut within the headers, stays as it is.
func (f *Frame) openTunnel() {
	if len(f.Data) < ethernetLen+ipv4Len {
		return
	}
	ip := f.Data[ethernetLen:]
	var outer int
	var protocol uint8
	switch kind := binary.BigEndian.Uint16(f.Data[12:]); {
	case kind == 0x0800 && ip[0] == 0x45:
		outer, protocol = ipv4Len, ip[9]
	case kind == 0x86dd && len(ip) >= ipv6Len && ip[0]>>4 == 6:
		outer, protocol = ipv6Len, ip[6]
	default:
		return
	}
	var kind uint16
	switch {
	case protocol == protocolIPv4 && len(ip) >= outer+ipv4Len:
		kind = 0x0800
	case protocol == protocolIPv6 && len(ip) >= outer+ipv6Len:
		kind = 0x86dd
	default:
		return
	}
	if outer == ipv4Len {
		f.Outer = Ends{netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))}
	} else {
		f.Outer = Ends{netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))}
	}
	copy(f.Data[outer:], f.Data[:12])
	f.Data = f.Data[outer:]
	binary.BigEndian.PutUint16(f.Data[12:], kind)
	f.Len -= outer
	f.Flags |= Tunnelled
}

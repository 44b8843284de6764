// SPDX-License-Identifier: Apache-2.0

package packet

import "unsafe"

// Packets of a bare uplink (an xfrm interface, TUN, WireGuard, an IP tunnel) have no Ethernet header. Their frames have one all
// the same, so that everything else knows one form only: addresses of zeros, which no frame of a wire has, and the
// packet's EtherType. Taps and programs put it there, the injector takes it off.

const (
	macLen = 6
	// bareRoom is what a tap has to spare in front of each packet: the header, and what keeps IP headers aligned.
	bareRoom = 16
)

// putBareHeader writes the header for a protocol in network order.
func putBareHeader(frame []byte, protocol uint16) {
	clear(frame[:2*macLen])
	*(*uint16)(unsafe.Pointer(&frame[2*macLen])) = protocol
}

// withoutBareHeader takes the header off the front of a frame; that of an Ethernet frame stays.
func withoutBareHeader(head []byte) []byte {
	if [2 * macLen]byte(head) != [2 * macLen]byte{} {
		return head
	}
	return head[ethernetLen:]
}

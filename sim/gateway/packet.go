// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/netip"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/sim/endpoint"
)

// Packet is what travels on a link: a packet of the transport, or a CREM message.
type Packet struct {
	endpoint.Packet
	id   uint16 // IPv4 Identification
	icrc uint32
	msg  []byte // of a CREM message; nil: none
}

// Message says that the packet is a CREM message.
func (p *Packet) Message() bool { return p.msg != nil }

// Addresses, queue pair and first PSN of the protected flow, and the gateways.
const (
	queuePair = 0x123456
	firstPSN  = roce.PSN(0xfff000) // so that every run of some size wraps
	tos       = 2                  // ECT(0)
	ce        = 3
)

var (
	source      = netip.AddrFrom4([4]byte{10, 1, 0, 1})
	destination = netip.AddrFrom4([4]byte{10, 2, 0, 1})
	near        = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 52000)
	far         = netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 1}), 52000)
	descriptor  = wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: source, Dst: destination, Label: queuePair}
)

// psnOf is the PSN of a packet.
func psnOf(seq uint64) roce.PSN { return firstPSN.Add(int(seq & 0xffffff)) }

// seqOf is the number of the packet with a PSN that is nearest to a number.
func seqOf(psn roce.PSN, reference uint64) uint64 {
	return uint64(int64(reference) + int64(psn.Sub(psnOf(reference))))
}

// messageOctets is what Ethernet, IPv4 and UDP header add to a CREM message.
const messageOctets = 14 + 20 + 8

// Buffers is memory for messages in flight.
type Buffers struct{ free [][]byte }

// hold returns a copy of a message.
func (b *Buffers) hold(msg []byte) []byte {
	var buf []byte
	if n := len(b.free); n > 0 {
		buf, b.free = b.free[n-1], b.free[:n-1]
	}
	return append(buf[:0], msg...)
}

// Release takes the memory of a packet back that was lost, or has been handled.
func (b *Buffers) Release(p *Packet) {
	if p.msg != nil {
		b.free = append(b.free, p.msg)
		p.msg = nil
	}
}

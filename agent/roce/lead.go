// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"math/bits"
)

// The lead is what of the headers in front of P varies from packet to packet of a multipath transport, so that a receiver cannot know it of a packet
// that was lost. It is coded together with P (Section 4.4, rule 3):
//
//	IPv4   UDP source port (16) | Identification (16)
//	IPv6   UDP source port (16) | 0 (12) | flow label (20)
//
// The ICRC covers the source port and the Identification. It does not cover the flow label, but MRC puts a part of its entropy value there, and its
// receiver names that value in its answers.
const (
	leadIPv4 = 4
	leadIPv6 = 6

	// MaxLead is the longest lead.
	MaxLead = leadIPv6

	flowLabelMask = 0xfffff
)

// LeadLen returns the octets of the lead of a transport's packets; 0 if nothing varies.
func LeadLen(t Transport, ipv6 bool) int {
	switch {
	case !t.Multipath():
		return 0
	case ipv6:
		return leadIPv6
	}
	return leadIPv4
}

// AppendLead appends the packet's lead, LeadLen octets.
func (p *Packet) AppendLead(dst []byte) []byte {
	if !p.transport.Multipath() {
		return dst
	}
	dst = binary.BigEndian.AppendUint16(dst, p.SrcPort())
	if p.IPv6() {
		return binary.BigEndian.AppendUint32(dst, p.FlowLabel())
	}
	return binary.BigEndian.AppendUint16(dst, p.ID())
}

// SetLead puts a lead into a head of the flow, as Packet.Head returns it, and returns the IPv4 Identification for BuildHead, 0 for IPv6. It is
// false for a lead that no packet has: bits outside of its fields are set.
func SetLead(head, lead []byte) (id uint16, ok bool) {
	binary.BigEndian.PutUint16(head[len(head)-udpLen:], binary.BigEndian.Uint16(lead))
	if len(lead) == leadIPv4 {
		return binary.BigEndian.Uint16(lead[2:]), true
	}
	label := binary.BigEndian.Uint32(lead[2:])
	word := head[EthernetLen:]
	binary.BigEndian.PutUint32(word, binary.BigEndian.Uint32(word)&^flowLabelMask|label&flowLabelMask)
	return 0, label&^flowLabelMask == 0
}

// Unflag turns copyOfP, a copy of the packet's P, into what it was when it was sent for the first time: the flag of a retransmission is cleared and the
// ICRC reckoned anew under the packet's own headers. It changes nothing in a packet without the flag.
func (p *Packet) Unflag(copyOfP []byte) {
	if !p.Retransmitted() {
		return
	}
	copyOfP[bthAck] &^= p.rules.retransmission(p.transport)
	binary.LittleEndian.PutUint32(copyOfP[len(copyOfP)-icrcLen:], ICRC(p.Head(), copyOfP))
}

// LargestMTU returns the largest RDMA MTU, 256 to 4096 octets, that a packet of n octets of P can carry whole; 0 for a shorter one. It is how the RDMA
// MTU shows where the layout of the extension headers is not known: they are shorter than the step from one MTU to the next.
func LargestMTU(n int) int {
	const least, most = 256, 4096
	if n -= MinPayload; n < least {
		return 0
	}
	return min(1<<(bits.Len(uint(n))-1), most)
}

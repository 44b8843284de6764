// SPDX-License-Identifier: Apache-2.0

package roce

import "encoding/binary"

// ValidSource says whether P, by itself, can be the source packet of one position: the checks of a restored packet
// that need no neighbour and no CRC (Section 6, rule 3). psn is the position's, qpn and pkey are the
// flow's. mtu is the RDMA MTU in octets, 0 if unknown.
//
// Of a multipath transport octet 8 of the BTH has flags whose bits are not settled, and the extension headers are not known: neither is checked.
//
// A CSF codes only packets that pass this with mtu 0, whatever a receiver might make of others: one that fails would
// spoil the decode of its whole block.
func (t Transport) ValidSource(p []byte, space Space, psn PSN, qpn QPN, pkey uint16, mtu int) bool {
	if len(p) < MinPayload || len(p)%4 != 0 {
		return false
	}
	in, source := t.Space(Opcode(p[bthOpcode]))
	switch {
	case !source || in != space || qpn.Management():
	case p[bthFlags]&flagsTVerMask != 0 || p[bthFECN]&fecnReserved != 0 || !t.Multipath() && p[bthAck]&ackReserved != 0:
	case binary.BigEndian.Uint16(p[bthPKey:]) != pkey:
	case QPN(binary.BigEndian.Uint32(p[bthQPN:])&psnMask) != qpn:
	case PSN(binary.BigEndian.Uint32(p[bthPSN:])&psnMask) != psn:
	default:
		return t.Multipath() || kinds[p[bthOpcode]].fits(p, mtu)
	}
	return false
}

// fits says whether the length of P, its pad count and its AETH are possible for the opcode.
func (k *kind) fits(p []byte, mtu int) bool {
	padded := len(p) - int(k.headers) - icrcLen
	data := padded - padCount(p)
	if data < 0 {
		return false
	}
	if k.aeth != 0 && p[k.aeth]>>syndromeKindShift != uint8(AckPositive) {
		return false
	}
	if k.data >= 0 && data != int(k.data) {
		return false
	}
	switch k.part {
	case first, middle:
		return data > 0 && padCount(p) == 0 && (mtu == 0 || data == mtu)
	case last:
		return data > 0 && (mtu == 0 || data <= mtu)
	}
	return mtu == 0 || data <= mtu
}

// MayFollow says whether a packet of opcode b can have the PSN next to that of opcode a (for a READ request: the next PSN after
// those it consumed). Both are of the same space of one flow.
//
// Requests are strict: a message that began goes on until it ends. In the response space a READ that the requester
// resumes after a loss begins anew anywhere: with FIRST or ONLY, or, from some responders, with MIDDLE or LAST.
func MayFollow(a, b Opcode) bool {
	ka, kb := &kinds[a], &kinds[b]
	if !ka.source || !kb.source || ka.space != kb.space || a.Class() != b.Class() {
		return false
	}
	open := ka.part == first || ka.part == middle
	if ka.space == Response {
		return !open || kb.family == ka.family
	}
	if open {
		return kb.family == ka.family && !b.Starts()
	}
	return b.Starts()
}

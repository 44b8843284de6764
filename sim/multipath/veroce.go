// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
)

// veroce is the format of veRoCE. Data is
//
//	BTH | MSNETH 4 | POETH 4 | RETH 16, in FIRST and ONLY | data | ICRC
//
// MSNETH has the number of the message, POETH the packet's place in it, each in the lower 24 bits. An acknowledgement has aPSN in its BTH, and
//
//	AETH 4
//	AETH 4 | SACKETH 20: valid bits 8, start PSN 24, bitmap 128
//
// Bit i of the bitmap is in the word 3 - i/32. A Packet Drop NAK is a NAK of code 0 with the PSN of the packet. In what order the extension headers
// stand, and which packet has which, is not said in public; this order is this lab's.
type veroce struct {
	settings *roce.VeRoCESettings
	mtu      int
}

const (
	wordLen = 4 // MSNETH, POETH, AETH
	sacketh = 20

	bitmapBits   = 128
	syndromeACK  = 0x1f << 24 // no limit of credits
	syndromeDrop = 0x60 << 24
)

func (veroce) opcode(first, last bool) roce.Opcode { return roce.WriteFirst + part(first, last) }

func (veroce) messageBits() int { return 24 }

func (f veroce) appendPlace(dst []byte, at *place) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(at.message&0xffffff))
	dst = binary.BigEndian.AppendUint32(dst, uint32(at.offset/f.mtu))
	if at.first {
		dst = appendRETH(dst, 0, at.size)
	}
	return dst
}

func (f veroce) place(p *roce.Packet) (at place, rest []byte, ok bool) {
	b := p.P()
	at.first = p.Opcode() == f.opcode(true, false) || p.Opcode() == f.opcode(true, true)
	need := bthLen + 2*wordLen
	if at.first {
		need += rethLen
	}
	if len(b) < need+icrcLen {
		return at, nil, false
	}
	at.message = uint64(binary.BigEndian.Uint32(b[bthLen:]) & 0xffffff)
	at.offset = int(binary.BigEndian.Uint32(b[bthLen+wordLen:])&0xffffff) * f.mtu
	if ok = true; at.first {
		_, at.size, ok = readRETH(b[bthLen+2*wordLen:])
	}
	return at, b[need:], ok
}

func (f veroce) appendAnswer(dst []byte, a *endpoint.Packet, n numbers) (roce.Opcode, uint64, []byte) {
	switch a.Kind {
	case endpoint.NACK:
		return roce.Acknowledge, a.Seq, binary.BigEndian.AppendUint32(dst, syndromeDrop)
	case endpoint.SACK:
	default:
		return roce.Acknowledge, a.Seq - 1, binary.BigEndian.AppendUint32(dst, syndromeACK)
	}
	dst = binary.BigEndian.AppendUint32(dst, syndromeACK)
	dst = binary.BigEndian.AppendUint32(dst, bitmapBits<<24|uint32(n.psn(a.Edge)))
	for word := 3; word >= 0; word-- {
		dst = binary.BigEndian.AppendUint32(dst, uint32(a.Bits[word/2]>>(word%2*32)))
	}
	return f.settings.SACK, a.Seq - 1, dst
}

func (f veroce) answer(p *roce.Packet, n numbers, near uint64) (a endpoint.Packet, ok bool) {
	b := p.P()[bthLen:]
	seq := n.seq(p.PSN(), near)
	switch {
	case p.Opcode() == roce.Acknowledge && len(b) >= wordLen+icrcLen:
		if binary.BigEndian.Uint32(b)&0xff000000 == syndromeDrop {
			return endpoint.Packet{Kind: endpoint.NACK, Seq: uint64(seq), Other: uint64(seq) + 1, Reason: endpoint.Trimmed}, seq >= 0
		}
		return endpoint.Packet{Kind: endpoint.Ack, Seq: uint64(seq + 1), Other: uint64(seq + 1)}, seq >= -1
	case p.Opcode() == f.settings.SACK && len(b) >= wordLen+sacketh+icrcLen:
	default:
		return a, false
	}
	edge := n.seq(roce.PSN(binary.BigEndian.Uint32(b[wordLen:])&0xffffff), near)
	a = endpoint.Packet{Kind: endpoint.SACK, Seq: uint64(seq + 1), Other: uint64(seq + 1), Edge: uint64(edge)}
	for word := range 4 {
		a.Bits[word/2] |= uint64(binary.BigEndian.Uint32(b[wordLen+4+(3-word)*4:])) << (word % 2 * 32)
	}
	return a, seq >= -1 && edge >= 0
}

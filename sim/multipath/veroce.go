// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"encoding/binary"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
)

// veroce is the format of veRoCE. Data is
//
//	BTH | MSNETH 4 | POETH 4 | RETH 16, in FIRST and ONLY | data | ICRC    of a WRITE
//	BTH | MSNETH 4 | POETH 4 | RQETH 4 | data | ICRC                       of a READ response
//
// MSNETH has the number of the message, POETH the packet's place in it, and RQETH the number of the request that it answers, each in the lower 24 bits. A
// READ request is
//
//	BTH | MSNETH 4 | POETH 4 | RETH 16 | ICRC
//
// An acknowledgement has aPSN in its BTH, and
//
//	AETH 4
//	AETH 4 | SACKETH 20: valid bits 8, start PSN 24, bitmap 128
//
// Bit i of the bitmap is in the word 3 - i/32. A Packet Drop NAK is an acknowledgement whose AETH says NAK of code 0, with the PSN of the packet. Those of
// responses (ACK_Rsp, SACK_Rsp, NAK_Rsp) differ by their opcodes alone. In what order the extension headers stand, and which packet has which, is not said
// in public; this order is this lab's.
type veroce struct {
	settings *roce.VeRoCESettings
	mtu      int
	slot     int  // octets of memory of one message
	read     bool // data is READ responses
}

const (
	wordLen = 4 // MSNETH, POETH, RQETH, AETH
	sacketh = 20

	bitmapBits   = 128
	syndromeACK  = 0x1f << 24 // no limit of credits
	syndromeDrop = 0x60 << 24
)

func (f veroce) opcode(first, last bool) roce.Opcode {
	switch {
	case !f.read:
		return roce.WriteFirst + part(first, last)
	case first && last:
		return roce.ReadResponseOnly
	}
	return roce.ReadResponseFirst + part(first, last)
}

func (veroce) messageBits() int { return 24 }

// appendNumbers appends MSNETH and POETH.
func appendNumbers(dst []byte, message uint64, packet int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(message&0xffffff))
	return binary.BigEndian.AppendUint32(dst, uint32(packet))
}

func (f veroce) appendPlace(dst []byte, at *place) []byte {
	dst = appendNumbers(dst, at.message, at.offset/f.mtu)
	switch {
	case f.read:
		dst = binary.BigEndian.AppendUint32(dst, uint32(at.message&0xffffff))
	case at.first:
		dst = appendRETH(dst, 0, at.size)
	}
	return dst
}

func (f veroce) place(p *roce.Packet) (at place, rest []byte, ok bool) {
	b := p.P()
	at.first = p.Opcode() == f.opcode(true, false) || p.Opcode() == f.opcode(true, true)
	need := bthLen + 2*wordLen
	switch {
	case f.read:
		need += wordLen
	case at.first:
		need += rethLen
	}
	if len(b) < need+icrcLen {
		return at, nil, false
	}
	at.message = uint64(binary.BigEndian.Uint32(b[bthLen:]) & 0xffffff)
	at.offset = int(binary.BigEndian.Uint32(b[bthLen+wordLen:])&0xffffff) * f.mtu
	ok = true
	switch {
	case f.read:
		at.message = uint64(binary.BigEndian.Uint32(b[bthLen+2*wordLen:]) & 0xffffff)
	case at.first:
		_, at.size, ok = readRETH(b[bthLen+2*wordLen:])
	}
	return at, b[need:], ok
}

// appendRequest appends what follows the BTH in a READ request.
func (f veroce) appendRequest(dst []byte, message uint64, size int) []byte {
	return appendRETH(appendNumbers(dst, message, 0), message*uint64(f.slot), size)
}

// request reads how much a READ request with a number asks for; false for one that no end of ours sends.
func (f veroce) request(p *roce.Packet, number uint64) (size int, ok bool) {
	const need = bthLen + 2*wordLen + rethLen
	b := p.P()
	if !f.read || p.Opcode() != roce.ReadRequest || len(b) < need+icrcLen {
		return 0, false
	}
	address, size, ok := readRETH(b[bthLen+2*wordLen:])
	return size, ok && address == number*uint64(f.slot) && size > 0 && size <= f.slot
}

func (f veroce) answers(op roce.Opcode) roce.Space {
	if op == f.settings.ResponseACK || op == f.settings.ResponseSACK {
		return roce.Response
	}
	return roce.Request
}

// opcodes are those of the acknowledgements of a space.
func (f veroce) opcodes(of roce.Space) (ack, sack roce.Opcode) {
	if of == roce.Response {
		return f.settings.ResponseACK, f.settings.ResponseSACK
	}
	return roce.Acknowledge, f.settings.SACK
}

func (f veroce) appendAnswer(dst []byte, a *endpoint.Packet, of roce.Space, n numbers) (roce.Opcode, uint64, []byte) {
	ack, sack := f.opcodes(of)
	switch a.Kind {
	case endpoint.NACK:
		return ack, a.Seq, binary.BigEndian.AppendUint32(dst, syndromeDrop)
	case endpoint.SACK:
	default:
		return ack, a.Seq - 1, binary.BigEndian.AppendUint32(dst, syndromeACK)
	}
	dst = binary.BigEndian.AppendUint32(dst, syndromeACK)
	dst = binary.BigEndian.AppendUint32(dst, bitmapBits<<24|uint32(n.psn(a.Edge)))
	for word := 3; word >= 0; word-- {
		dst = binary.BigEndian.AppendUint32(dst, uint32(a.Bits[word/2]>>(word%2*32)))
	}
	return sack, a.Seq - 1, dst
}

func (f veroce) answer(p *roce.Packet, n numbers, near uint64) (a endpoint.Packet, ok bool) {
	b := p.P()[bthLen:]
	seq := n.seq(p.PSN(), near)
	ack, sack := f.opcodes(f.answers(p.Opcode()))
	switch {
	case p.Opcode() == ack && len(b) >= wordLen+icrcLen:
		if binary.BigEndian.Uint32(b)&0xff000000 == syndromeDrop {
			return endpoint.Packet{Kind: endpoint.NACK, Seq: uint64(seq), Other: uint64(seq) + 1, Reason: endpoint.Trimmed}, seq >= 0
		}
		return endpoint.Packet{Kind: endpoint.Ack, Seq: uint64(seq + 1), Other: uint64(seq + 1)}, seq >= -1
	case p.Opcode() == sack && len(b) >= wordLen+sacketh+icrcLen:
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

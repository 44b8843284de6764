// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"encoding/binary"
	"math"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
)

// mrc is the format of MRC. Data is
//
//	BTH | METH 4 | RETH 16 | data | ICRC
//
// in every packet: METH has the number of the request and of the message, 16 bits each, which are the same for an end that only writes; the address in
// RETH is that of this packet's data, and the length that of the whole message.
//
// A SACK is the SETH and eight octets of congestion state, which nobody here reads:
//
//	| flags 16 | PSN offset 16 | entropy value 32 | connection contexts 16, 16 | reserved 8, cumulative PSN 24 | congestion control 8 |
//	| max_psn_range 8 | bitmap offset 16 | bitmap 64 |
//
// Both offsets are from the cumulative PSN, and signed. A NACK is the NETH:
//
//	| reason 8, reserved 24 | entropy value 32 | reserved 8, PSN 24 | timestamps 64 |
//
// Which bit of the bitmap comes first is not said in public: here the lowest one of the 64 is that of the offset.
type mrc struct{ slot int } // octets of memory of one message

const (
	methLen = 4
	sackLen = 28 + 8
	nackLen = 20

	sackOffset     = 2
	sackCumulative = 12
	sackRange      = 17
	sackEdge       = 18
	sackBits       = 20
	nackPSN        = 8

	reasonTrimmed     = 0x01
	reasonNoBuffer    = 0x07
	reasonOutOfWindow = 0x0b
)

func (mrc) opcode(first, last bool) roce.Opcode { return roce.MRCWriteFirst + part(first, last) }

func (mrc) messageBits() int { return 16 }

func (f mrc) appendPlace(dst []byte, at *place) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(at.message))
	dst = binary.BigEndian.AppendUint16(dst, uint16(at.message))
	return appendRETH(dst, at.message*uint64(f.slot)+uint64(at.offset), at.size)
}

func (f mrc) place(p *roce.Packet) (at place, rest []byte, ok bool) {
	b := p.P()
	if len(b) < bthLen+methLen+rethLen+icrcLen {
		return at, nil, false
	}
	address, size, ok := readRETH(b[bthLen+methLen:])
	at.message, at.size, at.offset = uint64(binary.BigEndian.Uint16(b[bthLen:])), size, int(address%uint64(f.slot))
	at.first = p.Opcode() == f.opcode(true, false) || p.Opcode() == f.opcode(true, true)
	return at, b[bthLen+methLen+rethLen:], ok
}

func (mrc) appendAnswer(dst []byte, a *endpoint.Packet, _ roce.Space, n numbers) (roce.Opcode, uint64, []byte) {
	at := len(dst)
	if a.Kind == endpoint.NACK {
		dst = append(dst, make([]byte, nackLen)...)
		dst[at] = reason(a.Reason)
		binary.BigEndian.PutUint32(dst[at+nackPSN:], uint32(n.psn(a.Seq)))
		return roce.MRCNACK, a.Seq, dst
	}
	dst = append(dst, make([]byte, sackLen)...)
	b, cumulative := dst[at:], a.Seq-1
	if d := int64(a.Other - cumulative); d >= math.MinInt16 && d <= math.MaxInt16 {
		binary.BigEndian.PutUint16(b[sackOffset:], uint16(d))
	}
	binary.BigEndian.PutUint32(b[sackCumulative:], uint32(n.psn(cumulative)))
	b[sackRange] = byte(a.Range / rangeUnit)
	binary.BigEndian.PutUint16(b[sackEdge:], uint16(a.Edge-cumulative))
	binary.BigEndian.PutUint64(b[sackBits:], a.Bits[0])
	return roce.MRCSACK, cumulative, dst
}

// reason is the code of a NACK.
func reason(r endpoint.Reason) byte {
	switch r {
	case endpoint.OutOfWindow:
		return reasonOutOfWindow
	case endpoint.NoBuffer:
		return reasonNoBuffer
	default:
		return reasonTrimmed
	}
}

func (mrc) answers(roce.Opcode) roce.Space { return roce.Request }

func (mrc) answer(p *roce.Packet, n numbers, near uint64) (a endpoint.Packet, ok bool) {
	b := p.P()[bthLen:]
	switch {
	case p.Opcode() == roce.MRCNACK && len(b) >= nackLen+icrcLen: // for whatever reason: the packet is wanted again
		seq := n.seq(roce.PSN(binary.BigEndian.Uint32(b[nackPSN:])&0xffffff), near)
		return endpoint.Packet{Kind: endpoint.NACK, Seq: uint64(seq), Other: uint64(seq) + 1, Reason: endpoint.Trimmed}, seq >= 0
	case p.Opcode() == roce.MRCSACK && len(b) >= sackLen+icrcLen:
	default:
		return a, false
	}
	cumulative := n.seq(roce.PSN(binary.BigEndian.Uint32(b[sackCumulative:])&0xffffff), near)
	signed := func(at int) int64 { return cumulative + int64(int16(binary.BigEndian.Uint16(b[at:]))) }
	other, edge := signed(sackOffset), signed(sackEdge)
	if cumulative < -1 || edge < 0 {
		return a, false
	}
	a = endpoint.Packet{Kind: endpoint.SACK, Seq: uint64(cumulative + 1), Edge: uint64(edge), Range: int32(b[sackRange]) * rangeUnit}
	if a.Other = a.Seq; other >= 0 {
		a.Other = uint64(other)
	}
	a.Bits[0] = binary.BigEndian.Uint64(b[sackBits:])
	return a, true
}

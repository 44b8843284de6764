// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// Repair is a REPAIR message: one symbol of a block, or with Info the block's description alone.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Config ID   |    Scheme     |       k       | Repair Index  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|               Block Start PSN                 |   Reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|       Repair Session ID       |        Symbol Length T        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           Present Bitmap (ceil(k/32) 32-bit words)            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Lost Source Bitmap (ceil(k/32) words, RETX flag only)     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Block Digest (64 bits, DIGEST flag only)             |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Repair Symbol (T octets)                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// Position j of a block is bit j of a bitmap, counted from the most significant bit of the first word.
type Repair struct {
	FlowID    uint32
	ConfigID  uint8
	Scheme    fec.Scheme
	K         uint8 // positions of the block, 1 to 255
	Index     uint8 // Repair Index; the source index for scheme SourceCopy
	Start     roce.PSN
	Session   uint16 // Repair Session ID, zero for ordinary symbols
	T         uint16 // octets of the symbol, zero with Info
	Retx      bool   // coded retransmission: the symbol is over Lost
	Last      bool   // last symbol of this round
	Info      bool   // no symbol
	HasDigest bool
	Present   fec.Bitmap // positions that carry a source packet
	Lost      fec.Bitmap // with Retx: the set L that the symbol is over
	Digest    uint64     // with HasDigest
	Symbol    []byte     // aliases the datagram after parsing; Append takes the first T octets
}

const repairFixedLen = 12

// RepairOverhead returns the octets of a REPAIR message before its symbol.
func RepairOverhead(k int, retx, digest bool) int {
	n := headerLen + repairFixedLen + bitmapLen(k)
	if retx {
		n += bitmapLen(k)
	}
	if digest {
		n += digestLen
	}
	return n
}

const digestLen = 8

// ParseRepair reads a REPAIR message. It returns an error of ParseHeader, ErrType for another type, or ErrMalformed: k is
// zero, Length is not what flags, k and T give, or T is zero without Info or not zero with it.
func ParseRepair(b []byte) (Repair, error) {
	h, body, err := parse(b, TypeRepair, repairFixedLen)
	if err != nil {
		return Repair{}, err
	}
	x := Repair{
		FlowID: h.FlowID, ConfigID: body[0], Scheme: fec.Scheme(body[1]), K: body[2], Index: body[3],
		Start: psn(body[4:]), Session: binary.BigEndian.Uint16(body[8:]), T: binary.BigEndian.Uint16(body[10:]),
		Retx: h.Flags&FlagRetx != 0, Last: h.Flags&FlagLast != 0, Info: h.Flags&FlagInfo != 0, HasDigest: h.Flags&FlagDigest != 0,
	}
	k := int(x.K)
	overhead := RepairOverhead(k, x.Retx, x.HasDigest)
	if k == 0 || len(b) != overhead+int(x.T) || x.Info != (x.T == 0) {
		return Repair{}, ErrMalformed
	}
	at := repairFixedLen
	x.Present = parseBitmap(body[at:], k)
	at += bitmapLen(k)
	if x.Retx {
		x.Lost = parseBitmap(body[at:], k)
		at += bitmapLen(k)
	}
	if x.HasDigest {
		x.Digest = binary.BigEndian.Uint64(body[at:])
	}
	x.Symbol = b[overhead:len(b):len(b)]
	return x, nil
}

// Append appends the message to dst. Symbol must have at least T octets.
func (x *Repair) Append(dst []byte) []byte {
	return append(x.AppendHead(dst), x.Symbol[:x.T]...)
}

// AppendHead appends what stands before the symbol, RepairOverhead octets, for a symbol that is already, or will be,
// in its place behind.
func (x *Repair) AppendHead(dst []byte) []byte {
	k := int(x.K)
	flags := flag(x.Retx, FlagRetx) | flag(x.Last, FlagLast) | flag(x.Info, FlagInfo) | flag(x.HasDigest, FlagDigest)
	body := RepairOverhead(k, x.Retx, x.HasDigest) - headerLen + int(x.T)
	dst = appendHeader(dst, TypeRepair, flags, x.FlowID, body)
	dst = append(dst, x.ConfigID, uint8(x.Scheme), x.K, x.Index)
	dst = appendPSN(dst, x.Start, 0)
	dst = binary.BigEndian.AppendUint16(dst, x.Session)
	dst = binary.BigEndian.AppendUint16(dst, x.T)
	dst = appendBitmap(dst, x.Present, k)
	if x.Retx {
		dst = appendBitmap(dst, x.Lost, k)
	}
	if x.HasDigest {
		dst = binary.BigEndian.AppendUint64(dst, x.Digest)
	}
	return dst
}

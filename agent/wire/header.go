// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// Version is the only version of the protocol.
const Version = 1

// Type is the type of a message, four bits.
type Type uint8

// Message types.
const (
	TypeRepair        Type = 1
	TypeHello         Type = 2
	TypeHelloAck      Type = 3
	TypeParamUpdate   Type = 4
	TypeParamAck      Type = 5
	TypeRepairRequest Type = 6
	TypeLossReport    Type = 7
	TypePathReport    Type = 8
	TypeClose         Type = 9
)

var typeNames = [...]string{
	TypeRepair: "REPAIR", TypeHello: "HELLO", TypeHelloAck: "HELLO_ACK", TypeParamUpdate: "PARAM_UPDATE", TypeParamAck: "PARAM_ACK",
	TypeRepairRequest: "REPAIR_REQUEST", TypeLossReport: "LOSS_REPORT", TypePathReport: "PATH_REPORT", TypeClose: "CLOSE",
}

func (t Type) known() bool { return t >= TypeRepair && t <= TypeClose }

// String returns the type as the protocol writes it.
func (t Type) String() string {
	if t.known() {
		return typeNames[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Flags of the header. Each belongs to the message in its comment; others ignore it.
const (
	FlagRetx      = 0x80 // REPAIR: coded retransmission, the Lost Source Bitmap is present
	FlagLast      = 0x40 // REPAIR: the last symbol of this round for the block
	FlagInfo      = 0x20 // REPAIR: block information only, no symbol
	FlagDigest    = 0x10 // REPAIR: the block digest is present (extension ExtDigest)
	FlagFallback  = 0x20 // REPAIR_REQUEST: answer with Source Copy symbols
	FlagRanges    = 0x10 // REPAIR_REQUEST: the PSN-range form
	FlagDetail    = 0x80 // LOSS_REPORT: how losses cluster, and how long packets are held (extension ExtDetail)
	FlagTruncated = 0x80 // PATH_REPORT: lists of dropped PSNs were cut
)

// Reasons why a datagram is not a message. Each is counted.
var (
	ErrShort     = errors.New("wire: shorter than a header")
	ErrVersion   = errors.New("wire: unknown version")
	ErrType      = errors.New("wire: unknown or unexpected type")
	ErrLength    = errors.New("wire: Length is not the datagram's")
	ErrMalformed = errors.New("wire: Length or a field does not fit the type")
)

// Header is the first eight octets of every message.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version| Type  |     Flags     |            Length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Flow ID                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Header struct {
	Type   Type
	Flags  uint8
	Length uint16 // octets of the message, header included
	FlowID uint32 // assigned by the CRF; zero in HELLO and PATH_REPORT
}

const (
	headerLen = 8
	wordLen   = 4
)

// ParseHeader reads the header of a datagram and checks Version, Type, and that Length is the datagram's. It returns
// ErrShort, ErrVersion, ErrType or ErrLength.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < headerLen {
		return Header{}, ErrShort
	}
	h := Header{
		Type: Type(b[0] & 0x0f), Flags: b[1],
		Length: binary.BigEndian.Uint16(b[2:]), FlowID: binary.BigEndian.Uint32(b[4:]),
	}
	switch {
	case b[0]>>4 != Version:
		return Header{}, ErrVersion
	case !h.Type.known():
		return Header{}, ErrType
	case int(h.Length) != len(b):
		return Header{}, ErrLength
	}
	return h, nil
}

// parse reads the header of a message of one type and returns the octets after it, at least least of them.
func parse(b []byte, t Type, least int) (Header, []byte, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, nil, err
	}
	if h.Type != t {
		return Header{}, nil, ErrType
	}
	if len(b) < headerLen+least {
		return Header{}, nil, ErrMalformed
	}
	return h, b[headerLen:], nil
}

// appendHeader appends the header of a message with body octets after it.
func appendHeader(dst []byte, t Type, flags uint8, flowID uint32, body int) []byte {
	dst = append(dst, Version<<4|uint8(t), flags)
	dst = binary.BigEndian.AppendUint16(dst, uint16(headerLen+body))
	return binary.BigEndian.AppendUint32(dst, flowID)
}

// flag returns f if set, otherwise nothing.
func flag(set bool, f uint8) uint8 {
	if set {
		return f
	}
	return 0
}

// psn reads the PSN in the upper 24 bits of a word.
func psn(b []byte) roce.PSN { return roce.PSN(binary.BigEndian.Uint32(b) >> 8) }

// appendPSN appends a word of a PSN and eight bits.
func appendPSN(dst []byte, p roce.PSN, low uint8) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(p)<<8|uint32(low))
}

// bitmapLen returns the octets of a bitmap over k positions: ceil(k/32) words.
func bitmapLen(k int) int { return (k + 31) / 32 * wordLen }

// parseBitmap reads the bitmap over k positions at the start of b. Bits past k are ignored.
func parseBitmap(b []byte, k int) (m fec.Bitmap) {
	for i := range bitmapLen(k) / wordLen {
		m[i/2] |= uint64(binary.BigEndian.Uint32(b[i*wordLen:])) << (32 * (1 - i%2))
	}
	return m.And(fec.Full(k))
}

// appendBitmap appends the bitmap over k positions. Bits past k are sent as zero.
func appendBitmap(dst []byte, m fec.Bitmap, k int) []byte {
	m = m.And(fec.Full(k))
	for i := range bitmapLen(k) / wordLen {
		dst = binary.BigEndian.AppendUint32(dst, uint32(m[i/2]>>(32*(1-i%2))))
	}
	return dst
}

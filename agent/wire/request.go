// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// RepairRequest is a REPAIR_REQUEST message. The block form, for a block of which a REPAIR came:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Config ID   |    Scheme     |       k       |Repairs Held r |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|               Block Start PSN                 |  Suggested M  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Request ID           |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|               Lost Source Bitmap (ceil(k/32) words)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// The PSN-range form (flag RANGES), for positions of which no REPAIR came:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Request ID           |          Range Count          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Start PSN                    |     Count     |  repeated
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type RepairRequest struct {
	FlowID    uint32
	RequestID uint16
	Fallback  bool // answer with Source Copy symbols
	ByRanges  bool // the PSN-range form: only FlowID, RequestID, Fallback and Ranges count

	ConfigID uint8
	Scheme   fec.Scheme
	K        uint8
	Held     uint8 // repair symbols that the CRF holds
	Start    roce.PSN
	M        uint8      // suggested number of symbols
	Lost     fec.Bitmap // the set L

	Ranges RangeList // aliases the datagram after parsing
}

// Range is Count PSNs from Start on. A Count of zero names none.
type Range struct {
	Start roce.PSN
	Count uint8
}

// RangeList is the ranges of a request as the message has them, four octets each. The zero value is the empty list.
type RangeList []byte

// Len returns the number of ranges.
func (r RangeList) Len() int { return len(r) / wordLen }

// At returns range i.
func (r RangeList) At(i int) Range {
	w := r[i*wordLen:][:wordLen]
	return Range{Start: psn(w), Count: w[3]}
}

// Append returns the list with one more range; it allocates only when the capacity is used up.
func (r RangeList) Append(x Range) RangeList { return RangeList(appendPSN(r, x.Start, x.Count)) }

const (
	requestFixedLen = 12
	rangesFixedLen  = 4
)

// ParseRepairRequest reads a REPAIR_REQUEST message of either form. It returns an error of ParseHeader, ErrType for
// another type, or ErrMalformed: k is zero, or Length is not what the form and its counts give.
func ParseRepairRequest(b []byte) (RepairRequest, error) {
	h, body, err := parse(b, TypeRepairRequest, rangesFixedLen)
	if err != nil {
		return RepairRequest{}, err
	}
	x := RepairRequest{FlowID: h.FlowID, Fallback: h.Flags&FlagFallback != 0, ByRanges: h.Flags&FlagRanges != 0}
	if x.ByRanges {
		return x.parseRanges(body)
	}
	return x.parseBlock(body)
}

func (x RepairRequest) parseRanges(body []byte) (RepairRequest, error) {
	x.RequestID = binary.BigEndian.Uint16(body)
	if len(body) != rangesFixedLen+int(binary.BigEndian.Uint16(body[2:]))*wordLen {
		return RepairRequest{}, ErrMalformed
	}
	x.Ranges = RangeList(body[rangesFixedLen:len(body):len(body)])
	return x, nil
}

func (x RepairRequest) parseBlock(body []byte) (RepairRequest, error) {
	if len(body) < requestFixedLen {
		return RepairRequest{}, ErrMalformed
	}
	x.ConfigID, x.Scheme, x.K, x.Held = body[0], fec.Scheme(body[1]), body[2], body[3]
	x.Start, x.M = psn(body[4:]), body[7]
	x.RequestID = binary.BigEndian.Uint16(body[8:])
	if x.K == 0 || len(body) != requestFixedLen+bitmapLen(int(x.K)) {
		return RepairRequest{}, ErrMalformed
	}
	x.Lost = parseBitmap(body[requestFixedLen:], int(x.K))
	return x, nil
}

// Append appends the message to dst.
func (x *RepairRequest) Append(dst []byte) []byte {
	flags := flag(x.Fallback, FlagFallback) | flag(x.ByRanges, FlagRanges)
	if x.ByRanges {
		dst = appendHeader(dst, TypeRepairRequest, flags, x.FlowID, rangesFixedLen+len(x.Ranges))
		dst = binary.BigEndian.AppendUint16(dst, x.RequestID)
		dst = binary.BigEndian.AppendUint16(dst, uint16(x.Ranges.Len()))
		return append(dst, x.Ranges...)
	}
	dst = appendHeader(dst, TypeRepairRequest, flags, x.FlowID, requestFixedLen+bitmapLen(int(x.K)))
	dst = append(dst, x.ConfigID, uint8(x.Scheme), x.K, x.Held)
	dst = appendPSN(dst, x.Start, x.M)
	dst = binary.BigEndian.AppendUint16(dst, x.RequestID)
	dst = append(dst, 0, 0)
	return appendBitmap(dst, x.Lost, int(x.K))
}

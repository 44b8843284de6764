// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// LossReport is a LOSS_REPORT message: eight words, all counts for the interval.
type LossReport struct {
	FlowID          uint32
	Interval        uint32 // microseconds
	Expected        uint32 // source packets of present positions
	Received        uint32 // of these, those that arrived themselves, before restoration
	Restored        uint32 // of these, those restored by decoding
	Incomplete      uint32 // blocks incomplete after the first decoding attempt
	CEMarked        uint32 // CE marks on source packets
	RepairsReceived uint32
	RepairsCEMarked uint32
}

const lossReportLen = 8 * wordLen

// ParseLossReport reads a LOSS_REPORT message. It returns an error of ParseHeader, ErrType for another type, or
// ErrMalformed: Length is not the type's.
func ParseLossReport(b []byte) (LossReport, error) {
	h, body, err := parse(b, TypeLossReport, lossReportLen)
	if err != nil {
		return LossReport{}, err
	}
	if len(body) != lossReportLen {
		return LossReport{}, ErrMalformed
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(body[i*wordLen:]) }
	return LossReport{
		FlowID: h.FlowID, Interval: word(0), Expected: word(1), Received: word(2), Restored: word(3),
		Incomplete: word(4), CEMarked: word(5), RepairsReceived: word(6), RepairsCEMarked: word(7),
	}, nil
}

// Append appends the message to dst.
func (x *LossReport) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeLossReport, 0, x.FlowID, lossReportLen)
	for _, v := range [...]uint32{x.Interval, x.Expected, x.Received, x.Restored, x.Incomplete, x.CEMarked, x.RepairsReceived, x.RepairsCEMarked} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	return dst
}

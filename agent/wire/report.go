// SPDX-License-Identifier: Apache-2.0

package wire

import "encoding/binary"

// LossReport is a LOSS_REPORT message: eight words, all counts for the interval; with the extension ExtDetail three more.
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
	Detailed        bool   // the next three are there (flag FlagDetail)
	Runs            uint32 // runs of consecutive source packets that were lost
	Pairs           uint32 // pairs of lost source packets whose PSNs divided by 32 are the same
	Hold            uint32 // microseconds that the CRF holds packets behind a gap at most; HoldUnbounded: it holds none, and no gap is too old
}

// HoldUnbounded is the Hold of a CRF whose receiver takes packets in any order.
const HoldUnbounded = 1<<32 - 1

const (
	lossReportLen = 8 * wordLen
	detailLen     = 3 * wordLen
)

// ParseLossReport reads a LOSS_REPORT message. It returns an error of ParseHeader, ErrType for another type, or
// ErrMalformed: Length is not the type's.
func ParseLossReport(b []byte) (LossReport, error) {
	h, body, err := parse(b, TypeLossReport, lossReportLen)
	if err != nil {
		return LossReport{}, err
	}
	want := lossReportLen
	if h.Flags&FlagDetail != 0 {
		want += detailLen
	}
	if len(body) != want {
		return LossReport{}, ErrMalformed
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(body[i*wordLen:]) }
	x := LossReport{
		FlowID: h.FlowID, Interval: word(0), Expected: word(1), Received: word(2), Restored: word(3),
		Incomplete: word(4), CEMarked: word(5), RepairsReceived: word(6), RepairsCEMarked: word(7),
	}
	if x.Detailed = want > lossReportLen; x.Detailed {
		x.Runs, x.Pairs, x.Hold = word(8), word(9), word(10)
	}
	return x, nil
}

// Append appends the message to dst.
func (x *LossReport) Append(dst []byte) []byte {
	n := lossReportLen
	if x.Detailed {
		n += detailLen
	}
	dst = appendHeader(dst, TypeLossReport, flag(x.Detailed, FlagDetail), x.FlowID, n)
	for _, v := range [...]uint32{x.Interval, x.Expected, x.Received, x.Restored, x.Incomplete, x.CEMarked, x.RepairsReceived, x.RepairsCEMarked} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	if x.Detailed {
		for _, v := range [...]uint32{x.Runs, x.Pairs, x.Hold} {
			dst = binary.BigEndian.AppendUint32(dst, v)
		}
	}
	return dst
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"crem.dev/crem/agent/roce"
)

// Method is how a Path Reporter knows.
type Method uint8

// Methods.
const (
	MethodAlternateMarking          Method = 1 // RFC 9341
	MethodClusteredAlternateMarking Method = 2 // RFC 9342
	MethodNodeDrops                 Method = 3 // the node's own drops
)

// String returns the method in words.
func (m Method) String() string {
	switch m {
	case MethodAlternateMarking:
		return "alternate marking"
	case MethodClusteredAlternateMarking:
		return "clustered alternate marking"
	case MethodNodeDrops:
		return "node drops"
	}
	return fmt.Sprintf("method %d", uint8(m))
}

// Cause is why packets were lost.
type Cause uint8

// Causes. Any other value is read as CauseUnknown.
const (
	CauseUnknown    Cause = 0
	CauseCongestion Cause = 1 // queue overflow
	CauseCorruption Cause = 2
	CauseFailure    Cause = 3 // of a link or route
	CausePolicy     Cause = 4
)

// String returns the cause in words.
func (c Cause) String() string {
	switch c {
	case CauseCongestion:
		return "congestion"
	case CauseCorruption:
		return "corruption"
	case CauseFailure:
		return "failure"
	case CausePolicy:
		return "policy"
	}
	return "unknown"
}

// MaxHops is the most Hop Entries of a PATH_REPORT.
const MaxHops = 16

// PathReport is a PATH_REPORT message. Its Flow ID is zero: a reporter doesn't know it, and not the Flow Kind either.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|    Method     |  Entry Count  |      AF       |   Reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Flow source and destination address (4 or 16 octets each)   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Reserved    |                  Flow Label                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Hop Entry, Entry Count times               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type PathReport struct {
	Method    Method
	Truncated bool // lists of dropped PSNs were cut
	Src, Dst  netip.Addr
	Label     uint32
	Hops      [MaxHops]Hop
	HopCount  int // Hop Entries in use, at most MaxHops
}

// Hop is one Hop Entry, the report of one measurement point.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Node ID                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Marking Period Number                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Lost Count                           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                Queue Delay Change (signed, us)                |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Cause     |   PSN Count   |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Reserved    |       Dropped PSN, PSN Count times            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Hop struct {
	NodeID      uint32
	Period      uint32
	Lost        uint32
	DelayChange int32 // of the queue, microseconds
	Cause       Cause
	PSNs        PSNList // dropped; aliases the datagram after parsing
}

// MaxPSNs is the most dropped PSNs of a Hop Entry.
const MaxPSNs = 255

// PSNList is dropped PSNs as the message has them, four octets each. The zero value is the empty list.
type PSNList []byte

// Len returns the number of PSNs.
func (l PSNList) Len() int { return len(l) / wordLen }

// At returns PSN i.
func (l PSNList) At(i int) roce.PSN {
	const reserved = 0xff << 24
	return roce.PSN(binary.BigEndian.Uint32(l[i*wordLen:]) &^ reserved)
}

// Append returns the list with one more PSN; it allocates only when the capacity is used up.
func (l PSNList) Append(p roce.PSN) PSNList {
	return PSNList(binary.BigEndian.AppendUint32(l, uint32(p)))
}

const (
	pathFixedLen = 4
	hopFixedLen  = 5 * wordLen
)

// ParsePathReport reads a PATH_REPORT message. It returns an error of ParseHeader, ErrType for another type, or
// ErrMalformed: AF is neither 4 nor 6, there are more than MaxHops entries, or Length is not what the counts give.
func ParsePathReport(b []byte) (PathReport, error) {
	h, body, err := parse(b, TypePathReport, pathFixedLen)
	if err != nil {
		return PathReport{}, err
	}
	x := PathReport{Method: Method(body[0]), HopCount: int(body[1]), Truncated: h.Flags&FlagTruncated != 0}
	if x.HopCount > MaxHops {
		return PathReport{}, ErrMalformed
	}
	var rest []byte
	if x.Src, x.Dst, x.Label, rest, err = parseFlow(body[pathFixedLen:], body[2]); err != nil {
		return PathReport{}, err
	}
	for i := range x.Hops[:x.HopCount] {
		if rest, err = x.Hops[i].parse(rest); err != nil {
			return PathReport{}, err
		}
	}
	if len(rest) != 0 {
		return PathReport{}, ErrMalformed
	}
	return x, nil
}

// parse reads the entry at the start of b and returns the octets after it.
func (h *Hop) parse(b []byte) ([]byte, error) {
	if len(b) < hopFixedLen {
		return nil, ErrMalformed
	}
	end := hopFixedLen + int(b[17])*wordLen
	if len(b) < end {
		return nil, ErrMalformed
	}
	*h = Hop{
		NodeID: binary.BigEndian.Uint32(b), Period: binary.BigEndian.Uint32(b[4:]), Lost: binary.BigEndian.Uint32(b[8:]),
		DelayChange: int32(binary.BigEndian.Uint32(b[12:])), Cause: Cause(b[16]), PSNs: PSNList(b[hopFixedLen:end:end]),
	}
	if h.Cause > CausePolicy {
		h.Cause = CauseUnknown
	}
	return b[end:], nil
}

// Append appends the message to dst. HopCount must not exceed MaxHops, nor the length of a PSN list MaxPSNs.
func (x *PathReport) Append(dst []byte) []byte {
	body := pathFixedLen + flowLen(x.Src)
	for i := range x.Hops[:x.HopCount] {
		body += hopFixedLen + len(x.Hops[i].PSNs)
	}
	dst = appendHeader(dst, TypePathReport, flag(x.Truncated, FlagTruncated), 0, body)
	dst = append(dst, uint8(x.Method), uint8(x.HopCount), family(x.Src), 0)
	dst = appendFlow(dst, x.Src, x.Dst, x.Label)
	for i := range x.Hops[:x.HopCount] {
		dst = x.Hops[i].append(dst)
	}
	return dst
}

func (h *Hop) append(dst []byte) []byte {
	for _, v := range [...]uint32{h.NodeID, h.Period, h.Lost, uint32(h.DelayChange)} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	dst = append(dst, uint8(h.Cause), uint8(h.PSNs.Len()), 0, 0)
	for i := range h.PSNs.Len() {
		dst = binary.BigEndian.AppendUint32(dst, uint32(h.PSNs.At(i)))
	}
	return dst
}

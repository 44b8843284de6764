// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/binary"
	"errors"
	"time"
)

// Readings is what the end of a tunnel tells its beginning, once a period: how many packets of each flow came with the colour of that period, and when
// (Alternate Marking, RFC 9341). It travels beside the tunnel. Flows of one message are of one IP version.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version|Type 14|   Flags (0)   |            Length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Flow ID (0)                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Marking Period Number                     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|      AF       |                   Reserved                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Timestamp (64 bits, microseconds of Unix time)        |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// and for each flow
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Flow source and destination address (4 or 16 octets each)   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Reserved    |                  Flow Label                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Packets                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Sum of the packets' times after the start of the period     |
//	|                 (64 bits signed, nanoseconds)                 |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Readings struct {
	Period uint32
	Time   uint64 // when it was sent, microseconds of Unix time
	List   []Reading
}

// Reading is what was counted of a flow.
type Reading struct {
	Flow    Flow
	Packets uint32
	Sum     time.Duration
}

const (
	// TypeReadings is the message type of Readings, of the private range (Section 13).
	TypeReadings    = 14
	readingsVersion = cnpVersion
	readingsHead    = 24
	reading4        = 2*4 + labelLen + 4 + 8
	reading6        = 2*16 + labelLen + 4 + 8
)

// ErrReadings says that a datagram is no Readings: another version or type, a length that is not its own, no flow, or a part of one, an unknown AF.
var ErrReadings = errors.New("ecn: not well-formed readings")

// IsReadings reports whether a datagram to the CREM port has the version and type of Readings.
func IsReadings(b []byte) bool { return len(b) > 0 && b[0] == readingsVersion<<4|TypeReadings }

// MostReadings is how many flows, of IPv4 or IPv6, fit a message of so many octets.
func MostReadings(octets int, ipv4 bool) int {
	if ipv4 {
		return (octets - readingsHead) / reading4
	}
	return (octets - readingsHead) / reading6
}

// ParseReadings reads the message. Reserved bits, flags and Flow ID are ignored. It returns ErrReadings.
func ParseReadings(b []byte) (Readings, error) {
	if !IsReadings(b) || len(b) <= readingsHead || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return Readings{}, ErrReadings
	}
	x := Readings{Period: binary.BigEndian.Uint32(b[8:]), Time: binary.BigEndian.Uint64(b[16:])}
	af, rest := b[12], b[readingsHead:]
	if af == 4 && len(rest)%reading4 != 0 || af == 6 && len(rest)%reading6 != 0 || af != 4 && af != 6 {
		return Readings{}, ErrReadings
	}
	for len(rest) > 0 {
		var r Reading
		r.Flow, rest = cutFlow(rest, af)
		r.Packets, r.Sum = binary.BigEndian.Uint32(rest), time.Duration(binary.BigEndian.Uint64(rest[4:]))
		x.List, rest = append(x.List, r), rest[4+8:]
	}
	return x, nil
}

// Append appends the message to dst. It must have flows, all of one IP version.
func (x *Readings) Append(dst []byte) []byte {
	af, size := uint8(4), readingsHead+len(x.List)*reading4
	if !x.List[0].Flow.Src.Is4() {
		af, size = 6, readingsHead+len(x.List)*reading6
	}
	dst = append(dst, readingsVersion<<4|TypeReadings, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(size))
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, x.Period)
	dst = append(dst, af, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, x.Time)
	for _, r := range x.List {
		dst = appendFlow(dst, &r.Flow)
		dst = binary.BigEndian.AppendUint32(dst, r.Packets)
		dst = binary.BigEndian.AppendUint64(dst, uint64(r.Sum))
	}
	return dst
}

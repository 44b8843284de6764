// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/binary"
	"errors"
	"time"
)

// Lease is the message by which two gateways agree on a tunnel, one for each direction. A request travels in the tunnel and is as long as the
// tunnel's largest packet; its answer, beside the tunnel, says that such a packet arrived, and for how long the sender of the request may
// put flows into the tunnel.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version|Type 13|     Flags     |            Length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Flow ID (0)                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Nonce (64 bits)                    |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Lease (milliseconds)      |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Padding (request only)                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Lease struct {
	Answer bool
	Nonce  uint64        // of the request, random
	For    time.Duration // answer: from when the request was sent, whole milliseconds; 0: no more
}

const (
	// TypeLease is the message type of a Lease, of the private range (Section 13).
	TypeLease    = 13
	leaseLen     = 20
	leaseAnswer  = 0x80 // flag
	leaseVersion = cnpVersion

	// MaxLease is the longest time for which an answer may be given.
	MaxLease = 5 * time.Second
)

// ErrLease says that a datagram is no Lease: another version or type, a length that is not its own, more than MaxLease.
var ErrLease = errors.New("ecn: not a well-formed lease of a tunnel")

// IsLease reports whether a datagram to the CREM port has the version and type of a Lease.
func IsLease(b []byte) bool { return len(b) > 0 && b[0] == leaseVersion<<4|TypeLease }

// ParseLease reads a Lease. Reserved bits, padding, other flags and Flow ID are ignored. It returns ErrLease.
func ParseLease(b []byte) (Lease, error) {
	if !IsLease(b) || len(b) < leaseLen || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return Lease{}, ErrLease
	}
	x := Lease{Answer: b[1]&leaseAnswer != 0, Nonce: binary.BigEndian.Uint64(b[8:])}
	if !x.Answer {
		return x, nil
	}
	x.For = time.Duration(binary.BigEndian.Uint16(b[16:])) * time.Millisecond
	if x.For > MaxLease || len(b) != leaseLen {
		return Lease{}, ErrLease
	}
	return x, nil
}

// Append appends the message to dst; a request is padded to size octets.
func (x *Lease) Append(dst []byte, size int) []byte {
	flags := uint8(leaseAnswer)
	if x.Answer {
		size = leaseLen
	} else {
		flags, size = 0, max(size, leaseLen)
	}
	dst = append(dst, leaseVersion<<4|TypeLease, flags)
	dst = binary.BigEndian.AppendUint16(dst, uint16(size))
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, x.Nonce)
	dst = binary.BigEndian.AppendUint16(dst, uint16(x.For.Milliseconds()))
	dst = append(dst, 0, 0)
	return append(dst, make([]byte, size-leaseLen)...)
}

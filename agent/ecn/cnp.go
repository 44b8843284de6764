// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"crem.dev/crem/agent/internal/flowtable"
)

// Flow is a flow as HELLO and PATH_REPORT name it: addresses, and the destination queue pair as 24-bit Flow Label.
type Flow = flowtable.Key

// CNP is the congestion notification packet of the domain, from a marking node to the ingress PE of a flow. It is a datagram to the CREM
// port, so that the boundary that keeps strangers from that port keeps them from this too, with a message type of the private range.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|Version|Type 12|   Flags (0)   |            Length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Flow ID (0)                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Level     |      AF       |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Flow source and destination address (4 or 16 octets each)   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Reserved    |                  Flow Label                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            Node ID                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Sequence (64 bits)                        |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|         Timestamp (64 bits, microseconds of Unix time)        |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type CNP struct {
	Level    Level // LevelEarly or LevelSevere
	Flow     Flow
	Node     uint32 // of the congested node
	Sequence uint64 // of the node; starts at its Unix time in microseconds, so that it grows over restarts
	Time     uint64 // when it was sent, microseconds of Unix time
}

const (
	// TypeCNP is the message type of a CNP, the first of the private range (Section 13).
	TypeCNP    = 12
	cnpVersion = 1

	cnpHeaderLen = 12 // up to the flow
	cnpTailLen   = 4 + 8 + 8
	labelLen     = 4
	labelMask    = 1<<24 - 1
	cnpLen4      = cnpHeaderLen + 4 + 4 + labelLen + cnpTailLen
	cnpLen6      = cnpHeaderLen + 16 + 16 + labelLen + cnpTailLen

	// MaxCNPLen is the octets of the longest CNP.
	MaxCNPLen = cnpLen6
)

// ErrCNP says that a datagram is no CNP: another version or type, a length that is not the exact one, an unknown level or AF.
var ErrCNP = errors.New("ecn: not a well-formed CNP")

// IsCNP reports whether a datagram to the CREM port has the version and type of a CNP, by which a receiver tells it from CREM messages.
func IsCNP(b []byte) bool { return len(b) > 0 && b[0] == cnpVersion<<4|TypeCNP }

// ParseCNP reads a CNP. Reserved bits, flags and Flow ID are ignored. It returns ErrCNP.
func ParseCNP(b []byte) (CNP, error) {
	if !IsCNP(b) || len(b) < cnpHeaderLen || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return CNP{}, ErrCNP
	}
	x := CNP{Level: Level(b[8])}
	if x.Level != LevelEarly && x.Level != LevelSevere {
		return CNP{}, ErrCNP
	}
	if (b[9] != 4 || len(b) != cnpLen4) && (b[9] != 6 || len(b) != cnpLen6) {
		return CNP{}, ErrCNP
	}
	var rest []byte
	x.Flow, rest = cutFlow(b[cnpHeaderLen:], b[9])
	x.Node = binary.BigEndian.Uint32(rest)
	x.Sequence, x.Time = binary.BigEndian.Uint64(rest[4:]), binary.BigEndian.Uint64(rest[12:])
	return x, nil
}

// Append appends the message to dst. Both addresses of the flow must be valid and of one IP version.
func (x *CNP) Append(dst []byte) []byte {
	af, size := uint8(4), cnpLen4
	if !x.Flow.Src.Is4() {
		af, size = 6, cnpLen6
	}
	dst = append(dst, cnpVersion<<4|TypeCNP, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(size))
	dst = append(dst, 0, 0, 0, 0, uint8(x.Level), af, 0, 0)
	dst = appendFlow(dst, &x.Flow)
	dst = binary.BigEndian.AppendUint32(dst, x.Node)
	dst = binary.BigEndian.AppendUint64(dst, x.Sequence)
	return binary.BigEndian.AppendUint64(dst, x.Time)
}

// appendFlow appends addresses and Flow Label.
func appendFlow(dst []byte, k *Flow) []byte {
	if k.Src.Is4() {
		src, to := k.Src.As4(), k.Dst.As4()
		dst = append(append(dst, src[:]...), to[:]...)
	} else {
		src, to := k.Src.As16(), k.Dst.As16()
		dst = append(append(dst, src[:]...), to[:]...)
	}
	return binary.BigEndian.AppendUint32(dst, k.Label&labelMask)
}

// cutFlow reads what appendFlow wrote, of AF 4 or 6, and returns what is behind it. b must be long enough.
func cutFlow(b []byte, af uint8) (k Flow, rest []byte) {
	if af == 4 {
		k.Src, k.Dst, rest = netip.AddrFrom4([4]byte(b)), netip.AddrFrom4([4]byte(b[4:])), b[8:]
	} else {
		k.Src, k.Dst, rest = netip.AddrFrom16([16]byte(b)), netip.AddrFrom16([16]byte(b[16:])), b[32:]
	}
	k.Label = binary.BigEndian.Uint32(rest) & labelMask
	return k, rest[labelLen:]
}

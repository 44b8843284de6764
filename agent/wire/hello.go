// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"
)

// FlowDescriptor names a flow before it has a Flow ID. It is comparable.
type FlowDescriptor struct {
	Kind     FlowKind
	Src, Dst netip.Addr // of the same IP version
	Label    uint32     // 24 bits: the destination queue pair number
}

// Extension bits of HELLO and HELLO_ACK: set in HELLO by a CSF that has the extension, echoed in HELLO_ACK by a CRF that has it too.
const (
	ExtDigest uint16 = 0x0001 // the block digest: the CSF sends it, the CRF checks it
	ExtDetail uint16 = 0x0002 // LOSS_REPORT says how losses cluster, and how long the CRF holds packets
)

// Hello is a HELLO message: the CSF asks for protection of a flow. Its Flow ID is zero.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Flow Kind   |      AF       |       Supported Schemes       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Max k     |     Max m     |             Max T             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|           RDMA MTU            |          Extensions           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Sender Nonce (64 bits)                     |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|          Source Address (4 or 16 octets, per AF) ...          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        Destination Address (4 or 16 octets, per AF) ...       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Reserved    |                  Flow Label                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// Extensions are the 16 reserved bits of the draft: a peer without extensions sends zero and ignores them.
type Hello struct {
	Flow       FlowDescriptor
	Schemes    uint16 // bit s: scheme s is supported
	MaxK, MaxM uint8
	MaxT       uint16
	MTU        uint16 // RDMA MTU in octets of data per packet
	Extensions uint16
	Nonce      uint64
}

// HelloAck is a HELLO_ACK message: the CRF's limits and the Flow ID of all later messages. It has the first twelve octets of
// HELLO, then:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                    Sender Nonce (64 bits)                     |
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        Max Open Blocks        |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// It is never larger than HELLO, so that an answer never amplifies.
type HelloAck struct {
	FlowID        uint32
	Kind          FlowKind // echoed
	AF            uint8    // 4 or 6, echoed
	Schemes       uint16
	MaxK, MaxM    uint8
	MaxT          uint16
	MTU           uint16 // echoed
	Extensions    uint16
	Nonce         uint64 // echoed
	MaxOpenBlocks uint16
}

const (
	afIPv4 = 4
	afIPv6 = 6

	limitsLen   = 12
	helloFixed  = limitsLen + 8
	helloAckLen = limitsLen + 8 + wordLen
)

// AF returns the address family of the flow as messages carry it: 4 or 6.
func (d *FlowDescriptor) AF() uint8 { return family(d.Src) }

// ParseHello reads a HELLO message. It returns an error of ParseHeader, ErrType for another type, or ErrMalformed: AF is
// neither 4 nor 6, or Length does not fit it. Flow Kind and limits are the receiver's to judge.
func ParseHello(b []byte) (Hello, error) {
	_, body, err := parse(b, TypeHello, helloFixed)
	if err != nil {
		return Hello{}, err
	}
	x := Hello{
		Schemes: binary.BigEndian.Uint16(body[2:]), MaxK: body[4], MaxM: body[5], MaxT: binary.BigEndian.Uint16(body[6:]),
		MTU: binary.BigEndian.Uint16(body[8:]), Extensions: binary.BigEndian.Uint16(body[10:]), Nonce: binary.BigEndian.Uint64(body[12:]),
	}
	x.Flow.Kind = FlowKind(body[0])
	var rest []byte
	x.Flow.Src, x.Flow.Dst, x.Flow.Label, rest, err = parseFlow(body[helloFixed:], body[1])
	if err == nil && len(rest) != 0 {
		err = ErrMalformed
	}
	if err != nil {
		return Hello{}, err
	}
	return x, nil
}

// Append appends the message to dst.
func (x *Hello) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeHello, 0, 0, helloFixed+flowLen(x.Flow.Src))
	dst = append(dst, uint8(x.Flow.Kind), x.Flow.AF())
	dst = appendLimits(dst, x.Schemes, x.MaxK, x.MaxM, x.MaxT, x.MTU, x.Extensions)
	dst = binary.BigEndian.AppendUint64(dst, x.Nonce)
	return appendFlow(dst, x.Flow.Src, x.Flow.Dst, x.Flow.Label)
}

// ParseHelloAck reads a HELLO_ACK message. It returns an error of ParseHeader, ErrType for another type, or ErrMalformed: AF
// is neither 4 nor 6, or Length is not the type's.
func ParseHelloAck(b []byte) (HelloAck, error) {
	h, body, err := parse(b, TypeHelloAck, helloAckLen)
	if err != nil {
		return HelloAck{}, err
	}
	if len(body) != helloAckLen || body[1] != afIPv4 && body[1] != afIPv6 {
		return HelloAck{}, ErrMalformed
	}
	return HelloAck{
		FlowID: h.FlowID, Kind: FlowKind(body[0]), AF: body[1],
		Schemes: binary.BigEndian.Uint16(body[2:]), MaxK: body[4], MaxM: body[5], MaxT: binary.BigEndian.Uint16(body[6:]),
		MTU: binary.BigEndian.Uint16(body[8:]), Extensions: binary.BigEndian.Uint16(body[10:]),
		Nonce: binary.BigEndian.Uint64(body[12:]), MaxOpenBlocks: binary.BigEndian.Uint16(body[20:]),
	}, nil
}

// Append appends the message to dst.
func (x *HelloAck) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeHelloAck, 0, x.FlowID, helloAckLen)
	dst = append(dst, uint8(x.Kind), x.AF)
	dst = appendLimits(dst, x.Schemes, x.MaxK, x.MaxM, x.MaxT, x.MTU, x.Extensions)
	dst = binary.BigEndian.AppendUint64(dst, x.Nonce)
	dst = binary.BigEndian.AppendUint16(dst, x.MaxOpenBlocks)
	return append(dst, 0, 0)
}

func appendLimits(dst []byte, schemes uint16, maxK, maxM uint8, maxT, mtu, extensions uint16) []byte {
	dst = binary.BigEndian.AppendUint16(dst, schemes)
	dst = append(dst, maxK, maxM)
	dst = binary.BigEndian.AppendUint16(dst, maxT)
	dst = binary.BigEndian.AppendUint16(dst, mtu)
	return binary.BigEndian.AppendUint16(dst, extensions)
}

// The flow in HELLO and PATH_REPORT: two addresses and the Flow Label, whose upper eight bits are reserved.

const labelMask = 0xffffff

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return afIPv4
	}
	return afIPv6
}

// flowLen returns the octets of a flow whose addresses are of a's version.
func flowLen(a netip.Addr) int {
	if a.Is4() {
		return 4 + 4 + wordLen
	}
	return 16 + 16 + wordLen
}

// parseFlow reads the flow at the start of b and returns the octets after it.
func parseFlow(b []byte, af uint8) (src, dst netip.Addr, label uint32, rest []byte, err error) {
	switch {
	case af == afIPv4 && len(b) >= 4+4+wordLen:
		src, dst, rest = netip.AddrFrom4([4]byte(b)), netip.AddrFrom4([4]byte(b[4:])), b[8:]
	case af == afIPv6 && len(b) >= 16+16+wordLen:
		src, dst, rest = netip.AddrFrom16([16]byte(b)), netip.AddrFrom16([16]byte(b[16:])), b[32:]
	default:
		return src, dst, 0, nil, ErrMalformed
	}
	return src, dst, binary.BigEndian.Uint32(rest) & labelMask, rest[wordLen:], nil
}

func appendFlow(dst []byte, from, to netip.Addr, label uint32) []byte {
	if from.Is4() {
		a, b := from.As4(), to.As4()
		dst = append(append(dst, a[:]...), b[:]...)
	} else {
		a, b := from.As16(), to.As16()
		dst = append(append(dst, a[:]...), b[:]...)
	}
	return binary.BigEndian.AppendUint32(dst, label&labelMask)
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// ParamUpdate is a PARAM_UPDATE message: a configuration for blocks from a PSN on.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   Config ID   |    Scheme     |       k       |       m       |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|               T               |           Reserved            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                Effective PSN                  |   Reserved    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type ParamUpdate struct {
	FlowID    uint32
	ConfigID  uint8
	Scheme    fec.Scheme
	K         uint8 // positions of a block, 1 to 255
	M         uint8 // most ordinary repair symbols of a block
	T         uint16
	Effective roce.PSN
}

// Status is the answer in PARAM_ACK.
type Status uint8

// Values of Status. With any but StatusAccepted the CSF keeps its configuration.
const (
	StatusAccepted          Status = 0
	StatusUnsupportedScheme Status = 1
	StatusLimitsExceeded    Status = 2
	StatusExhausted         Status = 3
)

// String returns the status in words.
func (s Status) String() string {
	switch s {
	case StatusAccepted:
		return "accepted"
	case StatusUnsupportedScheme:
		return "unsupported scheme"
	case StatusLimitsExceeded:
		return "limits exceeded"
	case StatusExhausted:
		return "resources exhausted"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// ParamAck is a PARAM_ACK message: Config ID (8 bits), Status (8), Reserved (16).
type ParamAck struct {
	FlowID   uint32
	ConfigID uint8
	Status   Status
}

const (
	paramUpdateLen = 12
	paramAckLen    = 4
)

// ParseParamUpdate reads a PARAM_UPDATE message. It returns an error of ParseHeader, ErrType for another type, or
// ErrMalformed: Length is not the type's, or k is zero.
func ParseParamUpdate(b []byte) (ParamUpdate, error) {
	h, body, err := parse(b, TypeParamUpdate, paramUpdateLen)
	if err != nil {
		return ParamUpdate{}, err
	}
	if len(body) != paramUpdateLen || body[2] == 0 {
		return ParamUpdate{}, ErrMalformed
	}
	return ParamUpdate{
		FlowID: h.FlowID, ConfigID: body[0], Scheme: fec.Scheme(body[1]), K: body[2], M: body[3],
		T: binary.BigEndian.Uint16(body[4:]), Effective: psn(body[8:]),
	}, nil
}

// Append appends the message to dst.
func (x *ParamUpdate) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeParamUpdate, 0, x.FlowID, paramUpdateLen)
	dst = append(dst, x.ConfigID, uint8(x.Scheme), x.K, x.M)
	dst = binary.BigEndian.AppendUint16(dst, x.T)
	dst = append(dst, 0, 0)
	return appendPSN(dst, x.Effective, 0)
}

// ParseParamAck reads a PARAM_ACK message. It returns an error of ParseHeader, ErrType for another type, or ErrMalformed:
// Length is not the type's.
func ParseParamAck(b []byte) (ParamAck, error) {
	h, body, err := parse(b, TypeParamAck, paramAckLen)
	if err != nil {
		return ParamAck{}, err
	}
	if len(body) != paramAckLen {
		return ParamAck{}, ErrMalformed
	}
	return ParamAck{FlowID: h.FlowID, ConfigID: body[0], Status: Status(body[1])}, nil
}

// Append appends the message to dst.
func (x *ParamAck) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeParamAck, 0, x.FlowID, paramAckLen)
	return append(dst, x.ConfigID, uint8(x.Status), 0, 0)
}

// SPDX-License-Identifier: Apache-2.0

package wire

import "fmt"

// CloseReason is why a flow ends.
type CloseReason uint8

// Reasons of CLOSE.
const (
	CloseUnspecified    CloseReason = 0
	CloseIdle           CloseReason = 1 // idle or ended
	CloseRestarted      CloseReason = 2 // the queue pair number was used again
	CloseNoAnswer       CloseReason = 3
	CloseImpaired       CloseReason = 4 // the circuit breaker was open for more than a minute
	CloseAdministrative CloseReason = 5
	CloseResources      CloseReason = 6
)

// String returns the reason in words.
func (r CloseReason) String() string {
	switch r {
	case CloseUnspecified:
		return "unspecified"
	case CloseIdle:
		return "idle or ended"
	case CloseRestarted:
		return "restarted"
	case CloseNoAnswer:
		return "no answer"
	case CloseImpaired:
		return "persistent impairment"
	case CloseAdministrative:
		return "administrative"
	case CloseResources:
		return "out of resources"
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Close is a CLOSE message: Reason (8 bits), Reserved (24). It is not acknowledged.
type Close struct {
	FlowID uint32
	Reason CloseReason
}

const closeLen = 4

// ParseClose reads a CLOSE message. It returns an error of ParseHeader, ErrType for another type, or ErrMalformed: Length is
// not the type's.
func ParseClose(b []byte) (Close, error) {
	h, body, err := parse(b, TypeClose, closeLen)
	if err != nil {
		return Close{}, err
	}
	if len(body) != closeLen {
		return Close{}, ErrMalformed
	}
	return Close{FlowID: h.FlowID, Reason: CloseReason(body[0])}, nil
}

// Append appends the message to dst.
func (x *Close) Append(dst []byte) []byte {
	dst = appendHeader(dst, TypeClose, 0, x.FlowID, closeLen)
	return append(dst, uint8(x.Reason), 0, 0, 0)
}

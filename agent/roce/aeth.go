// SPDX-License-Identifier: Apache-2.0

package roce

import "fmt"

// Syndrome octet of the ACK Extended Transport Header (AETH):
//
//	 0     2 3       7 8                                           31
//	+-------+---------+---------------------------------------------+
//	| Kind  |  Value  |        Message Sequence Number (MSN)        |
//	+-------+---------+---------------------------------------------+
//
// Value is a credit count (ACK), a timer (RNR NAK) or a code (NAK).
const (
	syndromeKindShift = 5
	syndromeValueMask = 0x1f
)

// AckKind is the kind of an acknowledgement.
type AckKind uint8

// Kinds of acknowledgement: the upper three bits of the syndrome, of which the first is zero. Other values are reserved.
const (
	AckPositive AckKind = 0
	AckRNR      AckKind = 1 // receiver not ready: try again after a time
	AckNAK      AckKind = 3
)

// Codes of a NAK.
const (
	NAKSequence          uint8 = 0 // PSN sequence error: a packet is missing
	NAKInvalidRequest    uint8 = 1
	NAKRemoteAccess      uint8 = 2
	NAKRemoteOperational uint8 = 3
	NAKInvalidRD         uint8 = 4
)

// AckOf splits a syndrome into its kind and its value.
func AckOf(syndrome uint8) (AckKind, uint8) {
	return AckKind(syndrome >> syndromeKindShift), syndrome & syndromeValueMask
}

// AckString returns a syndrome in words.
func AckString(syndrome uint8) string {
	kind, value := AckOf(syndrome)
	switch kind {
	case AckPositive:
		return "ACK"
	case AckRNR:
		return fmt.Sprintf("RNR NAK timer %d", value)
	case AckNAK:
		names := [...]string{"sequence error", "invalid request", "remote access error", "remote operational error", "invalid RD request"}
		if int(value) < len(names) {
			return "NAK " + names[value]
		}
		return fmt.Sprintf("NAK code %d", value)
	}
	return fmt.Sprintf("syndrome 0x%02x", syndrome)
}

// Syndrome returns the syndrome of the AETH; false without an AETH.
func (p *Packet) Syndrome() (uint8, bool) {
	b := p.P()
	at := int(kinds[p.Opcode()].aeth)
	if at == 0 || at+aethLen > len(b)-icrcLen {
		return 0, false
	}
	return b[at], true
}

// Acked returns the newest PSN of the opposite direction's request space that the packet confirms to have arrived,
// all older ones included. An ACK, a READ response and an ATOMIC acknowledgement confirm the PSN that they carry; a NAK
// and an RNR NAK everything before it. It is false for every other packet.
func (p *Packet) Acked() (PSN, bool) {
	op := p.Opcode()
	space, source := op.Space()
	if source && space == Response {
		return p.PSN(), true
	}
	syndrome, ok := p.Syndrome()
	if !ok || op.Operation() != Acknowledge {
		return 0, false
	}
	switch kind, _ := AckOf(syndrome); kind {
	case AckPositive:
		return p.PSN(), true
	case AckNAK, AckRNR:
		return p.PSN().Add(-1), true
	}
	return 0, false
}

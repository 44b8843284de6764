// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"fmt"
)

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

// Syndrome returns the syndrome of the AETH; false without an AETH, or where it is not known where it lies.
func (p *Packet) Syndrome() (uint8, bool) {
	b := p.P()
	at := int(kinds[p.Opcode()].aeth)
	if p.transport != RoCEv2 || at == 0 || at+aethLen > len(b)-icrcLen {
		return 0, false
	}
	return b[at], true
}

// Acked returns the newest PSN of a space of the opposite direction that the packet confirms to have arrived, all older ones included. It is false for
// every packet that confirms none.
//
//   - RoCEv2: an ACK, a READ response and an ATOMIC acknowledgement confirm the request with the PSN that they carry; a NAK and an RNR NAK everything
//     before it.
//   - veRoCE: an acknowledgement of either space confirms the PSN that it carries, its cumulative one. Its responses have PSNs of their own and
//     confirm nothing. A NAK names one packet, and says nothing of those before it.
//   - MRC: a SACK confirms its cumulative PSN. The other answers are of one packet or of a message.
func (p *Packet) Acked() (PSN, Space, bool) {
	switch p.transport {
	case VeRoCE:
		return p.ackedVeRoCE()
	case MRC:
		return p.ackedMRC()
	default:
		return p.ackedRoCEv2()
	}
}

// ackedRoCEv2 is Acked for RoCEv2.
func (p *Packet) ackedRoCEv2() (PSN, Space, bool) {
	op := p.Opcode()
	space, source := op.Space()
	if source && space == Response {
		return p.PSN(), Request, true
	}
	syndrome, ok := p.Syndrome()
	if !ok || op.Operation() != Acknowledge {
		return 0, Request, false
	}
	switch kind, _ := AckOf(syndrome); kind {
	case AckPositive:
		return p.PSN(), Request, true
	case AckNAK, AckRNR:
		return p.PSN().Add(-1), Request, true
	}
	return 0, Request, false
}

// ackedVeRoCE is Acked for veRoCE. Where the syndrome of an acknowledgement lies is not known in public: RC has it after the BTH, and a message number
// in its place begins with eight zero bits, which read as an ACK. A NAK that is taken for one frees blocks too early, which costs a retransmission.
func (p *Packet) ackedVeRoCE() (PSN, Space, bool) {
	space, ok := p.rules.VeRoCE.acknowledges(p.Opcode())
	b := p.P()
	if !ok || len(b) < bthLen+aethLen+icrcLen {
		return 0, space, false
	}
	kind, _ := AckOf(b[bthLen])
	return p.PSN(), space, kind == AckPositive
}

// sethCumulative is the offset of the 24 bits of the cumulative PSN in the SETH, with the eight reserved ones before them.
//
//	| flags 16 | PSN offset 16 | entropy value 32 | connection contexts 16, 16 | reserved 8, cumulative PSN 24 | congestion control 8 |
//	| max_psn_range 8 | bitmap offset 16 | bitmap 64 |
const sethCumulative = 12

// ackedMRC is Acked for MRC.
func (p *Packet) ackedMRC() (PSN, Space, bool) {
	b := p.P()
	if p.Opcode() != MRCSACK || len(b) < bthLen+sethLen+icrcLen {
		return 0, Request, false
	}
	return PSN(binary.BigEndian.Uint32(b[bthLen+sethCumulative:]) & psnMask), Request, true
}

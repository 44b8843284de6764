// SPDX-License-Identifier: Apache-2.0

package ecn

// Mode is how an ingress PE sets the outer field.
type Mode uint8

// Modes of RFC 6040.
const (
	Normal        Mode = iota // REQUIRED by RFC 6040, Section 4.1: the outer field follows the inner one
	Compatibility             // for an egress that does not know ECN: outer Not-ECT always
)

// Outer returns the ECN field of the outer header (WAN ECN, encapsulation behaviours; RFC 6040, Section 4.1). Inner ECT(1) becomes
// outer ECT(0): ECT(1) outside means early warning in the domain, and a sender of ECT(1) must not give one.
func Outer(mode Mode, inner Codepoint) Codepoint {
	inner &= codepointMask
	switch {
	case mode == Compatibility:
		return NotECT
	case inner == ECT1:
		return ECT0
	}
	return inner
}

// Notice is how odd a combination of inner and outer field is (RFC 6040, Section 4.2).
type Notice uint8

// Notices. Each is a reason to log, at a limited rate.
const (
	Usual  Notice = iota
	Unused        // "(!)": no encapsulator of today makes it
	Alarm         // "(!!!)": and it may hide or fake congestion
)

// Verdict is what an egress PE does with a packet.
type Verdict struct {
	Inner  Codepoint // field that the packet leaves with
	Drop   bool      // the packet cannot carry the mark: it is dropped
	Light  bool      // the early warning of the domain, consumed here
	Notice Notice
}

// verdicts is the decapsulation table by inner and outer field (WAN ECN, decapsulation behaviours). It is RFC 6040, Figure 4, but for
// the column of outer ECT(1): the mark is consumed, and the inner field stays. Inner ECT(1) under outer ECT(0) is what our own ingress
// makes of a sender of ECT(1); it is told as the table says.
var verdicts = [4][4]Verdict{
	NotECT: {
		NotECT: {Inner: NotECT}, ECT0: {Inner: NotECT, Notice: Alarm},
		ECT1: {Inner: NotECT, Notice: Alarm}, CE: {Inner: NotECT, Drop: true, Notice: Alarm},
	},
	ECT0: {NotECT: {Inner: ECT0}, ECT0: {Inner: ECT0}, ECT1: {Inner: ECT0, Light: true}, CE: {Inner: CE}},
	ECT1: {NotECT: {Inner: ECT1}, ECT0: {Inner: ECT1, Notice: Unused}, ECT1: {Inner: ECT1, Light: true}, CE: {Inner: CE}},
	CE:   {NotECT: {Inner: CE}, ECT0: {Inner: CE}, ECT1: {Inner: CE, Notice: Alarm}, CE: {Inner: CE}},
}

// Inner returns the verdict on a packet that arrives with these fields.
func Inner(inner, outer Codepoint) Verdict {
	return verdicts[inner&codepointMask][outer&codepointMask]
}

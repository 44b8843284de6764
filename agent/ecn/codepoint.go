// SPDX-License-Identifier: Apache-2.0

package ecn

// Codepoint is an ECN field, two bits, with the values of the wire (RFC 3168).
type Codepoint uint8

// Codepoints.
const (
	NotECT Codepoint = 0
	ECT1   Codepoint = 1 // in an outer header of the domain: early warning
	ECT0   Codepoint = 2
	CE     Codepoint = 3

	codepointMask = 3
)

// String returns the codepoint as RFCs write it.
func (c Codepoint) String() string {
	return [...]string{"Not-ECT", "ECT(1)", "ECT(0)", "CE"}[c&codepointMask]
}

// Level is how congested a node is.
type Level uint8

// Levels, in order of severity.
const (
	LevelNone   Level = 0
	LevelEarly  Level = 1 // average queue over T1
	LevelSevere Level = 2 // over T2
)

// String returns the level as metrics name it.
func (l Level) String() string {
	switch l {
	case LevelNone:
		return "none"
	case LevelEarly:
		return "early"
	case LevelSevere:
		return "severe"
	}
	return "unknown"
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"strings"
	"testing"
)

// opcodeTable is written from the opcode and header tables of the InfiniBand specification (volume 1, chapter 9), by
// number: headers is the sum of BTH and extension headers. S starts, M middle, E ends; A is answered in the response space. Those of MRC, from two public
// implementations, are no sources of RoCEv2, and where their data begins is not known.
const opcodeTable = `
00 RC 12 request S   01 RC 12 request M   02 RC 12 request E   03 RC 16 request E   04 RC 12 request SE  05 RC 16 request SE
06 RC 28 request S   07 RC 12 request M   08 RC 12 request E   09 RC 16 request E   0a RC 28 request SE  0b RC 32 request SE
0c RC 28 request SEA 0d RC 16 response S  0e RC 12 response M  0f RC 16 response E  10 RC 16 response SE 11 RC 16 - -
12 RC 24 response SE 13 RC 40 request SEA 14 RC 40 request SEA 16 RC 16 request E   17 RC 16 request SE
1c RC 32 request SEA 1d RC 28 request SEA
20 UC 12 request S   21 UC 12 request M   22 UC 12 request E   23 UC 16 request E   24 UC 12 request SE  25 UC 16 request SE
26 UC 28 request S   27 UC 12 request M   28 UC 12 request E   29 UC 16 request E   2a UC 28 request SE  2b UC 32 request SE
40 RD 24 - S         41 RD 24 - M         42 RD 24 - E         43 RD 28 - E         44 RD 24 - SE        45 RD 28 - SE
46 RD 40 - S         47 RD 24 - M         48 RD 24 - E         49 RD 28 - E         4a RD 40 - SE        4b RD 44 - SE
4c RD 40 - SE        4d RD 20 - S         4e RD 16 - M         4f RD 20 - E         50 RD 20 - SE        51 RD 20 - -
52 RD 28 - SE        53 RD 52 - SE        54 RD 52 - SE
64 UD 20 - SE        65 UD 24 - SE
81 CNP 28 - -
a0 XRC 16 request S   a1 XRC 16 request M   a2 XRC 16 request E   a3 XRC 20 request E   a4 XRC 16 request SE  a5 XRC 20 request SE
a6 XRC 32 request S   a7 XRC 16 request M   a8 XRC 16 request E   a9 XRC 20 request E   aa XRC 32 request SE  ab XRC 36 request SE
ac XRC 32 request SEA ad XRC 16 response S  ae XRC 12 response M  af XRC 16 response E  b0 XRC 16 response SE b1 XRC 16 - -
b2 XRC 24 response SE b3 XRC 44 request SEA b4 XRC 44 request SEA b6 XRC 20 request E   b7 XRC 20 request SE
c6 MRC 0 - S  c7 MRC 0 - M  c8 MRC 0 - E  c9 MRC 0 - E  ca MRC 0 - SE  cb MRC 0 - SE
d1 MRC 0 - -  d8 MRC 0 - -  d9 MRC 0 - -  dc MRC 0 - -  dd MRC 0 - -  de MRC 0 - -`

type opcodeRow struct {
	class, space, marks string
	headers             int
}

func opcodeRows(t *testing.T) map[Opcode]opcodeRow {
	t.Helper()
	rows := map[Opcode]opcodeRow{}
	f := strings.Fields(opcodeTable)
	for ; len(f) > 0; f = f[5:] {
		rows[Opcode(number(t, f[0], 16))] = opcodeRow{f[1], f[3], f[4], number(t, f[2], 10)}
	}
	return rows
}

// Section 4.4: which opcodes are sources, and of which space. Every one of the 256 values is checked.
func TestSection4_4_OpcodeTable(t *testing.T) {
	rows := opcodeRows(t)
	for v := range 256 {
		o := Opcode(v)
		row, known := rows[o]
		if !known {
			row = opcodeRow{space: "-"}
		}
		space := "-"
		if s, ok := o.Space(); ok {
			space = s.String()
		}
		if space != row.space {
			t.Errorf("%v: space %s, want %s", o, space, row.space)
		}
		if got := o.HeaderLen(); got != row.headers {
			t.Errorf("%v: HeaderLen %d, want %d", o, got, row.headers)
		}
		marks := map[string]bool{"S": o.Starts(), "M": o.Middle(), "E": o.Ends(), "A": o.Answered()}
		for mark, got := range marks {
			if got != strings.Contains(row.marks, mark) {
				t.Errorf("%v: %s is %v, want %q", o, mark, got, row.marks)
			}
		}
		if known != strings.HasPrefix(o.String(), row.class+" ") && o != CNP {
			t.Errorf("opcode %#x is called %q", v, o)
		}
	}
}

// Section 4.4: manufacturers' opcodes, among them those of MRC, are never sources of a RoCEv2 flow.
func TestSection4_4_PrivateOpcodesAreNoSources(t *testing.T) {
	for v := int(ClassPrivate); v < 256; v++ {
		if _, ok := Opcode(v).Space(); ok {
			t.Errorf("opcode %#x is a source", v)
		}
	}
}

func TestOpcodeString(t *testing.T) {
	for o, want := range map[Opcode]string{
		WriteFirst: "RC WRITE_FIRST", ClassXRC + ReadRequest: "XRC READ_REQUEST", ClassUD + SendOnly: "UD SEND_ONLY", CNP: "CNP",
		0x15: "opcode 0x15", 0xc5: "opcode 0xc5", MRCWriteFirst: "MRC WRITE_FIRST", MRCSACK: "MRC SACK",
	} {
		if got := o.String(); got != want {
			t.Errorf("%#x: %q, want %q", uint8(o), got, want)
		}
	}
}

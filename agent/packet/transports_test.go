// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"fmt"
	"slices"
	"testing"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// Section 4.4, rules 5 and 6: a tap copies what leaves of every transport that is recognised, and of what comes the acknowledgements of each, whose opcodes
// on the port of veRoCE are those that the settings give; where one is not known, 0 stands for none, and opcode 0 is data. A change acts on the next packet.
func TestSection4_4_TapOfTransports(t *testing.T) {
	ports := []uint16{roce.Port, roce.VeRoCEPort, 50000}
	for _, ends := range [][2]string{{"10.2.0.6", "10.3.0.7"}, {"fd00:2::6", "fd00:3::7"}} {
		w := newWorld(t, 1500)
		tap := w.taps(1, 128)[0]
		for _, r := range []packet.Recognised{
			{},
			{MRC: true},
			{VeRoCEPort: roce.VeRoCEPort, VeRoCEAnswers: [4]uint8{0x11, 0x18, 0x19, 0x1a}},
			{MRC: true, VeRoCEPort: 50000, VeRoCEAnswers: [4]uint8{0x11, 0, 0, 0xdd}},
			{},
		} {
			if err := packet.Refilter([]packet.Tap{tap}, r); err != nil {
				t.Fatal(err)
			}
			var in, out [][]byte
			var want []string
			for _, port := range ports {
				p := packetOf(ends[0], ends[1], roce.MRCWriteOnly, 1)
				p.DstPort = port
				out = append(out, p.Frame())
				if port == roce.Port || port == r.VeRoCEPort {
					want = append(want, fmt.Sprintf("outgoing to %d", port))
				}
			}
			for _, port := range ports {
				for op := range 256 {
					p := packetOf(ends[1], ends[0], roce.Opcode(op), uint32(op))
					p.DstPort = port
					in = append(in, p.Frame())
					if acknowledges(&r, port, roce.Opcode(op)) {
						want = append(want, fmt.Sprintf("incoming to %d, opcode %#x", port, op))
					}
				}
			}
			w.outgoing(out...)
			w.incoming(in...)
			var got []string
			for _, f := range collect(t, tap, len(want)) {
				udp := 14 + 20
				if f.Data[12] == 0x86 {
					udp += 20
				}
				s := fmt.Sprintf("to %d", int(f.Data[udp+2])<<8|int(f.Data[udp+3]))
				if f.Flags == packet.Outgoing && f.Len == len(f.Data) {
					s = "outgoing " + s
				} else if f.Flags == packet.Cut && len(f.Data) == 128 {
					s = fmt.Sprintf("incoming %s, opcode %#x", s, f.Data[udp+8])
				}
				got = append(got, s)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v:\n%q, want\n%q", r, got, want)
			}
		}
	}
}

// acknowledges says in the words of package roce what an incoming packet is copied for: an acknowledgement, or a request of RoCEv2 that is answered.
func acknowledges(r *packet.Recognised, port uint16, op roce.Opcode) bool {
	switch port {
	case roce.Port:
		reliable := op.Class() == roce.ClassRC || op.Class() == roce.ClassXRC
		return reliable && (op.Operation() == roce.Acknowledge || op.Answered()) || r.MRC && op == roce.MRCSACK
	case r.VeRoCEPort:
		return op != 0 && slices.Contains(r.VeRoCEAnswers[:], uint8(op))
	}
	return false
}

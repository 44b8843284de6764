// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// inTunnel puts the packet of a frame into a tunnel.
func inTunnel(t *testing.T, frame []byte, src, dst string) []byte {
	t.Helper()
	tunnel, err := ecn.NewTunnel(ecn.TunnelConfig{Local: netip.MustParseAddr(src), Remote: netip.MustParseAddr(dst)})
	if err != nil {
		t.Fatal(err)
	}
	out := bytes.Clone(frame[:14])
	binary.BigEndian.PutUint16(out[12:], 0x0800)
	if netip.MustParseAddr(dst).Is6() {
		binary.BigEndian.PutUint16(out[12:], 0x86dd)
	}
	out, why := tunnel.Encapsulate(out, frame[14:])
	if why != ecn.DropNone {
		t.Fatal(why)
	}
	return out
}

// WAN ECN: the tap sees the packets that travel in tunnels as they were, in all four pairs of IP versions and both directions, on the
// worker of their own pair of hosts; and none of them until it is told to.
func TestWANECN_TapSeesInnerPackets(t *testing.T) {
	const workers = 3
	for _, outer := range [][2]string{{"10.1.0.1", "10.1.0.5"}, {"fd00:1::1", "fd00:1::5"}} {
		for _, inner := range []string{"10.2.0.%d", "fd00:2::%d"} {
			w := newWorld(t, 1500)
			taps := w.taps(workers, 128)
			there := fmt.Sprintf(inner, 200)
			var out, in [][]byte
			want := make([][][]byte, workers)
			for i := range 9 {
				here := fmt.Sprintf(inner, i+1)
				worker := packet.PairWorker(netip.MustParseAddr(here), netip.MustParseAddr(there), workers)
				frame := packetOf(here, there, roce.SendOnly, uint32(i)).Frame()
				out = append(out, inTunnel(t, frame, outer[0], outer[1]))
				in = append(in, inTunnel(t, packetOf(there, here, roce.Acknowledge, uint32(i)).Frame(), outer[1], outer[0]),
					inTunnel(t, packetOf(there, here, roce.SendOnly, uint32(i)).Frame(), outer[1], outer[0]))
				want[worker] = append(want[worker], frame)
			}
			options := inTunnel(t, packetOf(there, fmt.Sprintf(inner, 1), roce.Acknowledge, 1).Frame(), outer[1], outer[0])
			if options[12] == 0x08 {
				options[14] = 0x46
				in = append(in, options)
			}
			w.outgoing(out...)
			w.incoming(in...)
			for i, tap := range taps {
				if got := collect(t, tap, 0); len(got) > 0 {
					t.Errorf("%v in %v: worker %d saw %d frames before it looked into tunnels", inner, outer, i, len(got))
				}
				if err := tap.LookIntoTunnels(true); err != nil {
					t.Fatal(err)
				}
			}
			w.outgoing(out...)
			w.incoming(in...)
			for i, tap := range taps {
				got := collect(t, tap, 2*len(want[i]))
				for j, f := range got {
					if j < len(want[i]) {
						ends := packet.Ends{Src: netip.MustParseAddr(outer[0]), Dst: netip.MustParseAddr(outer[1])}
						if !bytes.Equal(f.Data, want[i][j]) || f.Flags != packet.Outgoing|packet.Tunnelled || f.Outer != ends || f.Len != len(f.Data) {
							t.Errorf("%v in %v: outgoing %d differs, flags %x, outer %v", inner, outer, j, f.Flags, f.Outer)
						}
						continue
					}
					ends := packet.Ends{Src: netip.MustParseAddr(outer[1]), Dst: netip.MustParseAddr(outer[0])}
					at := 14 + 20 + 8
					if f.Data[12] == 0x86 {
						at += 20
					}
					if op := roce.Opcode(f.Data[at]); op != roce.Acknowledge || f.Flags != packet.Tunnelled|packet.Cut || f.Outer != ends || len(f.Data) < 100 {
						t.Errorf("%v in %v: incoming %d: %v, flags %x, outer %v, %d octets", inner, outer, j, op, f.Flags, f.Outer, len(f.Data))
					}
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
)

// The tables as the drafts print them, row by row: written out here a second time, in their own words.
var (
	codepoints = []Codepoint{NotECT, ECT0, ECT1, CE}

	// WAN ECN, encapsulation, and RFC 6040 Figure 3; but ECT(1) becomes ECT(0).
	wantOuter = map[Mode][]string{
		Normal:        {"Not-ECT", "ECT(0)", "ECT(0)", "CE"},
		Compatibility: {"Not-ECT", "Not-ECT", "Not-ECT", "Not-ECT"},
	}
	// WAN ECN, decapsulation: a row for each inner field, a column for each outer one, in the order of codepoints.
	wantInner = [][]string{
		{"Not-ECT", "Not-ECT (!!!)", "Not-ECT (!!!)", "drop (!!!)"},
		{"ECT(0)", "ECT(0)", "ECT(0) light", "CE"},
		{"ECT(1)", "ECT(1) (!)", "ECT(1) light", "CE"},
		{"CE", "CE", "CE (!!!)", "CE"},
	}
)

func inWords(v Verdict) string {
	s := v.Inner.String()
	if v.Drop {
		s = "drop"
	}
	if v.Light {
		s += " light"
	}
	return s + map[Notice]string{Usual: "", Unused: " (!)", Alarm: " (!!!)"}[v.Notice]
}

func TestWANECN_EncapsulationTable(t *testing.T) {
	for mode, row := range wantOuter {
		for i, inner := range codepoints {
			if got := Outer(mode, inner).String(); got != row[i] {
				t.Errorf("mode %d, inner %v: outer %s, want %s", mode, inner, got, row[i])
			}
		}
	}
}

func TestWANECN_DecapsulationTable(t *testing.T) {
	for i, inner := range codepoints {
		for j, outer := range codepoints {
			if got := inWords(Inner(inner, outer)); got != wantInner[i][j] {
				t.Errorf("inner %v, outer %v: %s, want %s", inner, outer, got, wantInner[i][j])
			}
		}
	}
}

var (
	a4, b4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
	a6, b6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

// innerPacket makes a UDP packet of an IP version with an ECN field.
func innerPacket(v int, c Codepoint) []byte {
	payload := bytes.Repeat([]byte{0xa5}, 57)
	if v == 4 {
		p := make([]byte, 20, 80)
		p[0], p[1], p[8], p[9] = 0x45, 0x68|byte(c), 61, 17
		binary.BigEndian.PutUint16(p[2:], uint16(20+len(payload)))
		binary.BigEndian.PutUint16(p[4:], 0x1234)
		copy(p[12:], []byte{10, 1, 0, 1, 10, 2, 0, 1})
		binary.BigEndian.PutUint16(p[10:], ^plainSum(p))
		return append(p, payload...)
	}
	p := make([]byte, 40, 100)
	binary.BigEndian.PutUint32(p, 6<<28|uint32(0x68|byte(c))<<20)
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	p[6], p[7], p[8], p[24], p[39] = 17, 61, 0xfd, 0xfd, 2
	return append(p, payload...)
}

// plainSum is the Internet checksum's sum by its definition.
func plainSum(b []byte) uint16 {
	sum := 0
	for i := 0; i < len(b); i += 2 {
		sum += int(b[i])<<8 | int(b[i+1])
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

func tunnelPair(t *testing.T, local, remote netip.Addr, mode Mode) (in, out *Tunnel) {
	t.Helper()
	in, err := NewTunnel(TunnelConfig{Local: local, Remote: remote, Mode: mode, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	out, err = NewTunnel(TunnelConfig{Local: remote, Remote: local, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// Every cell of both tables with real headers, for every pair of IP versions. A marking node may have changed the outer field between.
func TestWANECN_TablesOverAllVersions(t *testing.T) {
	for _, outerVersion := range []int{4, 6} {
		for _, innerVersion := range []int{4, 6} {
			for _, mode := range []Mode{Normal, Compatibility} {
				for i := range codepoints {
					for j := range codepoints {
						t.Run(fmt.Sprintf("v%d in v%d/mode %d/%v/%v", innerVersion, outerVersion, mode, codepoints[i], codepoints[j]), func(t *testing.T) {
							crossTunnel(t, outerVersion, innerVersion, mode, i, j)
						})
					}
				}
			}
		}
	}
}

func crossTunnel(t *testing.T, outerVersion, innerVersion int, mode Mode, i, j int) {
	local, remote, head := a4, b4, 20
	if outerVersion == 6 {
		local, remote, head = a6, b6, 40
	}
	in, out := tunnelPair(t, local, remote, mode)
	inner := innerPacket(innerVersion, codepoints[i])
	before := bytes.Clone(inner)
	p, why := in.Encapsulate(nil, inner)
	if why != DropNone || len(p) != head+len(inner) || !bytes.Equal(p[head:], before) || !bytes.Equal(inner, before) {
		t.Fatalf("encapsulated with %v to %d octets; the inner packet must stay as it is", why, len(p))
	}
	if got := CodepointOf(p).String(); got != wantOuter[mode][i] {
		t.Fatalf("outer field %s, want %s", got, wantOuter[mode][i])
	}
	if trafficClass(p)>>2 != 0x68>>2 || hops(p) != 61 {
		t.Fatalf("DSCP %#x, hop limit %d", trafficClass(p)>>2, hops(p))
	}
	SetCodepoint(p, codepoints[j]) // what arrives
	if outerVersion == 4 && plainSum(p[:20]) != 0xffff {
		t.Fatal("outer checksum after a mark")
	}
	got, v, why := out.Decapsulate(p)
	want := wantInner[i][j]
	if inWords(v) != want {
		t.Fatalf("%s, want %s", inWords(v), want)
	}
	if v.Drop {
		if why != DropNotECT || got != nil || out.Stats().Drops[DropNotECT] != 1 {
			t.Fatalf("dropped with %v", why)
		}
		return
	}
	if why != DropNone || CodepointOf(got) != v.Inner {
		t.Fatalf("%v, field %v", why, CodepointOf(got))
	}
	if innerVersion == 4 && plainSum(got[:20]) != 0xffff {
		t.Fatal("inner checksum after decapsulation")
	}
	SetCodepoint(got, codepoints[i]) // but for the field it is what was sent
	if !bytes.Equal(got, before) {
		t.Fatal("the inner packet was changed")
	}
	if light := out.Stats().Light; (light == 1) != v.Light || out.Stats().Arrived[codepoints[i]][codepoints[j]] != 1 {
		t.Fatalf("counted %d early warnings", light)
	}
}

// An IPv4 checksum that was wrong stays wrong: the tunnel must not make a broken packet look whole.
func TestWANECN_WrongChecksumStaysWrong(t *testing.T) {
	p := innerPacket(4, ECT0)
	p[10] ^= 0x40
	SetCodepoint(p, CE)
	if plainSum(p[:20]) == 0xffff {
		t.Error("a wrong checksum became right")
	}
}

func TestWANECN_TunnelMTU(t *testing.T) {
	in, _ := tunnelPair(t, a6, b6, Normal)
	if in.InnerMTU() != 1460 || NeededMTU(1460, b6, 0) != 1500 || InnerMTU(1500, b4, 8) != 1472 || InnerMTU(30, b6, 0) != 0 {
		t.Error("MTU arithmetic")
	}
	big := innerPacket(6, ECT0)
	big = append(big, make([]byte, 1461-len(big))...)
	binary.BigEndian.PutUint16(big[4:], 1461-40)
	if p, why := in.Encapsulate([]byte{1}, big); why != DropTooBig || !bytes.Equal(p, []byte{1}) {
		t.Errorf("%v", why)
	}
	if _, why := in.Encapsulate(nil, big[:1460]); why != DropMalformed {
		t.Errorf("a cut packet: %v", why)
	}
}

func TestTunnelRefusesWhatItCannotUse(t *testing.T) {
	for name, c := range map[string]TunnelConfig{
		"none": {}, "mixed": {Local: a4, Remote: b6}, "mapped": {Local: netip.MustParseAddr("::ffff:192.0.2.1"), Remote: b6},
		"multicast": {Local: a6, Remote: netip.MustParseAddr("ff02::1")}, "zone": {Local: netip.MustParseAddr("fe80::1%eth0"), Remote: b6},
		"mode": {Local: a4, Remote: b4, Mode: 7}, "MTU": {Local: a4, Remote: b4, MTU: 59},
	} {
		if _, err := NewTunnel(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzDecapsulate: whatever arrives is refused for a reason, or gives a packet that is whole and lies inside.
func FuzzDecapsulate(f *testing.F) {
	in4, _ := NewTunnel(TunnelConfig{Local: a4, Remote: b4})
	in6, _ := NewTunnel(TunnelConfig{Local: a6, Remote: b6})
	for _, v := range []int{4, 6} {
		for _, in := range []*Tunnel{in4, in6} {
			p, _ := in.Encapsulate(nil, innerPacket(v, ECT0))
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, ends := range [][2]netip.Addr{{b4, a4}, {b6, a6}} {
			out, err := NewTunnel(TunnelConfig{Local: ends[0], Remote: ends[1]})
			if err != nil {
				t.Fatal(err)
			}
			inner, _, why := out.Decapsulate(bytes.Clone(b))
			if (why == DropNone) != (inner != nil) || inner != nil && length(inner) != len(inner) {
				t.Fatalf("%v, inner of %d octets", why, len(inner))
			}
		}
	})
}

func TestTunnelAllocatesNothing(t *testing.T) {
	in, out := tunnelPair(t, a6, b6, Normal)
	inner, buffer := innerPacket(4, ECT0), make([]byte, 0, 256)
	if n := testing.AllocsPerRun(100, func() {
		p, _ := in.Encapsulate(buffer[:0], inner)
		_, _, _ = out.Decapsulate(p)
	}); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// hosts are the ends of the packets of the tests, one pair of each IP version.
var hosts = [][2]string{{"10.1.0.2", "10.2.0.3"}, {"fd00:1::2", "fd00:2::3"}}

func TestParseFields(t *testing.T) {
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		s.op, s.flags, s.tos, s.ttl, s.label, s.udpChecksum = WriteFirst, 0xa0, 0x6a, 33, 0xabcde, true
		s.fecn, s.ack = 0xc0, 0x80
		s.body = append(unhex(t, "0102030405060708 090a0b0c 00012345"), []byte("data and 2 pads..")[:16]...)
		frame := s.build(t)
		p, reason := Parse(frame)
		if reason != OK {
			t.Fatal(reason)
		}
		v6 := strings.Contains(h[0], ":")
		want := spec{id: s.id, label: s.label}
		if v6 {
			want.id = 0
		} else {
			want.label = 0
		}
		if p.Src() != netip.MustParseAddr(h[0]) || p.Dst() != netip.MustParseAddr(h[1]) || p.IPv6() != v6 || p.TOS() != 0x6a || p.ECN() != 2 ||
			p.TTL() != 33 || p.ID() != want.id || p.FlowLabel() != want.label || p.SrcPort() != s.sport || p.UDPChecksum() == 0 {
			t.Errorf("IP fields wrong: %v %v %v %#x %d %d %#x %#x %#x %#x", p.Src(), p.Dst(), p.IPv6(), p.TOS(), p.ECN(), p.TTL(), p.ID(), p.FlowLabel(), p.SrcPort(), p.UDPChecksum())
		}
		if p.Opcode() != WriteFirst || p.PSN() != s.psn || p.QPN() != s.qpn || p.PKey() != s.pkey || !p.AckReq() {
			t.Errorf("BTH fields wrong: %v %v %v %#x %v", p.Opcode(), p.PSN(), p.QPN(), p.PKey(), p.AckReq())
		}
		if n, ok := p.DMALength(); !ok || n != 0x12345 {
			t.Errorf("DMALength = %#x, %v", n, ok)
		}
		if got := string(p.Data()); got != "data and 2 pad" {
			t.Errorf("Data = %q", got)
		}
		if string(p.Head())+string(p.P()) != string(frame) {
			t.Error("head and P are not the frame")
		}
		key := FlowKey{netip.MustParseAddr(h[0]), netip.MustParseAddr(h[1]), s.qpn, Request, RoCEv2}
		if p.Key() != key || key.Hosts() != (HostPair{key.Src, key.Dst}) || key.Reverse() != (HostPair{key.Dst, key.Src}) {
			t.Errorf("Key = %v", p.Key())
		}
		if cap(p.P()) != len(p.P()) || cap(p.Head()) != len(p.Head()) {
			t.Error("appending to a view would write to the frame")
		}
	}
}

// Each case changes a good frame in one way.
func TestParseReasons(t *testing.T) {
	type change func(f []byte) []byte
	set := func(at int, v ...byte) change {
		return func(f []byte) []byte { copy(f[at:], v); return f }
	}
	insert := func(at int, v ...byte) change {
		return func(f []byte) []byte { return slices.Insert(f, at, v...) }
	}
	all := func(cs ...change) change {
		return func(f []byte) []byte {
			for _, c := range cs {
				f = c(f)
			}
			return f
		}
	}
	addIPv6Length := func(n int) change {
		return func(f []byte) []byte {
			binary.BigEndian.PutUint16(f[18:], uint16(int(binary.BigEndian.Uint16(f[18:]))+n))
			return f
		}
	}
	fragment := func(offset uint16) change { // a fragment header before UDP
		return all(set(20, 44), addIPv6Length(8), insert(54, 17, 0, byte(offset>>8), byte(offset), 0, 0, 0, 1))
	}
	destination := all(set(20, 60), addIPv6Length(16), insert(54, append([]byte{17, 1}, make([]byte, 14)...)...))
	cut := func(n int) change { return func(f []byte) []byte { return f[:n] } }
	cases := []struct {
		name   string
		v      int // index in hosts
		change change
		want   Reason
	}{
		{"empty", 0, cut(0), Short},
		{"half an Ethernet header", 0, cut(13), Short},
		{"ARP", 0, set(12, 8, 6), NotRoCE},
		{"RoCEv1", 0, set(12, 0x89, 0x15), NotRoCE},
		{"VLAN", 0, insert(12, 0x81, 0, 0, 5), VLAN},
		{"VLAN of IPv6", 1, insert(12, 0x81, 0, 0, 5), VLAN},
		{"two VLANs", 0, insert(12, 0x88, 0xa8, 0, 7, 0x81, 0, 0, 5), VLAN},
		{"three VLANs", 0, insert(12, 0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x81, 0, 0, 5), NotRoCE},
		{"VLAN of TCP", 0, all(set(23, 6), insert(12, 0x81, 0, 0, 5)), NotRoCE},
		{"VLAN and nothing", 0, all(cut(14), insert(12, 0x81, 0)), NotRoCE},

		{"half an IPv4 header", 0, cut(33), Short},
		{"half a UDP header", 0, cut(41), Short},
		{"IP version 5", 0, set(14, 0x55), NotRoCE},
		{"IHL 4", 0, set(14, 0x44), NotRoCE},
		{"TCP", 0, set(23, 6), NotRoCE},
		{"ESP", 0, set(23, 50), NotRoCE},
		{"another port", 0, set(36, 0x12, 0xb8), NotRoCE},
		{"RoCEv2 as source port", 0, all(set(34, 0x12, 0xb7), set(36, 0x12, 0xb8)), NotRoCE},
		{"first fragment", 0, set(20, 0x20, 0), Fragment},
		{"later fragment", 0, set(20, 0, 1), NotRoCE},
		{"don't fragment clear", 0, set(20, 0, 0), OK},
		{"options", 0, all(set(14, 0x46), set(16, 0, 80), insert(34, 1, 1, 1, 0)), IPOptions},
		{"options of another port", 0, all(set(14, 0x46), insert(34, 1, 1, 1, 0), set(40, 0x12, 0xb8)), NotRoCE},
		{"IP length beyond the frame", 0, set(16, 0, 77), LengthMismatch},
		{"IP length before the UDP length", 0, set(16, 0, 75), LengthMismatch},
		{"UDP length too small", 0, set(38, 0, 55), LengthMismatch},
		{"UDP length 0", 0, set(38, 0, 0), LengthMismatch},
		{"cut", 0, cut(89), LengthMismatch},
		{"Ethernet padding", 0, func(f []byte) []byte { return append(f, 1, 2, 3, 4, 5, 6) }, OK},
		{"BTH without ICRC", 0, all(set(16, 0, 40), set(38, 0, 20)), Short},
		{"no payload", 0, all(set(16, 0, 28), set(38, 0, 8)), Short},
		{"BTH and ICRC", 0, all(set(16, 0, 44), set(38, 0, 24)), OK},
		{"length not a multiple of 4", 0, all(set(16, 0, 74), set(38, 0, 54)), Padding},
		{"transport version 1", 0, set(43, 0x01), Version},
		{"transport version 8", 0, set(43, 0x08), Version},

		{"half an IPv6 header", 1, cut(53), Short},
		{"IPv4 in IPv6", 1, set(14, 0x45), NotRoCE},
		{"half a UDP header after IPv6", 1, cut(61), Short},
		{"ICMPv6", 1, set(20, 58), NotRoCE},
		{"another port of IPv6", 1, set(56, 0x12, 0xb8), NotRoCE},
		{"payload length beyond the frame", 1, set(18, 0, 57), LengthMismatch},
		{"payload length before the UDP length", 1, set(18, 0, 55), LengthMismatch},
		{"jumbogram", 1, set(18, 0, 0), LengthMismatch},
		{"destination options", 1, destination, ExtensionHeader},
		{"destination options of another port", 1, all(destination, set(72, 0x12, 0xb8)), NotRoCE},
		{"atomic fragment", 1, fragment(0), Fragment},
		{"first fragment of IPv6", 1, fragment(1), Fragment},
		{"later fragment of IPv6", 1, fragment(8), NotRoCE},
		{"fragment and destination options", 1, all(destination, fragment(1), set(54, 60)), Fragment},
		{"extension header cut", 1, all(destination, cut(60)), NotRoCE},
		{"extension header beyond the frame", 1, all(destination, set(55, 200)), Short},
		{"no next header", 1, set(20, 59), NotRoCE},
		{"transport version 1 of IPv6", 1, set(63, 0x01), Version},
	}
	seen := map[Reason]bool{}
	for _, c := range cases {
		s := newSpec(hosts[c.v][0], hosts[c.v][1])
		frame := c.change(s.build(t))
		p, got := Parse(frame)
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if (got == OK) != (p.frame != nil) {
			t.Errorf("%s: %v with a packet of %d octets", c.name, got, len(p.frame))
		}
		seen[got] = true
	}
	for r := OK; r < reasons; r++ {
		if !seen[r] || r.String() == "" || r.String() == "unknown reason" {
			t.Errorf("reason %d (%v) has no test or no name", r, r)
		}
	}
}

// An Ethernet frame has at least 60 octets: an ACK's padding is neither P nor data.
func TestParseCutsEthernetPadding(t *testing.T) {
	s := newSpec(hosts[0][0], hosts[0][1])
	s.op, s.body = Acknowledge, unhex(t, "1f000001")
	frame := append(s.build(t), 0xaa, 0xbb)
	p, reason := Parse(frame)
	if reason != OK || len(p.P()) != 20 || !CheckICRC(&p) {
		t.Fatalf("%v, %d octets", reason, len(p.P()))
	}
}

func TestHeadersBeyondThePacket(t *testing.T) {
	for op := range 256 {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.body = Opcode(op), nil
		p := s.parse(t)
		if _, ok := p.DMALength(); ok {
			t.Errorf("%v: DMA length out of nothing", s.op)
		}
		if _, ok := p.Syndrome(); ok {
			t.Errorf("%v: syndrome out of nothing", s.op)
		}
		if data := p.Data(); (data != nil) != (s.op.HeaderLen() == bthLen) || len(data) != 0 {
			t.Errorf("%v: data %v", s.op, data)
		}
		s.flags = 0x30 // three octets of pad and no data to be padded
		p = s.parse(t)
		if p.Data() != nil {
			t.Errorf("%v: data before the headers' end", s.op)
		}
	}
}

// Section 4.2, rule 3.
func TestSection4_2_Advance(t *testing.T) {
	read := func(length uint32) []byte { return binary.BigEndian.AppendUint32(make([]byte, 12), length) }
	for _, c := range []struct {
		op   Opcode
		body []byte
		mtu  int
		want int
	}{
		{ReadRequest, read(0), 1024, 1}, {ReadRequest, read(1), 1024, 1}, {ReadRequest, read(1024), 1024, 1}, {ReadRequest, read(1025), 1024, 2},
		{ReadRequest, read(65536), 1024, 64}, {ReadRequest, read(65536), 4096, 16}, {ReadRequest, read(65537), 4096, 17},
		{ReadRequest, read(1 << 31), 256, 1 << 23}, {ReadRequest, read(1<<32 - 1), 256, 1 << 23},
		{ReadRequest, read(65536), 0, 1}, {ReadRequest, nil, 1024, 1},
		{ClassXRC + ReadRequest, append(make([]byte, 4), read(2048)...), 1024, 2},
		{WriteFirst, append(read(65536), make([]byte, 1024)...), 1024, 1}, {WriteOnly, read(65536), 1024, 1}, {SendMiddle, make([]byte, 1024), 1024, 1},
		{CompareSwap, make([]byte, 28), 1024, 1}, {ReadResponseFirst, make([]byte, 1028), 1024, 1}, {Flush, append(make([]byte, 4), read(65536)...), 1024, 1},
	} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.body = c.op, c.body
		p := s.parse(t)
		if got := Advance(&p, c.mtu); got != c.want {
			t.Errorf("%v, mtu %d: %d, want %d", c.op, c.mtu, got, c.want)
		}
	}
}

// Section 4.2, rule 5: UD and the management queue pairs are never protected.
func TestSection4_2_Source(t *testing.T) {
	for _, c := range []struct {
		op   Opcode
		qpn  QPN
		want bool
	}{
		{SendOnly, 2, true}, {SendOnly, 1, false}, {SendOnly, 0, false}, {ClassUD + SendOnly, 0x15, false}, {ClassUD + SendOnly, 1, false},
		{Acknowledge, 0x15, false}, {CNP, 0x15, false}, {ReadResponseMiddle, 0x15, true}, {AtomicAcknowledge, 0x15, true}, {0xc6, 0x15, false},
	} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.qpn = c.op, c.qpn
		p := s.parse(t)
		if space, ok := p.Source(); ok != c.want || ok && space != p.Key().Space {
			t.Errorf("%v to QP %v: %v %v", c.op, c.qpn, space, ok)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		f.Add(s.build(f))
		s.op = ReadRequest
		f.Add(s.build(f))
		s.op, s.body = Acknowledge, make([]byte, 4)
		f.Add(append(s.build(f), 0, 0))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := string(frame)
		p, reason := Parse(frame)
		if reason >= reasons {
			t.Fatalf("reason %d", reason)
		}
		if reason != OK {
			return
		}
		b := p.P()
		if len(b) < MinPayload || len(b)%4 != 0 || string(p.Head())+string(b) != before[:len(p.Head())+len(b)] {
			t.Fatalf("P of %d octets is not the frame's", len(b))
		}
		p.Key()
		p.Data()
		p.Acked()
		Advance(&p, 256)
		if space, ok := p.Source(); ok {
			p.Transport().ValidSource(b, space, p.PSN(), p.QPN(), p.PKey(), 1024)
		}
		right := naiveICRC(p.frame[EthernetLen:])
		if CheckICRC(&p) != (right == storedICRC(b)) {
			t.Fatal("CheckICRC is wrong")
		}
		var template Template
		template.Set(p.Head())
		binary.LittleEndian.PutUint32(b[len(b)-icrcLen:], right)
		if id, ok := template.SolveID(b); !ok || id != p.ID() {
			t.Fatalf("SolveID = %#x, %v, the packet has %#x", id, ok, p.ID())
		}
		copy(frame, before)
		head := BuildHead(nil, p.Head(), len(b), p.ID(), p.TOS(), p.UDPChecksum() != 0, b)
		restored, reason := Parse(append(head, b...))
		if reason != OK || restored.Key() != p.Key() || restored.ID() != p.ID() {
			t.Fatalf("rebuilt packet: %v", reason)
		}
	})
}

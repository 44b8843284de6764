// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"testing"
)

// Section 6, rule 3: each field of a restored packet that is not as it must be makes it no source.
func TestSection6_ValidSourceFields(t *testing.T) {
	base := newSpec(hosts[0][0], hosts[0][1])
	base.op, base.body = SendMiddle, make([]byte, 1024)
	for _, c := range []struct {
		name   string
		change func(s *spec)
		want   bool
	}{
		{"unchanged", func(*spec) {}, true},
		{"AckReq", func(s *spec) { s.ack = 0x80 }, true},
		{"solicited event and migration", func(s *spec) { s.flags = 0xc0 }, true},
		{"FECN and BECN", func(s *spec) { s.fecn = 0xc0 }, true},
		{"PSN", func(s *spec) { s.psn++ }, false},
		{"PSN far", func(s *spec) { s.psn ^= 0x800000 }, false},
		{"queue pair", func(s *spec) { s.qpn ^= 0x800000 }, false},
		{"P_Key", func(s *spec) { s.pkey ^= 0x8000 }, false},
		{"transport version", func(s *spec) { s.flags = 0x01 }, false},
		{"reserved bit of octet 4", func(s *spec) { s.fecn = 0x01 }, false},
		{"reserved bit of octet 4, upper", func(s *spec) { s.fecn = 0x20 }, false},
		{"reserved bit of octet 8", func(s *spec) { s.ack = 0x01 }, false},
		{"reserved bit of octet 8, upper", func(s *spec) { s.ack = 0x40 }, false},
		{"pad on MIDDLE", func(s *spec) { s.flags = 0x10 }, false},
		{"acknowledgement", func(s *spec) { s.op = Acknowledge }, false},
		{"other space", func(s *spec) { s.op = ReadResponseMiddle }, false},
		{"CNP", func(s *spec) { s.op = CNP }, false},
		{"UD", func(s *spec) { s.op = ClassUD + SendOnly }, false},
		{"reserved opcode", func(s *spec) { s.op = 0x15 }, false},
		{"private opcode", func(s *spec) { s.op = 0xc6 }, false},
	} {
		s := base
		c.change(&s)
		if got := RoCEv2.ValidSource(s.payload(), Request, base.psn, base.qpn, base.pkey, rdmaMTU); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	only := base
	only.op, only.body = SendOnly, nil
	for n := range MinPayload + 1 {
		if got := RoCEv2.ValidSource(only.payload()[:n], Request, base.psn, base.qpn, base.pkey, 0); got != (n == MinPayload) {
			t.Errorf("%d octets: %v", n, got)
		}
	}
	if RoCEv2.ValidSource(append(base.payload(), 0, 0), Request, base.psn, base.qpn, base.pkey, 0) {
		t.Error("length not a multiple of 4 accepted")
	}
	s := base
	s.qpn = 1
	if RoCEv2.ValidSource(s.payload(), Request, s.psn, s.qpn, s.pkey, 0) {
		t.Error("management queue pair accepted")
	}
}

// Section 6, rule 3: length and pad count of every opcode. lengths is the octets of data (without pad) that are possible.
func TestSection6_ValidSourceLengths(t *testing.T) {
	const mtu = 256
	for v := range 256 {
		op := Opcode(v)
		space, source := op.Space()
		if !source {
			continue
		}
		fixed := map[Opcode]int{ReadRequest: 0, CompareSwap: 0, FetchAdd: 0, Flush: 0, AtomicAcknowledge: 0, AtomicWrite: 8}
		for _, known := range []int{0, mtu} {
			for data := range mtu + 20 {
				var want bool
				if n, ok := fixed[op.Operation()]; ok {
					want = data == n
				} else if op.Starts() && op.Ends() {
					want = known == 0 || data <= mtu
				} else if op.Ends() {
					want = data > 0 && (known == 0 || data <= mtu)
				} else {
					want = data > 0 && data%4 == 0 && (known == 0 || data == mtu)
				}
				pad := -data & 3
				s := newSpec(hosts[0][0], hosts[0][1])
				s.op, s.flags, s.body = op, uint8(pad)<<flagsPadShift, make([]byte, op.HeaderLen()-bthLen+data+pad)
				if got := RoCEv2.ValidSource(s.payload(), space, s.psn, s.qpn, s.pkey, known); got != want {
					t.Errorf("%v: %d octets of data, mtu %d: %v", op, data, known, got)
				}
			}
		}
		// The headers alone must be complete, and the pad not larger than what there is to pad.
		for missing := 4; missing <= op.HeaderLen()-bthLen; missing += 4 {
			s := newSpec(hosts[0][0], hosts[0][1])
			s.op, s.body = op, make([]byte, op.HeaderLen()-bthLen-missing)
			if RoCEv2.ValidSource(s.payload(), space, s.psn, s.qpn, s.pkey, 0) {
				t.Errorf("%v: accepted without the last %d octets of its headers", op, missing)
			}
		}
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.flags, s.body = op, 0x30, make([]byte, op.HeaderLen()-bthLen)
		if RoCEv2.ValidSource(s.payload(), space, s.psn, s.qpn, s.pkey, 0) {
			t.Errorf("%v: accepted with pad and no data", op)
		}
	}
}

func TestSection6_ValidSourceSyndrome(t *testing.T) {
	for _, op := range []Opcode{ReadResponseFirst, ReadResponseLast, ReadResponseOnly, AtomicAcknowledge} {
		for syndrome := range 256 {
			s := newSpec(hosts[0][0], hosts[0][1])
			s.op, s.body = op, make([]byte, 4+8)
			s.body[0] = uint8(syndrome)
			if got := RoCEv2.ValidSource(s.payload(), Response, s.psn, s.qpn, s.pkey, 0); got != (syndrome < 0x20) {
				t.Errorf("%v with syndrome %#x: %v", op, syndrome, got)
			}
		}
	}
}

// Section 6, rule 3: "an opcode that fits its neighbours". Rows may be followed by the columns marked; names are of the RC
// class without it.
func TestSection6_MayFollow(t *testing.T) {
	begin := []Opcode{SendFirst, SendOnly, SendOnlyImm, SendOnlyInv, WriteFirst, WriteOnly, WriteOnlyImm, ReadRequest, CompareSwap, FetchAdd, Flush, AtomicWrite}
	sends := []Opcode{SendMiddle, SendLast, SendLastImm, SendLastInv}
	writes := []Opcode{WriteMiddle, WriteLast, WriteLastImm}
	reads := []Opcode{ReadResponseFirst, ReadResponseMiddle, ReadResponseLast, ReadResponseOnly}
	allowed := map[Opcode][]Opcode{
		SendFirst: sends, SendMiddle: sends, WriteFirst: writes, WriteMiddle: writes,
		ReadResponseFirst: reads, ReadResponseMiddle: reads,
	}
	for _, op := range []Opcode{SendLast, SendLastImm, SendLastInv, SendOnly, SendOnlyImm, SendOnlyInv, WriteLast, WriteLastImm, WriteOnly, WriteOnlyImm,
		ReadRequest, CompareSwap, FetchAdd, Flush, AtomicWrite} {
		allowed[op] = begin
	}
	for _, op := range []Opcode{ReadResponseLast, ReadResponseOnly, AtomicAcknowledge} {
		allowed[op] = append([]Opcode{AtomicAcknowledge}, reads...)
	}
	want := map[string]bool{}
	for a, next := range allowed {
		for _, b := range next {
			for _, class := range []Opcode{ClassRC, ClassUC, ClassXRC} {
				_, known := (class + a).Space()
				if _, ok := (class + b).Space(); ok && known {
					want[fmt.Sprint(class+a, class+b)] = true
				}
			}
		}
	}
	for a := range 256 {
		for b := range 256 {
			if got := MayFollow(Opcode(a), Opcode(b)); got != want[fmt.Sprint(Opcode(a), Opcode(b))] {
				t.Errorf("%v after %v: %v", Opcode(b), Opcode(a), got)
			}
		}
	}
}

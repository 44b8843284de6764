// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// Section 6.5, rule 2: the right Identification is the only one that is accepted; all 65536 are tried.
func TestSection6_5_IdentificationUnique(t *testing.T) {
	s := newSpec(hosts[0][0], hosts[0][1])
	p := s.parse(t)
	var template Template
	template.Set(p.Head())
	b := append([]byte(nil), p.P()...)
	seen := map[uint32]bool{}
	for id := range 1 << 16 {
		crc := template.Compute(b, uint16(id))
		if seen[crc] {
			t.Fatalf("two Identifications give ICRC %08x", crc)
		}
		seen[crc] = true
		binary.LittleEndian.PutUint32(b[len(b)-icrcLen:], crc)
		if got, ok := template.SolveID(b); !ok || got != uint16(id) {
			t.Fatalf("SolveID = %#x, %v, want %#x", got, ok, id)
		}
	}
}

// One template serves every length and Identification of its flow, also when lengths share a place of the cache.
func TestSection6_5_TemplateAnyLength(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		p := s.parse(t)
		var template Template
		template.Set(p.Head())
		for range 300 {
			s.id, s.psn, s.tos, s.ttl = uint16(r.Uint32()), PSN(r.Uint32()&psnMask), uint8(r.Uint32()), uint8(r.Uint32())
			s.fecn = uint8(r.Uint32())
			s.body = make([]byte, 4*r.IntN(300))
			p := s.parse(t)
			if got, want := template.Compute(p.P(), p.ID()), ICRC(p.Head(), p.P()); got != want {
				t.Fatalf("Compute = %08x, ICRC %08x", got, want)
			}
			if id, ok := template.SolveID(p.P()); !ok || id != p.ID() {
				t.Fatalf("%d octets: SolveID = %#x, %v, want %#x", len(p.P()), id, ok, p.ID())
			}
		}
	}
}

// Section 6.5, rule 2: sixteen bits of the ICRC are left to check. Random octets pass once in 65536 over IPv4, and over IPv6,
// which has no Identification to solve for, practically never.
func TestSection6_5_SolverRejects(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	accepted := [2]int{}
	tries, least, most := 1<<20, 2, 40 // 16 expected: the bounds cover all but 1e-6 of a Poisson distribution; the seed is fixed
	if testing.Short() {
		tries, least, most = 1<<16, 0, 10
	}
	for i, h := range hosts {
		s := newSpec(h[0], h[1])
		p := s.parse(t)
		var template Template
		template.Set(p.Head())
		b := append([]byte(nil), p.P()...)
		for range tries {
			binary.LittleEndian.PutUint64(b[len(b)-8:], r.Uint64())
			if _, ok := template.SolveID(b); ok {
				accepted[i]++
			}
		}
	}
	if accepted[0] < least || accepted[0] > most || accepted[1] != 0 {
		t.Errorf("accepted %v of %d random tries", accepted, tries)
	}
}

func TestTemplateShortPayload(t *testing.T) {
	var template Template
	s := newSpec(hosts[0][0], hosts[0][1])
	p := s.parse(t)
	template.Set(p.Head())
	for n := range MinPayload {
		if _, ok := template.SolveID(make([]byte, n)); ok {
			t.Errorf("%d octets accepted", n)
		}
	}
}

// Set replaces the flow: source port and addresses of the old one leave no trace.
func TestTemplateSetAgain(t *testing.T) {
	var template Template
	for _, i := range []int{0, 1, 0} {
		s := newSpec(hosts[i][0], hosts[i][1])
		s.sport += uint16(i)
		p := s.parse(t)
		template.Set(p.Head())
		if id, ok := template.SolveID(p.P()); !ok || id != p.ID() {
			t.Errorf("%s: SolveID = %#x, %v", s.src, id, ok)
		}
		s.sport++
		p = s.parse(t)
		if _, ok := template.SolveID(p.P()); ok {
			t.Errorf("%s: another source port accepted", s.src)
		}
	}
}

// power and mul agree with the definition: multiplying by x is one shift of the reflected register.
func TestPower(t *testing.T) {
	v := uint32(one)
	for e := range int64(2000) {
		if got := power(e); got != v {
			t.Fatalf("x^%d = %08x, want %08x", e, got, v)
		}
		if e > 0 && mul(power(e), power(-e)) != one {
			t.Fatalf("x^%d times x^-%d is not 1", e, e)
		}
		v = v>>1 ^ polynomial&-(v&1)
	}
}

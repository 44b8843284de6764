// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"math/rand/v2"
	"testing"
)

// Section 6, rule 4: the head built from another packet of the flow is, octet for octet, the one that gopacket serializes.
func TestSection6_BuildHead(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		s := randomSpec(r)
		s.tos &^= 0x03
		want := s.parse(t)
		m := s // the model: what varies between packets of one flow differs
		m.id, m.tos, m.udpChecksum, m.body = uint16(r.Uint32()), uint8(r.Uint32()), !s.udpChecksum, make([]byte, 4*r.IntN(100))
		model := m.parse(t)
		got := BuildHead([]byte("kept"), model.Head(), len(want.P()), s.id, s.tos, s.udpChecksum, want.P())
		if string(got) != "kept"+string(want.Head()) {
			t.Fatalf("\n got %x\nwant %x", got[4:], want.Head())
		}
	}
}

// Section 6, rule 5: the flow's ECT codepoint stays, CE is never sent.
func TestSection6_BuildHeadNeverCE(t *testing.T) {
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		p := s.parse(t)
		for ecn, want := range []uint8{0, 1, 2, 2} {
			head := BuildHead(nil, p.Head(), len(p.P()), s.id, 0x68|uint8(ecn), true, p.P())
			restored, reason := Parse(append(head, p.P()...))
			if reason != OK || restored.TOS() != 0x68|want {
				t.Errorf("%s: TOS %#x from %#x, %v", h[0], restored.TOS(), 0x68|ecn, reason)
			}
			if !CheckICRC(&restored) {
				t.Errorf("%s: ICRC depends on ECN", h[0])
			}
		}
	}
}

// A computed checksum of zero is sent as ones: zero means "none".
func TestUDPChecksumIsNeverZero(t *testing.T) {
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		p := s.parse(t)
		rest := append([]byte(nil), p.P()...)
		last := rest[len(rest)-2:]
		last[0], last[1] = 0, 0
		c := checksumUDP(p.Head(), rest)
		last[0], last[1] = byte(c>>8), byte(c) // now all words add up to ones
		if got := checksumUDP(p.Head(), rest); got != 0xffff {
			t.Errorf("%s: checksum %#x", h[0], got)
		}
	}
}

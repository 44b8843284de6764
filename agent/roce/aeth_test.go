// SPDX-License-Identifier: Apache-2.0

package roce

import "testing"

func TestAcked(t *testing.T) {
	for _, c := range []struct {
		op       Opcode
		syndrome uint8
		ok       bool
		offset   int // of the confirmed PSN from the packet's
		text     string
	}{
		{Acknowledge, 0x1f, true, 0, "ACK"},
		{Acknowledge, 0x00, true, 0, "ACK"},
		{Acknowledge, 0x2e, true, -1, "RNR NAK timer 14"},
		{Acknowledge, 0x60, true, -1, "NAK sequence error"},
		{Acknowledge, 0x62, true, -1, "NAK remote access error"},
		{Acknowledge, 0x7f, true, -1, "NAK code 31"},
		{Acknowledge, 0x40, false, 0, "syndrome 0x40"},
		{Acknowledge, 0x9f, false, 0, "syndrome 0x9f"},
		{ClassXRC + Acknowledge, 0x1f, true, 0, "ACK"},
		{ReadResponseFirst, 0x1f, true, 0, "ACK"},
		{ReadResponseMiddle, 0x1f, true, 0, ""},
		{AtomicAcknowledge, 0x1f, true, 0, "ACK"},
		{SendOnly, 0x1f, false, 0, ""},
		{CNP, 0x1f, false, 0, ""},
	} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.psn, s.body = c.op, 0, make([]byte, 24)
		s.body[0] = c.syndrome
		p := s.parse(t)
		psn, _, ok := p.Acked()
		if ok != c.ok || ok && psn != PSN(0).Add(c.offset) {
			t.Errorf("%v %#x: %v %v", c.op, c.syndrome, psn, ok)
		}
		if syndrome, ok := p.Syndrome(); ok != (c.text != "") || ok && AckString(syndrome) != c.text {
			t.Errorf("%v %#x: syndrome %#x %v %q", c.op, c.syndrome, syndrome, ok, AckString(syndrome))
		}
	}
}

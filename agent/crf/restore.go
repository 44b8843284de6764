// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"encoding/binary"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

const (
	ecnMask = 0x03
	ecnECT0 = 0x02
	ecnCE   = 0x03
)

// model is the newest arrived packet of the flow, whose headers restored packets get (Section 6.1, rules 4 and 5).
type model struct {
	head     [roce.MaxHead]byte
	n        int
	tos      uint8
	ecn      uint8 // the flow's ECT codepoint: the newest ECN field that was not CE
	seen     bool  // there was one
	pkey     uint16
	checksum bool // UDP checksums are in use
}

// take makes a packet the model. One that was sent again may be in another class of traffic than first copies are.
func (m *model) take(pkt *roce.Packet) {
	if m.n > 0 && pkt.Retransmitted() {
		return
	}
	m.n = copy(m.head[:], pkt.Head())
	m.tos = pkt.TOS()
	if ecn := m.tos & ecnMask; ecn != ecnCE {
		m.ecn, m.seen = ecn, true
	} else if !m.seen {
		m.ecn = ecnECT0 // nothing but CE so far: it was ECT before
	}
	m.pkey = pkt.PKey()
	m.checksum = pkt.UDPChecksum() != 0
}

// messageTOS is the TOS of CREM messages: the flow's DSCP and ECT(0) (Section 9).
func (m *model) messageTOS() uint8 { return m.tos&^ecnMask | ecnECT0 }

// restoredTOS is the TOS of restored packets: the flow's DSCP and ECT codepoint, never CE.
func (m *model) restoredTOS() uint8 { return m.tos&^ecnMask | m.ecn }

// packetIn returns P of the packet in a cell: what is coded, without the lead.
func (f *Flow) packetIn(c *fec.Cell) []byte { return c.Payload()[f.lead:] }

// headOf returns the model's head with the lead of the packet in c, and its IPv4 Identification if that is part of the lead. It is false for a lead that
// no packet has. The head is scratch memory.
func (f *Flow) headOf(c *fec.Cell) (id uint16, head []byte, ok bool) {
	head = f.env.scratch.head[:copy(f.env.scratch.head[:], f.model.head[:f.model.n])]
	if f.lead == 0 {
		return 0, head, true
	}
	id, ok = roce.SetLead(head, c.Payload()[:f.lead])
	return id, head, ok
}

// buildHead gives the restored packet in c its headers.
func (f *Flow) buildHead(c *fec.Cell, id uint16) error {
	m, P := &f.model, f.packetIn(c)
	_, like, _ := f.headOf(c)
	var head [roce.MaxHead]byte
	return c.SetHead(roce.BuildHead(head[:0], like, len(P), id, m.restoredTOS(), m.checksum, P))
}

// deliverRestored takes care that the restored packet in c reaches the receiver: at once, or, if packets are delivered in order and
// it is not the next one, from the hold buffer. The position is no longer missing.
func (f *Flow) deliverRestored(p pos, c *fec.Cell, acts *[]Action) {
	s := f.win.make(p)
	if s == nil || f.params.Delivery == Immediate || p < f.next || s.cells[p.index()] != nil {
		f.inject(c, acts)
		f.put(c)
		return
	}
	s.cells[p.index()] = c
	s.inUse++
	s.set(p, held)
	f.hold.waiting++
}

// consumed returns how many PSNs a restored packet takes, as roce.Advance does for an arrived one.
func (f *Flow) consumed(P []byte) int {
	op := roce.Opcode(P[0])
	if f.transport != roce.RoCEv2 || op.Operation() != roce.ReadRequest || f.hello.MTU == 0 {
		return 1
	}
	end := op.HeaderLen()
	if end < 4 || len(P) < end {
		return 1
	}
	length, mtu := int64(binary.BigEndian.Uint32(P[end-4:])), int64(f.hello.MTU)
	return int(min(max((length+mtu-1)/mtu, 1), psnSpan/2))
}

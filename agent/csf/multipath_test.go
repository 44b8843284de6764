// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
)

var multipathRules = &roce.Transports{
	VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort, Retransmission: 0x40},
	MRC:    roce.MRCSettings{Enabled: true, Retransmission: 0x20},
}

// multipath makes a packet of the flow with this source port. again sets the flag of a retransmission, which is in a class of traffic of its own.
func (w *world) multipath(psn roce.PSN, port uint16, again bool, data int) *roce.Packet {
	w.t.Helper()
	r := frames.RoCE{
		Headers: frames.Headers{Src: srcAddr, Dst: dstAddr, SrcPort: port, TOS: testTOS, ID: uint16(psn) * 7},
		Opcode:  roce.MRCWriteMiddle, QPN: testQPN, PSN: uint32(psn), Extension: make([]byte, 20), Data: make([]byte, data),
	}
	flag := multipathRules.MRC.Retransmission
	if w.f.transport == roce.VeRoCE {
		r.DstPort, r.Opcode, flag = roce.VeRoCEPort, roce.WriteMiddle, multipathRules.VeRoCE.Retransmission
	}
	if again {
		r.Flags, r.TOS = flag, testTOS^0x20
	}
	p, reason := multipathRules.Parse(r.Frame())
	if reason != roce.OK {
		w.t.Fatal(reason)
	}
	return &p
}

// protectMultipath makes the world's flow one of a kind and brings it to Protecting. PSN 0 is used up.
func (w *world) protectMultipath(kind wire.FlowKind) {
	w.t.Helper()
	w.f = w.newFlow(kind, gateway)
	w.give(w.multipath(0, 50000, false, 1024))
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	w.wait(testRTT)
	w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
	if w.f.State() != Protecting {
		w.t.Fatalf("state %v", w.f.State())
	}
}

// Section 4.4, rule 3: what is coded of a packet is its source port, its Identification, and P; the symbol is long enough for the largest packet of the
// RDMA MTU, which shows although the extension headers are not known.
func TestSection4_4_CodedContent(t *testing.T) {
	for _, kind := range []wire.FlowKind{wire.KindVeRoCE, wire.KindMRC} {
		w := newWorld(t, fixed(1))
		w.p.K, w.p.Schemes = 1, []fec.Scheme{fec.XOR} // the symbol of a block of one is the source symbol
		w.p.Digest = false                            // what a profile says does not matter
		w.protectMultipath(kind)
		if h := w.lastOf(wire.TypeHello).hello; h.MTU != 1024 || h.Extensions&wire.ExtDigest == 0 {
			t.Fatalf("%v: HELLO %+v", kind, h)
		}
		pkt := w.multipath(1, 51234, false, 1024)
		w.give(pkt)
		w.wait(testRTT)
		r := w.lastOf(wire.TypeRepair).Repair
		n := int(binary.BigEndian.Uint16(r.Symbol))
		want := append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 51234), 7), pkt.P()...)
		if string(r.Symbol[2:2+n]) != string(want) || !r.HasDigest {
			t.Fatalf("%v: %x\n%x", kind, r.Symbol[2:2+n], want)
		}
		if least := 2 + 4 + 1024 + w.f.transport.Overhead(); int(r.T) < least {
			t.Fatalf("%v: T %d, want at least %d", kind, r.T, least)
		}
	}
}

// Section 4.4, rule 3: a packet that the transport calls a retransmission is never coded, so that no restored packet has, or lacks, the flag by mistake: its
// position stays absent.
func TestSection4_4_FlaggedIsNoSource(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.p.K = 4
	w.protectMultipath(wire.KindMRC)
	for i := range 4 {
		w.give(w.multipath(roce.PSN(1+i), 50000, i == 1, 1024))
	}
	w.wait(testRTT)
	r := w.lastOf(wire.TypeRepair).Repair
	if r.Present.Has(1) || r.Present.Count() != 3 || w.f.Stats().Drops[DropRetransmission] != 1 {
		t.Fatalf("present %x, %+v", r.Present, w.f.Stats().Drops)
	}
}

// Section 4.4, rule 8: what the network left of a packet is no source, as if the packet had been lost before it came here: its position is absent, and the
// block restores what it has. A short packet that is whole is one like any other.
func TestSection4_4_TrimmedIsNoSource(t *testing.T) {
	for _, kind := range []wire.FlowKind{wire.KindVeRoCE, wire.KindMRC} {
		w := newWorld(t, fixed(1))
		w.p.K = 4
		w.protectMultipath(kind)
		w.give(w.multipath(1, 50000, false, 1024))
		w.give(w.trimmed(2, 64))
		w.give(w.multipath(3, 50000, false, 64)) // short, and whole
		w.give(w.multipath(4, 50000, false, 1024))
		w.wait(testRTT)
		r := w.lastOf(wire.TypeRepair).Repair
		if r.Start != 1 || r.Present.Has(1) || r.Present.Count() != 3 || w.f.Stats().Drops[DropTrimmed] != 1 {
			t.Fatalf("%v: present %x of %d, %+v", kind, r.Present, r.Start, w.f.Stats().Drops)
		}
		w.give(w.trimmed(5, 64)) // the newest: the flow is where it was
		if w.f.newest != 4 || w.f.Stats().SourcePackets != 4 {
			t.Fatalf("%v: newest %v, %+v", kind, w.f.newest, w.f.Stats())
		}
	}
}

// trimmed is what is left of a packet with 1,024 octets of data: so many, and headers with the lengths of that.
func (w *world) trimmed(psn roce.PSN, data int) *roce.Packet {
	w.t.Helper()
	whole := w.multipath(psn, 50000, false, 1024)
	left := w.multipath(psn, 50000, false, data)
	b := left.P()
	copy(b, whole.P()) // with the first of the data in the place of the ICRC
	for i := len(b) - 4; i < len(b); i++ {
		b[i] = byte(i)
	}
	return left
}

// Section 3, rule 6: messages have the DSCP of the flow, not that of its retransmissions: with every one of them the flow would be one on another path, and
// what was known of its delay forgotten (Section 5.3, rule 2).
func TestSection3_DSCPOfRetransmissions(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.p.K = 4
	w.protectMultipath(wire.KindMRC)
	for i := range 4 {
		w.give(w.multipath(roce.PSN(1+i), 50000, false, 1024))
	}
	w.give(w.multipath(2, 50001, true, 1024))
	if w.f.tos != testTOS {
		t.Fatalf("TOS %#x", w.f.tos)
	}
	w.wait(testRTT) // the test's world looks at the TOS of every message
}

// Without the digest the flow stays unprotected, whoever answers.
func TestSection4_4_DigestIsNeeded(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.f = w.newFlow(wire.KindVeRoCE, gateway)
	w.give(w.multipath(0, 50000, false, 1024))
	w.answerHello(gateway, func(m *wire.HelloAck) { m.Extensions = 0 })
	if w.f.ID() != 0 || w.f.Stats().Drops[DropMalformed] != 1 {
		t.Fatalf("state %v, %+v", w.f.State(), w.f.Stats().Drops)
	}
}

// A packet of another transport is not of the flow, whatever its queue pair.
func TestSection4_4_OtherTransport(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindMRC)
	before := w.f.Stats().SourcePackets
	w.give(packet(t, roce.WriteMiddle, 1, 1024, 0))
	if s := w.f.Stats(); s.SourcePackets != before || s.Drops[DropNotSource] != 1 {
		t.Fatalf("%+v", s)
	}
}

// A profile that turns the digest on or off changes nothing for a flow that always has it: it goes on.
func TestSection4_4_DigestOfTheProfile(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindMRC)
	id := w.f.ID()
	for range 2 {
		p := *w.f.params
		p.Digest = !p.Digest
		w.f.SetParams(w.now, &p, &w.acts)
		if w.f.ID() != id || w.f.State() != Protecting {
			t.Fatalf("digest %v in the profile: state %v", p.Digest, w.f.State())
		}
	}
}

// Section 6.2: a copy is compared with the octets of the first one, not with what is coded in front of them.
func TestSection6_2_CopiesOfMultipath(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindVeRoCE)
	for i, port := range []uint16{50000, 50000, 50001} {
		w.give(w.multipath(1, port, false, 1024))
		if want := uint64(i / 2); w.f.Stats().Differing != want {
			t.Fatalf("copy %d: %d differ", i, w.f.Stats().Differing)
		}
	}
}

// Section 6.2: nor do copies differ that have another flow label, which the ICRC does not cover.
func TestSection6_2_FlowLabelsOfCopies(t *testing.T) {
	w := newWorld(t, fixed(1))
	d := wire.FlowDescriptor{Kind: wire.KindMRC, Src: netip.MustParseAddr("fd00:1::1"), Dst: netip.MustParseAddr("fd00:2::1"), Label: testQPN}
	f := New(w.now, d, []netip.AddrPort{gateway}, w.p, w.env)
	b := &block{flow: f}
	for label := range uint32(3) {
		frame := frames.RoCE{
			Headers: frames.Headers{Src: d.Src, Dst: d.Dst, SrcPort: 50000, FlowLabel: label},
			Opcode:  roce.MRCWriteOnly, QPN: testQPN, PSN: 1, Extension: make([]byte, 20), Data: make([]byte, 64+label/2*4),
		}.Frame()
		pkt, reason := multipathRules.Parse(frame)
		if reason != roce.OK {
			t.Fatal(reason)
		}
		if label == 0 {
			f.pkey = pkt.PKey()
			b.cells = append(b.cells, f.cell(&pkt, 1024))
			b.present.Set(0)
		}
		f.compare(b, 0, &pkt)
		if f.stats.Differing != uint64(label/2) { // the last one has other octets
			t.Fatalf("flow label %d: %d differ", label, f.stats.Differing)
		}
	}
}

// Section 4.1: a peer whose longest symbol takes no packet of the flow with its lead is sent none.
func TestSection4_1_LeadAtThePeer(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.protectMultipath(wire.KindMRC)
	for more := range w.f.lead + 1 {
		w.f.limits.t = roce.MinPayload + lengthPrefix + more
		if _, ok := w.f.want(); ok != (more == w.f.lead) {
			t.Errorf("%d octets beside the shortest packet: %v", more, ok)
		}
	}
}

// Section 4.1, rule 3: the octets of the lead count when it is reckoned what fits the path.
func TestSection4_1_LeadFits(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.f = New(w.now, wire.FlowDescriptor{Kind: wire.KindMRC, Src: netip.MustParseAddr("fd00:1::1"), Dst: netip.MustParseAddr("fd00:2::1")},
		[]netip.AddrPort{gateway}, w.p, w.env)
	w.f.mtu = 1024
	if got, want := w.f.expectedT(), roundUp(1024+roce.MRC.Overhead()+6+2); got != want {
		t.Fatalf("T %d, want %d", got, want)
	}
	if w.f.mtu, w.f.maxSeen = 0, 40; w.f.expectedT() != 40+6+2 { // nothing but packets of 40 octets was seen
		t.Fatalf("T %d", w.f.expectedT())
	}
	with := w.f.fitT(32)
	if w.p.Digest = !w.p.Digest; w.f.fitT(32) != with { // what a profile says does not matter: the digest is there, and takes room
		t.Fatalf("T %d fits, %d with the profile's other setting", w.f.fitT(32), with)
	}
	w.f = w.newFlow(wire.KindRoCEv2, gateway)
	if w.f.mtu = 1024; w.f.expectedT() != roundUp(1024+38) {
		t.Fatalf("T %d of RoCEv2", w.f.expectedT())
	}
}

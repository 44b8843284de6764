// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"testing"
)

// everything recognises all transports, with numbers that a NIC might have.
var everything = &Transports{
	VeRoCE: VeRoCESettings{Enabled: true, Port: VeRoCEPort, Retransmission: 0x40, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0x1a},
	MRC:    MRCSettings{Enabled: true, Retransmission: 0x20},
}

// parseWith parses a built packet.
func (s *spec) parseWith(t testing.TB, rules *Transports) (Packet, Reason) {
	t.Helper()
	return rules.Parse(s.build(t))
}

// Section 4.4: what is recognised as what. Nothing but RoCEv2 is without being told to.
func TestSection4_4_Recognition(t *testing.T) {
	for _, h := range hosts {
		for op := range 256 {
			for _, port := range []uint16{Port, VeRoCEPort, 4795} {
				s := newSpec(h[0], h[1])
				s.op, s.dport = Opcode(op), port
				for _, rules := range []*Transports{nil, {}} {
					p, reason := s.parseWith(t, rules)
					if (reason == OK) != (port == Port) {
						t.Fatalf("port %d: %v", port, reason)
					}
					if reason != OK {
						continue
					}
					want, source := Opcode(op).Space()
					if got, ok := p.Source(); p.Transport() != RoCEv2 || got != want || ok != source || ok && op >= 0xc0 {
						t.Fatalf("opcode %#x without other transports: %v %v", op, got, ok)
					}
				}
				checkRecognised(t, &s, port)
			}
		}
	}
}

func checkRecognised(t *testing.T, s *spec, port uint16) {
	t.Helper()
	p, reason := s.parseWith(t, everything)
	if reason != OK {
		if port == 4795 && reason == NotRoCE {
			return
		}
		t.Fatalf("port %d: %v", port, reason)
	}
	space, source := p.Source()
	rc, inRC := s.op.Space()
	want, wantSpace, wantSource := RoCEv2, rc, inRC
	switch {
	case port == VeRoCEPort:
		want, wantSource = VeRoCE, inRC && s.op < 0x20
	case s.op >= 0xc6 && s.op <= 0xde:
		want, wantSpace, wantSource = MRC, Request, s.op <= 0xcb
	}
	if p.Transport() != want || source != wantSource || source && space != wantSpace {
		t.Fatalf("port %d %v: %v %v %v", port, s.op, p.Transport(), space, source)
	}
	if key := p.Key(); key.Transport != want || source && key.Space != space {
		t.Fatalf("port %d %v: key %+v", port, s.op, key)
	}
}

// Section 4.2, rule 5: acknowledgements, probes and congestion notifications of every transport are never sources.
func TestSection4_2_ControlIsNoSource(t *testing.T) {
	for _, c := range []struct {
		port uint16
		op   Opcode
	}{
		{VeRoCEPort, Acknowledge}, {VeRoCEPort, 0x18}, {VeRoCEPort, 0x19}, {VeRoCEPort, 0x1a}, {VeRoCEPort, CNP}, {VeRoCEPort, MRCWriteOnly},
		{Port, MRCAcknowledge}, {Port, MRCEndpointRequest}, {Port, MRCEndpointResponse}, {Port, MRCSACK}, {Port, MRCNACK}, {Port, MRCProbe}, {Port, CNP},
	} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.dport, s.body = c.op, c.port, make([]byte, 36)
		p, reason := s.parseWith(t, everything)
		if _, source := p.Source(); reason != OK || source {
			t.Errorf("port %d %v: %v, source %v", c.port, c.op, reason, source)
		}
	}
}

// Section 4.2, rule 13: only a READ request of RoCEv2 consumes more than one PSN.
func TestSection4_2_AdvanceByTransport(t *testing.T) {
	for port, want := range map[uint16]int{Port: 4, VeRoCEPort: 1} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.dport, s.body = ReadRequest, port, make([]byte, 16)
		binary.BigEndian.PutUint32(s.body[12:], 4096)
		p, _ := s.parseWith(t, everything)
		if n := Advance(&p, 1024); n != want {
			t.Errorf("port %d: %d", port, n)
		}
	}
}

// Section 4.4: the flag is where the settings say, and nowhere without them; RoCEv2 has none.
func TestSection4_4_RetransmissionFlag(t *testing.T) {
	unknown := &Transports{VeRoCE: VeRoCESettings{Enabled: true, Port: VeRoCEPort}, MRC: MRCSettings{Enabled: true}}
	for _, c := range []struct {
		port uint16
		op   Opcode
		mask uint8
	}{{Port, SendOnly, 0}, {Port, MRCWriteOnly, 0x20}, {VeRoCEPort, SendOnly, 0x40}} {
		for bit := range 8 {
			s := newSpec(hosts[0][0], hosts[0][1])
			s.op, s.dport, s.ack = c.op, c.port, 1<<bit
			p, _ := s.parseWith(t, everything)
			if got := p.Retransmitted(); got != (s.ack&c.mask != 0) {
				t.Errorf("port %d bit %d: %v", c.port, bit, got)
			}
			if p, _ = s.parseWith(t, unknown); p.Retransmitted() {
				t.Errorf("port %d bit %d: set without being known", c.port, bit)
			}
		}
	}
}

// The bit that asks for an acknowledgement is no flag, whatever the settings say.
func TestSection4_4_AckReqIsNoFlag(t *testing.T) {
	wrong := &Transports{VeRoCE: VeRoCESettings{Enabled: true, Port: VeRoCEPort, Retransmission: 0xff}, MRC: MRCSettings{Enabled: true, Retransmission: 0xff}}
	for _, port := range []uint16{Port, VeRoCEPort} {
		s := newSpec(hosts[0][0], hosts[0][1])
		if s.op, s.dport, s.ack = MRCWriteOnly, port, 0x80; port == VeRoCEPort {
			s.op = SendOnly
		}
		if p, _ := s.parseWith(t, wrong); p.Retransmitted() || !p.AckReq() {
			t.Errorf("port %d", port)
		}
	}
}

// Section 4.4, rule 3: without its flag a retransmission is octet for octet what was sent first under the same headers.
func TestSection4_4_Unflag(t *testing.T) {
	for _, h := range hosts {
		s := newSpec(h[0], h[1])
		s.op, s.label, s.ack = MRCWriteOnly, 0xabcde, 0x80
		first := s.build(t)
		s.ack |= 0x20
		p, _ := s.parseWith(t, everything)
		cleared := bytes.Clone(p.P())
		p.Unflag(cleared)
		if !bytes.Equal(cleared, first[len(p.Head()):]) {
			t.Fatalf("%x\n%x", cleared, first[len(p.Head()):])
		}
		q, _ := everything.Parse(first)
		if q.Unflag(cleared); !bytes.Equal(cleared, q.P()) {
			t.Fatal("a packet without the flag was changed")
		}
	}
}

// Section 4.4, rule 3: the lead and P give back the whole frame, whatever the source port, Identification, flow label and UDP checksum were.
func TestSection4_4_LeadRestoresHead(t *testing.T) {
	for _, h := range hosts {
		model := newSpec(h[0], h[1])
		model.op, model.label, model.sport, model.id = MRCWriteOnly, 0x11111, 1, 2
		like, _ := model.parseWith(t, everything)
		for n := range 200 {
			s := newSpec(h[0], h[1])
			s.op, s.udpChecksum = MRCWriteOnly, n%2 == 0
			s.sport, s.id, s.label = uint16(n*331), uint16(n*7919), uint32(n*104729)&0xfffff
			frame := s.build(t)
			p, _ := everything.Parse(frame)
			lead := p.AppendLead(nil)
			if len(lead) != LeadLen(MRC, p.IPv6()) || len(lead) > MaxLead {
				t.Fatalf("lead %x", lead)
			}
			head := bytes.Clone(like.Head())
			id, ok := SetLead(head, lead)
			restored := append(BuildHead(nil, head, len(p.P()), id, p.TOS(), s.udpChecksum, p.P()), p.P()...)
			if !ok || !bytes.Equal(restored, frame) {
				t.Fatalf("%x\n%x", restored, frame)
			}
		}
	}
	plain := newSpec(hosts[0][0], hosts[0][1])
	if p := plain.parse(t); len(p.AppendLead(nil)) != 0 || LeadLen(RoCEv2, false)+LeadLen(RoCEv2, true) != 0 {
		t.Fatal("RoCEv2 has a lead")
	}
	if _, ok := SetLead(make([]byte, headIPv6), []byte{1, 2, 0, 0x10, 0, 0}); ok {
		t.Fatal("a flow label of 21 bits passes")
	}
}

// Section 7.2, rule 4: what of the acknowledgements of each transport confirms packets, and of which space.
func TestSection7_2_AckedByTransport(t *testing.T) {
	seth := make([]byte, 28+8) // SETH and congestion control state
	binary.BigEndian.PutUint32(seth[12:], 0xff012345)
	nak := []byte{0x60, 0, 0, 1}
	for _, c := range []struct {
		name  string
		port  uint16
		op    Opcode
		body  []byte
		psn   PSN
		space Space
		ok    bool
	}{
		{"veRoCE ACK", VeRoCEPort, Acknowledge, make([]byte, 12), 0xabcdef, Request, true},
		{"veRoCE SACK", VeRoCEPort, 0x18, make([]byte, 32), 0xabcdef, Request, true},
		{"veRoCE response ACK", VeRoCEPort, 0x19, make([]byte, 12), 0xabcdef, Response, true},
		{"veRoCE response SACK", VeRoCEPort, 0x1a, make([]byte, 32), 0xabcdef, Response, true},
		{"veRoCE NAK names one packet", VeRoCEPort, Acknowledge, nak, 0, Request, false},
		{"veRoCE ACK cut short", VeRoCEPort, Acknowledge, nil, 0, Request, false},
		{"veRoCE response confirms nothing", VeRoCEPort, ReadResponseOnly, make([]byte, 8), 0, Request, false},
		{"another opcode", VeRoCEPort, 0x1b, make([]byte, 12), 0, Request, false},
		{"MRC SACK", Port, MRCSACK, seth, 0x012345, Request, true},
		{"MRC SACK cut short", Port, MRCSACK, seth[:24], 0, Request, false},
		{"MRC NACK", Port, MRCNACK, seth, 0, Request, false},
		{"MRC transport ACK", Port, MRCAcknowledge, seth, 0, Request, false},
		{"MRC probe", Port, MRCProbe, seth, 0, Request, false},
		{"MRC data", Port, MRCWriteOnly, seth, 0, Request, false},
	} {
		s := newSpec(hosts[0][0], hosts[0][1])
		s.op, s.dport, s.body = c.op, c.port, c.body
		p, reason := s.parseWith(t, everything)
		psn, space, ok := p.Acked()
		if reason != OK || ok != c.ok || ok && (psn != c.psn || space != c.space) {
			t.Errorf("%s: %v: %v %v %v", c.name, reason, psn, space, ok)
		}
	}
	s := newSpec(hosts[0][0], hosts[0][1])
	s.op, s.dport, s.body = SendFirst, VeRoCEPort, make([]byte, 32)
	p, _ := s.parseWith(t, &Transports{VeRoCE: VeRoCESettings{Enabled: true, Port: VeRoCEPort}})
	if _, _, ok := p.Acked(); ok {
		t.Error("opcode 0 is taken for an acknowledgement whose number is not known")
	}
}

// The RDMA MTU shows in the length of P although the extension headers are not known.
func TestLargestMTU(t *testing.T) {
	for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
		for headers := 0; headers <= max(VeRoCE.Overhead(), MRC.Overhead())-MinPayload; headers += 4 {
			if got := LargestMTU(MinPayload + headers + mtu); got != mtu {
				t.Errorf("MTU %d with %d octets of headers: %d", mtu, headers, got)
			}
		}
	}
	if LargestMTU(MinPayload+255) != 0 || LargestMTU(0) != 0 || LargestMTU(9000) != 4096 {
		t.Error("out of range")
	}
}

// Packets written out octet by octet as public descriptions give them, with the ICRC of an independent implementation (naiveICRC). Their grade: opcodes, METH,
// RETH, SETH and the flag's place of MRC by two public implementations that agree; the port of veRoCE and its BTH by public descriptions. No capture of
// either is public.
func TestVectorsOfMultipath(t *testing.T) {
	const (
		ipv4 = "020000000002" + "020000000001" + "0800" + "4500%s12344000401100000a0100010a020001"
		// MRC WRITE_ONLY to QP 0x15, PSN 0xabcdef; METH, RETH for 8 octets, data.
		write = "ca00ffff00000015%sabcdef" + "00010002" + "0000000000001000" + "0000abcd" + "00000008" + "0102030405060708"
		// SACK: flags, offset, entropy, contexts, cumulative PSN 0xabcdee, congestion control, range 2, bitmap offset, bitmap, congestion state.
		sack = "dc00ffff0000001500abcdee" + "00000000" + "0001c123" + "00150016" + "00abcdee" + "00020001" + "0000000000000005" + "0000000000000000"
		// veRoCE SEND_ONLY: MSNETH, POETH, data.
		send = "0400ffff00000015%s000007" + "00000003" + "00000000" + "0102030405060708"
	)
	for _, c := range []struct {
		name, p   string
		port      uint16
		transport Transport
		source    bool
		flagged   bool
		acked     PSN
	}{
		{"write", mustf(write, "80"), Port, MRC, true, false, 0},
		{"write again", mustf(write, "a0"), Port, MRC, true, true, 0},
		{"sack", sack, Port, MRC, false, false, 0xabcdee},
		{"send", mustf(send, "00"), VeRoCEPort, VeRoCE, true, false, 0},
		{"send again", mustf(send, "40"), VeRoCEPort, VeRoCE, true, true, 0},
	} {
		P, err := hex.DecodeString(c.p + "00000000")
		if err != nil {
			t.Fatal(err)
		}
		head, err := hex.DecodeString(mustf(ipv4, hex.EncodeToString(binary.BigEndian.AppendUint16(nil, uint16(28+len(P))))))
		if err != nil {
			t.Fatal(err)
		}
		head = binary.BigEndian.AppendUint16(head, 0xc123)
		head = binary.BigEndian.AppendUint16(head, c.port)
		head = binary.BigEndian.AppendUint16(head, uint16(8+len(P)))
		frame := append(append(head, 0, 0), P...)
		binary.LittleEndian.PutUint32(frame[len(frame)-4:], naiveICRC(frame[EthernetLen:]))
		p, reason := everything.Parse(frame)
		if reason != OK {
			t.Fatalf("%s: %v", c.name, reason)
		}
		space, source := p.Source()
		psn, _, acked := p.Acked()
		if p.Transport() != c.transport || source != c.source || p.Retransmitted() != c.flagged || acked != (c.acked != 0) || acked && psn != c.acked {
			t.Errorf("%s: %v source %v flagged %v acked %v %v", c.name, p.Transport(), source, p.Retransmitted(), psn, acked)
		}
		if source && !p.Transport().ValidSource(p.P(), space, p.PSN(), p.QPN(), p.PKey(), 0) || !CheckICRC(&p) {
			t.Errorf("%s: not valid", c.name)
		}
	}
}

// mustf puts one text into another.
func mustf(format, arg string) string {
	return string(bytes.Replace([]byte(format), []byte("%s"), []byte(arg), 1))
}

// Whatever comes: what is recognised keeps to itself, and its lead gives back the head.
func FuzzTransports(f *testing.F) {
	for _, h := range hosts {
		for _, port := range []uint16{Port, VeRoCEPort} {
			s := newSpec(h[0], h[1])
			s.dport, s.ack = port, 0x60
			f.Add(s.build(f))
			s.op, s.body = MRCSACK, make([]byte, 36)
			f.Add(s.build(f))
			s.op = MRCWriteLastImm
			f.Add(s.build(f))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		p, reason := everything.Parse(frame)
		plain, plainReason := Parse(frame)
		if plainReason == OK && (reason != OK || !bytes.Equal(plain.P(), p.P())) {
			t.Fatalf("%v, without other transports %v", reason, plainReason)
		}
		if reason != OK {
			return
		}
		if plainReason == OK && p.Transport() != RoCEv2 {
			if _, source := plain.Source(); source {
				t.Fatal("a source of RoCEv2 is taken for another transport's")
			}
		}
		p.Acked()
		p.Data()
		space, source := p.Source()
		if source != p.Transport().ValidSource(p.P(), space, p.PSN(), p.QPN(), p.PKey(), 0) && !source {
			t.Fatal("no source, and valid")
		}
		again := bytes.Clone(p.P())
		p.Unflag(again)
		if q := (Packet{append(bytes.Clone(p.Head()), again...), p.head, p.transport, p.rules}); q.Retransmitted() {
			t.Fatal("still flagged")
		}
		head := bytes.Clone(p.Head())
		lead := p.AppendLead(nil)
		if len(lead) == 0 {
			return
		}
		binary.BigEndian.PutUint16(head[len(head)-8:], 0)
		if id, ok := SetLead(head, lead); !ok || id != p.ID() || !bytes.Equal(head, p.Head()) {
			t.Fatalf("lead %x: head %x, was %x", lead, head, p.Head())
		}
	})
}

// Section 4.4, rule 8: a packet of a multipath transport that is no longer than half of the longest is trimmed if its ICRC is wrong; of no other packet is
// it reckoned.
func TestSection4_4_CutShort(t *testing.T) {
	for _, transport := range AllTransports() {
		for _, damaged := range []bool{false, true} {
			c := newSpec("10.1.0.1", "10.2.0.1")
			c.op, c.body = WriteMiddle, make([]byte, 48)
			if transport == MRC {
				c.op = MRCWriteMiddle
			}
			if transport == VeRoCE {
				c.dport = VeRoCEPort
			}
			frame := c.build(t)
			if damaged {
				frame[len(frame)-5] ^= 1
			}
			p, reason := everything.Parse(frame)
			if reason != OK || p.Transport() != transport {
				t.Fatal(transport, reason)
			}
			for _, longest := range []int{2*len(p.P()) - 1, 2 * len(p.P()), 5000} {
				want := damaged && transport.Multipath() && longest >= 2*len(p.P())
				if got := CutShort(&p, longest); got != want {
					t.Errorf("%v, damaged %v, longest %d: %v", transport, damaged, longest, got)
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"

	"crem.dev/crem/agent/roce"
)

// roce returns the line of a packet of RoCEv2 or another transport, nil for every other packet.
func (s *Summary) roce(p captured, transports *roce.Transports) line {
	packet, reason := transports.Parse(p.frame)
	switch reason {
	case roce.OK:
	case roce.NotRoCE, roce.Short:
		return nil
	default:
		return s.refused(p, reason)
	}
	known := p.octets - len(packet.Head()) // octets of P that the capture has
	if known < bthLen {
		return nil // nothing known but the port
	}
	s.count(packet.Transport())
	op := packet.Opcode()
	l := line{
		{"protocol", packet.Transport().String()}, {"source", packet.Src().String()}, {"destination", packet.Dst().String()}, {"opcode", op.String()},
		{"qp", packet.QPN().String()}, {"psn", packet.PSN().String()}, {"ack_req", packet.AckReq()},
	}
	if space, source := packet.Source(); source {
		l.add("space", space.String())
	}
	if flags := packet.Reserved(); flags != 0 {
		l.add("flags", fmt.Sprintf("0x%02x", flags))
	}
	if syndrome, ok := packet.Syndrome(); ok && known >= op.HeaderLen() {
		l.add("syndrome", roce.AckString(syndrome))
	}
	if n, ok := packet.DMALength(); ok && known >= op.HeaderLen() {
		l.add("dma", n)
	}
	if packet.Transport() == roce.RoCEv2 {
		l.add("data", len(packet.Data()))
	} else {
		l.add("octets", len(packet.P())) // where the data begins is not known
	}
	l.add("source_port", packet.SrcPort())
	l.add("tos", fmt.Sprintf("0x%02x", packet.TOS()))
	if !packet.IPv6() {
		l.add("id", fmt.Sprintf("0x%04x", packet.ID()))
	}
	l.add("icrc", s.verdict(&packet, known))
	return l
}

// count counts a packet.
func (s *Summary) count(t roce.Transport) {
	s.RoCE++
	switch t {
	case roce.VeRoCE:
		s.VeRoCE++
	case roce.MRC:
		s.MRC++
	default:
	}
}

// bthLen is the octets of a packet that say what it is.
const bthLen = 12

// refused returns the line of a packet that CREM passes by. What it is but for its port is not known, so it is called RoCEv2.
func (s *Summary) refused(p captured, reason roce.Reason) line {
	s.Refused++
	l := line{{"protocol", "RoCEv2"}}
	if d, ok := datagram(p.frame); ok {
		l.add("source", d.source.Addr().String())
		l.add("destination", d.destination.Addr().String())
	}
	l.add("refused", reason.String())
	return l
}

// verdict says whether the invariant CRC is right; of a packet that the capture cut it can't be known.
func (s *Summary) verdict(packet *roce.Packet, known int) string {
	switch {
	case known < len(packet.P()):
		return "cut"
	case roce.CheckICRC(packet):
		return "ok"
	}
	s.BadICRC++
	return "bad"
}

// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"
	"net/netip"
	"strings"

	"crem.dev/crem/agent/wire"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// crem returns the line of a datagram from or to the CREM port, nil for every other packet.
func (s *Summary) crem(p captured, port uint16) line {
	d, ok := datagram(p.frame)
	if !ok || d.source.Port() != port && d.destination.Port() != port {
		return nil
	}
	known := len(d.payload) // octets of the message that the capture has
	if p.cut() {
		known = min(known, p.octets-d.offset)
	}
	l := line{{"protocol", "CREM"}, {"source", d.source.String()}, {"destination", d.destination.String()}}
	var h wire.Header
	about, err := l.wan(d.payload)
	if !about {
		h, err = wire.ParseHeader(d.payload)
	}
	if p.cut() && (err != nil || known < headerLen) {
		return nil // what the capture left out may be the reason
	}
	if err == nil && !about {
		l.add("type", h.Type.String())
		l.add("flow", fmt.Sprintf("0x%08x", h.FlowID))
		var fields line
		fields, err = message(h.Type, d.payload, known)
		l = append(l, fields...)
	}
	if err != nil {
		s.Malformed++
		l.add("malformed", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "wire: "), "ecn: "))
		return l
	}
	s.CREM++
	l.add("octets", len(d.payload))
	l.add("tos", fmt.Sprintf("0x%02x", d.tos))
	return l
}

const headerLen = 8

type udpDatagram struct {
	source, destination netip.AddrPort
	tos                 uint8
	payload             []byte
	offset              int // of the payload in the frame
}

// datagram finds the UDP datagram in a frame, past VLAN tags and IP options; fragments have none.
func datagram(frame []byte) (d udpDatagram, ok bool) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
	udp, isUDP := packet.TransportLayer().(*layers.UDP)
	if !isUDP {
		return d, false
	}
	var from, to netip.Addr
	for _, l := range packet.Layers() {
		d.offset += len(l.LayerContents())
		switch ip := l.(type) {
		case *layers.IPv4:
			from, _ = netip.AddrFromSlice(ip.SrcIP)
			to, _ = netip.AddrFromSlice(ip.DstIP)
			d.tos = ip.TOS
		case *layers.IPv6:
			from, _ = netip.AddrFromSlice(ip.SrcIP)
			to, _ = netip.AddrFromSlice(ip.DstIP)
			d.tos = ip.TrafficClass
		}
		if l == gopacket.Layer(udp) {
			break
		}
	}
	d.source, d.destination = netip.AddrPortFrom(from, uint16(udp.SrcPort)), netip.AddrPortFrom(to, uint16(udp.DstPort))
	d.payload = udp.Payload
	return d, true
}

// bodies has the fields of each type of message.
var bodies = map[wire.Type]func([]byte) (line, error){
	wire.TypeRepair: repair, wire.TypeHello: hello, wire.TypeHelloAck: helloAck, wire.TypeParamUpdate: paramUpdate, wire.TypeParamAck: paramAck,
	wire.TypeRepairRequest: request, wire.TypeLossReport: lossReport, wire.TypePathReport: pathReport, wire.TypeClose: closing,
}

// message returns the fields of a message of which known octets are known; none if more than the symbol is missing.
func message(t wire.Type, b []byte, known int) (line, error) {
	fields, err := bodies[t](b)
	if t == wire.TypeRepair {
		x, _ := wire.ParseRepair(b)
		known += int(x.T)
	}
	if known < len(b) {
		return nil, nil // what is missing was read as zeros
	}
	return fields, err
}

func repair(b []byte) (line, error) {
	x, err := wire.ParseRepair(b)
	if err != nil {
		return nil, err
	}
	l := line{
		{"config", x.ConfigID}, {"scheme", x.Scheme.String()}, {"k", x.K}, {"index", x.Index}, {"start", x.Start.String()}, {"session", x.Session},
		{"t", x.T}, {"retx", x.Retx}, {"last", x.Last}, {"info", x.Info}, {"present", positions(x.Present)},
	}
	if x.Retx {
		l.add("lost", positions(x.Lost))
	}
	if x.HasDigest {
		l.add("digest", fmt.Sprintf("0x%016x", x.Digest))
	}
	return l, nil
}

func hello(b []byte) (line, error) {
	x, err := wire.ParseHello(b)
	if err != nil {
		return nil, err
	}
	return line{
		{"kind", x.Flow.Kind.String()}, {"flow_source", x.Flow.Src.String()}, {"flow_destination", x.Flow.Dst.String()}, {"qp", fmt.Sprintf("0x%06x", x.Flow.Label)},
		{"schemes", fmt.Sprintf("0x%04x", x.Schemes)}, {"max_k", x.MaxK}, {"max_m", x.MaxM}, {"max_t", x.MaxT}, {"mtu", x.MTU},
		{"extensions", fmt.Sprintf("0x%04x", x.Extensions)}, {"nonce", fmt.Sprintf("0x%016x", x.Nonce)},
	}, nil
}

func helloAck(b []byte) (line, error) {
	x, err := wire.ParseHelloAck(b)
	if err != nil {
		return nil, err
	}
	return line{
		{"kind", x.Kind.String()}, {"schemes", fmt.Sprintf("0x%04x", x.Schemes)}, {"max_k", x.MaxK}, {"max_m", x.MaxM}, {"max_t", x.MaxT}, {"mtu", x.MTU},
		{"extensions", fmt.Sprintf("0x%04x", x.Extensions)}, {"nonce", fmt.Sprintf("0x%016x", x.Nonce)}, {"max_open_blocks", x.MaxOpenBlocks},
	}, nil
}

func paramUpdate(b []byte) (line, error) {
	x, err := wire.ParseParamUpdate(b)
	if err != nil {
		return nil, err
	}
	return line{
		{"config", x.ConfigID}, {"scheme", x.Scheme.String()}, {"k", x.K}, {"m", x.M}, {"t", x.T}, {"effective", x.Effective.String()},
	}, nil
}

func request(b []byte) (line, error) {
	x, err := wire.ParseRepairRequest(b)
	if err != nil {
		return nil, err
	}
	l := line{{"request", x.RequestID}, {"fallback", x.Fallback}}
	if x.ByRanges {
		parts := []string{}
		for i := range x.Ranges.Len() {
			r := x.Ranges.At(i)
			parts = append(parts, fmt.Sprintf("%v+%d", r.Start, r.Count))
		}
		return append(l, field{"ranges", parts}), nil
	}
	return append(l, line{
		{"config", x.ConfigID}, {"scheme", x.Scheme.String()}, {"k", x.K}, {"start", x.Start.String()}, {"held", x.Held}, {"m", x.M}, {"lost", positions(x.Lost)},
	}...), nil
}

func lossReport(b []byte) (line, error) {
	x, err := wire.ParseLossReport(b)
	if err != nil {
		return nil, err
	}
	fields := line{
		{"interval_us", x.Interval}, {"expected", x.Expected}, {"received", x.Received}, {"restored", x.Restored}, {"incomplete", x.Incomplete},
		{"ce", x.CEMarked}, {"repairs", x.RepairsReceived}, {"repairs_ce", x.RepairsCEMarked},
	}
	if x.Detailed {
		fields = append(fields, line{{"runs", x.Runs}, {"pairs", x.Pairs}, {"hold_us", x.Hold}}...)
	}
	return fields, nil
}

func pathReport(b []byte) (line, error) {
	x, err := wire.ParsePathReport(b)
	if err != nil {
		return nil, err
	}
	hops := []line{}
	for _, h := range x.Hops[:x.HopCount] {
		psns := []string{}
		for i := range h.PSNs.Len() {
			psns = append(psns, h.PSNs.At(i).String())
		}
		hops = append(hops, line{
			{"node", fmt.Sprintf("0x%08x", h.NodeID)}, {"period", h.Period}, {"lost", h.Lost}, {"delay_us", h.DelayChange}, {"cause", h.Cause.String()}, {"psns", psns},
		})
	}
	return line{
		{"flow_source", x.Src.String()}, {"flow_destination", x.Dst.String()}, {"qp", fmt.Sprintf("0x%06x", x.Label)}, {"method", x.Method.String()},
		{"truncated", x.Truncated}, {"hops", hops},
	}, nil
}

func paramAck(b []byte) (line, error) {
	x, err := wire.ParseParamAck(b)
	if err != nil {
		return nil, err
	}
	return line{{"config", x.ConfigID}, {"status", x.Status.String()}}, nil
}

func closing(b []byte) (line, error) {
	x, err := wire.ParseClose(b)
	if err != nil {
		return nil, err
	}
	return line{{"reason", x.Reason.String()}}, nil
}

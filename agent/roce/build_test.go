// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// spec describes a packet to build for a test; build makes it with gopacket, so that headers and checksums don't come from
// the code under test. The ICRC is the naive one.
type spec struct {
	src, dst    string
	id          uint16
	label       uint32
	tos, ttl    uint8
	sport       uint16
	dport       uint16 // 0: that of RoCEv2
	udpChecksum bool
	op          Opcode
	flags       uint8 // octet 1 of the BTH
	fecn        uint8 // octet 4
	ack         uint8 // octet 8
	pkey        uint16
	qpn         QPN
	psn         PSN
	body        []byte // extension headers, data, pad
}

func newSpec(src, dst string) spec {
	return spec{src: src, dst: dst, id: 0x1234, ttl: 64, sport: 0xc123, op: SendOnly, pkey: 0xffff, qpn: 0x15, psn: 0xabcdef, body: make([]byte, 32)}
}

func (s *spec) payload() []byte {
	p := []byte{uint8(s.op), s.flags}
	p = binary.BigEndian.AppendUint16(p, s.pkey)
	p = binary.BigEndian.AppendUint32(p, uint32(s.fecn)<<24|uint32(s.qpn))
	p = binary.BigEndian.AppendUint32(p, uint32(s.ack)<<24|uint32(s.psn))
	return append(append(p, s.body...), 0, 0, 0, 0)
}

func (s *spec) build(t testing.TB) []byte {
	t.Helper()
	p := s.payload()
	frame := s.serialize(t, p)
	binary.LittleEndian.PutUint32(p[len(p)-icrcLen:], naiveICRC(frame[EthernetLen:]))
	return s.serialize(t, p)
}

func (s *spec) serialize(t testing.TB, p []byte) []byte {
	t.Helper()
	eth := layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}}
	udp := layers.UDP{SrcPort: layers.UDPPort(s.sport), DstPort: layers.UDPPort(cmp.Or(s.dport, Port)), Length: uint16(udpLen + len(p))}
	var head int
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	}
	if src := netip.MustParseAddr(s.src); src.Is4() {
		eth.EthernetType, head = layers.EthernetTypeIPv4, 42
		ip = &layers.IPv4{Version: 4, TOS: s.tos, Id: s.id, Flags: layers.IPv4DontFragment, TTL: s.ttl, Protocol: layers.IPProtocolUDP,
			SrcIP: src.AsSlice(), DstIP: netip.MustParseAddr(s.dst).AsSlice()}
	} else {
		eth.EthernetType, head = layers.EthernetTypeIPv6, 62
		ip = &layers.IPv6{Version: 6, TrafficClass: s.tos, FlowLabel: s.label, HopLimit: s.ttl, NextHeader: layers.IPProtocolUDP,
			SrcIP: src.AsSlice(), DstIP: netip.MustParseAddr(s.dst).AsSlice()}
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, &eth, ip, &udp, gopacket.Payload(p)); err != nil {
		t.Fatal(err)
	}
	frame := append([]byte(nil), buffer.Bytes()...)
	frame = frame[:head+len(p)] // gopacket pads a frame to 60 octets
	if !s.udpChecksum {
		at := len(frame) - len(p) - 2
		frame[at], frame[at+1] = 0, 0
	}
	return frame
}

// parse parses a built packet.
func (s *spec) parse(t testing.TB) Packet {
	t.Helper()
	p, reason := Parse(s.build(t))
	if reason != OK {
		t.Fatalf("built packet: %v", reason)
	}
	return p
}

// naiveICRC computes the ICRC of an IP packet bit by bit from the text of the specification.
func naiveICRC(ip []byte) uint32 {
	b := append([]byte(strings.Repeat("\xff", 8)), ip...)
	h := b[8:]
	udp := 20
	if h[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		h[0], h[1], h[2], h[3], h[7] = 0x6f, 0xff, 0xff, 0xff, 0xff
		udp = 40
	}
	h[udp+6], h[udp+7] = 0xff, 0xff
	h[udp+8+4] = 0xff
	crc := uint32(0xffffffff)
	for _, v := range b[:len(b)-4] {
		crc ^= uint32(v)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0xedb88320
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func number(t testing.TB, s string, base int) int {
	t.Helper()
	v, err := strconv.ParseInt(s, base, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int(v)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

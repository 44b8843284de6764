// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

const cremPort = 52000

var hosts = [2]string{"10.1.0.2", "10.2.0.3"}

// udp builds a frame with a UDP datagram between two addresses.
func udp(t testing.TB, src, dst string, sport, dport uint16, tos uint8, payload []byte) []byte {
	t.Helper()
	eth := layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	u := layers.UDP{SrcPort: layers.UDPPort(sport), DstPort: layers.UDPPort(dport)}
	var ip interface {
		gopacket.NetworkLayer
		gopacket.SerializableLayer
	}
	if a := netip.MustParseAddr(src); a.Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip = &layers.IPv4{Version: 4, TTL: 64, TOS: tos, Id: 0x1234, Protocol: layers.IPProtocolUDP, SrcIP: a.AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
	} else {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: tos, NextHeader: layers.IPProtocolUDP, SrcIP: a.AsSlice(), DstIP: netip.MustParseAddr(dst).AsSlice()}
	}
	if err := u.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, &eth, ip, &u, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buffer.Bytes())
}

// rocePacket builds a RoCEv2 frame with a right ICRC.
func rocePacket(t testing.TB, src, dst string, op roce.Opcode, qpn roce.QPN, psn roce.PSN, body []byte) []byte {
	t.Helper()
	return packetTo(t, src, dst, roce.Port, op, qpn, psn, 0, body)
}

// packetTo builds the same with another port, and flags in BTH octet 8.
func packetTo(t testing.TB, src, dst string, port uint16, op roce.Opcode, qpn roce.QPN, psn roce.PSN, flags uint8, body []byte) []byte {
	t.Helper()
	p := []byte{byte(op), 0, 0xff, 0xff}
	p = binary.BigEndian.AppendUint32(p, uint32(qpn))
	p = binary.BigEndian.AppendUint32(p, 0x80000000|uint32(psn))
	p = append(append(p, body...), 0, 0, 0, 0)
	p[8] |= flags
	frame := udp(t, src, dst, 0xc015, port, 0x02, p)
	head := 42
	if strings.Contains(src, ":") {
		head = 62
	}
	binary.LittleEndian.PutUint32(p[len(p)-4:], roce.ICRC(frame[:head], p))
	return udp(t, src, dst, 0xc015, port, 0x02, p)
}

// multipath has packets of veRoCE and MRC, with a port of veRoCE that is not the usual one.
func multipath(t testing.TB) [][]byte {
	const port = 4795
	return [][]byte{
		packetTo(t, hosts[0], hosts[1], port, roce.WriteOnly, 0x15, 0x20, 0, make([]byte, 24+64)),
		packetTo(t, hosts[0], hosts[1], port, roce.WriteOnly, 0x15, 0x20, 0x40, make([]byte, 24+64)),
		packetTo(t, hosts[1], hosts[0], port, roce.ReadResponseOnly, 0x16, 0x21, 0, make([]byte, 8+64)),
		packetTo(t, hosts[1], hosts[0], port, 0x18, 0x16, 0x20, 0, make([]byte, 24)),
		packetTo(t, "fd00:1::2", "fd00:2::3", roce.Port, roce.MRCWriteMiddle, 0x15, 0x30, 0x10, make([]byte, 20+64)),
		packetTo(t, "fd00:2::3", "fd00:1::2", roce.Port, roce.MRCSACK, 0x16, 0x31, 0, make([]byte, 36)),
	}
}

// frames has every message, every kind of RoCEv2 packet that is printed in another way, and what is not printed at all.
func frames(t testing.TB) (all [][]byte) {
	send := func(m interface{ Append([]byte) []byte }) {
		all = append(all, udp(t, "192.0.2.1", "198.51.100.1", cremPort, cremPort, 0x6a, m.Append(nil)))
	}
	v4 := wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: netip.MustParseAddr(hosts[0]), Dst: netip.MustParseAddr(hosts[1]), Label: 0x15}
	report := wire.PathReport{Method: wire.MethodNodeDrops, Truncated: true, Src: v4.Src, Dst: v4.Dst, Label: 0x15, HopCount: 2}
	report.Hops[0] = wire.Hop{NodeID: 7, Lost: 2, DelayChange: -10, Cause: wire.CauseCongestion, PSNs: wire.PSNList{}.Append(0x1000).Append(0x1002)}
	report.Hops[1] = wire.Hop{NodeID: 8, Period: 42, DelayChange: 200}
	var lost fec.Bitmap
	for _, j := range []int{0, 1, 2, 5} {
		lost.Set(j)
	}
	send(&wire.Hello{Flow: v4, Schemes: 3, MaxK: 32, MaxM: 8, MaxT: 4140, MTU: 1024, Extensions: wire.ExtDigest, Nonce: 0x0123456789abcdef})
	send(&wire.HelloAck{FlowID: 0xbeef, Kind: wire.KindRoCEv2, AF: 4, Schemes: 3, MaxK: 32, MaxM: 8, MaxT: 4140, MTU: 1024, Nonce: 0x0123456789abcdef, MaxOpenBlocks: 64})
	send(&wire.ParamUpdate{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 8, M: 2, T: 4140, Effective: 0x1000})
	send(&wire.ParamAck{FlowID: 0xbeef, ConfigID: 1})
	send(&wire.Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 8, Start: 0x1000, T: 4, Last: true, HasDigest: true, Present: fec.Full(8), Digest: 0x1122, Symbol: make([]byte, 4)})
	send(&wire.Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 8, Index: 2, Start: 0x1000, Session: 7, T: 4, Retx: true, Present: fec.Full(8), Lost: lost, Symbol: make([]byte, 4)})
	send(&wire.Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 8, Start: 0x1000, Info: true})
	send(&wire.RepairRequest{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 8, Held: 1, Start: 0x1000, M: 3, RequestID: 9, Fallback: true, Lost: lost})
	send(&wire.RepairRequest{FlowID: 0xbeef, RequestID: 10, ByRanges: true, Ranges: wire.RangeList{}.Append(wire.Range{Start: 0xfffffe, Count: 3}).Append(wire.Range{Start: 0x1000, Count: 1})})
	send(&wire.LossReport{FlowID: 0xbeef, Interval: 25000, Expected: 1000, Received: 990, Restored: 9, Incomplete: 4, CEMarked: 5, RepairsReceived: 60, RepairsCEMarked: 7})
	send(&wire.LossReport{FlowID: 0xbeef, Interval: 10000, Expected: 500, Received: 490, Restored: 10, RepairsReceived: 30, Detailed: true, Runs: 3, Pairs: 21, Hold: 50000})
	send(&report)
	send(&wire.Close{FlowID: 0xbeef, Reason: wire.CloseImpaired})

	// An answer from the CREM port to another port, over IPv6; a message with an octet too many.
	all = append(all, udp(t, "fd00::1", "fd00::2", cremPort, 40000, 0, (&wire.ParamAck{FlowID: 1, Status: wire.StatusExhausted}).Append(nil)))
	all = append(all, udp(t, "192.0.2.1", "198.51.100.1", cremPort, cremPort, 0, append((&wire.Close{FlowID: 1}).Append(nil), 0)))
	long := append((&wire.Close{FlowID: 1}).Append(nil), 0, 0, 0, 0)
	long[3] += 4
	all = append(all, udp(t, "192.0.2.1", "198.51.100.1", cremPort, cremPort, 0, long))

	for _, h := range [][2]string{hosts, {"fd00:1::2", "fd00:2::3"}} {
		all = append(all, rocePacket(t, h[0], h[1], roce.WriteOnly, 0x15, 0xabcdef, make([]byte, 16+64)))
	}
	request := binary.BigEndian.AppendUint32(make([]byte, 12), 65536)
	all = append(all,
		rocePacket(t, hosts[0], hosts[1], roce.ReadRequest, 0x15, 0x10, request),
		rocePacket(t, hosts[1], hosts[0], roce.ReadResponseMiddle, 0x16, 0x11, make([]byte, 1024)),
		rocePacket(t, hosts[1], hosts[0], roce.Acknowledge, 0x16, 0x10, []byte{0x60, 0, 0, 1}),
		rocePacket(t, hosts[1], hosts[0], roce.CNP, 0x16, 0, make([]byte, 16)))
	bad := rocePacket(t, hosts[0], hosts[1], roce.SendOnly, 0x15, 0x12, make([]byte, 64))
	bad[80] ^= 1
	tagged := rocePacket(t, hosts[0], hosts[1], roce.SendOnly, 0x15, 0x13, make([]byte, 64))
	tagged = append(append(bytes.Clone(tagged[:12]), 0x81, 0, 0, 5), tagged[12:]...)
	fragment := rocePacket(t, hosts[0], hosts[1], roce.SendOnly, 0x15, 0x14, make([]byte, 64))
	fragment[20] = 0x20
	arp := append(bytes.Clone(bad[:12]), 8, 6, 0, 1)
	dns := udp(t, hosts[0], hosts[1], 40000, 53, 0, make([]byte, 30))
	return append(all, bad, tagged, fragment, arp, dns)
}

var start = time.Date(2026, 11, 5, 12, 30, 0, 123456000, time.UTC)

func info(i, captured, length int) gopacket.CaptureInfo {
	return gopacket.CaptureInfo{Timestamp: start.Add(time.Duration(i) * time.Millisecond), CaptureLength: captured, Length: length}
}

// pcap writes frames to a capture of a link type, of each frame at most snap octets.
func pcap(t testing.TB, link uint32, snap int, frames [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(1<<18, layers.LinkType(link)); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(b.Bytes()[20:], link) // all its bits
	for i, f := range frames {
		n := min(snap, len(f))
		if err := w.WritePacket(info(i, n, len(f)), f[:n]); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func pcapng(t testing.TB, frames [][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		if err := w.WritePacket(info(i, len(f), len(f)), f); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// SPDX-License-Identifier: Apache-2.0

// Package wireshark tests the Wireshark dissector: tshark must read from a capture of messages that agent/wire and agent/ecn
// wrote what was written.
package wireshark

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

const cremPort = 52000

// message is one datagram and the fields that the dissector must show, all of them: a field that is not listed must not
// be there. Several values of a field are separated by commas.
type message struct {
	name   string
	octets []byte
	info   string
	fields map[string]string
}

func messages() []message {
	var present, lost fec.Bitmap
	for _, j := range []int{0, 1, 2, 3} {
		present.Set(j)
	}
	for _, j := range []int{0, 1, 2} {
		lost.Set(j)
	}
	var wide fec.Bitmap
	for _, j := range []int{0, 31, 32, 63, 64} {
		wide.Set(j)
	}
	v4 := wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.2.0.3"), Label: 0x15}
	v6 := wire.FlowDescriptor{Kind: wire.KindRoCEv2Response, Src: netip.MustParseAddr("fd00:1::2"), Dst: netip.MustParseAddr("fd00:2::3"), Label: 0xabcdef}
	hello4 := wire.Hello{Flow: v4, Schemes: 3, MaxK: 32, MaxM: 8, MaxT: 4140, MTU: 1024, Extensions: wire.ExtDigest, Nonce: 0x0123456789abcdef}
	hello6 := wire.Hello{Flow: v6, Schemes: 2, MaxK: 255, MaxM: 1, MaxT: 1100, MTU: 4096, Nonce: 0xfedcba9876543210}
	report := wire.PathReport{Method: wire.MethodNodeDrops, Truncated: true, Src: v4.Src, Dst: v4.Dst, Label: 0x15, HopCount: 2}
	report.Hops[0] = wire.Hop{NodeID: 7, Lost: 2, DelayChange: -10, Cause: wire.CauseCongestion, PSNs: wire.PSNList{}.Append(0x1000).Append(0x1002)}
	report.Hops[1] = wire.Hop{NodeID: 8, Period: 42, DelayChange: 200}
	report6 := wire.PathReport{Method: wire.MethodAlternateMarking, Src: v6.Src, Dst: v6.Dst, Label: 0x16}
	all := []message{
		{"REPAIR, coded retransmission", (&wire.Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 4, Index: 2, Start: 0x1000, Session: 7, T: 4, Retx: true,
			Present: present, Lost: lost, Symbol: []byte{0, 0x35, 0x4f, 0xdf}}).Append(nil),
			"REPAIR flow 0x0000beef block 0x001000 k=4 Cauchy Reed-Solomon index=2 RETX T=4",
			map[string]string{"type": "1", "flags": "0x80", "flags.retx": "1", "flags.last": "0", "flags.info": "0", "flags.digest": "0", "length": "32",
				"flow_id": "0x0000beef", "config_id": "1", "scheme": "1", "k": "4", "repair_index": "2", "start_psn": "0x001000", "session_id": "7", "symbol_length": "4",
				"present": "f0000000", "present.count": "4", "lost": "e0000000", "lost.count": "3", "symbol": "00354fdf", "reserved": "00"}},
		{"REPAIR, ordinary with digest", (&wire.Repair{FlowID: 0xbeef, ConfigID: 2, Scheme: fec.XOR, K: 65, Start: 0xfffffe, T: 2, Last: true, HasDigest: true,
			Present: wide, Digest: 0x1122334455667788, Symbol: []byte{1, 2}}).Append(nil),
			"REPAIR flow 0x0000beef block 0xfffffe k=65 XOR index=0 T=2",
			map[string]string{"type": "1", "flags": "0x50", "flags.retx": "0", "flags.last": "1", "flags.info": "0", "flags.digest": "1", "length": "42",
				"flow_id": "0x0000beef", "config_id": "2", "scheme": "2", "k": "65", "repair_index": "0", "start_psn": "0xfffffe", "session_id": "0", "symbol_length": "2",
				"present": "800000018000000180000000", "present.count": "5", "digest": "0x1122334455667788", "symbol": "0102", "reserved": "00"}},
		{"INFO", (&wire.Repair{FlowID: 0xbeef, ConfigID: 1, Scheme: fec.Cauchy, K: 32, Start: 0x1000, Info: true}).Append(nil),
			"REPAIR flow 0x0000beef block 0x001000 k=32 INFO",
			map[string]string{"type": "1", "flags": "0x20", "flags.retx": "0", "flags.last": "0", "flags.info": "1", "flags.digest": "0", "length": "24",
				"flow_id": "0x0000beef", "config_id": "1", "scheme": "1", "k": "32", "repair_index": "0", "start_psn": "0x001000", "session_id": "0", "symbol_length": "0",
				"present": "00000000", "present.count": "0", "reserved": "00"}},
		{"HELLO of IPv4", hello4.Append(nil), "HELLO flow 0x00000000 RoCEv2 QP 0x000015",
			map[string]string{"type": "2", "flags": "0x00", "length": "40", "flow_id": "0x00000000", "flow_kind": "1", "af": "4", "schemes": "0x0003", "max_k": "32",
				"max_m": "8", "max_t": "4140", "rdma_mtu": "1024", "extensions": "0x0001", "extensions.digest": "1", "extensions.detail": "0", "nonce": "0x0123456789abcdef",
				"src": "10.1.0.2", "dst": "10.2.0.3", "flow_label": "0x000015", "reserved": "00"}},
		{"HELLO of IPv6", hello6.Append(nil), "HELLO flow 0x00000000 RoCEv2 response QP 0xabcdef",
			map[string]string{"type": "2", "flags": "0x00", "length": "64", "flow_id": "0x00000000", "flow_kind": "192", "af": "6", "schemes": "0x0002", "max_k": "255",
				"max_m": "1", "max_t": "1100", "rdma_mtu": "4096", "extensions": "0x0000", "extensions.digest": "0", "extensions.detail": "0", "nonce": "0xfedcba9876543210",
				"src6": "fd00:1::2", "dst6": "fd00:2::3", "flow_label": "0xabcdef", "reserved": "00"}},
		{"PARAM_UPDATE", (&wire.ParamUpdate{FlowID: 0xbeef, ConfigID: 2, Scheme: fec.Cauchy, K: 32, M: 4, T: 4140, Effective: 0x1000}).Append(nil),
			"PARAM_UPDATE flow 0x0000beef config 2: Cauchy Reed-Solomon k=32 m=4 T=4140 from 0x001000",
			map[string]string{"type": "4", "flags": "0x00", "length": "20", "flow_id": "0x0000beef", "config_id": "2", "scheme": "1", "k": "32", "m": "4", "t": "4140",
				"effective_psn": "0x001000", "reserved": "0000,00"}},
		{"PARAM_ACK", (&wire.ParamAck{FlowID: 0xbeef, ConfigID: 2, Status: wire.StatusLimitsExceeded}).Append(nil), "PARAM_ACK flow 0x0000beef config 2: limits exceeded",
			map[string]string{"type": "5", "flags": "0x00", "length": "12", "flow_id": "0x0000beef", "config_id": "2", "status": "2", "reserved": "0000"}},
		{"REPAIR_REQUEST of a block", (&wire.RepairRequest{FlowID: 0xbeef, Fallback: true, ConfigID: 2, Scheme: fec.Cauchy, K: 65, Held: 3, Start: 0x1000, M: 5,
			RequestID: 1234, Lost: wide}).Append(nil), "REPAIR_REQUEST flow 0x0000beef request 1234: block 0x001000 k=65 r=3 M=5 FALLBACK",
			map[string]string{"type": "6", "flags": "0x20", "flags.fallback": "1", "flags.ranges": "0", "length": "32", "flow_id": "0x0000beef", "config_id": "2",
				"scheme": "1", "k": "65", "repairs_held": "3", "start_psn": "0x001000", "suggested_m": "5", "request_id": "1234", "reserved": "0000",
				"lost": "800000018000000180000000", "lost.count": "5"}},
		{"REPAIR_REQUEST of ranges", (&wire.RepairRequest{FlowID: 0xbeef, ByRanges: true, RequestID: 1235,
			Ranges: wire.RangeList{}.Append(wire.Range{Start: 0xfffffe, Count: 3}).Append(wire.Range{Start: 0x1000, Count: 1})}).Append(nil),
			"REPAIR_REQUEST flow 0x0000beef request 1235: 2 ranges",
			map[string]string{"type": "6", "flags": "0x10", "flags.fallback": "0", "flags.ranges": "1", "length": "20", "flow_id": "0x0000beef", "request_id": "1235",
				"range_count": "2", "range": "fffffe03,00100001", "range.start_psn": "0xfffffe,0x001000", "range.count": "3,1"}},
		{"LOSS_REPORT", (&wire.LossReport{FlowID: 0xbeef, Interval: 25000, Expected: 1000, Received: 990, Restored: 9, Incomplete: 4, CEMarked: 5, RepairsReceived: 60,
			RepairsCEMarked: 0xffffffff}).Append(nil), "LOSS_REPORT flow 0x0000beef expected 1000 received 990 restored 9",
			map[string]string{"type": "7", "flags": "0x00", "flags.detail": "0", "length": "40", "flow_id": "0x0000beef", "interval": "25000", "expected": "1000", "received": "990",
				"restored": "9", "incomplete_blocks": "4", "ce_marked": "5", "repairs_received": "60", "repairs_ce_marked": "4294967295"}},
		{"LOSS_REPORT in detail", (&wire.LossReport{FlowID: 0xbeef, Interval: 10000, Expected: 500, Received: 490, Restored: 10, RepairsReceived: 30, Detailed: true, Runs: 3,
			Pairs: 21, Hold: 50000}).Append(nil), "LOSS_REPORT flow 0x0000beef expected 500 received 490 restored 10",
			map[string]string{"type": "7", "flags": "0x80", "flags.detail": "1", "length": "52", "flow_id": "0x0000beef", "interval": "10000", "expected": "500", "received": "490",
				"restored": "10", "incomplete_blocks": "0", "ce_marked": "0", "repairs_received": "30", "repairs_ce_marked": "0", "loss_runs": "3", "loss_pairs": "21", "hold": "50000"}},
		{"PATH_REPORT of IPv4", report.Append(nil), "PATH_REPORT flow 0x00000000 node drops QP 0x000015: 2 entries",
			map[string]string{"type": "8", "flags": "0x80", "flags.truncated": "1", "length": "72", "flow_id": "0x00000000", "method": "3", "entry_count": "2", "af": "4",
				"src": "10.1.0.2", "dst": "10.2.0.3", "flow_label": "0x000015", "reserved": "00,00,0000,00,00,0000",
				"hop":         "000000070000000000000002fffffff6010200000000100000001002,000000080000002a00000000000000c800000000",
				"hop.node_id": "0x00000007,0x00000008", "hop.period": "0,42", "hop.lost": "2,0", "hop.delay_change": "-10,200", "hop.cause": "1,0",
				"hop.psn_count": "2,0", "hop.dropped_psn": "0x001000,0x001002"}},
		{"PATH_REPORT of IPv6", report6.Append(nil), "PATH_REPORT flow 0x00000000 Alternate Marking QP 0x000016: 0 entries",
			map[string]string{"type": "8", "flags": "0x00", "flags.truncated": "0", "length": "48", "flow_id": "0x00000000", "method": "1", "entry_count": "0", "af": "6",
				"src6": "fd00:1::2", "dst6": "fd00:2::3", "flow_label": "0x000016", "reserved": "00,00"}},
		{"CLOSE", (&wire.Close{FlowID: 0xbeef, Reason: wire.CloseImpaired}).Append(nil), "CLOSE flow 0x0000beef persistent impairment",
			map[string]string{"type": "9", "flags": "0x00", "length": "12", "flow_id": "0x0000beef", "reason": "4", "reserved": "000000"}},
	}
	for _, kind := range wire.Kinds() {
		all = append(all, helloAck(kind))
	}
	return append(all, tunnelMessages(v4, v6)...)
}

// tunnelMessages are those of docs/wan-ecn.md.
func tunnelMessages(v4, v6 wire.FlowDescriptor) []message {
	flow := func(d wire.FlowDescriptor) ecn.Flow { return ecn.Flow{Src: d.Src, Dst: d.Dst, Label: d.Label} }
	cnp4 := ecn.CNP{Level: ecn.LevelEarly, Flow: flow(v4), Node: 7, Sequence: 12, Time: 1_764_500_000_000_000}
	cnp6 := ecn.CNP{Level: ecn.LevelSevere, Flow: flow(v6), Node: 8, Sequence: 13, Time: 1_764_500_000_000_001}
	request, answer, end := ecn.Lease{Nonce: 5}, ecn.Lease{Answer: true, Nonce: 5, For: 3500 * time.Millisecond}, ecn.Lease{Answer: true, Nonce: 6}
	readings4 := ecn.Readings{Period: 7, Time: 1_764_500_000_000_000, List: []ecn.Reading{{Flow: flow(v4), Packets: 9, Sum: time.Second}, {Flow: flow(v4), Sum: -5}}}
	readings6 := ecn.Readings{Period: 8, Time: 1_764_500_000_000_001, List: []ecn.Reading{{Flow: flow(v6), Packets: 1, Sum: 2}}}
	return []message{
		{"READINGS of IPv4", readings4.Append(nil), "READINGS flow 0x00000000 period 7: 2 flows",
			map[string]string{"type": "14", "flags": "0x00", "length": "72", "flow_id": "0x00000000", "readings.period": "7", "af": "4", "readings.time": "1764500000000000",
				"src": "10.1.0.2,10.1.0.2", "dst": "10.2.0.3,10.2.0.3", "flow_label": "0x000015,0x000015", "reading.packets": "9,0", "reading.sum": "1000000000,-5", "reserved": "000000,00,00"}},
		{"READINGS of IPv6", readings6.Append(nil), "READINGS flow 0x00000000 period 8: 1 flows",
			map[string]string{"type": "14", "flags": "0x00", "length": "72", "flow_id": "0x00000000", "readings.period": "8", "af": "6", "readings.time": "1764500000000001",
				"src6": "fd00:1::2", "dst6": "fd00:2::3", "flow_label": "0xabcdef", "reading.packets": "1", "reading.sum": "2", "reserved": "000000,00"}},
		{"CNP of IPv4", cnp4.Append(nil), "CNP flow 0x00000000 early QP 0x000015: node 0x00000007",
			map[string]string{"type": "12", "flags": "0x00", "length": "44", "flow_id": "0x00000000", "cnp.level": "1", "af": "4", "src": "10.1.0.2", "dst": "10.2.0.3",
				"flow_label": "0x000015", "cnp.node_id": "0x00000007", "cnp.sequence": "12", "cnp.time": "1764500000000000", "reserved": "0000,00"}},
		{"CNP of IPv6", cnp6.Append(nil), "CNP flow 0x00000000 severe QP 0xabcdef: node 0x00000008",
			map[string]string{"type": "12", "flags": "0x00", "length": "68", "flow_id": "0x00000000", "cnp.level": "2", "af": "6", "src6": "fd00:1::2", "dst6": "fd00:2::3",
				"flow_label": "0xabcdef", "cnp.node_id": "0x00000008", "cnp.sequence": "13", "cnp.time": "1764500000000001", "reserved": "0000,00"}},
		{"LEASE request", request.Append(nil, 24), "LEASE flow 0x00000000 request, 4 octets of padding",
			map[string]string{"type": "13", "flags": "0x00", "flags.answer": "0", "length": "24", "flow_id": "0x00000000", "lease.nonce": "0x0000000000000005", "lease.time": "0",
				"lease.padding": "00000000", "reserved": "0000"}},
		{"LEASE answer", answer.Append(nil, 0), "LEASE flow 0x00000000 answer: 3500 ms",
			map[string]string{"type": "13", "flags": "0x80", "flags.answer": "1", "length": "20", "flow_id": "0x00000000", "lease.nonce": "0x0000000000000005", "lease.time": "3500",
				"reserved": "0000"}},
		{"LEASE, its end", end.Append(nil, 0), "LEASE flow 0x00000000 answer: no more",
			map[string]string{"type": "13", "flags": "0x80", "flags.answer": "1", "length": "20", "flow_id": "0x00000000", "lease.nonce": "0x0000000000000006", "lease.time": "0",
				"reserved": "0000"}},
	}
}

// helloAck answers a HELLO of a flow kind, whose name the dissector must know.
func helloAck(kind wire.FlowKind) message {
	m := wire.HelloAck{FlowID: 0xbeef, Kind: kind, AF: 4, Schemes: 2, MaxK: 16, MaxM: 4, MaxT: 2156, MTU: 1024, Nonce: 0x0123456789abcdef, MaxOpenBlocks: 64}
	return message{"HELLO_ACK of " + kind.String(), m.Append(nil), "HELLO_ACK flow 0x0000beef " + kind.String(), map[string]string{
		"type": "3", "flags": "0x00", "length": "32", "flow_id": "0x0000beef", "flow_kind": strconv.Itoa(int(kind)), "af": "4", "schemes": "0x0002", "max_k": "16",
		"max_m": "4", "max_t": "2156", "rdma_mtu": "1024", "extensions": "0x0000", "extensions.digest": "0", "extensions.detail": "0",
		"nonce": "0x0123456789abcdef", "max_open_blocks": "64", "reserved": "0000",
	}}
}

// tshark returns the path of the program, or skips the test.
func tshark(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (Debian package tshark): the Wireshark dissector is not tested")
	}
	return path
}

// capture writes datagrams to a file, all from and to the CREM port.
func capture(t *testing.T, datagrams ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "crem.pcap")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, d := range datagrams {
		eth := layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
		ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{198, 51, 100, 1}}
		udp := layers.UDP{SrcPort: cremPort, DstPort: cremPort}
		if err := udp.SetNetworkLayerForChecksum(&ip); err != nil {
			t.Fatal(err)
		}
		buffer := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buffer, options, &eth, &ip, &udp, gopacket.Payload(d)); err != nil {
			t.Fatal(err)
		}
		info := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(buffer.Bytes()), Length: len(buffer.Bytes())}
		if err := w.WritePacket(info, buffer.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// dissect returns the named fields of every packet of a file, one row a packet. Values are made the same for all
// versions of tshark: booleans 0 and 1, octets without colons.
func dissect(t *testing.T, port int, file string, fields []string) []map[string]string {
	t.Helper()
	args := []string{"-X", "lua_script:crem.lua", "-r", file, "-T", "fields", "-E", "separator=,", "-E", "quote=d", "-E", "occurrence=a", "-E", "aggregator=;"}
	if port != 0 {
		args = append(args, "-o", fmt.Sprintf("crem.port:%d", port))
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	if _, err := os.ReadFile("crem.lua"); err != nil { // so that a changed script is a reason to run the test again
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(tshark(t), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // no personal preferences, no personal plugins
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || strings.Contains(stderr.String(), "Lua:") {
		t.Fatalf("tshark: %v\n%s", err, stderr.String())
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var packets []map[string]string
	for _, row := range rows {
		p := map[string]string{}
		for i, v := range row {
			p[fields[i]] = normal(fields[i], v)
		}
		packets = append(packets, p)
	}
	return packets
}

func normal(field, v string) string {
	values := strings.Split(v, ";")
	for i, s := range values {
		switch {
		case s == "True":
			values[i] = "1"
		case s == "False":
			values[i] = "0"
		case strings.Contains(field, "present"), strings.HasSuffix(field, "lost"), strings.HasSuffix(field, "symbol"), strings.HasSuffix(field, "reserved"),
			strings.HasSuffix(field, "range"), strings.HasSuffix(field, "padding"), strings.HasSuffix(field, "hop"):
			values[i] = strings.ReplaceAll(s, ":", "")
		}
	}
	return strings.Join(values, ",")
}

const (
	infoField   = "_ws.col.Info"
	expertField = "_ws.expert.message"
	protocols   = "frame.protocols"
)

func TestSection9_DissectorShowsEveryField(t *testing.T) {
	all := messages()
	names := map[string]bool{}
	var datagrams [][]byte
	types := map[byte]bool{}
	for _, m := range all {
		datagrams = append(datagrams, m.octets)
		types[m.octets[0]] = true
		for f := range m.fields {
			names["crem."+f] = true
		}
	}
	if len(types) != 12 {
		t.Fatalf("%d of twelve types", len(types))
	}
	fields := append(slices.Sorted(maps.Keys(names)), "crem.version", infoField, expertField)
	packets := dissect(t, cremPort, capture(t, datagrams...), fields)
	if len(packets) != len(all) {
		t.Fatalf("%d packets, want %d", len(packets), len(all))
	}
	for i, m := range all {
		if packets[i]["crem.version"] != "1" || packets[i][infoField] != m.info || packets[i][expertField] != "" {
			t.Errorf("%s: version %q, info %q (want %q), expert %q", m.name, packets[i]["crem.version"], packets[i][infoField], m.info, packets[i][expertField])
		}
		for f := range names {
			if want := m.fields[strings.TrimPrefix(f, "crem.")]; packets[i][f] != want {
				t.Errorf("%s: %s is %q, want %q", m.name, f, packets[i][f], want)
			}
		}
	}
}

// Section 3: there is no default port.
func TestSection3_DissectorHasNoDefaultPort(t *testing.T) {
	file := capture(t, messages()[0].octets)
	if p := dissect(t, 0, file, []string{protocols}); strings.Contains(p[0][protocols], "crem") {
		t.Errorf("dissected without a port: %s", p[0][protocols])
	}
	if p := dissect(t, cremPort+1, file, []string{protocols}); strings.Contains(p[0][protocols], "crem") {
		t.Errorf("dissected with another port: %s", p[0][protocols])
	}
	if p := dissect(t, cremPort, file, []string{protocols}); !strings.HasSuffix(p[0][protocols], ":udp:crem") {
		t.Errorf("not dissected: %s", p[0][protocols])
	}
}

// Section 9: what agent/wire and agent/ecn refuse is marked, whatever it is, and never stops the dissector. Every beginning of every
// message is tried with the Length that it had and with the Length that it has, and every message with octets too many.
func TestSection9_DissectorMarksMalformed(t *testing.T) {
	var datagrams [][]byte
	add := func(b []byte, correct bool) {
		b = slices.Clone(b)
		if correct && len(b) >= 4 {
			b[2], b[3] = byte(len(b)>>8), byte(len(b))
		}
		datagrams = append(datagrams, b)
	}
	for _, m := range messages() {
		for n := 1; n < len(m.octets); n++ {
			add(m.octets[:n], false)
			add(m.octets[:n], true)
		}
		add(append(slices.Clone(m.octets), 0), false)
		add(append(slices.Clone(m.octets), 0, 0, 0, 0), true)
		if m.octets[0] == 0x1d { // a lease that is too long
			b := slices.Clone(m.octets)
			b[16], b[17] = 0x13, 0x89
			add(b, false)
		}
		for _, at := range []int{0, 10, 12} { // version and type; k or AF
			for _, v := range []byte{0x00, 0x11, 0x1a, 0x20} {
				if b := slices.Clone(m.octets); at < len(b) && b[at] != v {
					b[at] = v
					add(b, false)
				}
			}
		}
	}
	for _, m := range messages() {
		if m.octets[0] == 0x11 {
			m.octets[1] ^= wire.FlagInfo // INFO with a symbol, a symbol of no octets
			add(m.octets, false)
		}
	}
	full := wire.PathReport{Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.2.0.3"), HopCount: wire.MaxHops}
	add(full.Append(nil), false)
	tooMany := append(full.Append(nil), make([]byte, 20)...)
	tooMany[9]++
	add(tooMany, true)
	packets := dissect(t, cremPort, capture(t, datagrams...), []string{expertField, protocols})
	if len(packets) != len(datagrams) {
		t.Fatalf("%d packets, want %d", len(packets), len(datagrams))
	}
	marked := 0
	for i, b := range datagrams {
		want := refused(b)
		if !strings.HasSuffix(packets[i][protocols], ":crem") || strings.Contains(packets[i][expertField], "Lua") {
			t.Errorf("%x: %s, expert %q", b, packets[i][protocols], packets[i][expertField])
		}
		if (packets[i][expertField] != "") != want {
			t.Errorf("%x: expert %q, refused by its parser: %v", b, packets[i][expertField], want)
		}
		if want {
			marked++
		}
	}
	if marked < 500 {
		t.Errorf("only %d malformed messages tried", marked)
	}
}

// refused says whether the parser of a datagram refuses it.
func refused(b []byte) bool {
	switch {
	case ecn.IsCNP(b):
		_, err := ecn.ParseCNP(b)
		return err != nil
	case ecn.IsLease(b):
		_, err := ecn.ParseLease(b)
		return err != nil
	case ecn.IsReadings(b):
		_, err := ecn.ParseReadings(b)
		return err != nil
	}
	h, err := wire.ParseHeader(b)
	if err != nil {
		return true
	}
	switch h.Type {
	case wire.TypeRepair:
		_, err = wire.ParseRepair(b)
	case wire.TypeHello:
		_, err = wire.ParseHello(b)
	case wire.TypeHelloAck:
		_, err = wire.ParseHelloAck(b)
	case wire.TypeParamUpdate:
		_, err = wire.ParseParamUpdate(b)
	case wire.TypeParamAck:
		_, err = wire.ParseParamAck(b)
	case wire.TypeRepairRequest:
		_, err = wire.ParseRepairRequest(b)
	case wire.TypeLossReport:
		_, err = wire.ParseLossReport(b)
	case wire.TypePathReport:
		_, err = wire.ParsePathReport(b)
	case wire.TypeClose:
		_, err = wire.ParseClose(b)
	}
	return err != nil
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/gopacket/pcapgo"
)

// captures are the files of testdata with the number of packets that the capturing tool reported.
var captures = map[string]int{
	"roce-v4-write.pcap": 300, "roce-v4-send.pcap": 300, "roce-v4-read.pcap": 300, "roce-v4-write-loss3pct.pcap": 350,
	"roce-v6-write.pcap": 300, "roce-v6-send.pcap": 300,
}

func readCapture(t testing.TB, name string) [][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, frame)
	}
}

// parseCapture returns the packets of a file, all of which are RoCEv2.
func parseCapture(t testing.TB, name string) []Packet {
	t.Helper()
	var packets []Packet
	for i, frame := range readCapture(t, name) {
		p, reason := Parse(frame)
		if reason != OK {
			t.Fatalf("%s: frame %d: %v", name, i, reason)
		}
		packets = append(packets, p)
	}
	if len(packets) != captures[name] {
		t.Fatalf("%s: %d packets, want %d", name, len(packets), captures[name])
	}
	return packets
}

func eachCapture(t *testing.T, f func(t *testing.T, packets []Packet)) {
	for name := range captures {
		t.Run(strings.TrimSuffix(name, ".pcap"), func(t *testing.T) { f(t, parseCapture(t, name)) })
	}
}

// rdmaMTU is the RDMA MTU of every capture.
const rdmaMTU = 1024

func TestCaptureInvariantCRC(t *testing.T) {
	eachCapture(t, func(t *testing.T, packets []Packet) {
		for i := range packets {
			if !CheckICRC(&packets[i]) {
				t.Errorf("packet %d: ICRC wrong", i)
			}
		}
	})
}

// Section 6.5, rule 2: the Identification follows from the ICRC that the packet carries.
func TestSection6_5_CaptureIdentificationSolved(t *testing.T) {
	eachCapture(t, func(t *testing.T, packets []Packet) {
		templates := map[FlowKey]*Template{}
		for i := range packets {
			p := &packets[i]
			key := p.Key()
			if templates[key] == nil {
				templates[key] = &Template{}
				templates[key].Set(p.Head()) // the first packet's headers serve all that follow
			}
			id, ok := templates[key].SolveID(p.P())
			if !ok || id != p.ID() {
				t.Errorf("packet %d: SolveID = %#x, %v; the packet has %#x", i, id, ok, p.ID())
			}
			if got := templates[key].Compute(p.P(), p.ID()); got != storedICRC(p.P()) {
				t.Errorf("packet %d: Compute = %08x, the packet has %08x", i, got, storedICRC(p.P()))
			}
		}
	})
}

// The reason for the consistency rules of Section 6.2: a retransmission over IPv4 carries the same data and never the same ICRC,
// because the sender's Identification moves on.
func TestSection6_2_CaptureRetransmissionsDiffer(t *testing.T) {
	packets := parseCapture(t, "roce-v4-write-loss3pct.pcap")
	originals := map[PSN]*Packet{}
	repeats := 0
	for i := range packets {
		p := &packets[i]
		if _, source := p.Source(); !source {
			continue
		}
		o := originals[p.PSN()]
		if o == nil {
			originals[p.PSN()] = p
			continue
		}
		repeats++
		if o.Opcode() != p.Opcode() || string(o.Data()) != string(p.Data()) {
			t.Errorf("PSN %v: retransmitted with another opcode or other data", p.PSN())
		}
		if o.ID() == p.ID() || storedICRC(o.P()) == storedICRC(p.P()) {
			t.Errorf("PSN %v: retransmitted with the same Identification or ICRC", p.PSN())
		}
	}
	if repeats != 155 {
		t.Errorf("%d retransmissions, the capture has 155", repeats)
	}
}

// Section 4.2, rules 3 and 4: a resumed READ asks with a PSN among those that the first request consumed; both directions agree on the numbers.
func TestSection4_2_CaptureReadConsumesPSNs(t *testing.T) {
	packets := parseCapture(t, "roce-v4-read.pcap")
	var requests, responses int
	expected := map[PSN]bool{}
	for i := range packets {
		p := &packets[i]
		switch space, source := p.Source(); {
		case !source:
			t.Errorf("packet %d: %v is no source", i, p.Opcode())
		case space == Request:
			requests++
			for n := range Advance(p, rdmaMTU) {
				expected[p.PSN().Add(n)] = true
			}
		default:
			responses++
			if !expected[p.PSN()] {
				t.Errorf("packet %d: response PSN %v was never asked for", i, p.PSN())
			}
		}
	}
	if requests != 29 || responses != 271 {
		t.Errorf("%d requests and %d responses, want 29 and 271", requests, responses)
	}
}

// Section 6, rule 3: nothing that a real sender sent is refused.
func TestSection6_CaptureSourcesArePlausible(t *testing.T) {
	eachCapture(t, func(t *testing.T, packets []Packet) {
		newest := map[FlowKey]*Packet{}
		pairs := 0
		for i := range packets {
			p := &packets[i]
			space, source := p.Source()
			if RoCEv2.ValidSource(p.P(), Request, p.PSN(), p.QPN(), p.PKey(), rdmaMTU) != (source && space == Request) ||
				RoCEv2.ValidSource(p.P(), Response, p.PSN(), p.QPN(), p.PKey(), rdmaMTU) != (source && space == Response) {
				t.Errorf("packet %d: %v refused, or taken for the wrong space", i, p.Opcode())
			}
			if !source {
				continue
			}
			if n := newest[p.Key()]; n != nil && n.PSN().Add(Advance(n, rdmaMTU)) == p.PSN() {
				pairs++
				if !MayFollow(n.Opcode(), p.Opcode()) {
					t.Errorf("packet %d: %v after %v refused", i, p.Opcode(), n.Opcode())
				}
			}
			newest[p.Key()] = p
		}
		if pairs < 250 {
			t.Errorf("only %d neighbours compared", pairs)
		}
	})
}

// Section 6, rule 4: the head of every packet can be built again from that of any other packet of its flow.
func TestSection6_CaptureHeadsRebuilt(t *testing.T) {
	eachCapture(t, func(t *testing.T, packets []Packet) {
		models := map[FlowKey][]byte{}
		for i := range packets {
			p := &packets[i]
			key := p.Key()
			if models[key] == nil {
				models[key] = p.Head()
			}
			got := BuildHead(nil, models[key], len(p.P()), p.ID(), p.TOS(), p.UDPChecksum() != 0, p.P())
			if string(got) != string(p.Head()) {
				t.Errorf("packet %d:\n got %x\nwant %x", i, got, p.Head())
			}
		}
	})
}

func TestCaptureAcknowledgements(t *testing.T) {
	packets := parseCapture(t, "roce-v4-write-loss3pct.pcap")
	var acks, naks int
	for i := range packets {
		p := &packets[i]
		syndrome, ok := p.Syndrome()
		if ok != (p.Opcode() == Acknowledge) {
			t.Fatalf("packet %d: %v: syndrome %v", i, p.Opcode(), ok)
		}
		if !ok {
			continue
		}
		acked, _, ok := p.Acked()
		switch kind, value := AckOf(syndrome); {
		case !ok:
			t.Errorf("packet %d confirms nothing", i)
		case kind == AckPositive && acked == p.PSN():
			acks++
		case kind == AckNAK && value == NAKSequence && acked.Add(1) == p.PSN():
			naks++
		default:
			t.Errorf("packet %d: syndrome %#x confirms %v, PSN %v", i, syndrome, acked, p.PSN())
		}
	}
	if acks != 1 || naks != 3 {
		t.Errorf("%d ACK and %d NAK, the capture has 1 and 3", acks, naks)
	}
}

// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/binary"
	"os"
	"slices"
	"testing"

	"github.com/google/gopacket/pcapgo"

	"crem.dev/crem/agent/roce"
)

// capture reads the frames of a Soft-RoCE capture.
func capture(t *testing.T, name string) (frames [][]byte) {
	t.Helper()
	f, err := os.Open("../../../agent/roce/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return frames
		}
		frames = append(frames, b)
	}
}

// seal gives a changed frame the invariant CRC that belongs to it.
func seal(frame []byte) []byte {
	p, _ := roce.Parse(frame)
	binary.LittleEndian.PutUint32(p.P()[len(p.P())-4:], roce.ICRC(p.Head(), p.P()))
	return frame
}

func dataFrame(frames [][]byte, n int) int {
	for i, f := range frames {
		if p, reason := roce.Parse(f); reason == 0 && len(p.Data()) > 512 {
			if n--; n < 0 {
				return i
			}
		}
	}
	panic("capture is too short")
}

func TestCleanRunHasNothingToReport(t *testing.T) {
	for _, name := range []string{"roce-v4-write.pcap", "roce-v6-write.pcap", "roce-v4-send.pcap", "roce-v6-send.pcap"} {
		a := New(1024)
		for _, f := range capture(t, name) {
			a.Sent(f)
			a.Delivered(f)
		}
		r := a.Report()
		var data, distinct uint64
		for from := range r.Data {
			data, distinct = data+r.Data[from], distinct+r.Distinct[from]
		}
		if data == 0 || data != distinct || r.Delivered < data {
			t.Errorf("%s: %d data packets, %d distinct, %d delivered", name, data, distinct, r.Delivered)
		}
		if r.Retransmitted+r.Naks+r.Gaps+r.Corrupt()+r.Unreadable != 0 {
			t.Errorf("%s: clean traffic reported as %+v", name, r)
		}
	}
}

func TestDeliveredMustBeWhatWasSent(t *testing.T) {
	frames := capture(t, "roce-v4-write.pcap")
	n := dataFrame(frames, 7)
	for _, c := range []struct {
		name    string
		change  func(f []byte) []byte
		foreign uint64
		bad     uint64
	}{
		{"unchanged", func(f []byte) []byte { return f }, 0, 0},
		{"TTL and ECN changed on the way", func(f []byte) []byte { f[15] |= 2; f[22]--; return f }, 0, 0},
		{"one data bit, CRC as sent", func(f []byte) []byte { f[100] ^= 1; return f }, 0, 1},
		{"one data bit, CRC right", func(f []byte) []byte { f[100] ^= 1; return seal(f) }, 1, 0},
		{"another Identification, CRC as sent", func(f []byte) []byte { f[18] ^= 1; return f }, 0, 1},
		{"the right packet under the next PSN", func(f []byte) []byte { f[14+20+8+11] ^= 0x40; return seal(f) }, 1, 0},
	} {
		a := New(1024)
		for i, f := range frames {
			a.Sent(f)
			if i == n {
				f = c.change(slices.Clone(f))
			}
			a.Delivered(f)
		}
		if r := a.Report(); r.Foreign != c.foreign || r.BadICRC != c.bad {
			t.Errorf("%s: foreign %d, bad ICRC %d, want %d, %d", c.name, r.Foreign, r.BadICRC, c.foreign, c.bad)
		}
	}
}

func TestEveryCopyThatWasSentMayBeDelivered(t *testing.T) {
	frames := capture(t, "roce-v4-write.pcap")
	n := dataFrame(frames, 7)
	again := slices.Clone(frames[n])
	again[18] ^= 0x55 // a retransmission has another Identification
	seal(again)
	a := New(1024)
	for _, f := range frames {
		a.Sent(f)
	}
	a.Sent(again)
	a.Delivered(again)
	a.Delivered(frames[n])
	if r := a.Report(); r.Retransmitted != 1 || r.Corrupt() != 0 {
		t.Errorf("retransmitted %d, corrupt %d, want 1, 0", r.Retransmitted, r.Corrupt())
	}
}

func TestGapIsCountedOnce(t *testing.T) {
	frames := capture(t, "roce-v6-send.pcap")
	n := dataFrame(frames, 7)
	a := New(1024)
	for i, f := range frames {
		a.Sent(f)
		if i != n {
			a.Delivered(f)
		}
	}
	a.Delivered(frames[n]) // late is no gap
	if r := a.Report(); r.Gaps != 1 {
		t.Errorf("gaps %d, want 1", r.Gaps)
	}
}

func TestGoBackN(t *testing.T) {
	a := New(1024)
	newest, want, naks := map[roce.FlowKey]roce.PSN{}, uint64(0), uint64(0)
	for _, f := range capture(t, "roce-v4-write-loss3pct.pcap") {
		a.Sent(f)
		p, _ := roce.Parse(f)
		if _, ok := p.Source(); !ok {
			if s, _ := p.Syndrome(); s>>5 == 3 {
				naks++
			}
			continue
		}
		high, ok := newest[p.Key()]
		if ok && !p.PSN().After(high) {
			want++
			continue
		}
		newest[p.Key()] = p.PSN()
	}
	r := a.Report()
	if want == 0 || naks == 0 || r.Retransmitted != want || r.Naks != naks {
		t.Errorf("retransmitted %d, NAKs %d, want %d, %d", r.Retransmitted, r.Naks, want, naks)
	}
}

// A READ request uses the PSNs of its whole response: the next request is no gap, a resumed one is a retransmission.
func TestReadRequestsUseTheirResponses(t *testing.T) {
	a := New(1024)
	for _, f := range capture(t, "roce-v4-read.pcap") {
		a.Sent(f)
		a.Delivered(f)
	}
	r := a.Report()
	if r.Requests == 0 || r.Retransmitted == 0 || r.Gaps != 0 || r.Corrupt() != 0 {
		t.Errorf("%+v: want requests and resumed ones, no gap", r)
	}
}

func TestNotRoCEIsIgnored(t *testing.T) {
	a := New(1024)
	for _, f := range [][]byte{nil, make([]byte, 60), capture(t, "roce-v4-send.pcap")[0][:50]} {
		a.Sent(f)
		a.Delivered(f)
	}
	if r := a.Report(); r.Delivered != 0 || r.Corrupt() != 0 {
		t.Errorf("%+v", r)
	}
}

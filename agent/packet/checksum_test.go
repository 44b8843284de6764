// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// A frame whose checksum was left to the device becomes the frame that would have left it; every other one stays.
func TestFinishChecksum(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 2000 {
		p := packetOf("10.2.0.6", "10.3.0.7", roce.SendOnly, uint32(i))
		if i%2 == 1 {
			p = packetOf("fd00:2::6", "fd00:3::7", roce.SendOnly, uint32(i))
		}
		p.Data = make([]byte, random.IntN(300))
		for k := range p.Data {
			p.Data[k] = byte(random.Uint32())
		}
		partial, whole := p, p
		partial.Partial, whole.Checksum = true, true
		got := partial.Frame()
		if !packet.FinishChecksum(got) {
			t.Fatalf("%d: not finished", i)
		}
		if !bytes.Equal(got, whole.Frame()) {
			t.Fatalf("%d: finished wrongly", i)
		}
		for _, other := range [][]byte{p.Frame(), whole.Frame()} {
			before := bytes.Clone(other)
			// A whole checksum may by chance look like a sum that was left; finishing it gives the same again.
			if packet.FinishChecksum(other); !bytes.Equal(other, before) {
				t.Fatalf("%d: a frame with a finished checksum was changed", i)
			}
		}
	}
}

func FuzzFinishChecksum(f *testing.F) {
	for _, p := range []frames.RoCE{packetOf("10.2.0.6", "10.3.0.7", roce.SendOnly, 1), packetOf("fd00:2::6", "fd00:3::7", roce.SendOnly, 1)} {
		p.Partial = true
		f.Add(p.Frame())
		p.Options = 4
		f.Add(p.Frame())
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := bytes.Clone(frame)
		if !packet.FinishChecksum(frame) && !bytes.Equal(frame, before) {
			t.Error("changed, and said it was not")
		}
	})
}

// The pair worker is that of the reverse pair, and uses every worker.
func TestPairWorker(t *testing.T) {
	seen := map[int]bool{}
	for i := range 64 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i), byte(3 * i)})
		b := netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		c := netip.AddrFrom4([4]byte{10, 2, 0, 1})
		for _, pair := range [][2]netip.Addr{{a, c}, {b, netip.MustParseAddr("fd00::9")}} {
			worker := packet.PairWorker(pair[0], pair[1], 4)
			if worker != packet.PairWorker(pair[1], pair[0], 4) || worker < 0 || worker > 3 {
				t.Errorf("%v: %d", pair, worker)
			}
			seen[worker] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("workers used: %v", seen)
	}
}

func TestWord(t *testing.T) {
	w := packet.HoldBit | 5<<24 | 0xabcdef
	if !w.Hold() || w.Learn() || w.Held() != 5 || w.Expected() != 0xabcdef {
		t.Errorf("%#x", uint64(w))
	}
	if got := w.InOrderAt(0x1000001); got != 5<<24|1 {
		t.Errorf("in order: %#x", uint64(got))
	}
	if got := w.Relearn(); got != packet.LearnBit|5<<24 {
		t.Errorf("learn again: %#x", uint64(got))
	}
	if got := packet.Word(1<<62 - 1).Held(); got != packet.HeldMask {
		t.Errorf("most held: %#x", got)
	}
}

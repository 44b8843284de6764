// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"testing"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

func replaying(p *Params) { p.ReplayBytes = 1 << 20 }

// goBack lets the sender send first..first+n-1 again, each with another Identification and AckReq, without those that lose names.
func (w *world) goBack(first, n int, lose ...int) {
	w.t.Helper()
	for i := first; i < first+n; i++ {
		if contains(lose, i) {
			continue
		}
		psn := roce.PSN(i)
		w.arrive(w.src.copy(psn, w.src.id(psn)+1000, i%2 == 0, w.src.data(psn)))
	}
}

// since returns the PSNs that went on to the receiver after mark.
func (w *world) since(mark int) []int { return w.psns()[mark:] }

// Section 6.1, rule 9: what the second run of a go-back-N sender loses comes from memory, in its place, as it first arrived.
func TestSection6_1_RewindIsCompletedFromMemory(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(replaying))
	w.packets(100, 64, 105)
	w.wait(2 * w.p.MaxHold) // 105 never comes: the receiver meets the gap and asks the sender to go back
	mark := len(w.out)
	w.goBack(105, 59, 115, 116, 140)
	w.packets(164, 8)
	want := []int{}
	for i := 105; i < 172; i++ {
		want = append(want, i)
	}
	got := w.since(mark)
	if len(got) != len(want) {
		t.Fatalf("delivered %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("delivered %v", got)
		}
	}
	for i, d := range w.out[mark:] {
		if contains([]int{115, 116, 140}, want[i]) && (d.kernel || !bytes.Equal(d.frame, w.src.frame(d.psn))) {
			t.Errorf("%v is not the copy that arrived first", d.psn)
		}
	}
	if w.f.stats.GivenAgain != 3 || w.k.hold {
		t.Errorf("given again %d, held %v", w.f.stats.GivenAgain, w.k.hold)
	}
}

// The queue pair number is used again with PSNs that were just in use: nothing old may be given, whatever is lost.
func TestSection6_1_RewindNeverGivesAnotherConnectionsPackets(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(replaying))
	w.packets(100, 64)
	mark := len(w.out)
	for i := 110; i < 160; i++ {
		if i%7 == 0 {
			continue
		}
		b := w.src.copy(roce.PSN(i+9000), w.src.id(roce.PSN(i)), false, w.src.data(roce.PSN(i)))
		old, _ := roce.Parse(b)
		copy(old.P()[9:12], []byte{0, 0, byte(i)}) // other data under an old PSN
		putICRC(b)
		w.arrive(b)
		if w.told > 0 {
			t.Fatal("taken for a sender that went back")
		}
	}
	for _, d := range w.out[mark:] {
		if !d.kernel {
			t.Errorf("%v was injected", d.psn)
		}
	}
	if w.f.stats.GivenAgain != 0 {
		t.Errorf("%d packets given", w.f.stats.GivenAgain)
	}
}

// A response that is sent again carries the message sequence number of its new time: it is the same response for all that. Nothing else may differ.
func TestSection6_1_CopiesOfOnePacket(t *testing.T) {
	const last, middle, write = 0x0f, 0x0e, 0x07 // READ_RESPONSE_LAST with AETH, READ_RESPONSE_MIDDLE and WRITE_MIDDLE without
	for _, c := range []struct {
		name   string
		opcode byte
		octet  int
		same   bool
	}{
		{"congestion bits", middle, 4, true}, {"queue pair", middle, 7, false}, {"AckReq", write, 8, true}, {"PSN", write, 11, false},
		{"syndrome", last, 12, false}, {"MSN", last, 13, true}, {"MSN", last, 15, true}, {"data", last, 16, false},
		{"data in place of an AETH", middle, 13, false}, {"data in place of an AETH", write, 15, false}, {"ICRC", write, 63, true}, {"last data", last, 59, false},
	} {
		p := make([]byte, 64)
		p[0] = c.opcode
		cell := fec.NewPool(1 << 20).Get(128)
		if err := cell.Set(nil, p, 128); err != nil {
			t.Fatal(err)
		}
		p[c.octet] ^= 0x80
		if sameButMutable(cell, p) != c.same {
			t.Errorf("%s of opcode %#x: same %v", c.name, c.opcode, !c.same)
		}
	}
}

// A single duplicate, or two, is no rewind: nothing is held, nothing given.
func TestSection6_1_DuplicatesAreNoRewind(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(replaying))
	w.packets(100, 64)
	mark := len(w.out)
	w.goBack(120, 2)
	w.packets(164, 8)
	w.goBack(150, 1)
	w.packets(172, 8)
	if len(w.out)-mark != 2+8+1+8 || w.f.stats.Held != 0 {
		t.Errorf("delivered %v, held %d", w.since(mark), w.f.stats.Held)
	}
}

// What is kept stays within its bound and gives way to everything else.
func TestSection6_1_RewindMemory(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(replaying))
	w.packets(100, 3000)
	if n := w.f.replay.cells; n < minReplay || int64(n)*cellOctets(w.f.widest) > w.p.ReplayBytes {
		t.Errorf("%d packets kept", n)
	}
	w.env.Pool.SetLimit(w.env.Pool.InUse())
	w.packets(3100, 1)
	if w.f.replay.cells != 0 {
		t.Errorf("%d packets kept while memory is short", w.f.replay.cells)
	}
}

func putICRC(frame []byte) {
	p, _ := roce.Parse(frame)
	crc := roce.ICRC(p.Head(), p.P())
	n := len(p.P())
	for i := range 4 {
		p.P()[n-4+i] = byte(crc >> (8 * i))
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// asked is a flow with one block of 32 from PSN 2 on, whose m ordinary symbols are out, and enough traffic for answers.
func asked(t *testing.T, m int, change func(*Params)) (*world, *wire.Repair) {
	t.Helper()
	p := fixed(m)
	if change != nil {
		change(p)
	}
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond)
	w.wait(5 * time.Millisecond)
	if m == 0 {
		return w, nil
	}
	r := w.lastOf(wire.TypeRepair).Repair
	w.log = nil
	return w, &r
}

func TestSection7_2_CodedAnswer(t *testing.T) {
	w, r := asked(t, 2, nil)
	w.request(9, r, 3, 1, 4, 7, 30)
	w.wait(5 * time.Millisecond)
	sent := w.all(wire.TypeRepair)
	if len(sent) != 3 { // b: M is the suggestion when that is less than X
		t.Fatalf("%v", sent)
	}
	for i, m := range sent {
		if !m.Retx || m.Lost != set(1, 4, 7, 30) || m.Session == 0 || m.Session != sent[0].Session || m.Last != (i == 2) || int(m.Index) != 8+i ||
			m.Digest != r.Digest || m.Present != r.Present || m.Scheme != fec.Cauchy {
			t.Errorf("%v", m)
		}
		w.checkSymbol(m, nil)
	}
	// Another round: fresh indices, a fresh session.
	w.wait(testRTT)
	w.log = nil
	w.request(10, r, 9, 1, 4) // b: never more than X
	w.wait(5 * time.Millisecond)
	again := w.all(wire.TypeRepair)
	if len(again) != 2 || again[0].Index != 11 || again[0].Session == sent[0].Session || again[0].Session == 0 {
		t.Fatalf("%v", again)
	}
	// b: at least 1.
	w.wait(testRTT)
	w.log = nil
	if w.request(11, r, 0, 3); len(w.log) != 1 {
		t.Fatalf("%v", w.log)
	}
}

func TestSection7_2_SecondRequestWithinSRTT(t *testing.T) {
	w, r := asked(t, 2, nil)
	w.request(1, r, 1, 3)
	w.wait(testRTT - time.Microsecond)
	if sent := w.request(2, r, 1, 3); len(sent) != 0 {
		t.Error("answered within one SRTT")
	}
	if sent := w.requestRanges(3, wire.Range{Start: 5, Count: 1}); len(sent) != 0 {
		t.Error("the range form is answered within one SRTT")
	}
	w.wait(time.Microsecond)
	if sent := w.request(1, r, 1, 3); len(sent) != 0 {
		t.Error("a Request ID was answered twice")
	}
	if sent := w.request(4, r, 1, 3); len(sent) != 1 {
		t.Error("not answered after one SRTT")
	}
	d := w.f.Stats().Drops
	if d[DropTooSoon] != 2 || d[DropRepeated] != 1 {
		t.Errorf("%v", d)
	}
}

func TestSection7_2_RequestsThatNameNothing(t *testing.T) {
	w, r := asked(t, 2, nil)
	q := *r
	q.K = 31
	w.request(1, &q, 1, 3)
	q = *r
	q.ConfigID++
	w.request(2, &q, 1, 3)
	q = *r
	q.Start++
	w.request(3, &q, 1, 3)
	w.request(4, r, 1) // empty L
	q = *r
	q.Start = 5000
	w.request(5, &q, 1, 3)
	if len(w.log) != 0 {
		t.Fatalf("%v", w.log)
	}
	if d := w.f.Stats().Drops; d[DropMismatch] != 3 || d[DropMalformed] != 1 || d[DropNotHeld] != 1 {
		t.Errorf("%v", d)
	}
	if w.request(6, r, 1, 3); len(w.log) != 1 {
		t.Error("a good request is not answered after bad ones")
	}
}

func TestSection7_2_LOutsidePresentIsRefused(t *testing.T) {
	w := protected(t, fixed(1), 1)
	for _, psn := range []roce.PSN{2, 3, 5} {
		w.write(psn)
	}
	w.wait(5 * time.Millisecond)
	r := w.lastOf(wire.TypeRepair).Repair
	w.log = nil
	if w.request(1, &r, 1, 0, 2); len(w.log) != 0 {
		t.Fatalf("%v", w.log)
	}
}

func TestSection7_2_Fallback(t *testing.T) {
	w, r := asked(t, 2, nil)
	m := wire.RepairRequest{
		FlowID: testID, RequestID: 1, Fallback: true, ConfigID: r.ConfigID, K: r.K, Start: r.Start, M: 1, Lost: set(3, 8, 31),
	}
	w.f.HandleRequest(w.now, gateway, &m, &w.acts)
	w.take()
	w.wait(5 * time.Millisecond)
	sent := w.all(wire.TypeRepair)
	if len(sent) != 3 { // one for each lost source, whatever M says
		t.Fatalf("%v", sent)
	}
	for i, index := range []uint8{3, 8, 31} {
		m := sent[i]
		if m.Scheme != fec.SourceCopy || m.Index != index || m.Retx || !m.Lost.Empty() || m.Last != (i == 2) || m.ConfigID != r.ConfigID || m.T != r.T || m.Digest != r.Digest {
			t.Errorf("%v", m)
		}
		w.checkSymbol(m, nil)
	}
	if s := w.f.Stats(); s.Copies != 3 || s.Coded != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSection7_2_XORAnswersWithCopies(t *testing.T) {
	w, r := asked(t, 1, func(p *Params) { p.Schemes = []fec.Scheme{fec.XOR} })
	w.request(1, r, 2, 4, 9)
	w.wait(5 * time.Millisecond)
	if sent := w.all(wire.TypeRepair); len(sent) != 2 || sent[0].Scheme != fec.SourceCopy || sent[1].Index != 9 {
		t.Fatalf("%v", sent)
	}
}

// i + k <= 255: with k = 252 four indices exist, one ordinary. When none is left Source Copies go out.
func TestSection7_2_NoIndexLeft(t *testing.T) {
	p := fixed(1)
	p.K = 252
	w := protected(t, p, 1)
	w.burst(2, 252, 10*time.Microsecond)
	w.wait(testRTT)
	r := w.lastOf(wire.TypeRepair).Repair
	w.log = nil
	seen := map[uint8]bool{0: true}
	for round := range 4 {
		w.burst(roce.PSN(300+300*round), 64, 10*time.Microsecond) // budget
		w.log = nil
		w.request(uint16(round), &r, [...]int{2, 1, 1, 2}[round], 1, 2)
		w.wait(testRTT)
		var sent []message
		for _, m := range w.all(wire.TypeRepair) {
			if m.Start == r.Start {
				sent = append(sent, m)
			}
		}
		// Indices 1 and 2, then 3, the last one; then copies of both, whatever M says.
		if len(sent) != [...]int{2, 1, 2, 2}[round] {
			t.Fatalf("round %d: %v", round, sent)
		}
		for _, m := range sent {
			if coded := round < 2; m.Retx != coded || (m.Scheme == fec.SourceCopy) == coded {
				t.Errorf("round %d: %v", round, m)
			}
			if m.Retx && (seen[m.Index] || int(m.Index)+int(m.K) > 255) {
				t.Errorf("index %d", m.Index)
			}
			seen[m.Index] = true
			w.checkSymbol(m, nil)
		}
	}
}

func TestSection7_2_RangesCloseTheOpenBlock(t *testing.T) {
	w := protected(t, fixed(0), 1)
	w.burst(2, 40, 10*time.Microsecond) // one block closed, eight packets in the open one
	w.requestRanges(1, wire.Range{Start: 10, Count: 2}, wire.Range{Start: 33, Count: 3}, wire.Range{Start: 200, Count: 9})
	w.wait(5 * time.Millisecond)
	sent := w.all(wire.TypeRepair)
	if w.f.Stats().BlocksClosed[ByRequest] != 1 {
		t.Fatalf("%v", w.f.Stats().BlocksClosed)
	}
	lost := map[roce.PSN]fec.Bitmap{}
	count := map[roce.PSN]int{}
	for _, m := range sent {
		if !m.Retx || m.K != map[roce.PSN]uint8{2: 32, 34: 8}[m.Start] {
			t.Errorf("%v", m)
		}
		lost[m.Start] = m.Lost
		count[m.Start]++
		w.checkSymbol(m, nil)
	}
	if lost[2] != set(8, 9, 31) || lost[34] != set(0, 1) || count[2] != 3 || count[34] != 2 { // r is taken as zero: M = X
		t.Fatalf("%v %v", lost, count)
	}
}

func TestSection7_2_RangesBesideTheOpenBlockLeaveItOpen(t *testing.T) {
	w := protected(t, fixed(0), 1)
	w.burst(2, 40, 10*time.Microsecond)
	w.requestRanges(1, wire.Range{Start: 10, Count: 2}, wire.Range{Start: 42, Count: 200}, wire.Range{Start: 0, Count: 2})
	if w.f.open == nil || w.f.Stats().BlocksClosed[ByRequest] != 0 {
		t.Fatal("closed")
	}
}

func TestSection7_2_InfoForAbsentPositions(t *testing.T) {
	w := protected(t, fixed(1), 1)
	for _, psn := range []roce.PSN{2, 3, 6, 8} {
		w.write(psn)
	}
	w.wait(5 * time.Millisecond)
	w.log = nil
	sent := w.requestRanges(1, wire.Range{Start: 4, Count: 2}, wire.Range{Start: 7, Count: 1})
	if len(sent) != 1 {
		t.Fatalf("%v", sent)
	}
	m := sent[0]
	if !m.Info || m.T != 0 || m.Index != 0 || m.Session != 0 || m.Retx || m.HasDigest || m.Start != 2 || m.K != 7 || m.Present != set(0, 1, 4, 6) || m.Scheme != fec.Cauchy {
		t.Errorf("%v", m)
	}
	// Some present, some absent: the answering symbols carry the bitmap.
	w.wait(testRTT)
	w.write(9)
	w.log = nil
	w.requestRanges(2, wire.Range{Start: 4, Count: 3})
	if len(w.log) != 1 || w.log[0].Info || w.log[0].Lost != set(4) || w.log[0].Present != m.Present {
		t.Errorf("%v", w.log)
	}
	// PSNs between blocks belong to none: no answer.
	w.wait(testRTT)
	w.log = nil
	w.requestRanges(3, wire.Range{Start: 300, Count: 3})
	if len(w.log) != 0 {
		t.Errorf("%v", w.log)
	}
}

// INFO is a REPAIR: it freezes the block (CSF 3).
func TestSection7_2_InfoSeals(t *testing.T) {
	p := fixed(0)
	p.Digest = false
	w := protected(t, p, 1)
	w.write(2)
	w.write(4)
	w.wait(5 * time.Millisecond)
	w.requestRanges(1, wire.Range{Start: 3, Count: 1})
	w.give(packet(t, roce.WriteMiddle, 2, w.mtu, 1))
	w.wait(testRTT)
	w.requestRanges(2, wire.Range{Start: 2, Count: 3})
	for _, m := range w.all(wire.TypeRepair) {
		if m.Present != set(0, 2) {
			t.Errorf("%v", m)
		}
		if !m.Info {
			w.checkSymbol(m, nil)
		}
	}
}

// A position that is withdrawn while its answer waits for pacing is taken out of L.
func TestSection7_2_WithdrawnWhileTheAnswerWaits(t *testing.T) {
	p := fixed(0)
	p.Digest = false
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond)
	w.f.pacer.tokens, w.f.pacer.filled = -1e7, w.now
	w.requestRanges(1, wire.Range{Start: 5, Count: 2})
	w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 1))
	w.f.pacer.tokens = 1e7
	w.wait(5 * time.Millisecond)
	for _, m := range w.all(wire.TypeRepair) {
		if m.Lost != set(4) || m.Present.Has(3) {
			t.Errorf("%v", m)
		}
		w.checkSymbol(m, nil)
	}
	if w.f.waiting != 0 || len(w.f.answers) != 0 {
		t.Errorf("%d octets wait", w.f.waiting)
	}
}

func TestSection10_NothingWhileTheBreakerIsOpen(t *testing.T) {
	w := protected(t, fixed(2), 1)
	w.burst(2, 20, 10*time.Microsecond)
	w.write(23)
	w.f.breaker.open = true
	w.f.settle()
	if w.f.State() != Suspended {
		t.Fatal(w.f.State())
	}
	w.wait(5 * time.Millisecond)
	w.requestRanges(1, wire.Range{Start: 5, Count: 2})
	if len(w.log) != 0 || w.f.Stats().Drops[DropBreaker] == 0 {
		t.Fatalf("%v", w.log)
	}
	w.requestRanges(2, wire.Range{Start: 22, Count: 1}) // absent: INFO goes on
	if len(w.log) != 1 || !w.log[0].Info {
		t.Fatalf("%v", w.log)
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// blocks gives the first REPAIR of every block, by start.
func (w *world) blocks() (out []message) {
	seen := map[roce.PSN]bool{}
	for _, m := range w.all(wire.TypeRepair) {
		if !seen[m.Start] {
			seen[m.Start] = true
			out = append(out, m)
		}
	}
	return out
}

type wantBlock struct {
	start   roce.PSN
	k       int
	present fec.Bitmap
}

func (w *world) expectBlocks(name string, want ...wantBlock) {
	w.t.Helper()
	got := w.blocks()
	if len(got) != len(want) {
		w.t.Fatalf("%s: %d blocks: %v", name, len(got), got)
	}
	for i, b := range want {
		if got[i].Start != b.start || int(got[i].K) != b.k || got[i].Present != b.present {
			w.t.Errorf("%s: block %d is %v, want start %v k %d present %x", name, i, got[i], b.start, b.k, b.present)
		}
	}
}

func TestSection4_2_BlockClosesAtK(t *testing.T) {
	w := protected(t, fixed(1), 0xfffff0)
	w.burst(0xfffff1, 96, 10*time.Microsecond) // wraps
	w.expectBlocks("k", wantBlock{0xfffff1, 32, full(32)}, wantBlock{0x11, 32, full(32)}, wantBlock{0x31, 32, full(32)})
	if n := w.f.Stats().BlocksClosed[ByCount]; n != 3 {
		t.Errorf("%d closed by count", n)
	}
}

func TestSection4_2_BurstGap(t *testing.T) {
	for _, c := range []struct{ rtt, gap time.Duration }{
		{20 * time.Millisecond, time.Millisecond}, {4 * time.Millisecond, 500 * time.Microsecond}, {200 * time.Microsecond, 50 * time.Microsecond},
	} {
		w := protected(t, fixed(1), 1)
		w.f.rtt.srtt, w.f.rtt.lowest = c.rtt, 2*time.Second // CSF 4 plays no part
		if c.rtt == 200*time.Microsecond {
			c.rtt = 2 * c.gap
		}
		w.write(2)
		w.wait(c.gap / 3)
		w.write(3)
		last := w.now
		w.wait(c.gap - 1)
		if n := len(w.all(wire.TypeRepair)); n != 0 {
			t.Errorf("SRTT %v: closed before the gap of %v", c.rtt, c.gap)
		}
		w.wait(1)
		r := w.all(wire.TypeRepair)
		if len(r) != 1 || r[0].at != last+c.gap || r[0].K != 2 {
			t.Errorf("SRTT %v: %v", c.rtt, r)
		}
	}
}

func TestSection4_2_GapIsSeenWithoutPoll(t *testing.T) {
	w := protected(t, fixed(1), 1)
	w.write(2)
	w.now += 5 * time.Millisecond // the engine was late
	w.write(3)
	w.wait(5 * time.Millisecond)
	w.expectBlocks("late poll", wantBlock{2, 1, full(1)}, wantBlock{3, 1, full(1)})
}

func TestSection6_CSF4_LatestClose(t *testing.T) {
	w := protected(t, fixed(1), 1)
	begin := w.now
	w.burst(2, 20, 900*time.Microsecond) // never silent for burstGap
	r := w.blocks()
	if len(r) == 0 || r[0].at > begin+testRTT/2 || r[0].at < begin+testRTT/2-time.Millisecond || w.f.Stats().BlocksClosed[ByAge] == 0 {
		t.Fatalf("%v, began at %v", r, begin)
	}
}

func TestSection6_CSF4_IsKeptWithoutPoll(t *testing.T) {
	w := protected(t, fixed(1), 1)
	for i := range 20 { // the engine never polls
		w.write(roce.PSN(2 + i))
		w.now += 900 * time.Microsecond
	}
	if r := w.blocks(); len(r) != 1 || r[0].K != 12 || w.f.Stats().BlocksClosed[ByAge] != 1 {
		t.Fatalf("%v", r)
	}
}

// All of a block's repairs are out before a retransmission by the transport, one round trip after the packet, can pass.
func TestSection6_CSF4_RepairsBeforeAnyRetransmission(t *testing.T) {
	p := fixed(8)
	p.Spread = true
	w := protected(t, p, 1)
	begin := w.now
	w.burst(2, 12, 800*time.Microsecond)
	for psn := roce.PSN(14); w.now < begin+2*testRTT; psn++ {
		w.write(psn)
		w.wait(800 * time.Microsecond)
	}
	n := 0
	for _, m := range w.all(wire.TypeRepair) {
		if m.Start == 2 {
			n++
			if m.at >= begin+testRTT {
				t.Errorf("symbol %d leaves %v after the first packet", m.Index, m.at-begin)
			}
		}
	}
	if n != 8 {
		t.Errorf("%d symbols", n)
	}
}

func TestSection4_2_ReadRequests(t *testing.T) {
	p := fixed(1)
	w := protected(t, p, 1) // RDMA MTU 1024 is known from the first packet
	w.write(2)
	w.give(readRequest(t, 3, 8*1024)) // PSNs 3..10
	w.write(11)
	w.wait(2 * time.Millisecond)
	w.expectBlocks("small READ", wantBlock{2, 10, set(0, 1, 9)})

	w.log = nil
	w.write(12)
	w.give(readRequest(t, 13, 5000*1024)) // thousands of PSNs: the block is full at once
	if r := w.all(wire.TypeRepair); len(r) != 1 || r[0].K != 2 || w.f.Stats().BlocksClosed[ByCount] != 1 {
		t.Fatalf("%v", r)
	}
	w.write(13 + 5000)
	w.wait(2 * time.Millisecond)
	w.expectBlocks("large READ", wantBlock{12, 2, full(2)}, wantBlock{13 + 5000, 1, full(1)})

	w.wait(2 * testRTT) // the budget of the SRTT is used up
	w.log = nil
	w.give(readRequest(t, 6000, 1<<30)) // a READ alone, more than 2^20 PSNs: no jump follows
	w.write(roce.PSN(6000).Add(1 << 20))
	w.wait(2 * time.Millisecond)
	w.expectBlocks("huge READ", wantBlock{6000, 1, full(1)}, wantBlock{roce.PSN(6000).Add(1 << 20), 1, full(1)})
	if w.f.Stats().Restarts != 0 {
		t.Error("PSNs consumed by a READ count as a jump")
	}
}

// Soft-RoCE resumes a READ by a request on one of the PSNs that the READ consumed.
func TestSection4_2_ResumedRead(t *testing.T) {
	w := protected(t, fixed(1), 1)
	w.give(readRequest(t, 2, 16*1024)) // 2..17
	w.give(readRequest(t, 7, 11*1024)) // resumed
	w.write(18)
	w.wait(2 * time.Millisecond)
	w.expectBlocks("resumed", wantBlock{2, 17, set(0, 5, 16)})
}

func TestSection4_2_GapsAndReordering(t *testing.T) {
	w := protected(t, fixed(1), 1)
	for _, psn := range []roce.PSN{2, 3, 6, 4, 8} { // 5 and 7 were lost before the CSF
		w.write(psn)
	}
	w.wait(2 * time.Millisecond)
	w.expectBlocks("reordered", wantBlock{2, 7, set(0, 1, 2, 4, 6)})
	if s := w.f.Stats(); s.Reordered != 1 || s.Retransmitted != 1 || s.SourcePackets != 6 {
		t.Errorf("%+v", s)
	}
	w.write(5) // its block is closed: nothing changes
	w.wait(2 * time.Millisecond)
	if len(w.blocks()) != 1 {
		t.Errorf("%v", w.blocks())
	}

	w.log = nil
	w.write(20)
	w.write(60) // past k positions
	w.wait(2 * time.Millisecond)
	w.expectBlocks("jump", wantBlock{20, 1, full(1)}, wantBlock{60, 1, full(1)})
	if w.f.Stats().BlocksClosed[ByJump] != 1 {
		t.Errorf("%v", w.f.Stats().BlocksClosed)
	}
}

func TestSection4_2_NoEmptyBlocks(t *testing.T) {
	p := fixed(1)
	p.PathMTU = 9000
	w := newWorld(t, p)
	w.mtu = 100
	w.give(packet(t, roce.SendOnly, 1, 100, 0))
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.log = nil
	for i := range 40 { // none of them fits T = 552, and the larger T isn't acknowledged
		w.give(packet(t, roce.SendOnly, roce.PSN(2+i), 2000, 0))
	}
	w.wait(5 * time.Millisecond)
	if n := len(w.all(wire.TypeRepair)); n != 0 || w.env.Pool.InUse() != 0 {
		t.Fatalf("%d REPAIRs, %d octets", n, w.env.Pool.InUse())
	}
	if n := w.f.Stats().Drops[DropTooLong]; n != 40 {
		t.Errorf("%d too long", n)
	}
}

func TestSection4_2_WhatIsNoSource(t *testing.T) {
	w := protected(t, fixed(1), 1)
	before := w.f.Stats().SourcePackets
	for _, op := range []roce.Opcode{roce.Acknowledge, roce.CNP, roce.ReadResponseOnly, roce.ClassUD + roce.SendOnly} {
		w.give(packet(t, op, 2, 0, 0))
	}
	other := packet(t, roce.WriteMiddle, 3, 1024, 0)
	other.P()[7]++ // another queue pair
	w.give(other)
	bad := packet(t, roce.WriteMiddle, 4, 1024, 0)
	bad.P()[2]++ // another P_Key: no receiver would take it restored
	w.give(bad)
	w.wait(5 * time.Millisecond)
	s := w.f.Stats()
	if s.Drops[DropNotSource] != 5 || s.Drops[DropInvalidSource] != 1 || s.SourcePackets != before+1 || len(w.all(wire.TypeRepair)) != 0 {
		t.Errorf("%v", s.Drops)
	}
}

func TestSection4_4_ResponseSpace(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.f = w.newFlow(wire.KindRoCEv2Response, gateway)
	give := func(op roce.Opcode, psn roce.PSN) {
		w.give(packet(t, op, psn, map[bool]int{true: 0, false: 1024}[op == roce.AtomicAcknowledge], 0))
	}
	w.write(1) // a request: another flow
	if len(w.log) != 0 {
		t.Fatal("a request in the response space")
	}
	give(roce.ReadResponseFirst, 1)
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	w.wait(testRTT)
	w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
	if h := w.lastOf(wire.TypeHello).hello; h.Flow.Kind != wire.KindRoCEv2Response {
		t.Fatalf("%+v", h)
	}
	w.log = nil
	give(roce.ReadResponseMiddle, 2)
	give(roce.ReadResponseLast, 3)
	// 4 and 5 are answered by plain ACKs, which are no sources
	give(roce.Acknowledge, 4)
	give(roce.AtomicAcknowledge, 6)
	w.wait(2 * time.Millisecond)
	w.expectBlocks("responses", wantBlock{2, 5, set(0, 1, 4)})
}

func TestSection6_CSF1_FirstCopyIsFrozen(t *testing.T) {
	p := fixed(1)
	p.Digest = false
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond) // REPAIR of the block is out
	r := w.lastOf(wire.TypeRepair)
	w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 1))
	w.request(1, &r.Repair, 2, 3, 4)
	w.wait(5 * time.Millisecond)
	coded := w.all(wire.TypeRepair)[1:]
	if len(coded) != 2 {
		t.Fatalf("%v", coded)
	}
	for _, c := range coded {
		w.checkSymbol(c, nil)
	}
}

// checkSymbol computes a REPAIR's symbol by the words of the draft from first copies.
func (w *world) checkSymbol(m message, payload func(psn roce.PSN) []byte) {
	w.t.Helper()
	if payload == nil {
		payload = func(psn roce.PSN) []byte { return packet(w.t, roce.WriteMiddle, psn, w.mtu, 0).P() }
	}
	over := m.Present
	if m.Retx {
		over = m.Lost
	}
	want := naiveSymbol(m.Scheme, int(m.Index), int(m.T), over, func(j int) []byte { return payload(m.Start.Add(j)) })
	if string(want) != string(m.Symbol) {
		w.t.Errorf("wrong symbol: %v", m)
	}
}

func TestSection6_CSF2_DifferingCopyWithdraws(t *testing.T) {
	for _, digest := range []bool{false, true} {
		p := fixed(1)
		p.Digest = digest
		w := protected(t, p, 1)
		w.burst(2, 8, 10*time.Microsecond)
		w.give(packet(t, roce.WriteMiddle, 4, w.mtu, 0)) // equal octets: nothing
		w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 1)) // other Identification, so other ICRC
		w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 0)) // the first copy again: stays withdrawn
		w.wait(2 * time.Millisecond)
		want := full(8)
		if !digest {
			want.Clear(3)
		}
		r := w.all(wire.TypeRepair)
		if len(r) != 1 || r[0].Present != want || r[0].K != 8 {
			t.Fatalf("digest %v: %v", digest, r)
		}
		w.checkSymbol(r[0], nil)
		if s := w.f.Stats(); s.Differing == 0 || (s.Withdrawn == 1) == digest {
			t.Errorf("digest %v: %d differing, %d withdrawn", digest, s.Differing, s.Withdrawn)
		}
	}
}

func TestSection6_CSF2_WithdrawnAfterCloseBeforeRepair(t *testing.T) {
	p := fixed(2)
	p.Digest = false
	w := protected(t, p, 1)
	w.f.pacer.tokens = -1e6 // nothing may leave yet
	w.f.pacer.filled = w.now
	w.burst(2, 32, time.Microsecond)
	if len(w.all(wire.TypeRepair)) != 0 || w.f.retained.len() != 1 {
		t.Fatal("not held back")
	}
	w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 1))
	w.f.pacer.tokens = 1e6
	w.f.Poll(w.now, &w.acts)
	w.take()
	want := full(32)
	want.Clear(3)
	r := w.all(wire.TypeRepair)
	if len(r) != 2 || r[0].Present != want || r[1].Present != want {
		t.Fatalf("%v", r)
	}
	w.checkSymbol(r[1], nil)
}

func TestSection6_CSF3_NothingOrdinaryAfterADifferingCopy(t *testing.T) {
	for _, digest := range []bool{false, true} {
		p := fixed(4)
		p.Digest, p.Spread = digest, true
		w := protected(t, p, 1)
		w.burst(2, 32, 10*time.Microsecond)
		if n := len(w.all(wire.TypeRepair)); n != 1 {
			t.Fatalf("%d symbols at the close", n)
		}
		w.give(packet(t, roce.WriteMiddle, 5, w.mtu, 1))
		w.burst(34, 40, 10*time.Microsecond)
		n := 0
		for _, m := range w.all(wire.TypeRepair) {
			if m.Start == 2 {
				n++
				if m.Present != full(32) || m.K != 32 {
					t.Errorf("the block changed after its first REPAIR: %v", m)
				}
			}
		}
		if want := map[bool]int{false: 1, true: 4}[digest]; n != want {
			t.Errorf("digest %v: %d ordinary symbols, want %d", digest, n, want)
		}
	}
}

func TestSection6_CSF2_AllWithdrawn(t *testing.T) {
	p := fixed(2)
	p.Digest = false
	w := protected(t, p, 1)
	w.write(2)
	w.give(packet(t, roce.WriteMiddle, 2, w.mtu, 1))
	w.wait(5 * time.Millisecond)
	if len(w.all(wire.TypeRepair)) != 0 || w.env.Pool.InUse() != 0 {
		t.Fatal("a block without a present position was formed")
	}
	if w.f.Stats().Retained != 0 || len(w.requestRanges(1, wire.Range{Start: 2, Count: 1})) != 0 {
		t.Fatal("a block without a present position is kept")
	}
}

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"math/bits"
	"testing"
	"time"
)

func code(k, m int, xor bool) Config {
	return Config{Kind: Coded, Code: Code{K: k, M: m, XOR: xor}}
}

func TestCodedEachTransferOnce(t *testing.T) {
	eachPacketOnce(t, code(32, 8, false))
	eachPacketOnce(t, code(32, 8, true))
	eachPacketOnce(t, code(64, 1, false))
	eachPacketOnce(t, code(1, 1, true))
}

// MDS restores a block that misses as many packets as it has parity, wherever they are; XOR one of each group of packets j with equal j modulo m
// (SDR-RDMA Section 4.2). All patterns of a small code.
func TestCodedRestores(t *testing.T) {
	const k, m = 6, 3
	for lost := range 1 << (k + m) {
		data, parity := uint64(^lost)&(1<<k-1), uint64(^lost)>>k&(1<<m-1)
		b := codedBlock{n: k, data: data, parity: parity}
		wantMDS := bits.OnesCount(uint(lost)) <= m || data == 1<<k-1
		if got := b.restorable(&Code{K: k, M: m}); got != wantMDS {
			t.Errorf("MDS, lost %09b: restored %v", lost, got)
		}
		wantXOR := true
		for i := range m {
			group := uint64(1)<<i | 1<<(i+m)
			missing := bits.OnesCount64(group &^ data)
			wantXOR = wantXOR && (missing == 0 || missing == 1 && parity>>i&1 == 1)
		}
		if got := b.restorable(&Code{K: k, M: m, XOR: true}); got != wantXOR {
			t.Errorf("XOR, lost %09b: restored %v", lost, got)
		}
	}
}

// A block that can be restored costs no time: a transfer takes its packets, their parity as far as it is needed, and a round trip.
func TestCodedRestoredInTime(t *testing.T) {
	d := newDuel(t, code(10, 2, false))
	d.lose = lost(1, 3, 5, 91, 99)
	d.post(95).run(time.Second)
	d.complete(1)
	if want := (95+9*2+1)*testTick + testRTT; d.done[0].Completed < want-testTick || d.done[0].Completed > want+2*testTick {
		t.Errorf("complete at %v, expected %v", d.done[0].Completed, want)
	}
	if s := d.s.Stats(); s.Retransmitted != 0 || s.Parity != 20 || d.r.Stats().Decoded != 3 {
		t.Errorf("%+v, %+v", s, d.r.Stats())
	}
}

// Too many losses: half a round trip after the last packet was due the receiver asks, and the whole block is sent again, by selective repeat with
// 3 RTT (SDR-RDMA Section 4.2).
func TestCodedFallback(t *testing.T) {
	d := newDuel(t, code(10, 2, false))
	d.lose = func(p Packet, n int) bool {
		return p.Kind == Data && (p.Seq >= 30 && p.Seq <= 32 && n == 1 || p.Seq == 33 && n == 2)
	}
	d.post(100).run(time.Second)
	d.complete(1)
	asked := d.answers(NACK)
	if len(asked) != 1 || asked[0].Seq != 30 || asked[0].Other != 40 {
		t.Fatalf("the receiver asked for %+v", asked)
	}
	if want := 120*testTick + testDelay + testRTT/2; asked[0].at < want-3*testTick || asked[0].at > want+3*testTick {
		t.Errorf("asked at %v, expected %v", asked[0].at, want)
	}
	for seq := range uint64(100) {
		want := 1
		if seq >= 30 && seq < 40 {
			want = 2
		}
		if seq == 33 {
			want = 3
		}
		if got := len(d.copies(seq)); got != want {
			t.Errorf("packet %d left %d times, not %d", seq, got, want)
		}
	}
	if at := d.copies(33); at[2]-at[1] < 3*testRTT || at[2]-at[1] > 3*testRTT+5*testTick {
		t.Errorf("the second copy of packet 33 was given up on after %v", at[2]-at[1])
	}
}

// What the receiver says may be lost: its question is asked again, its last word is said again.
func TestCodedLostAnswers(t *testing.T) {
	d := newDuel(t, code(10, 2, false))
	d.lose = func(p Packet, n int) bool {
		return lost(1, 30, 31, 32)(p, n) || (p.Kind == NACK || p.Kind == Done) && n == 1
	}
	d.post(100, 5).run(10 * time.Second)
	d.complete(2)
	if asked := d.answers(NACK); len(asked) != 2 {
		t.Errorf("the receiver asked %d times", len(asked))
	}
}

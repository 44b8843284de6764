// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// Section 6.2, CRF 1: each part on its own, just before and just after T_reorder = SRTTmin/4 = 5 ms.
func TestSection6_2_CRF1(t *testing.T) {
	const reorder = testRTT / 4
	for _, c := range []struct {
		name string
		run  func(w *world)
		want LateCause
	}{
		{"in order", func(w *world) { w.packets(100, 1) }, NotLate},
		{"reordered", func(w *world) { w.packets(101, 1); w.wait(reorder); w.packets(100, 1) }, NotLate},
		{"a: after an old gap", func(w *world) { w.packets(101, 1); w.wait(reorder + 1); w.packets(100, 1) }, LateGap},
		{"a: the first higher PSN counts", func(w *world) {
			w.packets(101, 1)
			w.wait(reorder)
			w.packets(102, 1)
			w.wait(1)
			w.packets(100, 1)
		}, LateGap},
		{"b: soon after the block's first REPAIR", func(w *world) {
			w.f.rtt.smooth = 4 * testRTT // so that no request comes first
			w.repair(w.src.repair(93, 8, 0))
			w.wait(reorder)
			w.packets(100, 1)
		}, NotLate},
		{"b: long after it", func(w *world) {
			w.f.rtt.smooth = 4 * testRTT
			w.repair(w.src.repair(93, 8, 0))
			w.wait(reorder + 1)
			w.packets(100, 1)
		}, LateAfterRepair},
		{"d: during a burst of duplicates", func(w *world) {
			w.packets(101, 1)
			w.arrive(w.src.frame(95))
			w.packets(100, 1)
		}, LateBurst},
		{"d: the burst is over with a new PSN", func(w *world) {
			w.packets(101, 1)
			w.arrive(w.src.frame(95))
			w.packets(102, 1)
			w.packets(100, 1)
		}, NotLate},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, immediate)
			w.packets(90, 10, 94)
			c.run(w)
			want := [lateCauses]uint64{}
			if c.want != NotLate {
				want[c.want] = 1
			}
			if w.f.stats.Late != want {
				t.Errorf("late %v, want %v", w.f.stats.Late, c.want)
			}
			delivered := false
			for _, d := range w.out {
				delivered = delivered || d.psn == 100
			}
			if !delivered {
				t.Error("PSN 100 was not delivered")
			}
		})
	}
}

// c: a position that was named in a request; here by range, before T_reorder is over.
func TestSection6_2_CRF1_Named(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, immediate)
	w.packets(100, 12, 104)
	w.wait(3 * time.Millisecond)
	if len(w.requests()) != 1 {
		t.Fatal("no request")
	}
	w.packets(104, 1)
	if w.f.stats.Late[LateNamed] != 1 {
		t.Errorf("late %v", w.f.stats.Late)
	}
}

// ... and in the block form.
func TestSection6_2_CRF1_NamedInABlockRequest(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, immediate)
	w.packets(100, 9, 103, 104)
	m := w.src.repair(100, 8, 0)
	m.Last = true
	w.repair(m)
	w.wait(longestTolerance)
	if len(w.requests()) != 1 || w.f.stats.Lost != 2 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.packets(104, 1)
	if w.f.stats.Late[LateNamed] != 1 {
		t.Errorf("late %v", w.f.stats.Late)
	}
}

// A late copy is delivered, but is unknown for decoding: one symbol more is needed.
func TestSection6_2_LateCountsAsUnknown(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 3, immediate, noDigest)
	w.packets(100, 9, 102, 105)
	w.wait(testRTT/4 + 1)
	w.arrive(w.src.copy(102, 999, true, w.src.data(102))) // a retransmission: other octets
	w.repair(w.src.repair(100, 8, 0))
	if w.f.stats.Restored != 0 {
		t.Fatal("decoded with a late copy")
	}
	w.repair(w.src.repair(100, 8, 1))
	if w.f.stats.Restored != 1 || w.f.stats.Late[LateGap] != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
	last := w.out[len(w.out)-1]
	if last.psn != 105 || string(last.frame) != string(w.src.frame(105)) {
		t.Errorf("restored %v", last.psn)
	}
	for _, d := range w.out[:len(w.out)-1] {
		if d.psn == 102 && d.kernel == false {
			t.Error("the late packet was delivered twice")
		}
	}
}

// Section 6.4, rule 4: with the digest a late copy may serve, if it is the one that was coded; if it is not, it is unknown again.
func TestSection6_4_LateCopyTried(t *testing.T) {
	for _, same := range []bool{true, false} {
		w := configured(t, fec.Cauchy, 8, 3, immediate)
		w.packets(100, 9, 102, 105)
		w.wait(testRTT/4 + 1)
		if same {
			w.packets(102, 1)
		} else {
			w.arrive(w.src.copy(102, 999, true, w.src.data(102)))
		}
		w.repair(w.src.repair(100, 8, 0))
		s := w.f.Stats()
		if same != (s.Restored == 1 && s.LateDecodes == 1) || same == (s.LateDecodesRefused == 1) || s.RestoreVerifyFailures != 0 {
			t.Fatalf("same octets %v: %+v", same, *s)
		}
		if !same {
			w.repair(w.src.repair(100, 8, 0)) // nothing new: not tried again
			if s.LateDecodesRefused != 1 {
				t.Errorf("the same decode tried %d times", s.LateDecodesRefused)
			}
			w.repair(w.src.repair(100, 8, 1))
			if s.Restored != 1 {
				t.Fatalf("not decoded with the late copy unknown: %+v", *s)
			}
		}
		last := w.out[len(w.out)-1]
		if last.psn != 105 || string(last.frame) != string(w.src.frame(105)) {
			t.Errorf("restored %v", last.psn)
		}
	}
}

// The first copy wins: a later one never replaces a symbol.
func TestSection6_2_FirstCopyWins(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, noDigest)
	w.packets(100, 4)
	w.arrive(w.src.copy(101, 4711, true, w.src.data(101)))
	w.packets(104, 4, 106)
	w.repair(w.src.repair(100, 8, 0))
	if w.f.stats.Restored != 1 || w.f.stats.Duplicates != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
	n := 0
	for _, d := range w.out {
		if d.psn == 101 {
			n++
		}
	}
	if n != 2 {
		t.Errorf("both copies must be delivered, %d were", n)
	}
}

// XOR decodes only blocks without a late packet (Section 4.3.3): here only the late packet's position is not needed.
func TestSection4_3_3_XORWithLatePacket(t *testing.T) {
	w := configured(t, fec.XOR, 8, 1, immediate, noDigest)
	w.packets(100, 9, 102, 105)
	w.wait(testRTT/4 + 1)
	w.packets(102, 1)
	w.repair(w.src.repair(100, 8, 0))
	if w.f.stats.Restored != 0 || w.f.stats.RestoreVerifyFailures != 0 {
		t.Errorf("%+v", w.f.stats)
	}
}

// Without the digest, XOR does not decode during a burst of duplicates either: nothing of its own would tell mixed copies.
func TestSection4_3_3_XORDuringDuplicates(t *testing.T) {
	for _, digest := range []bool{true, false} {
		opts := []option{immediate}
		if !digest {
			opts = append(opts, noDigest)
		}
		w := configured(t, fec.XOR, 8, 1, opts...)
		w.packets(100, 9, 102)
		w.packets(105, 1) // again
		w.repair(w.src.repair(100, 8, 0))
		if got := w.f.stats.Restored == 1; got != digest {
			t.Errorf("digest %v: restored %v", digest, got)
		}
		w.packets(109, 1) // the burst is over
		w.wait(testRTT/4 + time.Millisecond)
		if w.f.stats.Restored != 1 || w.f.stats.RestoreVerifyFailures != 0 {
			t.Errorf("%+v", w.f.stats)
		}
	}
}

// CRF 2: the invariant CRC of held packets is checked before they are used; a damaged one counts as missing.
func TestSection6_2_CRF2(t *testing.T) {
	for name, opts := range map[string][]option{"in order": nil, "immediate": {immediate}} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, opts...)
			w.packets(100, 2)
			bad := append([]byte(nil), w.src.frame(102)...)
			bad[len(bad)-9] ^= 4
			w.arrive(bad)
			w.packets(103, 1)
			w.packets(104, 1, 104)
			bad6 := append([]byte(nil), w.src.frame(105)...) // held after the gap
			w.arrive(bad6)
			w.packets(106, 2)
			w.repair(w.src.repair(100, 8, 0))
			if w.f.stats.Restored != 0 || w.f.stats.Drops[BadICRC] != 1 {
				t.Fatalf("%+v", w.f.stats)
			}
			w.repair(w.src.repair(100, 8, 1))
			if w.f.stats.Restored != 2 || w.f.stats.RestoreVerifyFailures != 0 {
				t.Fatalf("%+v", w.f.stats)
			}
			found := map[roce.PSN]int{}
			for _, d := range w.out {
				if string(d.frame) == string(w.src.frame(d.psn)) {
					found[d.psn]++
				}
			}
			for p := roce.PSN(100); p < 108; p++ {
				if found[p] != 1 {
					t.Errorf("PSN %v delivered %d times as sent", p, found[p])
				}
			}
		})
	}
}

// The same, with a damaged packet that waits in the hold buffer: it goes on too, behind the restored one.
func TestSection6_2_CRF2_HeldPacket(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 4, 102)
	bad := append([]byte(nil), w.src.frame(104)...)
	bad[len(bad)-9] ^= 4
	w.arrive(bad)
	w.packets(105, 3)
	w.repair(w.src.repair(100, 8, 0))
	w.repair(w.src.repair(100, 8, 1))
	want := []int{100, 101, 102, 103, 104, 104, 105, 106, 107}
	got := w.psns()
	if len(got) != len(want) {
		t.Fatalf("delivered %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("delivered %v", got)
		}
	}
	if string(w.out[4].frame) != string(w.src.frame(104)) || string(w.out[5].frame) != string(bad) {
		t.Error("the damaged packet was not delivered behind the restored one")
	}
}

// A packet out of order with a wrong ICRC may have a wrong PSN: it passes, and changes nothing.
func TestSection6_2_DamagedPSN(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 4)
	bad := append([]byte(nil), w.src.frame(104)...)
	bad[14+20+8+9] ^= 0x40 // PSN + 2^22
	w.arrive(bad)
	w.packets(104, 4)
	if got := w.psns(); len(got) != 9 || w.f.stats.Missing != 0 || w.f.stats.Drops[BadICRC] != 1 {
		t.Errorf("delivered %v, %+v", got, w.f.stats)
	}
}

// There is no telling how long a higher PSN has been here when nobody missed the position: it counts as an old gap.
func TestSection6_2_CRF1_NotMissedBefore(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, responses)
	w.messages(100, 4, 4, 4)
	w.packets(100, 4)
	w.packets(108, 4) // between two messages: no gap
	s := w.f.win.at(near(w.f.top, 105))
	s.since[near(w.f.top, 105).index()] = w.now // what an earlier use of the segment left
	w.packets(105, 1)
	if w.f.stats.Late[LateGap] != 1 {
		t.Errorf("late %v", w.f.stats.Late)
	}
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func longHold(p *Params) { p.MaxHold = 10 * time.Second }

func ranges(m message) (l []int) {
	for i := range m.req.Ranges.Len() {
		r := m.req.Ranges.At(i)
		l = append(l, int(r.Start), int(r.Count))
	}
	return l
}

func same(a []int, b ...int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Section 7.1, rule 3: when a block is due.
func TestSection7_1_BlockDue(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(w *world)
		wait time.Duration // until the request
	}{
		{"LAST has come", func(w *world) {
			m := w.src.repair(100, 8, 1)
			m.Last = true
			w.repair(m)
		}, longestTolerance},
		{"LAST has come, long after what is missing should have", func(w *world) {
			w.wait(longestTolerance)
			m := w.src.repair(100, 8, 1)
			m.Last = true
			w.repair(m)
		}, 0},
		{"a REPAIR of a later block has come", func(w *world) { w.packets(108, 8); w.repair(w.src.repair(108, 8, 0)) }, longestTolerance},
		{"SRTT/4 since its newest symbol", func(w *world) {}, testRTT / 4},
		{"INFO is a symbol too", func(w *world) { w.wait(time.Millisecond); w.repair(w.src.info(100, 8)) }, testRTT / 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, with(longHold))
			w.packets(100, 8, 101, 103, 105, 106)
			w.repair(w.src.repair(100, 8, 0))
			c.run(w)
			if n := len(w.requests()); n != 0 {
				t.Fatalf("%d requests before Poll", n)
			}
			if c.wait > 0 {
				w.wait(c.wait - 1)
				if n := len(w.requests()); n != 0 {
					t.Fatalf("%d requests before it was due", n)
				}
			}
			w.wait(2)
			r := w.requests()
			if len(r) != 1 {
				t.Fatalf("%d requests", len(r))
			}
			held := len(w.f.blocks[0].rows)
			want := wire.RepairRequest{
				FlowID: testID, RequestID: 1, ConfigID: 1, Scheme: fec.Cauchy, K: 8, Held: uint8(held), Start: 100, M: uint8(4 - held), Lost: set(1, 3, 5, 6),
			}
			got := r[0].req
			got.Ranges = nil
			if got.RequestID != want.RequestID || got.Lost != want.Lost || got.M != want.M || got.Held != want.Held || got.Start != want.Start ||
				got.K != want.K || got.ConfigID != want.ConfigID || got.Scheme != want.Scheme || got.ByRanges || got.Fallback {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

// Rule 1: M = X - r + delta, at least 1, at most X; delta is 1 when p is above 1 %.
func TestSection7_1_SuggestedM(t *testing.T) {
	for _, c := range []struct {
		lost, held int
		p          float64
		want       uint8
	}{{3, 1, 0, 2}, {3, 1, 0.02, 3}, {3, 0, 0.02, 3}, {1, 0, 0.02, 1}, {4, 3, 0.005, 1}} {
		w := configured(t, fec.Cauchy, 8, 4, with(longHold))
		lose := []int{101, 102, 103, 104}[:c.lost]
		w.packets(100, 9, lose...)
		w.f.stats.LossRate = c.p
		w.repair(w.src.info(100, 8))
		for i := range c.held {
			w.repair(w.src.repair(100, 8, i))
		}
		w.wait(testRTT/4 + 1)
		if r := w.requests(); len(r) != 1 || r[0].req.M != c.want {
			t.Errorf("lost %d, held %d, p %v: %+v", c.lost, c.held, c.p, r)
		}
	}
}

// Late packets belong to L: unknown for coding is meant (Section 6.2). With the digest too.
func TestSection7_1_LateIsInL(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold), immediate)
	w.packets(100, 9, 101, 103, 105)
	w.wait(testRTT/4 + 1)
	w.requests()
	w.packets(103, 1)
	w.repair(w.src.info(100, 8))
	w.wait(2 * testRTT)
	r := w.requests()
	if len(r) == 0 || r[0].req.Lost != set(1, 3, 5) {
		t.Errorf("%+v", r)
	}
}

// Section 7.1, rule 5, and 7.3: two coded rounds, one with FALLBACK, each at least one SRTT after the last; then the block is given up.
// Each request has its own ID (rule 4).
func TestSection7_3_Rounds(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 9, 101, 102)
	w.repair(w.src.repair(100, 8, 0))
	w.wait(time.Second)
	r := w.requests()
	if len(r) != 3 {
		t.Fatalf("%d requests", len(r))
	}
	for i, m := range r {
		if m.req.ByRanges || m.req.Fallback != (i == 2) || int(m.req.RequestID) != i+1 {
			t.Errorf("round %d: %+v", i, m.req)
		}
		if i > 0 && (m.at-r[i-1].at < testRTT || m.at-r[i-1].at > testRTT*3/2) {
			t.Errorf("round %d after %v", i, m.at-r[i-1].at)
		}
	}
	if r[2].req.M != 2 {
		t.Errorf("FALLBACK asks for %d of 2", r[2].req.M)
	}
	given := time.Duration(0)
	for _, d := range w.out[1:] {
		given = d.at
	}
	if late := given - r[2].at; late < testRTT || late > testRTT*3/2 || w.f.stats.GivenUp != 2 {
		t.Errorf("given up %v after the last round, %+v", late, w.f.stats)
	}
}

func TestSection4_3_3_XORFallsBackAtOnce(t *testing.T) {
	w := configured(t, fec.XOR, 8, 1, with(longHold))
	w.packets(100, 9, 101, 102)
	w.repair(w.src.repair(100, 8, 0))
	w.wait(testRTT/4 + 1)
	if r := w.requests(); len(r) != 1 || !r[0].req.Fallback || r[0].req.Scheme != fec.XOR {
		t.Fatalf("%+v", r)
	}
	w.wait(testRTT)
	w.repair(w.src.sourceCopy(100, 8, 1)) // with one copy, XOR does the rest
	w.wantOrder(100, 9)
}

// Section 7.1, rule 2: without any REPAIR, by range, when a gap is older than the tolerance (SRTT/8, 50 µs to 2 ms).
func TestSection7_1_Ranges(t *testing.T) {
	for _, c := range []struct{ srtt, want time.Duration }{{20 * time.Millisecond, 2 * time.Millisecond}, {8 * time.Millisecond, time.Millisecond}, {100 * time.Microsecond, 50 * time.Microsecond}} {
		w := configured(t, fec.Cauchy, 8, 0, with(longHold))
		w.f.rtt.smooth, w.f.rtt.deviation = c.srtt, 0
		w.packets(100, 20, 102, 103, 107)
		w.wait(c.want - 1)
		if n := len(w.requests()); n != 0 {
			t.Fatalf("%v: %d requests too early", c.srtt, n)
		}
		w.wait(2)
		r := w.requests()
		if len(r) != 1 || !r[0].req.ByRanges || r[0].req.Fallback || !same(ranges(r[0]), 102, 2, 107, 1) {
			t.Fatalf("%v: %+v", c.srtt, r)
		}
	}
}

func TestSection7_1_LongRanges(t *testing.T) {
	w := configured(t, fec.Cauchy, 32, 0, with(longHold))
	w.packets(100, 2)
	w.packets(100+602, 2)
	w.wait(3 * time.Millisecond)
	if r := w.requests(); len(r) != 1 || !same(ranges(r[0]), 102, 255, 357, 255, 612, 90) {
		t.Fatalf("%+v", ranges(r[0]))
	}
}

// The answer to a range request makes the block known; the range round counts as a coded one (Section 7.3).
func TestSection7_3_RangeRoundsCount(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.packets(100, 20, 102, 103)
	w.wait(3 * time.Millisecond)
	if len(w.requests()) != 1 {
		t.Fatal("no request")
	}
	w.wait(testRTT)
	w.repair(w.src.retx(100, 8, 0, set(2, 3))) // one of two symbols: the other was lost
	w.wait(time.Second)
	r := w.requests()
	if len(r) != 2 || r[0].req.ByRanges || r[0].req.Fallback || r[0].req.M != 1 || !r[1].req.Fallback {
		t.Fatalf("%+v", r)
	}
}

func TestSection7_3_RangeFallback(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.packets(100, 20, 102, 103)
	w.wait(time.Second)
	r := w.requests()
	if len(r) != 3 || !r[2].req.ByRanges || !r[2].req.Fallback || r[1].req.Fallback {
		t.Fatalf("%+v", r)
	}
	if w.f.stats.GivenUp != 2 || len(w.out) != 18 {
		t.Errorf("%+v", w.f.stats)
	}
}

// Section 7.2, rule 2: INFO tells that the positions are absent: they are lost no more, and nothing waits for them.
func TestSection7_2_InfoOfAbsentPositions(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.packets(100, 20, 102, 103)
	w.src.absent[102], w.src.absent[103] = true, true
	w.wait(3 * time.Millisecond)
	w.requests()
	if w.f.stats.Lost != 2 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.wait(testRTT)
	w.repair(w.src.info(100, 8))
	if len(w.out) != 18 || w.f.stats.Lost != 0 || w.f.stats.Missing != 0 || w.f.stats.OpenBlocks != 0 {
		t.Errorf("delivered %v, %+v", w.psns(), w.f.stats)
	}
}

// Section 7.2, rule 3: positions between known blocks, for which nobody answers, are let go after two rounds.
func TestSection7_2_PositionsBetweenBlocks(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 8)
	w.repair(w.src.repair(100, 8, 0))
	w.packets(112, 8) // 108 to 111: consumed by something the CSF saw and we did not
	w.repair(w.src.repair(112, 8, 0))
	from := w.now
	w.wait(time.Second)
	r := w.requests()
	if len(r) != 2 || !same(ranges(r[0]), 108, 4) || !same(ranges(r[1]), 108, 4) {
		t.Fatalf("%d requests", len(r))
	}
	if len(w.out) != 16 || w.f.stats.LetGo != 4 || w.f.stats.GivenUp != 0 || w.f.stats.Lost != 0 {
		t.Errorf("delivered %v, %+v", w.psns(), w.f.stats)
	}
	if took := w.out[15].at - from; took > 2*time.Millisecond+testRTT*5/2 {
		t.Errorf("waited %v", took)
	}
}

// While repairs are still to be expected, a gap is not asked for by range, however old: they are spread over the next block.
func TestSection7_1_NoRangesWhileRepairsComeAnyway(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(92, 8)
	w.repair(w.src.repair(92, 8, 0))
	w.packets(100, 10, 102)
	w.wait(5 * time.Millisecond)
	w.packets(110, 6)
	if n := len(w.requests()); n != 0 {
		t.Fatalf("%d requests", n)
	}
	w.repair(w.src.repair(100, 8, 0))
	w.wantOrder(92, 24)
}

// All repairs of a block are lost: a later block's tells.
func TestSection7_1_AllRepairsLost(t *testing.T) {
	for name, next := range map[string]func(w *world){
		"a later block's REPAIR": func(w *world) { w.packets(108, 8); w.repair(w.src.repair(108, 8, 0)) },
		"two and a half blocks":  func(w *world) { w.packets(108, 16) },
		"time":                   func(w *world) { w.wait(testRTT * 3 / 4) },
	} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, with(longHold))
			w.packets(92, 8)
			w.repair(w.src.repair(92, 8, 0))
			w.packets(100, 8, 102)
			w.wait(3 * time.Millisecond)
			if n := len(w.requests()); n != 0 {
				t.Fatalf("%d requests too early", n)
			}
			next(w)
			w.wait(2 * time.Millisecond)
			if r := w.requests(); len(r) != 1 || !same(ranges(r[0]), 102, 1) {
				t.Fatalf("%+v", r)
			}
		})
	}
}

// A position past the newest packet may still be on its way when a REPAIR overtook it: neither restored nor asked for at once.
func TestSection6_1_RepairOvertakesThePackets(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 6)
	m := w.src.repair(100, 8, 1)
	m.Last = true
	w.repair(w.src.repair(100, 8, 0))
	w.repair(m)
	w.wait(w.f.rtt.tail() - 1)
	w.packets(106, 2)
	w.wait(time.Second)
	w.wantOrder(100, 8)
	if s := w.f.Stats(); s.Restored != 0 || len(w.requests()) != 0 || s.Duplicates != 0 {
		t.Errorf("%+v", *s)
	}
	w.packets(108, 6)
	w.repair(w.src.repair(108, 8, 0))
	w.repair(w.src.repair(108, 8, 1))
	w.wait(w.f.rtt.tail() + 1)
	w.wantOrder(100, 16)
}

// Section 6.1, rule 8: a block expires after 8 SRTT.
func TestSection6_1_Expiry(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 9, 101, 102)
	w.repair(w.src.repair(100, 8, 0))
	b := w.f.blocks[0]
	b.rounds, b.asked = 1, w.now+time.Hour // as if a round never ended
	w.wait(8*testRTT + 3*time.Millisecond)
	if w.f.stats.Expired != 1 || len(w.out) != 7 {
		t.Errorf("%+v", w.f.stats)
	}
}

// ... and when the flow has gone on by an eighth of the PSN space.
func TestSection6_1_ExpiryByDistance(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold), immediate)
	w.packets(100, 9, 101, 102)
	w.repair(w.src.repair(100, 8, 0))
	w.packets(109, 2, 109)
	w.src.opcode = func(roce.PSN) roce.Opcode { return roce.ReadRequest }
	w.src.data = func(roce.PSN) int { return 1 << 19 * testMTU }
	at := 111
	for range 5 {
		w.packets(at, 1)
		at += 1 << 19
	}
	if s := w.f.Stats(); s.OpenBlocks != 0 || s.Expired != 1 || s.Missing != 0 {
		t.Errorf("%+v", *s)
	}
}

// SRTT is sampled from the request to the first answering REPAIR, not if the block was asked for twice (Section 5.1, rule 9).
func TestSection5_1_SRTT(t *testing.T) {
	w := newWorld(t)
	if w.f.rtt.smooth != 100*time.Millisecond {
		t.Errorf("assumed SRTT %v", w.f.rtt.smooth)
	}
	w.now += 10 * time.Millisecond
	w.configure(1, fec.Cauchy, 8, 2, testT)
	if w.f.rtt.smooth != 10*time.Millisecond {
		t.Errorf("first sample: %v", w.f.rtt.smooth)
	}
	w.packets(100, 9, 101, 102)
	w.repair(w.src.repair(100, 8, 0))
	w.wait(w.f.rtt.smooth/4 + 1)
	w.wait(9*time.Millisecond - 1)
	w.repair(w.src.retx(100, 8, 2, set(1, 2)))
	want := 10*time.Millisecond - time.Millisecond/8
	if got := w.f.rtt.smooth; got < want-2 || got > want+2 {
		t.Errorf("after a sample of 9 ms: %v, want %v", got, want)
	}
	w.packets(109, 9, 110, 111)
	w.repair(w.src.repair(108, 8, 0))
	before := w.f.rtt.smooth
	w.wait(15 * time.Millisecond) // asked twice
	w.repair(w.src.retx(108, 8, 2, set(2, 3)))
	if w.f.rtt.smooth != before {
		t.Errorf("sampled an answer to a block asked for twice: %v", w.f.rtt.smooth)
	}
}

// A repeated HELLO_ACK gives no unambiguous sample: SRTT is the upper bound, T_reorder is reckoned from the lower one.
func TestSection5_1_AmbiguousFirstSample(t *testing.T) {
	w := newWorld(t)
	w.now += 7 * time.Millisecond
	w.f.HandleHello(w.now, &w.hello, &w.acts)
	w.now += 5 * time.Millisecond
	w.take()
	w.configure(1, fec.Cauchy, 8, 2, testT)
	if w.f.rtt.smooth != 12*time.Millisecond || w.f.rtt.least != 5*time.Millisecond {
		t.Errorf("%+v", w.f.rtt)
	}
}

// Rule 1: at least one symbol, also when as many are held as are needed but they are not independent.
func TestSection7_1_AtLeastOneSymbol(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 9, 101, 102)
	w.repair(w.src.retx(100, 8, 5, set(1)))
	w.repair(w.src.retx(100, 8, 6, set(1)))
	w.wait(testRTT/4 + time.Millisecond)
	if r := w.requests(); len(r) != 1 || r[0].req.M != 1 || r[0].req.Held != 2 || w.f.stats.RankShort == 0 {
		t.Fatalf("%+v, %+v", r, w.f.stats)
	}
	w.repair(w.src.retx(100, 8, 7, set(1, 2)))
	w.wantOrder(100, 9)
}

// A REPAIR of a block further on tells that all before it was sent: what has not come is missing, also without a packet behind it.
func TestSection6_3_RepairAheadOfThePackets(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 8)
	for i := 108; i < 124; i++ {
		w.src.frame(roce.PSN(i)) // two blocks, lost to the last packet
	}
	w.repair(w.src.repair(116, 8, 0))
	w.wait(3 * time.Millisecond)
	r := w.requests()
	if w.f.stats.Missing != 16 || len(r) != 1 || !same(ranges(r[0]), 108, 8) {
		t.Errorf("%d positions missing, %+v", w.f.stats.Missing, r)
	}
}

// Section 7.1, rule 3: a slow flow whose blocks have no ordinary symbols inside its messages shows it by a round trip without one: then a gap is asked
// for when the tolerance is over, where else that waits until a block's repairs would have come.
func TestSection7_1_SlowFlowsAreAskedForSoon(t *testing.T) {
	for _, c := range []struct {
		bare int // packets behind the newest block with repairs, a quarter of a round trip apart
		soon bool
	}{{1, false}, {3, false}, {5, true}, {9, true}} {
		w := configured(t, fec.Cauchy, 32, 2, with(longHold))
		w.packets(100, 4)
		w.repair(w.src.repair(100, 4, 0))
		for i := range c.bare {
			w.packets(104+i, 1)
			w.wait(testRTT / 4)
		}
		w.packets(104+c.bare, 1, 104+c.bare)
		w.wait(testRTT / 4)
		w.requests()
		w.packets(105+c.bare, 1)
		w.wait(w.f.rtt.tolerance())
		if got := len(w.requests()) == 1; got != c.soon {
			t.Errorf("%d packets without a symbol: asked for at once: %v", c.bare, got)
		}
		w.wait(testRTT)
		if got := len(w.requests()) > 0; got == c.soon {
			t.Errorf("%d packets without a symbol: asked for later: %v", c.bare, got)
		}
	}
}

// A symbol for what came since ends that: the next gap waits for its own again.
func TestSection7_1_SlowFlowWithSymbolsAgain(t *testing.T) {
	w := configured(t, fec.Cauchy, 32, 2, with(longHold))
	w.packets(100, 4)
	w.repair(w.src.repair(100, 4, 0))
	for i := range 9 {
		w.packets(104+i, 1)
		w.wait(testRTT / 4)
	}
	w.repair(w.src.repair(104, 9, 0))
	w.packets(113, 2, 113)
	w.wait(w.f.rtt.tolerance())
	if n := len(w.requests()); n != 0 {
		t.Errorf("%d requests at once", n)
	}
}

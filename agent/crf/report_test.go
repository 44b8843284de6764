// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// reports returns the sum of the LOSS_REPORTs sent so far, how many there were, and the longest time between two.
func (w *world) reports() (sum wire.LossReport, n int, longest time.Duration) {
	last := time.Duration(0)
	for _, m := range w.msgs {
		if m.typ != wire.TypeLossReport {
			continue
		}
		n++
		sum.Interval += m.loss.Interval
		sum.Expected += m.loss.Expected
		sum.Received += m.loss.Received
		sum.Restored += m.loss.Restored
		sum.Incomplete += m.loss.Incomplete
		sum.CEMarked += m.loss.CEMarked
		sum.RepairsReceived += m.loss.RepairsReceived
		sum.RepairsCEMarked += m.loss.RepairsCEMarked
		sum.Runs += m.loss.Runs
		sum.Pairs += m.loss.Pairs
		if last > 0 {
			longest = max(longest, m.at-last)
		}
		last = m.at
	}
	return sum, n, longest
}

// Section 8.1, rule 1: at least one LOSS_REPORT per SRTT while the flow is active; its numbers add up to what happened.
func TestSection8_1_LossReport(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	from := w.now
	lost, n := 0, 0
	for block := range 100 {
		first := 100 + 8*block
		lose := []int{}
		if block%5 == 1 {
			lose = append(lose, first+2)
		}
		if block%10 == 1 {
			lose = append(lose, first+4)
		}
		lost += len(lose)
		n += 8
		for j := range 8 {
			w.packets(first+j, 1, lose...)
			w.wait(500 * time.Microsecond)
		}
		for i := range 2 {
			m := w.src.repair(first, 8, i)
			w.f.HandleRepair(w.now, &m, i == 1, &w.acts)
			w.take()
		}
	}
	w.wait(100 * time.Millisecond)
	sum, reports, longest := w.reports()
	took := w.now - from
	want := wire.LossReport{
		Interval: sum.Interval, Expected: uint32(n), Received: uint32(n - lost), Restored: uint32(lost), RepairsReceived: 200, RepairsCEMarked: 100,
	}
	if sum != want {
		t.Errorf("reported %+v, want %+v", sum, want)
	}
	if longest > testRTT || reports < int((took-100*time.Millisecond)/testRTT) {
		t.Errorf("%d reports in %v, at most %v apart", reports, took, longest)
	}
	if d := time.Duration(sum.Interval) * time.Microsecond; d > took || d < 300*time.Millisecond {
		t.Errorf("intervals add up to %v of %v", d, took)
	}
	w.reset()
	w.wait(time.Second)
	if _, n, _ := w.reports(); n != 0 {
		t.Errorf("%d reports of a flow that pauses", n)
	}
}

// Rule 2: Expected counts present positions only; with no REPAIR, the PSN advance less what READ requests consume.
func TestSection8_1_Expected(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if p == 103 {
			return roce.ReadRequest
		}
		return roce.SendOnly
	}
	w.src.data = func(p roce.PSN) int {
		if p == 103 {
			return 50 * testMTU
		}
		return 100
	}
	w.packets(100, 4)
	w.packets(153, 20, 155, 156)
	w.wait(time.Second) // asked for, never answered
	if sum, _, _ := w.reports(); sum.Expected != 24 || sum.Received != 22 {
		t.Errorf("%+v", sum)
	}
	w.reset()
	w.packets(173, 10, 175) // asked for, and absent
	w.src.absent[175] = true
	w.wait(5 * time.Millisecond)
	w.repair(w.src.info(172, 8))
	w.wait(100 * time.Millisecond)
	w.packets(183, 5)
	w.wait(100 * time.Millisecond)
	if sum, _, _ := w.reports(); sum.Expected != 14 || sum.Received != 14 {
		t.Errorf("%+v", sum)
	}
}

// Rule 3: Received counts first arrivals that are not late: neither duplicates, nor retransmissions of lost packets, nor restored ones.
func TestSection8_1_Received(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, immediate)
	w.packets(100, 10, 102, 105)
	w.packets(105, 1) // reordered: received, nothing lost
	w.packets(103, 3) // duplicates
	w.repair(w.src.repair(100, 8, 0))
	w.packets(110, 5, 112)
	w.wait(testRTT/4 + 1)
	w.packets(102, 1) // the transport sends again what is restored
	w.packets(112, 1) // retransmitted: late
	w.wait(100 * time.Millisecond)
	sum, _, _ := w.reports()
	if sum.Expected != 15 || sum.Received != 13 || sum.Restored != 1 {
		t.Errorf("%+v, %+v", sum, w.f.stats)
	}
}

// Rule 1: a loss is told of after half a round trip.
func TestSection8_1_LossesAreReportedSoon(t *testing.T) {
	for _, c := range []struct {
		lose int
		want time.Duration
	}{{0, testRTT - testRTT/8}, {104, testRTT / 2}} {
		w := configured(t, fec.Cauchy, 8, 0, immediate)
		w.wait(testRTT)
		w.reset()
		begun := w.now
		w.packets(100, 10, c.lose)
		w.wait(2 * testRTT)
		for _, m := range w.msgs {
			if m.typ != wire.TypeLossReport {
				continue
			}
			if m.at-begun != c.want {
				t.Errorf("a report after %v, want %v", m.at-begun, c.want)
			}
			break
		}
	}
}

// Rule 3: a packet that was restored and comes soon was overtaken, not lost. It is no burst of duplicates either. Reports in between do not
// take it for lost.
func TestSection8_1_OvertakenIsNotLost(t *testing.T) {
	for _, opt := range []option{immediate, with(longHold)} {
		for _, c := range []struct {
			after time.Duration
			lost  uint64
		}{{0, 0}, {testRTT / 4, 0}, {testRTT/4 + 1, 2}} {
			w := configured(t, fec.Cauchy, 8, 1, opt)
			w.packets(90, 10)
			w.wait(testRTT - testRTT/8 - testRTT/16) // a report is due soon
			w.packets(100, 8, 104)
			w.repair(w.src.repair(100, 8, 0))
			if w.f.stats.Restored != 1 {
				t.Fatal("not restored")
			}
			w.wait(c.after)
			w.packets(109, 1)
			w.packets(104, 1)
			w.packets(108, 1) // in a burst of duplicates, if that was one
			w.wait(3 * testRTT)
			sum, n, _ := w.reports()
			if want := uint32(20 - c.lost); sum.Expected != 20 || sum.Received != want || n < 2 {
				t.Errorf("%v after it was restored: %+v in %d reports, want %d received", c.after, sum, n, want)
			}
			if s := w.f.stats; s.Lost != c.lost || s.Late[LateBurst] != c.lost/2 || s.Restored != 1 {
				t.Errorf("%v: %+v", c.after, s)
			}
		}
	}
}

// More restored packets than are remembered: the oldest count as lost at once, and none twice.
func TestSection8_1_DoubtsAreBounded(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, immediate)
	const blocks = 2 * maxDoubts
	for i := range blocks {
		w.packets(100+8*i, 8, 103+8*i)
		w.repair(w.src.repair(100+8*i, 8, 0))
		if n := w.f.doubts.len(); n > maxDoubts || cap(w.f.doubts.list) > 2*maxDoubts {
			t.Fatalf("%d in doubt, room for %d", n, cap(w.f.doubts.list))
		}
	}
	if got := w.f.stats.Lost; got != blocks-maxDoubts {
		t.Errorf("%d lost for sure", got)
	}
	w.packets(103+8*(blocks-1), 1) // the newest was overtaken
	w.wait(3 * testRTT)
	sum, _, _ := w.reports()
	if w.f.stats.Lost != blocks-1 || sum.Expected != 8*blocks || sum.Received != 7*blocks+1 {
		t.Errorf("%+v, %d lost", sum, w.f.stats.Lost)
	}
	check(t, w.f)
}

func TestSection8_1_CEAndIncomplete(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, with(longHold))
	w.src.tos = 0x6b
	w.packets(100, 9, 102, 105)
	w.src.tos = 0x6a
	m := w.src.repair(100, 8, 0)
	m.Last = true
	w.repair(m)
	w.packets(109, 7)
	w.repair(w.src.repair(108, 8, 0))
	w.wait(testRTT)
	w.repair(w.src.retx(100, 8, 1, set(2, 5)))
	w.wait(100 * time.Millisecond)
	sum, _, _ := w.reports()
	if sum.CEMarked != 7 || sum.Incomplete != 1 || sum.RepairsReceived != 3 || sum.Expected != 16 || sum.Received != 14 || sum.Restored != 2 {
		t.Errorf("%+v", sum)
	}
}

// A sender that only repeats what has come is active too: without a LOSS_REPORT its CSF would take this end for gone and give the flow up.
func TestSection8_1_LossReportWhileTheSenderOnlyRepeats(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 64)
	w.wait(time.Second)
	w.reset()
	for range 100 {
		w.goBack(130, 8)
		w.wait(testRTT / 4)
	}
	sum, n, longest := w.reports()
	if n < 20 || longest > 2*testRTT || sum.Expected != 0 || sum.Received != 0 {
		t.Errorf("%d reports in 25 round trips, at most %v apart, of %d packets", n, longest, sum.Expected)
	}
}

// A READ that is resumed while later ones are outstanding sits on a PSN that carried no packet before: nothing was lost there.
func TestSection8_1_AResumedREADIsNoLoss(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	left := map[roce.PSN]int{101: 50, 151: 50, 120: 31}
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if left[p] > 0 {
			return roce.ReadRequest
		}
		return roce.SendOnly
	}
	w.src.data = func(p roce.PSN) int {
		if left[p] > 0 {
			return left[p] * testMTU
		}
		return 100
	}
	for _, psn := range []int{100, 101, 151, 120, 201} {
		w.packets(psn, 1)
	}
	w.wait(time.Second)
	sum, _, _ := w.reports()
	if sum.Expected != sum.Received || w.f.stats.Lost != 0 {
		t.Errorf("expected %d, received %d, lost %d", sum.Expected, sum.Received, w.f.stats.Lost)
	}
}

// Rule 3: what turns out to be absent after its report has left is taken off a later interval's losses, not off what was received.
func TestSection8_1_AbsentAfterItsReport(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.packets(100, 10, 105)
	w.wait(19 * time.Millisecond) // asked for and reported lost
	if sum, n, _ := w.reports(); n != 1 || sum.Expected != 10 || sum.Received != 9 {
		t.Fatalf("%d reports, %+v", n, sum)
	}
	w.src.absent[105] = true
	w.repair(w.src.info(104, 8))
	w.packets(110, 10)
	w.wait(30 * time.Millisecond)
	w.packets(120, 10, 125) // a true loss
	w.wait(19 * time.Millisecond)
	sum, _, _ := w.reports()
	if sum.Received != 28 || sum.Expected != 29 { // of 29 present ones, one was lost
		t.Errorf("%+v", sum)
	}
}

func detailed(w *world) { w.hello.Extensions |= wire.ExtDetail }

// Rule 5: runs and pairs of losses are those of the sequence of packets, in whatever order the losses are found, and across reports. The oracle
// counts them by the words of the rule.
func TestSection8_1_RunsAndPairs(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := configured(t, fec.Cauchy, 16, 2, immediate, detailed)
		const first, n = 100, 16 * 60
		lost := map[int]bool{}
		for block := range n / 16 {
			lose, at := []int{}, first+16*block
			for i := 1; i < 16; i++ { // a block begins with a packet that arrives
				if rng.IntN(8) == 0 || lost[at+i-1] && rng.IntN(2) == 0 {
					lost[at+i] = true
					lose = append(lose, at+i)
				}
			}
			w.packets(at, 16, lose...)
			for i := range rng.IntN(3) { // some are restored at once, others asked for, and given up
				w.repair(w.src.repair(at, 16, i))
			}
			w.wait(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
		w.packets(first+n, 1)
		w.wait(20 * testRTT)
		runs, pairs := 0, 0
		for p := range lost {
			if !lost[p-1] {
				runs++
			}
			for q := p &^ 31; q < p; q++ {
				if lost[q] {
					pairs++
				}
			}
		}
		sum, reports, _ := w.reports()
		if int(sum.Expected-sum.Received) != len(lost) || int(sum.Runs) != runs || int(sum.Pairs) != pairs || reports < 5 {
			t.Errorf("%d lost in %d runs with %d pairs, %d reports say %+v", len(lost), runs, pairs, reports, sum)
		}
	}
}

// What turns out to be absent leaves its run and its pairs again.
func TestSection8_1_AbsentIsInNoRun(t *testing.T) {
	for _, absent := range [][]int{{104}, {105}, {104, 105, 106}} {
		w := configured(t, fec.Cauchy, 16, 2, immediate, detailed)
		w.packets(100, 16, 104, 105, 106)
		w.wait(2 * testRTT) // named in a request, and told of
		if sum, _, _ := w.reports(); sum.Runs != 1 || sum.Pairs != 3 {
			t.Fatalf("%+v is told of three losses in a row", sum)
		}
		present := fec.Full(16)
		for _, p := range absent {
			present.Clear(p - 100)
		}
		info := w.src.info(100, 16)
		info.Present = present
		w.repair(info)
		w.wait(20 * testRTT)
		w.packets(116, 32)
		w.packets(148, 3, 149) // later losses make up for what was told too much
		w.packets(151, 64)
		w.packets(215, 3, 216)
		w.wait(20 * testRTT)
		left := 3 - len(absent)
		runs := map[int]int{0: 0, 2: 1}[left]
		if left == 2 && absent[0] == 105 {
			runs = 2
		}
		r := &w.f.report
		sum, _, _ := w.reports()
		if got := int64(sum.Runs) + r.runs; got != int64(runs)+2 {
			t.Errorf("without %v: %d runs, want %d", absent, got, runs+2)
		}
		if got := int64(sum.Pairs) + r.pairs; got != int64(left*(left-1)/2) {
			t.Errorf("without %v: %d pairs", absent, got)
		}
	}
}

// Rule 5: the report says for how long packets wait behind a gap; it follows SetParams. Without the extension it is as the draft has it.
func TestSection8_1_HoldIsTold(t *testing.T) {
	for _, c := range []struct {
		opts []option
		want wire.LossReport
	}{
		{[]option{detailed}, wire.LossReport{Detailed: true, Hold: 100_000}},
		{[]option{detailed, immediate}, wire.LossReport{Detailed: true, Hold: wire.HoldUnbounded}},
		{[]option{detailed, with(func(p *Params) { p.MaxHold = 2 * time.Hour })}, wire.LossReport{Detailed: true, Hold: wire.HoldUnbounded - 1}},
		{nil, wire.LossReport{}},
	} {
		w := configured(t, fec.Cauchy, 8, 0, c.opts...)
		w.packets(100, 20)
		w.wait(testRTT)
		m := w.msgs[len(w.msgs)-1].loss
		if m.Expected != 20 || m.Detailed != c.want.Detailed || m.Hold != c.want.Hold {
			t.Errorf("%+v, want %+v", m, c.want)
		}
	}
	w := configured(t, fec.Cauchy, 8, 0, detailed)
	p := w.p
	p.MaxHold = 7 * time.Millisecond
	w.f.SetParams(w.now, &p, &w.acts)
	w.packets(100, 20)
	w.wait(testRTT)
	if m := w.msgs[len(w.msgs)-1].loss; m.Hold != 7000 {
		t.Errorf("%+v", m)
	}
}

// With four losses, which are 5 % or more, the report leaves after an eighth of a round trip: the circuit breaker may have to open.
func TestSection8_1_HeavyLossIsToldSoon(t *testing.T) {
	for n, wait := range map[int]time.Duration{3: testRTT / 2, 4: testRTT / 8} {
		w := configured(t, fec.Cauchy, 32, 0, immediate)
		w.wait(2 * testRTT)
		w.reset()
		w.packets(100, 16, []int{102, 104, 106, 108}[:n]...)
		w.wait(wait - 1)
		if _, reports, _ := w.reports(); reports != 0 {
			t.Errorf("%d lost: told too soon", n)
		}
		w.wait(2)
		if sum, reports, _ := w.reports(); reports != 1 || int(sum.Expected-sum.Received) != n {
			t.Errorf("%d lost: %d reports, %+v", n, reports, sum)
		}
	}
}

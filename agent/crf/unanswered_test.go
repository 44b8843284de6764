// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
)

// loseUnanswered lets one packet of eight be lost and waits until nothing more is asked for. It returns how long the packet after it waited.
func (w *world) loseUnanswered(first int) time.Duration {
	w.t.Helper()
	w.reset()
	since := w.now
	w.packets(first, 8, first+2)
	w.wait(10 * testRTT)
	w.wantPSNs(first, first+1, first+3, first+4, first+5, first+6, first+7)
	return w.out[2].at - since
}

// Section 6.1, rule 7: when packets waited twice in vain and no symbol came, nothing waits until one comes.
func TestSection6_1_NobodyRepairs(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	for i := range 6 {
		waited := w.loseUnanswered(100 + 8*i)
		if waits := i < vainHolds; waits != (waited > testRTT) {
			t.Errorf("gap %d: the packets behind it waited %v", i+1, waited)
		}
		if len(w.requests()) == 0 {
			t.Errorf("gap %d is not asked for any more", i+1)
		}
	}
	if got := w.f.stats.Released[Unanswered]; got != 4 {
		t.Errorf("%d packets passed because nobody repairs; one for each gap, then the kernel has the flow again", got)
	}

	w.repair(w.src.repair(140, 8, 0)) // somebody does: too late for this gap, in time for the next
	w.reset()
	w.packets(148, 8, 150)
	w.wait(testRTT)
	w.wantPSNs(148, 149)
	w.repair(w.src.repair(148, 8, 0))
	w.wantOrder(148, 8)
}

// INFO is no symbol: a sender whose breaker is open sends it too. A symbol for another block is.
func TestSection6_1_WhoRepairs(t *testing.T) {
	for _, info := range []bool{true, false} {
		w := configured(t, fec.Cauchy, 8, 2, with(longHold))
		for i := range 4 {
			w.reset()
			since, first := w.now, 100+16*i
			w.packets(first, 16, first+2)
			other := w.src.repair(first+8, 8, 0)
			if info {
				other = w.src.info(first+8, 8)
			}
			w.wait(testRTT / 2)
			w.repair(other)
			w.wait(10 * testRTT)
			if waits := !info || i < vainHolds; waits != (w.out[2].at-since > testRTT) {
				t.Errorf("info %v, gap %d: the packets behind it waited %v", info, i+1, w.out[2].at-since)
			}
		}
	}
}

// What ends by maxHold ended in vain too. What waits behind a later gap goes as well.
func TestSection6_1_NobodyRepairsWithinMaxHold(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(func(p *Params) { p.MaxHold = 2 * testRTT }))
	w.loseUnanswered(100)
	w.reset()
	w.packets(108, 8, 110)
	w.wait(testRTT)
	w.packets(116, 8, 118)
	w.wait(testRTT + 1)
	w.wantPSNs(108, 109, 111, 112, 113, 114, 115, 116, 117, 119, 120, 121, 122, 123)
	w.reset()
	w.packets(124, 8, 126)
	w.wantPSNs(124, 125, 127, 128, 129, 130, 131)
}

// When the second wait in vain ends, what waits behind a later gap goes as well, at the same time.
func TestSection6_1_NobodyRepairsLaterGapsEither(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 0, with(longHold))
	w.loseUnanswered(100)
	w.reset()
	w.packets(108, 8, 110)
	w.wait(testRTT)
	w.packets(116, 8, 118)
	w.wait(10 * testRTT)
	w.wantPSNs(108, 109, 111, 112, 113, 114, 115, 116, 117, 119, 120, 121, 122, 123)
	if first, last := w.out[2].at, w.out[13].at; first != last {
		t.Errorf("what waited for the second gap went %v later", last-first)
	}
}

// A block of which nothing but INFO comes is waited for in vain; one is not, when any symbol came meanwhile, also for two gaps of the same time.
func TestSection6_1_WhatIsInVain(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, with(longHold))
	for i := range 3 {
		w.reset()
		since, first := w.now, 100+8*i
		w.packets(first, 8, first+2)
		w.repair(w.src.info(first, 8))
		w.wait(10 * testRTT)
		if waits := i < vainHolds; waits != (w.out[2].at-since > testRTT) {
			t.Errorf("INFO, gap %d: the packets behind it waited %v", i+1, w.out[2].at-since)
		}
	}
	w = configured(t, fec.Cauchy, 8, 2, with(longHold))
	w.packets(100, 24, 102, 110)
	w.wait(testRTT / 2)
	w.repair(w.src.repair(116, 8, 0))
	w.wait(10 * testRTT)
	w.reset()
	since := w.now
	w.packets(124, 8, 126)
	w.wait(10 * testRTT)
	if w.out[2].at-since <= testRTT {
		t.Errorf("a symbol came, and yet packets waited only %v for the next gap", w.out[2].at-since)
	}
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// What the kernel program passed without a copy is no loss: nothing is asked for, nothing restored a second time, nothing reported, so that a
// receiver that is late now and then does not open its peer's circuit breaker. In both deliveries, whether REPAIRs come before the next packet or not.
func TestSection8_1_PassedWithoutACopyIsNoLoss(t *testing.T) {
	for _, delivery := range []Delivery{InOrder, Immediate} {
		for _, early := range []bool{false, true} {
			w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.Delivery = delivery }))
			w.packets(96, 6)
			w.k.failOpen = true
			w.packets(102, 8)
			w.k.failOpen = false
			if early {
				w.repair(w.src.repair(96, 8, 0))
			}
			w.packets(110, 10)
			if !early {
				w.repair(w.src.repair(96, 8, 0))
			}
			w.repair(w.src.repair(104, 8, 0))
			w.repair(w.src.repair(104, 8, 1))
			w.wait(20 * testRTT)
			s := w.f.Stats()
			if s.Unseen != 8 || s.Lost != 0 || s.Missing != 0 || s.Restored != 0 || s.BlockRequests+s.RangeRequests != 0 {
				t.Errorf("%v, REPAIR early %v: %+v", delivery, early, *s)
			}
			for _, m := range w.msgs {
				if m.typ == wire.TypeLossReport && m.loss.Expected != m.loss.Received {
					t.Errorf("%v, REPAIR early %v: reported %+v", delivery, early, m.loss)
				}
			}
		}
	}
}

// The sender went back meanwhile, so that the first packets seen again are old ones: they end no doubt about the newer ones, whose REPAIRs come next.
func TestSection8_1_UnseenBeforeASenderThatWentBack(t *testing.T) {
	for _, delivery := range []Delivery{InOrder, Immediate} {
		w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.Delivery = delivery }))
		w.packets(96, 8)
		w.k.failOpen = true
		w.packets(104, 8)
		w.k.failOpen = false
		w.packets(100, 3)
		w.repair(w.src.repair(104, 8, 0))
		w.repair(w.src.repair(104, 8, 1))
		w.wait(2 * testRTT)
		w.packets(103, 11)
		if s := w.f.Stats(); s.Lost != 0 || s.Missing != 0 || s.Unseen != 8 || s.BlockRequests+s.RangeRequests != 0 {
			t.Errorf("%v: %+v", delivery, *s)
		}
	}
}

// A slow flow: its blocks have one packet, and their REPAIRs come long before the next packet that is seen.
func TestSection8_1_RepairsOfUnseenPackets(t *testing.T) {
	for _, delivery := range []Delivery{InOrder, Immediate} {
		w := configured(t, fec.Cauchy, 8, 2, with(func(p *Params) { p.Delivery = delivery }))
		w.packets(96, 4)
		w.k.failOpen = true
		for psn := 100; psn < 110; psn++ {
			w.packets(psn, 1)
			w.repair(w.src.repair(psn, 1, 0))
			w.wait(2 * testRTT)
		}
		w.k.failOpen = false
		w.packets(110, 8, 114)
		w.repair(w.src.repair(110, 8, 0))
		w.wait(testRTT)
		if s := w.f.Stats(); s.Lost != 1 || s.Restored != 1 || s.Unseen != 10 || s.BlockRequests+s.RangeRequests != 0 {
			t.Errorf("%v: %+v", delivery, *s)
		}
	}
}

// What is lost after the kernel has recovered is restored, though positions of its block passed unseen: they are unknown for decoding.
func TestSection6_LossInABlockWithUnseenPositions(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(96, 9)
	w.k.failOpen = true
	w.packets(105, 1)
	w.k.failOpen = false
	w.packets(106, 6, 108)
	w.repair(w.src.repair(104, 8, 0))
	w.repair(w.src.repair(104, 8, 1))
	w.packets(112, 2)
	w.wait(testRTT)
	if s := w.f.Stats(); s.Restored != 1 || s.Lost != 1 || s.Unseen != 1 {
		t.Errorf("%+v", *s)
	}
	w.wantOrder(96, 18)
}

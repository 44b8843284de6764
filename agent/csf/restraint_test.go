// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// sending is a flow that sends 320 packets in every round trip, and is told of it.
type sending struct {
	*world
	psn roce.PSN
}

func (s *sending) round(lost, marked uint32) {
	s.t.Helper()
	for range 320 {
		s.write(s.psn)
		s.psn = s.psn.Add(1)
		s.wait(testRTT / 320)
	}
	if s.f.id != 0 {
		s.report(320, 320-lost, func(r *wire.LossReport) { r.CEMarked, r.RepairsReceived = marked, 20 })
	}
}

func (s *sending) rounds(n int, lost, marked uint32) {
	s.t.Helper()
	for range n {
		s.round(lost, marked)
	}
}

// Section 10, rule 3: what a flow may send during congestion is what it sent without, however often there is congestion, and whatever was withheld.
func TestSection10_WhatIsWithheldIsNotWhatWasBefore(t *testing.T) {
	for _, c := range []struct {
		name  string
		again int
		time  func(*sending)
	}{
		{"drops", 20, func(s *sending) { s.rounds(4, 40, 10) }},
		{"a warning", 20, func(s *sending) {
			s.f.SetWarning(Warning{Early: true})
			s.rounds(4, 0, 0)
			s.f.SetWarning(Warning{})
		}},
		{"the circuit breaker", 1, func(s *sending) {
			s.rounds(60, 200, 0)
			if s.f.State() != Suspended {
				s.t.Fatal(s.f.State())
			}
			for s.f.State() == Suspended {
				s.round(0, 0)
			}
		}},
	} {
		s := sending{protected(t, fixed(2), 1), 2}
		s.rounds(20, 0, 0)
		before := s.f.restraint.limit(1e6, s.f.targetOctets())
		for range c.again {
			c.time(&s)
			s.rounds(5, 0, 0)
		}
		if got := s.f.restraint.limit(1e6, s.f.targetOctets()); got < before*19/20 || got > before*21/20 {
			t.Errorf("%s: of 1,000,000 octets %d for repair afterwards, %d before", c.name, got, before)
		}
	}
}

// Section 10, rule 3: what a flow sent while it was not protected is no time without congestion.
func TestSection10_RestraintBeginsWithProtection(t *testing.T) {
	s := sending{newWorld(t, fixed(2)), 2}
	s.rounds(500, 0, 0)
	for s.f.hello.due == roce.Never {
		s.round(0, 0)
	}
	s.answerHello(gateway, nil)
	s.wait(testRTT)
	s.paramAck(s.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
	s.rounds(10, 0, 0)
	if got, want := s.f.restraint.limit(1e6, s.f.targetOctets()), int64(1e6*2/32); got < want*9/10 {
		t.Errorf("of 1,000,000 octets %d for repair, want about %d", got, want)
	}
}

// Section 10, rule 3: where marks last, chance alone halves nothing for good.
func TestSection10_LastingMarksDoNotHalveRepairs(t *testing.T) {
	w := protected(t, defaults(), 1)
	for range 200 {
		w.report(1000, 990, nil)
	}
	rng, less := rand.New(rand.NewPCG(1, 2)), 0
	const rounds = 30_000
	for range rounds {
		w.wait(testRTT)
		lost := uint32(0)
		for range 1000 {
			if rng.Float64() < 0.01 {
				lost++
			}
		}
		w.report(1000, 1000-lost, func(m *wire.LossReport) { m.CEMarked = 30 })
		if w.f.restraint.halvings > 0 {
			less++
		}
	}
	if less > rounds/20 {
		t.Errorf("repairs are halved in %d of %d round trips", less, rounds)
	}
}

// A flow that asks anew begins without what drops took before.
func TestSection10_HalvingsEndWithTheConfiguration(t *testing.T) {
	w := protected(t, defaults(), 1)
	for range 3 {
		w.wait(testRTT)
		w.report(1000, 800, func(m *wire.LossReport) { m.CEMarked = 30 })
	}
	if w.f.restraint.halvings == 0 {
		t.Fatal("nothing was halved")
	}
	w.f.unbind(WhyRestarted)
	w.f.helloAfter = w.now
	w.write(2)
	w.answerHello(gateway, nil)
	w.wait(time.Millisecond)
	w.report(1000, 1000, func(m *wire.LossReport) { m.CEMarked = 30 })
	if n := w.f.restraint.halvings; n != 0 {
		t.Errorf("%d halvings by marks alone", n)
	}
}

// Section 10, rule 3: a flow that begins while marks last is repaired as what is known of the loss asks for, and no more, however much is lost; of the full
// queue's drops it takes less, as any flow.
func TestSection10_AFlowThatBeginsUnderMarks(t *testing.T) {
	begin := func(site *ownSite) *sending {
		w := newWorld(t, defaults())
		w.p.PeerSite = "east"
		w.env.Site = func(string) SharedSite { return site }
		s := &sending{w, 2}
		s.write(1)
		s.wait(testRTT)
		s.answerHello(gateway, nil)
		s.wait(testRTT)
		s.paramAck(s.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
		return s
	}
	// share is repair octets to source octets of n round trips with marks.
	share := func(s *sending, n int, lost uint32) float64 {
		before := *s.f.Stats()
		s.rounds(n, lost, 30)
		after := *s.f.Stats()
		return float64(after.RepairOctets-before.RepairOctets) / float64(after.SourceOctets-before.SourceOctets)
	}
	unknown := begin(&ownSite{})
	asked := unknown.f.targetOctets()
	most := asked.repair / asked.source
	if got := share(unknown, 1, 0); got > most || got < most/2 {
		t.Errorf("nothing known: repairs are %.4f of the source octets, asked for are %.4f", got, most)
	}
	if got := share(unknown, 10, 0); got > most/4 || got == 0 {
		t.Errorf("nothing is lost: repairs are %.4f of the source octets, asked for were %.4f", got, most)
	}
	site := &ownSite{}
	for range 100 {
		site.known.loss.add(interval{sent: 1000, lost: 10, raise: true})
	}
	for _, lost := range []uint32{3, 10, 100} {
		s := begin(site)
		asked := s.f.targetOctets()
		most := asked.repair / asked.source
		got := share(s, 100, lost)
		if least := most / 2; got > most || lost == 3 && got < least {
			t.Errorf("1 %% known, %d of 320 lost: repairs are %.4f of the source octets, asked for are %.4f", lost, got, most)
		}
		if lost == 100 && got > most/4 {
			t.Errorf("%d of 320 lost: repairs are %.4f of the source octets, asked for are %.4f before the first drops", lost, got, most)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"testing"

	"crem.dev/crem/agent/wire"
)

// shared is a site that two workers share; taken says that a third one has it.
type shared struct {
	ownSite
	taken bool
}

func (s *shared) Try(f func(*KnownSite)) bool { return !s.taken && s.ownSite.Try(f) }

// What flows of one worker have seen of a site is where those of all others begin.
func TestSection5_3_WorkersShareWhatTheyKnow(t *testing.T) {
	p := defaults()
	p.PeerSite = "west"
	sites := map[string]*shared{"west": {}, "north": {}}
	worker := func() *world {
		w := newWorld(t, p)
		w.env.Site = func(name string) SharedSite { return sites[name] }
		w.f = w.newFlow(wire.KindRoCEv2, gateway)
		return w
	}
	w, other := worker(), worker()
	w.protect(1)
	for range 40 {
		w.report(1000, 980, nil)
	}
	for range 2 { // a flow that was there before, and a new one
		if s := other.f.Stats(); math.Abs(s.Loss-0.02) > 0.001 || !other.f.Explain().OfSite {
			t.Errorf("on another worker p = %g: %v", s.Loss, other.f.Explain())
		}
		other.f = other.newFlow(wire.KindRoCEv2, gateway)
	}
	other.protect(1)
	if m, want := other.symbols(2, 32), naiveMin(32, 0.02, 1e-4); m != want && m != want+1 {
		t.Errorf("its first block has %d symbols, want %d", m, want)
	}
	q := *p
	q.PeerSite = "north"
	other.p = &q
	if got := other.newFlow(wire.KindRoCEv2, gateway).Stats().Loss; got != priorLost/priorPackets {
		t.Errorf("a flow to another site starts at p = %g", got)
	}
}

// A worker does not wait for one that has what is known of a site: it goes on with what it knew, keeps what it hears, up to a bound, and tells it when it can.
func TestSection5_3_NoWorkerWaitsForAnother(t *testing.T) {
	p := defaults()
	p.PeerSite = "west"
	w, site := newWorld(t, p), &shared{}
	w.env.Site = func(string) SharedSite { return site }
	w.f = w.newFlow(wire.KindRoCEv2, gateway)
	w.protect(1)
	for range 10 {
		w.report(1000, 990, nil)
	}
	known := site.known.loss.known()
	site.taken = true
	for range maxUntold + 10 {
		w.report(1000, 990, nil)
	}
	if got := w.env.path("west").known(); got != known {
		t.Errorf("while another worker has the site: %+v, want %+v", got, known)
	}
	site.taken = false
	w.f.Stats()
	if got := site.known.loss.known().sent - known.sent; got < 0.9*1000*maxUntold || got > 1000*maxUntold {
		t.Errorf("%.0f packets told afterwards, want those of %d reports", got, maxUntold)
	}
}

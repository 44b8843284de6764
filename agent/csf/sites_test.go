// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"runtime"
	"sync"
	"testing"

	"crem.dev/crem/agent/wire"
)

// colleague is another worker of the same node.
func (w *world) colleague() *world {
	o := newWorld(w.t, w.p)
	o.env.Sites = w.env.Sites
	o.f = o.newFlow(wire.KindRoCEv2, gateway)
	return o
}

// What flows of one worker have seen of a site is where those of all others begin.
func TestSection5_3_WorkersShareWhatTheyKnow(t *testing.T) {
	p := defaults()
	p.PeerSite = "west"
	w := newWorld(t, p)
	w.env.Sites = NewSites()
	w.f = w.newFlow(wire.KindRoCEv2, gateway)
	w.protect(1)
	other := w.colleague()
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
	w := protected(t, p, 1)
	for range 10 {
		w.report(1000, 990, nil)
	}
	site := w.env.site("west").of
	known := site.loss.known()
	site.mu.Lock()
	for range maxUntold + 10 {
		w.report(1000, 990, nil)
	}
	if got := w.env.path("west").known(); got != known {
		t.Errorf("while another worker has the site: %+v, want %+v", got, known)
	}
	site.mu.Unlock()
	w.f.Stats()
	if got := site.loss.known().sent - known.sent; got < 0.9*1000*maxUntold || got > 1000*maxUntold {
		t.Errorf("%.0f packets told afterwards, want those of %d reports", got, maxUntold)
	}
}

// Workers report at the same time, and nothing of it is lost that they have room for.
func TestSection5_3_WorkersReportAtTheSameTime(t *testing.T) {
	const workers, reports = 4, 500
	sites := NewSites()
	envs := make([]Env, workers)
	var all sync.WaitGroup
	for i := range envs {
		envs[i].Sites = sites
		all.Go(func() {
			for range reports {
				for len(envs[i].site("west").untold) == maxUntold { // another one has it, and is not running
					runtime.Gosched()
					envs[i].path("west")
				}
				envs[i].learn("west", interval{sent: 100, lost: 1, raise: true})
			}
		})
	}
	all.Wait()
	untold := 0
	for i := range envs {
		envs[i].path("west")
		untold += len(envs[i].site("west").untold)
	}
	want := seen{}
	for range workers * reports {
		want.add(100, 1, shortMemory*longerBy*longerBy*longerBy*longerBy)
	}
	if got := sites.find("west").loss.known(); untold != 0 || math.Abs(got.sent-want.sent) > 1 || math.Abs(got.lost-want.lost) > 0.1 {
		t.Errorf("%+v, want %+v; %d reports untold", got, want, untold)
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

// checkTables compares the tables of a worker, between two batches, with each other and with what the machines say.
func checkTables(t testing.TB, w *worker) {
	t.Helper()
	checkDeadlines(t, w)
	checkSending(t, w)
	checkReceiving(t, w)
	if len(w.changed) > 0 || len(w.csfActs) > 0 || len(w.crfActs) > 0 || len(w.parting) > 0 {
		t.Fatalf("worker %d: left over from a batch: %d flows, %d and %d actions, %d ports", w.id, len(w.changed), len(w.csfActs), len(w.crfActs), len(w.parting))
	}
}

// checkDeadlines wants a heap, of flows that are alive.
func checkDeadlines(t testing.TB, w *worker) {
	t.Helper()
	for i, x := range w.timers.heap {
		if x.place != i || i > 0 && w.timers.heap[(i-1)/2].at > x.at {
			t.Fatalf("worker %d: no heap at %d", w.id, i)
		}
		alive := false
		switch f := x.poll.(type) {
		case *sendFlow:
			alive = w.sending[f.key] == f && f.machine != nil
		case *recvFlow:
			alive = w.receiving[f.id] == f
		case *portReporter:
			for _, p := range w.ports {
				alive = alive || f == &p.out || f == &p.in
			}
		}
		if !alive {
			t.Fatalf("worker %d: the deadline of a flow that is gone: %+v", w.id, x.poll)
		}
	}
}

// checkDeadline wants a flow to wait for what its machine waits for.
func checkDeadline(t testing.TB, x *timed, what any) {
	t.Helper()
	want := x.poll.nextDeadline()
	if got := x.at; x.place < 0 && want != roce.Never || x.place >= 0 && got != want {
		t.Fatalf("the deadline of %v is %v (place %d), its machine's %v", what, got, x.place, want)
	}
}

func checkSending(t testing.TB, w *worker) {
	t.Helper()
	nonces, known, confirmed := 0, 0, 0
	for key, s := range w.sending {
		checkDeadline(t, &s.timed, key)
		if s.key != key || s.gone {
			t.Fatalf("%v: gone or misplaced", key)
		}
		if key.Space == roce.Request || key.Transport == roce.VeRoCE { // responses of RoCEv2 have no acknowledgements, and MRC no responses
			confirmed++
			if n := count(w.byHosts[key.Hosts()], s); n != 1 {
				t.Fatalf("%v is %d times among those of its hosts", key, n)
			}
		}
		if s.nonce != 0 {
			nonces++
			if w.byNonce[s.nonce] != s {
				t.Fatalf("%v: its nonce names another flow", key)
			}
		}
		if s.known.id != 0 {
			known++
			if worker, ok := w.e.owners.find(s.known); w.sendKnown[s.known] != s || !ok || worker != w.id {
				t.Fatalf("%v: its Flow ID names another flow", key)
			}
		}
		switch {
		case s.machine == nil:
			if s.nonce != 0 || s.known.id != 0 || s.verdict.profile != nil {
				t.Fatalf("%v: not protected, and named %d, %v", key, s.nonce, s.known)
			}
		case s.nonce != s.machine.Nonce() || s.known.id != s.machine.ID():
			t.Fatalf("%v: named %d, %v; its machine says %d, %d", key, s.nonce, s.known, s.machine.Nonce(), s.machine.ID())
		}
		if b := s.back; b != nil && (w.pairs.back[b.key] != b || b.flow != s) {
			t.Fatalf("%v: its acknowledgements are proven to be another's", key)
		}
	}
	if len(w.byNonce) != nonces || len(w.sendKnown) != known {
		t.Fatalf("%d nonces and %d Flow IDs of flows that have %d and %d", len(w.byNonce), len(w.sendKnown), nonces, known)
	}
	for _, list := range w.byHosts {
		confirmed -= len(list)
	}
	if confirmed != 0 {
		t.Fatalf("%d flows too few among those of their hosts", confirmed)
	}
	for _, b := range w.pairs.back {
		if b.flow != nil && w.sending[b.flow.key] != b.flow {
			t.Fatal("a pair with a flow that is gone")
		}
	}
}

func count[T comparable](list []T, x T) (n int) {
	for _, y := range list {
		if x == y {
			n++
		}
	}
	return n
}

func checkReceiving(t testing.TB, w *worker) {
	t.Helper()
	flows := map[netip.Addr]int{}
	for id, r := range w.receiving {
		checkDeadline(t, &r.timed, r.key)
		if r.id != id || r.index < 0 || w.recvByKey[r.key] != r || w.recvIndex[r.index] != r || r.busy {
			t.Fatalf("%v (%d): misplaced", r.key, r.index)
		}
		if n := count(w.holding, r); n > 1 || r.holding != (n == 1) {
			t.Fatalf("%v is %d times in the list of flows to hand back, and says %v", r.key, n, r.holding)
		}
		flows[r.peer.Addr()]++
	}
	if len(w.recvByKey) != len(w.receiving) {
		t.Fatalf("%d flows by key, %d by ID", len(w.recvByKey), len(w.receiving))
	}
	for i, r := range w.recvIndex {
		if r != nil && w.receiving[r.id] != r {
			t.Fatalf("index %d is a flow's that is gone", i)
		}
	}
	for a, p := range w.limits.peers {
		if p.flows != flows[a] {
			t.Fatalf("%v has %d flows, and %d count", a, flows[a], p.flows)
		}
	}
}

// check looks at the tables of all workers.
func (w *world) check() {
	w.t.Helper()
	for _, n := range w.nodes {
		if n.engine == nil {
			continue
		}
		receiving, owned := 0, 0
		for _, k := range n.engine.workers {
			checkTables(w.t, k)
			receiving += len(k.receiving)
			owned += len(k.sendKnown)
		}
		if f := n.Program().Flows(); f != receiving {
			w.t.Fatalf("%s: the kernel knows %d flows, the workers %d", siteNames[n.site], f, receiving)
		}
		if len(n.engine.owners.m) != owned {
			w.t.Fatalf("%s: %d owners of %d flows", siteNames[n.site], len(n.engine.owners.m), owned)
		}
	}
}

// finish lets everything come to its end: nothing is held any more, then no flow is known, and all memory is back.
func (w *world) finish() {
	w.t.Helper()
	w.pass(2 * time.Second)
	w.check()
	for _, n := range w.nodes {
		n.settle(false)
		for _, k := range n.engine.workers {
			for key, r := range k.recvByKey {
				if packet.Word(n.Program().Word(r.index).Load()).Hold() && r.machine.State() != crf.Closed || r.machine.Stats().Holding > 0 {
					w.t.Fatalf("%s: %v is still held", siteNames[n.site], key)
				}
			}
		}
	}
	w.pass(3 * time.Minute)
	w.check()
	for _, n := range w.nodes {
		for _, k := range n.engine.workers {
			for _, r := range k.receiving {
				w.t.Errorf("%s: still arrives: %+v, deadline %v, now %v", siteNames[n.site], r.describe(), r.nextDeadline(), w.net.Now())
			}
			for _, s := range k.sending {
				w.t.Errorf("%s: still leaves: %+v, deadline %v, now %v", siteNames[n.site], s.describe(), s.nextDeadline(), w.net.Now())
			}
			if left := len(k.sending) + len(k.receiving) + len(k.timers.heap) + len(k.pairs.back) + len(k.byHosts); left > 0 {
				w.t.Fatalf("%s: %d flows leave, %d arrive, %d wait, %d pairs, %d hosts after all have ended", siteNames[n.site],
					len(k.sending), len(k.receiving), len(k.timers.heap), len(k.pairs.back), len(k.byHosts))
			}
			if u := k.pool.InUse(); u != 0 {
				w.t.Fatalf("%s: %d octets in use after all flows have ended", siteNames[n.site], u)
			}
			if slices.ContainsFunc(k.recvIndex, func(r *recvFlow) bool { return r != nil }) {
				w.t.Fatalf("%s: an index of no flow", siteNames[n.site])
			}
		}
	}
}

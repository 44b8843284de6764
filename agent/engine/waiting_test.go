// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/internal/agentapi"
)

// within fails the test if f never returns.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s waits", what)
	}
}

// Fail open: a worker that waits counts as dead, and its packets pass unprotected. While programs of tunnels are given a plan, or put on an uplink,
// which may take long, workers take leases and CNPs, limit flows, and tell how they are.
func TestWANECN_WorkersNeverWaitForTheKernel(t *testing.T) {
	b := newTunnelBench(t, false)
	s := b.w.sending[leaving]
	entered, goOn := make(chan struct{}), make(chan struct{})
	b.kernel.busy = func() { entered <- struct{}{}; <-goOn }
	c := tunnelled(true)
	c.Domains[0].Uplinks = []string{"wan0", "wan1"}
	applied := make(chan error, 1)
	go func() {
		_, err := b.w.e.Apply(c)
		applied <- err
	}()
	for i, what := range []string{"a plan", "an uplink"} {
		<-entered
		within(t, "the worker, for the kernel to take "+what, func() {
			b.w.wanMessage(52000, &packet.Message{
				Data: (&ecn.Lease{Nonce: uint64(40 + i)}).Append(nil, 0), From: netip.AddrPortFrom(netip.MustParseAddr(westGateway), 52000),
				To: netip.MustParseAddr("192.0.2.1"), Ifindex: 7,
			})
			b.congest(t, s)
			b.w.endReaction(s)
			b.w.setReaction(s)
			b.w.speak()
			b.w.report(true)
		})
		if waits := len(b.w.e.tunnels.heard); waits != i+1 || len(b.kernel.limits) > 0 {
			t.Errorf("while the kernel takes %s: %d requests wait, limits %v", what, waits, b.kernel.limits)
		}
		goOn <- struct{}{}
	}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	b.kernel.busy = nil
	b.hears(ecn.Lease{Nonce: 42}, westGateway)
	var answered []uint64
	for _, m := range b.box.sent {
		if x, err := ecn.ParseLease(m.msg); err == nil && x.Answer {
			answered = append(answered, x.Nonce)
		}
	}
	if !slices.Equal(answered, []uint64{40, 41, 42}) {
		t.Errorf("answered requests %v, want all three, in order", answered)
	}
}

// report is a whole one.
func (w *worker) report(withFlows bool) *report {
	r := &report{withFlows: withFlows}
	for !w.tell(r) {
		continue
	}
	return r
}

// A worker tells of its flows a few at a time, and works in between. A flow that ends meanwhile is counted as it ended, once, and not again as long
// as it is gone.
func TestReportsOfManyFlowsGoOverBatches(t *testing.T) {
	b := newTunnelBench(t, false)
	const flows = 100
	for i := range flows {
		key := leaving
		key.QPN += roce.QPN(i + 1)
		b.w.newSendFlow(b.w.snap.uplinkOf(7), key).packets = 1
	}
	b.w.sending[leaving].packets = 1
	ticks := 0
	b.w.e.now = func() time.Duration { // a flow takes a tenth of what a batch gives
		ticks++
		return b.clock + time.Duration(ticks)*tellFor/10
	}
	r := &report{withFlows: true}
	b.w.calls <- func() bool { return b.w.tell(r) }
	batches := 1
	for ; b.w.serveCalls(); batches++ {
		if batches != 3 {
			continue
		}
		for _, s := range b.w.sending {
			b.w.forgetSend(s)
		}
	}
	if batches < flows/10 || batches > flows {
		t.Errorf("%d batches for %d flows", batches, flows)
	}
	if r.counts.Sending != flows+1 || len(r.flows) != flows+1 {
		t.Errorf("told of %d flows, counted %d, want %d", len(r.flows), r.counts.Sending, flows+1)
	}
	first, then := r.counters, b.w.report(false).counters
	for name, n := range first {
		if strings.HasPrefix(name, "csf_") && then[name] != n {
			t.Errorf("%s: %d, with flows that ended meanwhile; %d after", name, n, then[name])
		}
	}
	if len(b.w.calls) > 0 || b.w.telling != nil {
		t.Error("the report does not end")
	}
}

// Who asks waits for a worker that works, however much it has to tell, but not for one that hangs, and not for ever.
func TestAnswersAreAwaitedWhileWorkersWork(t *testing.T) {
	b := newTunnelBench(t, false)
	for _, c := range []struct {
		silent   time.Duration
		timeouts int
		want     bool
	}{{0, 1, true}, {askTimeout, mostTimeouts - 1, true}, {askTimeout + 1, 1, false}, {0, mostTimeouts, false}} {
		b.w.beatAt.Store(int64(b.clock - c.silent))
		if got := b.w.willAnswer(c.timeouts); got != c.want {
			t.Errorf("no heartbeat for %v, %d timeouts: waits %v", c.silent, c.timeouts, got)
		}
	}
}

// Bounded memory: what comes while many wait is dropped and counted.
func TestWANECN_LeasesThatWaitAreBounded(t *testing.T) {
	b := newTunnelBench(t, false)
	m := packet.Message{
		Data: (&ecn.Lease{Nonce: 1}).Append(nil, 0), From: netip.AddrPortFrom(netip.MustParseAddr(westGateway), 52000), To: netip.MustParseAddr("192.0.2.1"), Ifindex: 7,
	}
	for range leasesWaiting + 3 {
		b.w.wanMessage(52000, &m)
	}
	if got := b.w.drops[dropLeaseQueue]; got != 3 || len(b.w.e.tunnels.heard) != leasesWaiting {
		t.Errorf("%d dropped, %d wait", got, len(b.w.e.tunnels.heard))
	}
}

// A worker that hangs is named while a new configuration waits for it.
func TestHungWorkerIsNamedWhileApplyWaits(t *testing.T) {
	b := newTunnelBench(t, false)
	e := b.w.e
	b.w.beatAt.Store(1)
	var bad []string
	var status agentapi.Status
	e.moment = func() bool {
		within(t, "who asks how the workers are", func() { bad, status = e.Healthy(), e.Overview() })
		return false
	}
	c := tunnelled(true)
	c.Generation = 9
	if _, err := e.Apply(c); err != nil {
		t.Fatal(err)
	}
	if status.Generation != 9 || status.AppliedGeneration != 0 || !slices.ContainsFunc(bad, func(s string) bool { return strings.HasPrefix(s, "worker 0: no heartbeat") }) {
		t.Errorf("generation %d, applied %d, wrong: %q", status.Generation, status.AppliedGeneration, bad)
	}
}

// Only what policies say differs after they change: what is recognised, which tunnels are ours, and who limits flows stays.
func TestSection11_PoliciesChangeNothingElse(t *testing.T) {
	k := &kernel{list: covering()}
	e := New(Options{Backend: k, Workers: 1})
	e.loaded = true
	c := required()
	c.Domains[0].Transports.MRC = roce.MRCSettings{Enabled: true}
	if _, err := e.Apply(c); err != nil {
		t.Fatal(err)
	}
	old := e.snap.Load()
	old.ends = map[packet.Ends]bool{{}: true}
	k.list = nil
	e.judgeSecurity()
	next := e.snap.Load()
	if next == old || !next.cfg.Domains[0].barred() {
		t.Fatal("policies went, and the snapshot stays")
	}
	if next.transports == nil || !next.transports.MRC.Enabled || len(next.ends) != 1 || len(next.results) != len(old.results) {
		t.Errorf("transports %+v, ends %v, results %v", next.transports, next.ends, next.results)
	}
}

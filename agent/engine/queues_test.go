// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
)

// marking is a bench whose tunnel is open, and whose domain wants packets marked by a queue.
func marking(t *testing.T) (*tunnelBench, map[queueKey]*ecn.Marker) {
	t.Helper()
	b := newTunnelBench(t, false)
	c := tunnelled(true)
	c.Domains[0].WAN.Queue = Queue{Early: 100_000, Severe: 400_000}
	b.use(t, c)
	b.open(t)
	return b, map[queueKey]*ecn.Marker{}
}

// waits has so many octets wait before the uplink, for a time, and gives the chances that come of it.
func (b *tunnelBench) waits(markers map[queueKey]*ecn.Marker, octets int64, d time.Duration) [2]float64 {
	b.queue = octets
	for end := b.clock + d; b.clock < end; b.clock += sampleEvery {
		b.w.e.markByQueues(markers)
	}
	return b.kernel.chances[b.kernel.plan.Sites[0].Tunnels[0]]
}

// WAN ECN, two thresholds: the programs mark by the average of the uplink's queue: nothing below the first threshold, whatever a burst is; the early
// warning by a chance that grows with the queue above it; CE above the second one only.
func TestWANECN_OwnQueueGivesChances(t *testing.T) {
	b, markers := marking(t)
	const settled = 20 * queueAverage
	if got := b.waits(markers, 99_000, settled); got != [2]float64{} {
		t.Errorf("below both thresholds: %v", got)
	}
	if got := b.waits(markers, 1<<30, sampleEvery); got != [2]float64{} {
		t.Errorf("when a burst begins: %v", got)
	}
	b.waits(markers, 0, settled)
	if got := b.waits(markers, 250_000, settled); got[0] < 0.49 || got[0] > 0.51 || got[1] != 0 {
		t.Errorf("halfway between the thresholds: %v, want one of two warned and none CE", got)
	}
	if got := b.waits(markers, 600_000, settled); got[0] != 1 || got[1] < 0.24 || got[1] > 0.26 {
		t.Errorf("above both: %v, want all marked, and a quarter CE", got)
	}
	// Fail open: an agent that is gone has nothing marked.
	if now := b.clock - sampleEvery; b.kernel.marksUntil <= now+sampleEvery || b.kernel.marksUntil > now+chancesFor {
		t.Errorf("chances hold for %v, at most %v is wanted", b.kernel.marksUntil-now, chancesFor)
	}
	x := b.status()
	if x.Queue == nil || x.Queue.Average < 590_000 || x.Queue.Average > 600_000 || x.Queue.Early != 100_000 || x.Queue.Severe != 400_000 || x.Queue.Problem != "" {
		t.Errorf("status %+v", x.Queue)
	}

	delete(b.kernel.chances, b.kernel.plan.Sites[0].Tunnels[0])
	if got := b.waits(markers, -1, sampleEvery); got != [2]float64{} || !strings.Contains(b.status().Queue.Problem, "no queue") {
		t.Errorf("a queue that can not be measured: chances %v, status %+v", got, b.status().Queue)
	}
	b.clock += time.Hour
	b.w.e.tendTunnels() // the lease is over
	if b.w.e.markByQueues(markers) {
		t.Error("a queue is measured, and nothing goes into a tunnel")
	}
	b.use(t, tunnelled(true))
	b.queue = 1 << 30
	if b.w.e.markByQueues(markers) || len(markers) > 0 || b.status().Queue != nil {
		t.Errorf("%d queues are measured, and no domain wants it", len(markers))
	}
}

// WAN ECN, ingress action: a mark of the own queue reaches the flow's reaction without a message, within the limits of CNPs: repair shrinks first, and
// the rate when it is severe.
func TestWANECN_OwnMarksAreActedUpon(t *testing.T) {
	b, _ := marking(t)
	s := b.w.sending[leaving]
	meet := func(severe bool) {
		b.w.now = b.clock
		b.w.e.tellMark(bpf.Mark{Flow: tunnelFlow(leaving), Own: true, Severe: severe})
		b.w.takeMarks()
	}
	for end := b.clock + 50*time.Millisecond; b.clock < end; b.clock += 100 * time.Microsecond {
		s.reaction.Observe(b.clock, 10_000)
	}
	for range 3 { // within one interval
		meet(false)
	}
	if got := s.machine.Warning(); !got.Early || got.Congested || got.Withheld != 0.5 || len(b.kernel.limits) != 0 {
		t.Errorf("early: %+v, limits %v", got, b.kernel.limits)
	}
	meet(true)
	if got := s.machine.Warning(); !got.Congested || got.Withheld != 7.0/8 || len(b.kernel.limits) != 1 {
		t.Errorf("severe: %+v, limits %v", got, b.kernel.limits)
	}
	if b.said(); len(b.box.sent) > 0 {
		t.Errorf("told %v of a queue of this node", b.box.sent[0].to)
	}
	if got := b.w.report(false); got.counters["cnp_own_early"] != 1 || got.counters["cnp_own_severe"] != 1 || got.drops["cnp_flow_limit"] != 2 {
		t.Errorf("counters %v, drops %v", got.counters, got.drops)
	}
	for range 200 {
		b.clock += reactEvery
		b.w.now = b.clock
		b.w.pollTimers()
	}
	if got := s.machine.Warning(); got != (csf.Warning{}) || len(b.kernel.limits) != 0 {
		t.Errorf("two seconds later: %+v, limits %v", got, b.kernel.limits)
	}
}

// Where a node has so many queues that to list them takes long it is done less often, but often enough that the chances hold until the next time.
func TestWANECN_MeasuringTakesAFiftiethOfTheTime(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 5 * time.Millisecond, 70 * time.Microsecond: 5 * time.Millisecond, 250 * time.Microsecond: 12500 * time.Microsecond, time.Second: 50 * time.Millisecond,
	} {
		if got := sampleAfter(took); got != want || got >= chancesFor {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}

// Bounded memory: marks that come while many wait for a worker are not kept.
func TestWANECN_OwnMarksThatWaitAreBounded(t *testing.T) {
	b, _ := marking(t)
	for range marksWaiting + 3 {
		b.w.e.tellMark(bpf.Mark{Flow: tunnelFlow(leaving), Own: true})
	}
	if n := len(b.w.marks); n != marksWaiting {
		t.Errorf("%d wait", n)
	}
}

// WAN ECN, marking node: the queue that counts is that of the uplink by which the tunnel leaves. It is measured once for all tunnels before it, and again
// after it could not be; with no uplink known yet, without spec.wan.queue, and where the programs go meanwhile, nothing is marked.
func TestWANECN_WhichQueueIsMeasured(t *testing.T) {
	b, markers := marking(t)
	b.queue, b.asked = -1, nil
	b.w.e.markByQueues(markers)
	if len(b.asked) != 1 || b.asked[0] != 7 || b.status().Queue.Problem == "" {
		t.Errorf("asked for %v, %+v", b.asked, b.status().Queue)
	}
	b.queue = 10
	if b.w.e.markByQueues(markers); b.status().Queue.Problem != "" {
		t.Errorf("measured again: %+v", b.status().Queue)
	}

	way := *b.w.e.tunnels.ways[0]
	b.w.e.tunnels.ways, b.asked = append(b.w.e.tunnels.ways, &way), nil
	for _, problem := range []int64{10, -1} {
		b.queue, b.asked = problem, nil
		if b.w.e.markByQueues(markers); len(b.asked) != 1 {
			t.Errorf("two tunnels before one queue of %d: asked for %v", problem, b.asked)
		}
	}
	b.w.e.tunnels.ways = b.w.e.tunnels.ways[:1]

	kernel := b.w.e.tunnels.kernel
	b.queue, b.asking = 1<<30, func() { b.w.e.tunnels.kernel = nil }
	b.kernel.chances = nil // a mark would be a panic
	b.w.e.markByQueues(markers)
	b.w.e.tunnels.kernel, b.asking = kernel, nil

	b.kernel.noWay = true
	if b.w.e.markByQueues(markers) {
		t.Error("measured, and no request has left by any uplink")
	}
	b.kernel.noWay = false
	b.w.e.tunnels.ways[0].queue = Queue{}
	if b.w.e.markByQueues(markers) || len(markers) > 0 {
		t.Error("measured, and the domain does not want it")
	}
}

// A mark of this node's own goes to the worker of its flow, whichever that is.
func TestWANECN_OwnMarksGoToTheirWorker(t *testing.T) {
	b, _ := marking(t)
	b.w.e.workers = append(b.w.e.workers, &worker{marks: make(chan ownMark, marksWaiting)})
	want := [2]int{}
	for i := range 20 {
		f := leaving
		for range i {
			f.Dst = f.Dst.Next()
		}
		b.w.e.tellMark(bpf.Mark{Flow: tunnelFlow(f), Own: true})
		want[workerOf(f.Src, f.Dst, 2)]++
	}
	if got := [2]int{len(b.w.e.workers[0].marks), len(b.w.e.workers[1].marks)}; got != want || want[0] == 0 || want[1] == 0 {
		t.Errorf("%v, want %v", got, want)
	}
}

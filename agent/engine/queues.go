// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
)

// A gateway is a marking node too, where its domain wants that: the queue of its own uplink is where the sites' traffic meets the line, and no router
// behind that queue can tell how long it is. The queue is measured here; the programs mark, by the chances that its average gives.

const (
	// sampleEvery is how often queues are measured, queueAverage over how long they are averaged: bursts of some round trips within a site do not count.
	sampleEvery  = 5 * time.Millisecond
	queueAverage = 25 * time.Millisecond
	// To measure takes a listing of all queues of the node: no more than one part in sampleShare of the time, but not less often than seldom.
	sampleShare = 50
	seldom      = 50 * time.Millisecond
	// queueIdle is how often it is asked whether any is to be measured.
	queueIdle = time.Second
	// chancesFor is how long the programs mark by chances that nobody renews.
	chancesFor = 100 * time.Millisecond
	// echoFor is how long after a mark of ours the other end may tell us of it: the queue, the path, its own limit, and the way back.
	echoFor = time.Second
	// marksWaiting is how many marks may wait for a worker.
	marksWaiting = 256
)

// queueKey names a queue with the thresholds of a domain.
type queueKey struct {
	uplink int // index of the interface
	of     Queue
}

// measured is a tunnel and the queue before it.
type measured struct {
	queueKey
	way    *way
	tunnel bpf.Tunnel
}

// ownMark is a mark of this node's own, on its way to the flow's worker.
type ownMark struct {
	flow  ecn.Flow
	level ecn.Level
}

// keepMarking measures queues until the engine stops.
func (e *Engine) keepMarking() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	markers := map[queueKey]*ecn.Marker{}
	for {
		select {
		case <-e.stop:
			return
		case <-timer.C:
		}
		begin := e.now()
		if e.markByQueues(markers) {
			timer.Reset(sampleAfter(e.now() - begin))
		} else {
			timer.Reset(queueIdle)
		}
	}
}

// sampleAfter is how long to wait after a measurement that took so long.
func sampleAfter(took time.Duration) time.Duration {
	return min(max(sampleEvery, sampleShare*took), seldom)
}

// markByQueues measures every queue before a tunnel in use, and gives the programs its chances. It reports whether there is any. A queue that can not
// be measured is marked for until its last chances are over.
func (e *Engine) markByQueues(markers map[queueKey]*ecn.Marker) bool {
	list := e.tunnels.measured()
	lengths, problems := map[int]int64{}, map[int]error{}
	for _, x := range list {
		if _, known := lengths[x.uplink]; !known {
			n, err := e.backend.Queued(x.uplink)
			if lengths[x.uplink] = n; err != nil {
				problems[x.uplink] = err
			}
		}
	}
	used := map[queueKey]bool{}
	t := &e.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	now := e.now()
	for _, x := range list {
		if err := problems[x.uplink]; err != nil {
			x.way.queueProblem = fmt.Sprintf("nothing is marked by the own queue: %v", err)
			continue
		}
		m := markers[x.queueKey]
		if m == nil {
			var err error
			if m, err = ecn.NewMarker(ecn.MarkerConfig{T1: x.of.Early, T2: x.of.Severe, Average: queueAverage}); err != nil {
				x.way.queueProblem = err.Error()
				continue
			}
			markers[x.queueKey] = m
		}
		used[x.queueKey] = true
		m.Sample(now, lengths[x.uplink])
		x.way.queueProblem, x.way.queued = "", m.Average()
		if t.kernel != nil { // it was when the list was made
			any, severe := m.Chances()
			t.kernel.Mark(x.tunnel, any, severe, now+chancesFor)
		}
	}
	for key := range markers {
		if !used[key] {
			delete(markers, key)
		}
	}
	return len(list) > 0
}

// measured lists the tunnels in use before which a domain wants the queue measured.
func (t *tunnels) measured() (list []measured) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.ways {
		if w.queue == (Queue{}) || w.use < 0 { // one in use has its programs
			continue
		}
		x := w.tunnels[w.use].Tunnel
		if _, uplink := t.kernel.Leased(x); uplink != 0 {
			list = append(list, measured{queueKey{uplink, w.queue}, w, x})
		}
	}
	return list
}

// giveMark hands a mark of ours to the worker of its flow.
func (e *Engine) giveMark(m ownMark) {
	select {
	case e.workers[workerOf(m.flow.Src, m.flow.Dst, len(e.workers))].marks <- m:
	default: // one of the next marks comes through: a flow that is still congested has more
	}
}

// takeMarks acts upon marks that this node made, as upon CNPs, without a message.
func (w *worker) takeMarks() {
	for {
		select {
		case m := <-w.marks:
			if w.cnps.Own(w.now, m.flow, m.level) == ecn.DropNone { // else the receiver counts it
				w.congested(m.flow, m.level)
			}
		default:
			return
		}
	}
}

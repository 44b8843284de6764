// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"hash/fnv"
	"net/netip"
	"sync/atomic"
	"time"

	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/agent/wire"
)

const (
	// portEvery is how often the counters of the uplinks are read while a domain wants drops reported: a report is of use to a CSF for one
	// SRTT.
	portEvery = 20 * time.Millisecond
	// portIdle is how often it is asked whether one does.
	portIdle = time.Second
	// reportMTU fits every path of IPv6, and leaves room for a tunnel on any other.
	reportMTU = 1280
	// reportsPerSecond bounds the PATH_REPORTs of an uplink and direction, over all workers (Section 8.2, rule 3).
	reportsPerSecond = 1000
	reportFlows      = 1024 // of a worker, uplink and direction
	reportPending    = 32
)

// portCounters are the counters of an uplink as they were read last.
type portCounters struct {
	read    atomic.Pointer[uplink.Counters]
	problem atomic.Pointer[string]
}

// readPorts reads the counters of the uplinks until the engine stops.
func (e *Engine) readPorts() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-timer.C:
		}
		snap := e.snap.Load()
		if !snap.cfg.reportsDrops() {
			timer.Reset(portIdle)
			continue
		}
		for i := range snap.uplinks {
			u := &snap.uplinks[i]
			if c, err := e.backend.PortCounters(u.index); err == nil {
				u.port.read.Store(&c)
				u.port.problem.Store(nil)
			} else {
				text := err.Error()
				u.port.problem.Store(&text)
			}
		}
		timer.Reset(portEvery)
	}
}

// reportsDrops reports whether any domain wants its nodes to report drops.
func (c *Config) reportsDrops() bool {
	for i := range c.Domains {
		if c.Domains[i].ReportDrops {
			return true
		}
	}
	return false
}

// port is the Path Reporter of a worker for one uplink: one for what leaves and one for what arrives.
type port struct {
	handled *uplink.Counters // the counters that were taken last
	out, in portReporter
}

// portReporter reports what one direction of an uplink drops.
type portReporter struct {
	timed
	w     *worker
	tell  func(*reporter.Action) // one report
	of    *reporter.Reporter
	moved []*moving // flows that had packets since the counters were read last, no more than the reporter has places for
}

// moving is what a flow's packets mean to the Path Reporter.
type moving struct {
	flow    reporter.Flow
	packets int // since the counters were read last
	tos     uint8
}

func newMoving(key roce.FlowKey) moving {
	return moving{flow: reporter.Flow{Src: key.Src, Dst: key.Dst, Label: uint32(key.QPN)}}
}

// pass counts a packet of a flow. Flows come and go also while the counters cannot be read: those for which there is no place are left out.
func (r *portReporter) pass(m *moving, tos uint8) {
	if m.packets == 0 {
		if len(r.moved) == reportFlows {
			return
		}
		r.moved = append(r.moved, m)
	}
	m.packets++
	m.tos = tos
}

// take gives the counters to the reporter, after what the flows had of them.
func (r *portReporter) take(now time.Duration, c reporter.Counters) {
	for _, m := range r.moved {
		r.of.Count(m.flow, m.packets)
		m.packets = 0
	}
	clear(r.moved)
	r.moved = r.moved[:0]
	r.of.HandleCounters(now, c)
	r.w.timers.set(&r.timed, r.nextDeadline())
}

func (r *portReporter) poll(now time.Duration) {
	r.of.Poll(now, &r.w.reports)
	for i := range r.w.reports {
		r.tell(&r.w.reports[i])
	}
	clear(r.w.reports)
	r.w.reports = r.w.reports[:0]
}

func (r *portReporter) nextDeadline() time.Duration { return r.of.NextDeadline() }

// newPort makes the Path Reporter of an uplink.
func (w *worker) newPort() *port {
	c := reporter.Config{
		Node: nodeID(w.e.opts.Node), Unix: time.Duration(time.Now().UnixNano()) - w.e.now(), MTU: reportMTU, Flows: reportFlows, Pending: reportPending,
		PerSecond: reportsPerSecond / float64(len(w.e.workers)),
	}
	p := &port{}
	p.out = portReporter{w: w, of: reporter.New(c), tell: w.tellOwn}
	p.in = portReporter{w: w, of: reporter.New(c), tell: w.tellPeer}
	p.out.timed = timed{place: -1, poll: &p.out}
	p.in.timed = timed{place: -1, poll: &p.in}
	return p
}

// nodeID is a node's number in Hop Entries: of its name, so that it stays what it is.
func nodeID(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum32()
}

// setPorts makes the Path Reporters that the configuration wants, and ends the others.
func (w *worker) setPorts() {
	on := w.snap.cfg.reportsDrops() || w.snap.cfg.measures()
	for index, p := range w.ports {
		if !on || w.snap.uplinkOf(index) == nil {
			w.endPort(index, p)
		}
	}
	if !on {
		return
	}
	for i := range w.snap.uplinks {
		if index := w.snap.uplinks[i].index; w.ports[index] == nil {
			w.ports[index] = w.newPort()
		}
	}
}

func (w *worker) endPort(index int, p *port) {
	for _, r := range [...]*portReporter{&p.out, &p.in} {
		w.timers.set(&r.timed, roce.Never)
		addReporter(w.ended.other.counters, w.ended.other.drops, r.of.Stats())
		for _, m := range r.moved {
			m.packets = 0
		}
	}
	delete(w.ports, index)
}

// takeCounters gives counters that were read since the last batch to the Path Reporters.
func (w *worker) takeCounters() {
	if len(w.ports) == 0 {
		return
	}
	for i := range w.snap.uplinks {
		u := &w.snap.uplinks[i]
		c, p := u.port.read.Load(), w.ports[u.index]
		if c == nil || c == p.handled {
			continue
		}
		p.handled = c
		p.out.take(w.now, reporter.Counters{Passed: c.Sent, Dropped: c.SendDropped})
		p.in.take(w.now, reporter.Counters{Passed: c.Received, Dropped: c.Missed})
	}
}

// left counts a packet of a protected flow that left by an uplink.
func (w *worker) left(s *sendFlow, ifindex int, tos uint8) {
	if p := w.ports[ifindex]; p != nil && s.verdict.domain.ReportDrops {
		p.out.pass(&s.moving, tos)
	}
}

// came counts a packet of a protected flow that came by an uplink.
func (w *worker) came(r *recvFlow, ifindex int, tos uint8) {
	if p := w.ports[ifindex]; p != nil && r.reportDrops {
		p.in.pass(&r.moving, tos)
	}
}

// tellOwn gives a report about a flow that leaves to its CSF, which is here.
func (w *worker) tellOwn(a *reporter.Action) {
	if x, err := wire.ParsePathReport(a.Msg); err == nil && !w.toSenders(netip.AddrPort{}, &x) {
		w.drops[dropUnknownFlow]++
	}
}

// arriving is the flow that a report is about, if it is protected here on its way to its receiver; else nil.
func (w *worker) arriving(f reporter.Flow) *recvFlow {
	for _, kind := range wire.Kinds() { // a reporter does not know it
		key, _ := flowKey(&wire.FlowDescriptor{Kind: kind, Src: f.Src, Dst: f.Dst, Label: f.Label})
		if r := w.recvByKey[key]; r != nil {
			return r
		}
	}
	return nil
}

// tellPeer sends a report about a flow that arrives to the address of its CSF.
func (w *worker) tellPeer(a *reporter.Action) {
	r := w.arriving(a.Flow)
	if r == nil {
		return
	}
	buf := w.pool.Buffer(len(a.Msg))
	if buf == nil {
		w.drops[dropReportMemory]++
		return
	}
	w.send(r.port, netip.AddrPortFrom(r.peer.Addr(), r.port), netip.Addr{}, r.tos&^ecnMask|ecnECT0, append(buf[:0], a.Msg...))
}

// pass takes the report of a reporter further down the path of a flow that arrives here: with what this node has to say about the flow, or by itself, it
// goes on to the flow's CSF (Section 8.2, rule 3). It is false for a flow whose reports are not this node's affair.
func (w *worker) pass(x *wire.PathReport, msg []byte) bool {
	f := reporter.Flow{Src: x.Src, Dst: x.Dst, Label: x.Label}
	r := w.arriving(f)
	if r == nil || !r.reportDrops {
		return false
	}
	p := w.ports[r.ifindex]
	if p == nil {
		return false
	}
	in := &p.in
	switch {
	case in.of.Merge(w.now, x):
		w.timers.set(&in.timed, in.nextDeadline())
	case in.of.Forward(w.now, x):
		w.tellPeer(&reporter.Action{Flow: f, Msg: msg})
	}
	return true
}

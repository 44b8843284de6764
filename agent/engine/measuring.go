// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/internal/agentapi"
)

const (
	// markingPeriod is the same at every gateway. Half of it is for the difference of two clocks and the delay of the WAN together.
	markingPeriod = time.Second
	// clockRoom is how much of that half may be used: the rest is for packets that overtake others.
	clockRoom = markingPeriod * 3 / 8
	// clockStep is a change of the clock against the one that never jumps after which the periods around it are not whole.
	clockStep = markingPeriod / 16
	// wholeAfter is how many periods later than a beginning, or a jump of the clock, one is whole at both ends.
	wholeAfter = 2

	comparedFlows  = 4096
	readingsOctets = reportMTU - 40 - udpHead
	// readingsSent bounds the messages of a period, over all tunnels; readingsTaken those of one tunnel.
	readingsSent, readingsTaken = 16, 16
	readingsWaiting             = 64
	measurementsWaiting         = 64 // of a worker

	// tellSilent is for how many periods after its last packet a flow is told, with no packets: a tunnel does not outlive its path for longer.
	tellSilent = 4
	// forgetEvery is how often, in periods, flows that ended are forgotten, countsKept for how long they are known.
	forgetEvery, countsKept = 16, 64
)

// measuring finds what is lost in tunnels, and how their delay changes (docs/design/alternate-marking.md): this node compares what it counted of the
// flows that go into them with what their other ends say came out. All but what workers do is for the goroutine of keepTunnels.
type measuring struct {
	periods reporter.Periods
	unix    func() time.Duration
	inbox   chan readings
	offset  time.Duration // of Unix time against the clock that never jumps
	told    uint32        // period that was told last

	refusals    [refusals]atomic.Uint64
	sent, taken atomic.Uint64 // messages

	mu sync.Mutex // guards what follows; no worker takes it, and nobody reads counters of the kernel under it
	of *reporter.Comparer
}

// readings are a message on its way from a worker.
type readings struct {
	ends packet.Ends   // of the tunnel, seen from here
	at   time.Duration // when it came, Unix time
	data []byte
}

// refusal is why a message of readings was not used, or measurements not reported.
type refusal uint8

const (
	refusedMalformed refusal = iota
	refusedTunnel            // no tunnel of ours that is measured and open
	refusedLimit             // more than a period needs
	refusedClocks            // the clocks of both ends differ by too much
	refusedBusy              // too many wait
	refusals
)

var refusalNames = [refusals]string{"malformed", "no_tunnel", "limit", "clocks", "busy"}

// colouring is what is known of a tunnel that is measured.
type colouring struct {
	on      bool
	from    uint32        // the first period that is whole
	trip    time.Duration // least round trip of lately between the two gateways; 0: none was measured
	period  uint32        // in which the last messages came, and how many
	taken   int
	silent  int    // periods with packets since they came
	packets uint64 // that entered in the periods compared
	lost    uint64 // of these
	delay   drift
	in, out fault // of what comes from there, and of what goes there
}

// drift is how the delay of a tunnel has changed since it is measured: period by period the mean over its packets.
type drift struct {
	period      uint32  // the newest one
	before      float64 // what it was then, microseconds
	sum, weight float64 // of the changes in it, by packets, and these
}

func (d *drift) add(x *reporter.Measurement) {
	if x.Period != d.period {
		*d = drift{period: x.Period, before: d.now()}
	}
	d.sum += float64(x.DelayChange) * float64(x.Entered)
	d.weight += float64(x.Entered)
}

// now is in microseconds.
func (d *drift) now() float64 {
	if d.weight == 0 {
		return d.before
	}
	return d.before + d.sum/d.weight
}

// fault is what keeps a tunnel from being measured, as a person should read it; empty: nothing does.
type fault string

// set tells of a fault that was not there before.
func (f *fault) set(e *Engine, x *tunnel, text string) {
	if *f == "" && text != "" && e.opts.Notice != nil {
		e.opts.Notice(fmt.Sprintf("tunnel from %v to %v: %s", x.Local, x.Remote, text))
	}
	*f = fault(text)
}

const (
	faultRecoloured = "packets come with another DSCP outside than inside, so what comes from there is not measured: have the nodes of the WAN leave the DSCP as it is, or remove spec.wan.measurement"
	faultExcess     = "more packets of a flow came out of the tunnel than went in, so what goes there is not measured: have the nodes of the WAN leave the DSCP as it is, look whether one doubles packets, or remove spec.wan.measurement"
)

func newMeasuring() measuring {
	p := reporter.NewPeriods(markingPeriod)
	return measuring{
		periods: p, inbox: make(chan readings, readingsWaiting), of: reporter.NewComparer(p, comparedFlows),
		unix: func() time.Duration { return time.Duration(time.Now().UnixNano()) },
	}
}

// measures reports whether any domain wants its tunnels measured.
func (c *Config) measures() bool {
	for i := range c.Domains {
		if w := c.Domains[i].WAN; w != nil && w.Measure {
			return true
		}
	}
	return false
}

// set begins or ends the measuring of a tunnel.
func (x *colouring) set(on bool, present uint32) {
	switch {
	case !on:
		*x = colouring{trip: x.trip}
	case !x.on:
		x.on, x.from = true, present+wholeAfter
	}
}

// answered notes a round trip. The least of lately is what the path needs, the rest is how late a processor was.
func (x *colouring) answered(trip time.Duration) {
	if x.trip == 0 || trip < x.trip {
		x.trip = trip
	}
	x.trip += (trip - x.trip) / 8
}

// apart is how long packets take to the other end by the two clocks, from a message of the other end that was sent and came at these times; ok if that
// fits a period.
func (x *colouring) apart(sent, came time.Duration) (d time.Duration, ok bool) {
	d = x.trip - (came - sent)
	return d, x.trip > 0 && d > -clockRoom && d < clockRoom
}

// readings gives a message of the other end of a tunnel to the control side.
func (w *worker) readings(d *Domain, m *packet.Message) {
	x := readings{ends: packet.Ends{Src: m.To, Dst: m.From.Addr()}, at: w.e.measuring.unix()}
	if !d.WAN.Measure || !w.snap.ends[x.ends] {
		w.e.measuring.refuse(refusedTunnel)
		return
	}
	if len(w.e.measuring.inbox) < cap(w.e.measuring.inbox) {
		x.data = bytes.Clone(m.Data)
		select {
		case w.e.measuring.inbox <- x:
			return
		default:
		}
	}
	w.e.measuring.refuse(refusedBusy)
}

func (m *measuring) refuse(why refusal) { m.refusals[why].Add(1) }

// drop counts a period of a flow that says nothing.
func (m *measuring) drop(why reporter.DropReason) reporter.DropReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of.Drop(why)
}

// present is the number of the present period.
func (m *measuring) present() uint32 { return m.periods.At(m.unix()) }

// wait is how long it is until readings are due.
func (m *measuring) wait() time.Duration { return m.periods.UntilOver(m.unix()) }

// target is a tunnel whose other end is told what came out of it.
type target struct {
	from       uint32
	x          *tunnel
	list       [2][]ecn.Reading // of IPv4 and IPv6
	recoloured bool
}

// afterPeriod is for when a period is over: what came out of the measured tunnels is told, and what should have been told of those that lead away is missed.
func (e *Engine) afterPeriod() {
	m, t := &e.measuring, &e.tunnels
	kernel, targets := t.targets(m.jumped(e.now(), t.clock()), m.present())
	over := m.periods.Over(m.unix())
	if kernel == nil || over == m.told {
		return
	}
	m.told = over
	e.tellReadings(kernel, targets, over)
	e.noteSilence(kernel, over)
	if over%forgetEvery == 0 {
		_ = kernel.ForgetCounts(over - countsKept) // else there is less room, which is counted
	}
}

// tellReadings tells the other ends of the measured tunnels what came out of them in the period that is over now.
func (e *Engine) tellReadings(kernel Tunnels, targets map[bpf.Tunnel]*target, over uint32) {
	m := &e.measuring
	err := kernel.Arrived(func(c *bpf.FlowCounts) {
		if to := targets[c.Tunnel]; to != nil && int32(over-to.from) >= 0 && int32(over-c.Newest()) <= tellSilent {
			m.add(to, c, over)
		}
	})
	if err == nil {
		e.say(m.messages(targets, over))
		e.noteArrived(targets)
	}
}

// noteArrived notes what is wrong with what arrived.
func (e *Engine) noteArrived(targets map[bpf.Tunnel]*target) {
	e.tunnels.mu.Lock()
	defer e.tunnels.mu.Unlock()
	for _, to := range targets {
		text := ""
		if to.recoloured {
			text = faultRecoloured
		}
		to.x.measured.in.set(e, to.x, text)
	}
}

// jumped reports whether periods around now are not whole, because the clock made a jump; byTAI if the programs' clock did.
func (m *measuring) jumped(now time.Duration, byTAI bool) bool {
	before := m.offset
	m.offset = m.unix() - now
	step := m.offset - before
	return byTAI || step > clockStep || step < -clockStep
}

// clock brings the programs' clock in line with the system's.
func (t *tunnels) clock() (jumped bool) {
	t.mu.Lock()
	kernel := t.kernel
	t.mu.Unlock()
	if kernel == nil {
		return false
	}
	jumped, _ = kernel.SetClock() // with a wrong one colours do not fit the other end's, which is noticed
	return jumped
}

// targets lists the tunnels that are measured and in use by their other end; no Tunnels: none is measured. After a jump of the clock they are measured
// anew.
func (t *tunnels) targets(jumped bool, present uint32) (kernel Tunnels, list map[bpf.Tunnel]*target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	list = map[bpf.Tunnel]*target{}
	for _, x := range t.byEnds {
		y := &x.measured
		if !y.on || t.kernel == nil {
			continue
		}
		kernel = t.kernel
		if jumped {
			y.from = present + wholeAfter
		}
		if y.unheard(present) && y.silent < patience { // what was wrong may not be any more
			y.out = ""
		}
		if x.theirs != 0 {
			list[x.Tunnel] = &target{from: y.from, x: x}
		}
	}
	return kernel, list
}

func (m *measuring) add(to *target, c *bpf.FlowCounts, over uint32) {
	k := reporter.Flow{Src: c.Flow.Src, Dst: c.Flow.Dst, Label: c.Flow.QPN}
	r, why := c.Reading(k, over, over)
	if why != reporter.DropNone {
		to.recoloured = to.recoloured || why == reporter.DropRecoloured
		m.drop(why)
		return
	}
	version := 0
	if !k.Src.Is4() {
		version = 1
	}
	to.list[version] = append(to.list[version], ecn.Reading{Flow: k, Packets: r.Packets, Sum: r.Sum})
}

// messages are the readings of a period, no more than may be sent at a time.
func (m *measuring) messages(targets map[bpf.Tunnel]*target, period uint32) (list []datagram) {
	for _, to := range targets {
		for version, readings := range to.list {
			most := ecn.MostReadings(readingsOctets, version == 0)
			readings = inTurn(readings, period, most*readingsSent)
			for len(readings) > 0 && len(list) < readingsSent {
				n := min(most, len(readings))
				msg := ecn.Readings{Period: period, Time: uint64(m.unix().Microseconds()), List: readings[:n]}
				list = append(list, datagram{to.x.Local, netip.AddrPortFrom(to.x.Remote, to.x.Port), msg.Append(nil)})
				readings = readings[n:]
			}
		}
	}
	m.sent.Add(uint64(len(list)))
	return list
}

// inTurn puts other flows first every second period, where not all of so many can be told: each is told in periods of both colours.
func inTurn(list []ecn.Reading, period uint32, most int) []ecn.Reading {
	if len(list) <= most {
		return list
	}
	first := int(period/2) * most % len(list)
	return append(list[first:len(list):len(list)], list[:first]...)
}

// takeReadings compares what the other end of a tunnel counted with what this one did, and gives what comes of it to the workers of the flows.
func (e *Engine) takeReadings(r readings) {
	m := &e.measuring
	msg, err := ecn.ParseReadings(r.data)
	if err != nil {
		m.refuse(refusedMalformed)
		return
	}
	x, kernel, from, why := e.tunnels.admit(e, &r, time.Duration(msg.Time)*time.Microsecond)
	if kernel == nil {
		m.refuse(why)
		return
	}
	var found []reporter.Measurement
	excess := false
	m.taken.Add(1)
	for i := range msg.List {
		y, why := m.compare(kernel, x, from, msg.Period, &msg.List[i])
		if why == reporter.DropNone {
			found = append(found, y)
		}
		excess = excess || why == reporter.DropExcess
	}
	e.noteEntered(r.ends, found, excess)
	_, ifindex := kernel.Leased(x)
	e.report(found, ifindex)
}

// admit says whether a message comes from the other end of a tunnel that is measured and open, not too often, and with a clock that fits; no Tunnels: it
// does not, and why.
func (t *tunnels) admit(e *Engine, r *readings, sent time.Duration) (bpf.Tunnel, Tunnels, uint32, refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byEnds[r.ends]
	if x == nil || t.kernel == nil || !x.measured.on || x.until <= e.now() {
		return bpf.Tunnel{}, nil, 0, refusedTunnel
	}
	y := &x.measured
	if !y.hear(e.measuring.periods.At(r.at)) {
		return bpf.Tunnel{}, nil, 0, refusedLimit
	}
	if apart, ok := y.apart(sent, r.at); !ok {
		y.out.set(e, x, fmt.Sprintf("by the clocks of both ends packets need %v, so what goes there is not measured: keep the clocks of the gateways within %v of each other, less the delay of the WAN (NTP)",
			apart.Round(time.Millisecond), clockRoom))
		return bpf.Tunnel{}, nil, 0, refusedClocks
	}
	return x.Tunnel, t.kernel, y.from, 0
}

// compare is for one flow. The counters are read before the clock: what is over then was over when they were read.
func (m *measuring) compare(kernel Tunnels, x bpf.Tunnel, from, period uint32, down *ecn.Reading) (reporter.Measurement, reporter.DropReason) {
	k := down.Flow
	counts, known, err := kernel.EnteredOf(x, bpf.TunnelFlow{Src: k.Src, Dst: k.Dst, QPN: k.Label})
	switch {
	case err != nil || !known:
		return reporter.Measurement{}, m.drop(reporter.DropUnknownFlow)
	case int32(period-from) < 0:
		return reporter.Measurement{}, m.drop(reporter.DropPartial)
	}
	up, why := counts.Reading(k, m.present()-1, period)
	if why != reporter.DropNone {
		return reporter.Measurement{}, m.drop(why)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of.Compare(up, reporter.Reading{Flow: k, Period: period, Packets: down.Packets, Sum: down.Sum})
}

// noteEntered adds what was measured to the totals of a tunnel, and notes what is wrong with it.
func (e *Engine) noteEntered(ends packet.Ends, found []reporter.Measurement, excess bool) {
	e.tunnels.mu.Lock()
	defer e.tunnels.mu.Unlock()
	x := e.tunnels.byEnds[ends]
	if x == nil {
		return
	}
	text := ""
	if excess {
		text = faultExcess
	}
	x.measured.out.set(e, x, text)
	for i := range found {
		x.measured.packets += uint64(found[i].Entered)
		x.measured.lost += uint64(found[i].Lost)
		x.measured.delay.add(&found[i])
	}
}

// report gives measurements to the Path Reporters of the uplink by which the tunnel leaves. A worker that does not come to them reports none.
func (e *Engine) report(found []reporter.Measurement, ifindex int) {
	by := make([][]reporter.Measurement, len(e.workers))
	for _, x := range found {
		i := workerOf(x.Flow.Src, x.Flow.Dst, len(e.workers))
		by[i] = append(by[i], x)
	}
	for i, w := range e.workers {
		if len(by[i]) == 0 {
			continue
		}
		select {
		case w.measured <- measurements{ifindex, by[i]}:
		default:
			e.measuring.refuse(refusedBusy)
		}
	}
}

// measurements are of flows of one worker that leave by one uplink.
type measurements struct {
	ifindex int
	list    []reporter.Measurement
}

// takeMeasurements gives what the control side found to the Path Reporters.
func (w *worker) takeMeasurements() {
	for {
		select {
		case x := <-w.measured:
			w.reportMeasured(&x)
		default:
			return
		}
	}
}

// reportMeasured is about protected flows. Others have no CSF.
func (w *worker) reportMeasured(x *measurements) {
	p := w.ports[x.ifindex]
	if p == nil {
		return
	}
	for i := range x.list {
		if w.protectsInTunnel(&x.list[i].Flow) {
			p.out.of.HandleMeasurement(w.now, &x.list[i])
		}
	}
	w.timers.set(&p.out.timed, p.out.nextDeadline())
}

// protectsInTunnel reports whether a flow that goes into tunnels has a CSF here.
func (w *worker) protectsInTunnel(k *reporter.Flow) bool {
	key := roce.FlowKey{Src: k.Src, Dst: k.Dst, QPN: roce.QPN(k.Label)}
	for _, kind := range inTunnels { // who counts packets does not know it
		key.Space, key.Transport = kind.space, kind.transport
		if s := w.sending[key]; s != nil && s.machine != nil {
			return true
		}
	}
	return false
}

// describeMeasured is what the status says of a way that is measured.
func (w *way) describeMeasured() *agentapi.Measured {
	if !w.measured {
		return nil
	}
	out := &agentapi.Measured{}
	for i, x := range w.tunnels {
		out.Packets += x.measured.packets
		out.Lost += x.measured.lost
		if i == w.use {
			out.DelayChange = int64(x.measured.delay.now())
		}
		for _, f := range [...]fault{x.measured.out, x.measured.in} {
			if out.Problem == "" {
				out.Problem = string(f)
			}
		}
	}
	return out
}

// count fills in the counters.
func (m *measuring) count(s *agentapi.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.of.Stats()
	s.Counters["readings_sent"], s.Counters["readings_received"] = m.sent.Load(), m.taken.Load()
	s.Counters["measured_packets"], s.Counters["measured_lost"] = of.Packets, of.Lost
	s.Unmeasured = map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			s.Unmeasured[name] = n
			s.Drops["readings_unused"] += n
		}
	}
	for i, n := range of.Drops {
		add("flow_"+reporter.DropReason(i).String(), n)
	}
	for i := range m.refusals {
		add("message_"+refusalNames[i], m.refusals[i].Load())
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/internal/agentapi"
)

const (
	// askTimeout is after how long without a heartbeat a worker counts as one that hangs: a status call waits no longer for it.
	askTimeout = time.Second
	// mostTimeouts bounds how long a call waits for one that works and has much to tell.
	mostTimeouts = 10
)

// tellFor is how long a worker tells of itself in a batch. What it says of thousands of flows takes tenths of a second, and after 10 ms it would count
// as dead.
const tellFor = 500 * time.Microsecond

// report is what one worker says about itself, in as many batches as it takes. Flows that end meanwhile are in it as they ended, so that no counter
// goes back.
type report struct {
	withFlows bool
	number    uint64      // of the worker's reports; 0: not begun
	sending   []*sendFlow // that are still to be told
	receiving []*recvFlow

	status   agentapi.Worker
	flows    []agentapi.Flow
	counts   agentapi.FlowCount
	held     int64
	mtu      agentapi.MTUTooSmall
	sites    siteSums
	counters map[string]uint64
	drops    map[string]uint64
	sent     totals // of leaving flows,
	received totals // and of arriving ones
}

// ask runs f on every worker's own goroutine, between batches, until it is done, and waits as long as they work. It reports which workers answered.
func (e *Engine) ask(f func(w *worker) (done bool)) []bool {
	done := make([]chan struct{}, len(e.workers))
	answered := make([]bool, len(e.workers))
	for i, w := range e.workers {
		done[i] = make(chan struct{})
		call := func() bool {
			ready := f(w)
			if ready {
				close(done[i])
			}
			return ready
		}
		select {
		case w.calls <- call:
		default:
			done[i] = nil // its queue is full: it hangs
		}
	}
	ticker := time.NewTicker(askTimeout)
	defer ticker.Stop()
	timeouts := 0
	for i := range done {
		for done[i] != nil && !answered[i] {
			select {
			case <-done[i]:
				answered[i] = true
			case <-ticker.C:
				if timeouts++; !e.workers[i].willAnswer(timeouts) {
					return answered
				}
			}
		}
	}
	return answered
}

// Overview is the part of Status that costs the workers nothing: no counters, no flows.
func (e *Engine) Overview() agentapi.Status {
	s, _ := e.overview()
	return s
}

// overview gives the snapshot that it describes, nil before there is one.
func (e *Engine) overview() (agentapi.Status, *snapshot) {
	snap := e.snap.Load()
	s := agentapi.Status{
		Version: e.opts.Version, Node: e.opts.Node,
		Counters: map[string]uint64{}, Drops: map[string]uint64{}, Memory: agentapi.Memory{Limit: e.opts.Memory},
		Flows: agentapi.FlowCount{ProtectedBy: map[string]int{}},
	}
	for _, t := range roce.AllTransports() {
		s.Flows.ProtectedBy[t.String()] = 0
	}
	if snap == nil {
		return s, nil
	}
	e.describe(&s, snap)
	e.tunnels.describe(&s, e.now(), snap)
	s.Generation, s.AppliedGeneration = snap.cfg.Generation, snap.cfg.Generation
	if snap.cfg.measures() {
		e.measuring.count(&s)
	}
	for i, w := range e.workers {
		s.Workers = append(s.Workers, agentapi.Worker{ID: i, LastBeatAge: w.beatAge().Seconds(), Realtime: w.realtime.Load()})
		if w.seenSnap.Load() < snap.number {
			s.AppliedGeneration = 0
		}
	}
	return s, snap
}

// Status tells how the data path is. withFlows adds every flow to the second result.
func (e *Engine) Status(withFlows bool) (agentapi.Status, []agentapi.Flow) {
	s, snap := e.overview()
	if snap == nil {
		return s, nil
	}
	reports := make([]report, len(e.workers))
	for i := range reports {
		reports[i].withFlows = withFlows
	}
	answered := e.ask(func(w *worker) bool { return w.tell(&reports[w.id]) })
	var flows []agentapi.Flow
	sites := siteSums{}
	for i := range e.workers {
		if !answered[i] {
			s.AppliedGeneration = 0
			continue
		}
		r := &reports[i]
		s.Workers[i] = r.status
		s.Memory.InUse += r.status.PoolInUse
		s.Memory.Held += r.held
		s.MTUTooSmall.Flows += r.mtu.Flows
		if r.mtu.Need > s.MTUTooSmall.Need {
			s.MTUTooSmall.Need, s.MTUTooSmall.Have = r.mtu.Need, r.mtu.Have
		}
		s.Flows.Sending += r.counts.Sending
		s.Flows.Protected += r.counts.Protected
		for transport, n := range r.counts.ProtectedBy {
			s.Flows.ProtectedBy[transport] += n
		}
		s.Flows.Receiving += r.counts.Receiving
		merge(s.Counters, r.counters)
		merge(s.Drops, r.drops)
		sites.merge(r.sites)
		flows = append(flows, r.flows...)
	}
	s.Sites = sites.describe(snap.cfg)
	s.Counters["drift_repaired"] = e.repaired.Load()
	if kernel, err := e.backend.Counters(); err == nil {
		for name, n := range kernel {
			s.Counters["kernel_"+name] = n
		}
	}
	slices.SortFunc(flows, func(a, b agentapi.Flow) int { return strings.Compare(a.ID, b.ID) })
	return s, flows
}

// Healthy names what is wrong with the data path: nothing when packets pass and flows are protected.
func (e *Engine) Healthy() []string {
	snap := e.snap.Load()
	if snap == nil {
		return []string{"no configuration applied"}
	}
	var bad []string
	for _, r := range snap.results {
		if r.Problem != "" {
			bad = append(bad, strings.TrimSpace(r.Domain+" "+r.Uplink)+": "+r.Problem)
		}
	}
	if len(snap.cfg.Domains) > 0 && len(snap.uplinks) == 0 {
		bad = append(bad, "no uplink attached")
	}
	for i, w := range e.workers {
		if age := w.beatAge(); age > askTimeout {
			bad = append(bad, fmt.Sprintf("worker %d: no heartbeat for %v", i, age.Round(time.Millisecond)))
		}
	}
	return bad
}

// willAnswer reports whether a worker that has not answered for so many timeouts works on it.
func (w *worker) willAnswer(timeouts int) bool {
	return timeouts < mostTimeouts && w.beatAge() <= askTimeout
}

func (w *worker) beatAge() time.Duration { return w.e.now() - time.Duration(w.beatAt.Load()) }

// describe fills what the control side knows.
func (e *Engine) describe(s *agentapi.Status, snap *snapshot) {
	for i := range snap.cfg.Domains {
		d := &snap.cfg.Domains[i]
		out := agentapi.Domain{Name: d.Name, Port: d.Port, Site: d.Site, Reason: agentapi.ReasonApplied, Security: d.securityReason(), SecurityProblem: d.security.missing}
		for _, r := range snap.results {
			if r.Domain == d.Name && r.Uplink == "" && r.Problem != "" {
				out.Reason, out.Problem = r.Reason, r.Problem
				break
			}
		}
		if d.barred() && out.Problem == "" {
			out.Reason, out.Problem = agentapi.ReasonPolicyMissing, "no flow is protected, no HELLO sent or answered: "+d.security.missing
		}
		out.Applied = out.Problem == ""
		out.Reporter, out.ReporterProblem = d.reports(snap)
		s.Domains = append(s.Domains, out)
	}
	for _, u := range snap.uplinks {
		s.Uplinks = append(s.Uplinks, agentapi.Uplink{Name: u.name, Index: u.index, MTU: u.mtu, Why: u.why, Attached: true, Reason: agentapi.ReasonApplied})
	}
	for _, r := range snap.results {
		if r.Uplink != "" && r.Problem != "" {
			s.Uplinks = append(s.Uplinks, agentapi.Uplink{Name: r.Uplink, Reason: r.Reason, Problem: r.Problem})
		}
	}
	for _, x := range snap.excluded {
		s.Excluded = append(s.Excluded, agentapi.Exclusion{Name: x.Name, Why: x.Why})
	}
}

// reports is what the domain's Path Reporter does here, and what it does not do.
func (d *Domain) reports(snap *snapshot) (mode, problem string) {
	if !d.ReportDrops {
		return agentapi.ReporterOff, ""
	}
	for i := range snap.uplinks {
		u := &snap.uplinks[i]
		if text := u.port.problem.Load(); text != nil && d.usesUplink(u.name) {
			return agentapi.ReporterOwnDrops, "reports nothing: " + *text + "; it is tried again"
		}
	}
	if d.WAN != nil && d.WAN.Measure {
		return agentapi.ReporterOwnDrops, "reports what this node's uplinks drop and what its tunnels lose"
	}
	return agentapi.ReporterOwnDrops, "reports what this node's uplinks drop; does not measure loss between sites: write spec.wan with measurement AlternateMarking for that"
}

func (d *Domain) securityReason() string {
	switch {
	case !d.RequireIPsec:
		return agentapi.ReasonNotRequired
	case d.barred():
		return agentapi.ReasonPolicyMissing
	}
	return agentapi.ReasonSecured
}

// tell goes on with a report for a while, on the worker's goroutine, and reports whether it is whole.
func (w *worker) tell(r *report) bool {
	if r.number == 0 {
		w.begin(r)
	}
	for until := w.e.now() + tellFor; w.e.now() < until; {
		switch {
		case len(r.sending) > 0:
			r.addSending(r.sending[0])
			r.sending = r.sending[1:]
		case len(r.receiving) > 0:
			r.addReceiving(r.receiving[0])
			r.receiving = r.receiving[1:]
		default:
			w.telling = nil
			r.sent.addTo(r.counters, r.drops, "csf_")
			r.received.addTo(r.counters, r.drops, "crf_")
			return true
		}
	}
	return false
}

// begin fills in all but the flows, and notes which they are.
func (w *worker) begin(r *report) {
	w.reportNo++
	r.number, w.telling = w.reportNo, r
	r.status = agentapi.Worker{
		ID: w.id, Batches: w.batches, Flows: len(w.sending) + len(w.receiving),
		PoolInUse: w.pool.InUse(), PoolLimit: w.pool.Limit(), LastBeatAge: w.beatAge().Seconds(),
		Realtime: w.realtime.Load(),
	}
	r.counts = agentapi.FlowCount{ProtectedBy: map[string]int{}}
	r.counters, r.drops, r.sites = map[string]uint64{}, map[string]uint64{}, siteSums{}
	r.sent, r.received = newTotals(), newTotals()
	for i, n := range w.counters {
		r.counters[counterNames[i]] = n
	}
	for i, n := range w.drops {
		if n > 0 {
			r.drops[dropNames[i]] = n
		}
	}
	w.reportIO(r)
	r.sites.merge(w.endedSites)
	w.ended.other.addTo(r.counters, r.drops, "")
	w.ended.sent.addTo(r.sent.counters, r.sent.drops, "")
	w.ended.received.addTo(r.received.counters, r.received.drops, "")
	r.sending = slices.AppendSeq(make([]*sendFlow, 0, len(w.sending)), maps.Values(w.sending))
	r.receiving = slices.AppendSeq(make([]*recvFlow, 0, len(w.receiving)), maps.Values(w.receiving))
}

// addSending tells of a leaving flow, once.
func (r *report) addSending(s *sendFlow) {
	if s.told == r.number {
		return
	}
	s.told = r.number
	r.counts.Sending++
	r.sites.addReports(s)
	if s.machine != nil && s.machine.State() == csf.Protecting {
		r.counts.Protected++
		r.counts.ProtectedBy[s.key.Transport.String()]++
		r.sites.add(s)
	}
	if s.machine != nil {
		r.sites.addSuspended(s)
		r.addMTU(s.machine.Stats())
	}
	s.count(&r.sent)
	if r.withFlows {
		r.flows = append(r.flows, s.describe())
	}
}

// addReceiving tells of an arriving flow, once.
func (r *report) addReceiving(f *recvFlow) {
	if f.told == r.number {
		return
	}
	f.told = r.number
	r.counts.Receiving++
	r.held += int64(f.machine.Stats().Holding)
	f.count(&r.received)
	if r.withFlows {
		r.flows = append(r.flows, f.describe())
	}
}

// addMTU notes a flow whose repairs do not fit the uplink.
func (r *report) addMTU(s *csf.Stats) {
	if s.MTUNeed == 0 {
		return
	}
	r.mtu.Flows++
	if s.MTUNeed > r.mtu.Need {
		r.mtu.Need, r.mtu.Have = s.MTUNeed, s.MTUHave
	}
}

// reportIO adds what taps, sockets and the injector count.
func (w *worker) reportIO(r *report) {
	for _, u := range w.snap.uplinks {
		t := u.taps[w.id].Stats()
		r.counters["tap_frames"] += t.Frames
		r.drops["tap_full"] += t.Dropped
		r.drops["tap_cut"] += t.Bad
	}
	for _, p := range w.snap.ports {
		x := p.sockets[w.id].Stats()
		r.counters["socket_received"] += x.Received
		r.counters["socket_sent"] += x.Sent
		r.counters["socket_segmented"] += x.Segmented
		r.drops["socket_too_big"] += x.TooBig
		r.drops["socket_failed"] += x.Failed
		r.drops["socket_truncated"] += x.Truncated
	}
	for _, p := range w.ports {
		for _, x := range [...]*portReporter{&p.out, &p.in} {
			addReporter(r.counters, r.drops, x.of.Stats())
		}
	}
	for level, n := range w.cnps.Stats().Accepted {
		if level != int(ecn.LevelNone) && len(w.snap.ends) > 0 {
			r.counters["cnp_received_"+ecn.Level(level).String()] += n
			r.counters["cnp_own_"+ecn.Level(level).String()] += w.cnps.Stats().Own[level]
		}
	}
	for i, n := range w.cnps.Stats().Drops {
		if n > 0 {
			r.drops["cnp_"+ecn.DropReason(i).String()] += n
		}
	}
	i := w.inj.Stats()
	r.counters["injected"] += i.Sent
	r.counters["inject_retries"] += i.Retries
	r.drops["inject_failed"] += i.Dropped
	r.counters["ring_missed"] += w.ring.Missed()
}

// totals are counters by name, and drops by reason.
type totals struct{ counters, drops map[string]uint64 }

func newTotals() totals { return totals{counters: map[string]uint64{}, drops: map[string]uint64{}} }

// addTo adds all of them to others, whose names begin with a prefix.
func (t *totals) addTo(counters, drops map[string]uint64, prefix string) {
	for name, n := range t.counters {
		counters[prefix+name] += n
	}
	for name, n := range t.drops {
		drops[prefix+name] += n
	}
}

// ended keeps the totals of what is gone, so that counters never go back.
type ended struct{ sent, received, other totals }

// addReporter adds what a Path Reporter counts. What a port dropped in all is the interface's own counter.
func addReporter(counters, drops map[string]uint64, s *reporter.Stats) {
	counters["reporter_reports"] += s.Reports
	counters["reporter_attributed"] += s.Attributed
	counters["reporter_merged"] += s.Merged
	counters["reporter_forwarded"] += s.Forwarded
	for i, n := range s.Drops {
		if n > 0 {
			drops["reporter_"+reporter.DropReason(i).String()] += n
		}
	}
}

func merge(into, from map[string]uint64) {
	for name, n := range from {
		into[name] += n
	}
}

func flowName(role string, k roce.FlowKey) string {
	name := fmt.Sprintf("%s/%s/%s/%d/%s", role, k.Src, k.Dst, uint32(k.QPN), k.Space)
	if k.Transport != roce.RoCEv2 {
		name += "/" + k.Transport.String()
	}
	return name
}

// describe shows a leaving flow as the local socket does.
func (f *sendFlow) describe() agentapi.Flow {
	a := agentapi.Flow{
		ID: flowName("csf", f.key), Role: "csf", Domain: f.domain, Source: f.key.Src.String(), Destination: f.key.Dst.String(),
		Transport: f.key.Transport.String(), QPN: uint32(f.key.QPN), Space: f.key.Space.String(), Worker: f.w.id, State: "Unprotected", Why: f.verdict.why,
	}
	if f.machine == nil {
		a.SourcePackets = f.packets
		return a
	}
	a.Profile = f.verdict.profile.Name
	a.FlowID, a.Peer, a.State = f.machine.ID(), f.machine.Peer().String(), f.machine.State().String()
	if a.FlowID == 0 {
		a.Peer = ""
	}
	f.fillCSF(&a)
	return a
}

// describe shows an arriving flow as the local socket does.
func (f *recvFlow) describe() agentapi.Flow {
	a := agentapi.Flow{
		ID: flowName("crf", f.key), Role: "crf", Domain: f.domain, Profile: f.profile, Source: f.key.Src.String(), Destination: f.key.Dst.String(),
		Transport: f.key.Transport.String(), QPN: uint32(f.key.QPN), Space: f.key.Space.String(), FlowID: f.id, Peer: f.peer.String(), State: f.machine.State().String(), Worker: f.w.id,
	}
	f.fillCRF(&a)
	return a
}

// counterField is a counter in a machine's Stats: a uint64, or an element of an array of them.
type counterField struct {
	name    string
	field   int
	element int // -1: the field is no array
}

func (c *counterField) of(stats reflect.Value) uint64 {
	v := stats.Field(c.field)
	if c.element >= 0 {
		v = v.Index(c.element)
	}
	return v.Uint()
}

// fields finds the counters of a machine's Stats: every uint64 is one, every array of uint64 is one per element, named by label.
func fields(stats reflect.Type, label func(field string, i int) string) (counters []counterField) {
	for i := range stats.NumField() {
		f := stats.Field(i)
		switch {
		case f.Type.Kind() == reflect.Uint64:
			counters = append(counters, counterField{snake(f.Name), i, -1})
		case f.Type.Kind() == reflect.Array && f.Type.Elem().Kind() == reflect.Uint64:
			for j := range f.Type.Len() {
				counters = append(counters, counterField{snake(f.Name) + "_" + label(f.Name, j), i, j})
			}
		}
	}
	return counters
}

// snake turns a Go name into a metric's: SourceOctets, source_octets; RepairsCE, repairs_ce.
func snake(name string) string {
	var b strings.Builder
	for i, c := range name {
		upper := c >= 'A' && c <= 'Z'
		if upper && i > 0 {
			prev := name[i-1]
			nextLower := i+1 < len(name) && name[i+1] >= 'a' && name[i+1] <= 'z'
			if prev >= 'a' && prev <= 'z' || prev >= 'A' && prev <= 'Z' && nextLower {
				b.WriteByte('_')
			}
		}
		if upper {
			c += 'a' - 'A'
		}
		b.WriteRune(c)
	}
	return b.String()
}

// fillCSF adds what the sender machine says.
func (f *sendFlow) fillCSF(a *agentapi.Flow) {
	s := f.machine.Stats()
	a.Why = f.machine.Explain().String()
	a.K, a.M, a.T, a.Scheme, a.Loss, a.SRTT, a.Digest = s.K, s.M, s.T, s.Scheme.String(), s.Loss, s.SRTT.Seconds(), s.Digest
	a.Breaker = "closed"
	if s.BreakerOpen {
		a.Breaker = "open"
	}
	a.SourcePackets, a.SourceOctets = s.SourcePackets, s.SourceOctets
	a.RepairPackets, a.RepairOctets = s.Ordinary+s.Early+s.Coded+s.Copies, s.RepairOctets
	a.Restored = s.Restored
	t := newTotals()
	f.count(&t)
	a.Counters, a.Drops = t.counters, t.drops
}

// count adds what the sender machine counts, if there is one.
func (f *sendFlow) count(t *totals) {
	if f.machine == nil {
		return
	}
	s := f.machine.Stats()
	s.Each(func(name string, n uint64) { t.counters[name] += n })
	for i, n := range s.Drops {
		if n > 0 {
			t.drops[csf.DropReason(i).String()] += n
		}
	}
}

// fillCRF adds what the receiver machine says.
func (f *recvFlow) fillCRF(a *agentapi.Flow) {
	s := f.machine.Stats()
	a.K, a.M, a.T, a.Loss, a.SRTT, a.Digest = s.K, s.M, s.T, s.LossRate, s.SRTT.Seconds(), f.digest
	a.SourcePackets, a.SourceOctets, a.RepairPackets = s.Sources, s.SourceOctets, s.Repairs
	a.Restored, a.Held = s.Restored, s.Held
	a.Why = crfSentence(f.machine.State(), s)
	t := newTotals()
	f.count(&t)
	a.Counters, a.Drops = t.counters, t.drops
}

// count adds what the receiver machine counts.
func (f *recvFlow) count(t *totals) {
	s := f.machine.Stats()
	v := reflect.ValueOf(s).Elem()
	for _, c := range crfCounters {
		t.counters[c.name] += c.of(v)
	}
	for i, n := range s.Drops {
		if n > 0 {
			t.drops[crfLabel("Drops", i)] += n
		}
	}
}

// crfCounters are all but the drops.
var crfCounters = slices.DeleteFunc(fields(reflect.TypeFor[crf.Stats](), crfLabel), func(c counterField) bool { return strings.HasPrefix(c.name, "drops_") })

func crfSentence(state crf.State, s *crf.Stats) string {
	switch {
	case state == crf.Closed:
		return "Ended."
	case state == crf.Configuring:
		return "Waits for the sender's configuration."
	case s.Holding > 0:
		return fmt.Sprintf("Restores losses; %d packets wait for %d missing ones.", s.Holding, s.Missing)
	default:
		return "Restores losses; nothing is missing."
	}
}

// crfLabel names an element of an array of the receiver's counters.
func crfLabel(field string, i int) string {
	switch field {
	case "Released":
		return slug(crf.ReleaseCause(i).String())
	case "Late":
		return slug(crf.LateCause(i).String())
	case "ParamAcks":
		return slug(wire.Status(i).String())
	default:
		return slug(crf.DropReason(i).String())
	}
}

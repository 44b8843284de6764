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

// askTimeout bounds how long a status call waits for a worker that hangs.
const askTimeout = time.Second

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
}

// ask runs f on every worker's own goroutine, between batches, until it is done, and waits. It reports which workers answered in time.
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
	limit := time.After(askTimeout)
	for i := range done {
		if done[i] == nil {
			continue
		}
		select {
		case <-done[i]:
			answered[i] = true
		case <-limit:
			return answered
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
	return agentapi.ReporterOwnDrops, "reports what this node's uplinks drop; does not measure loss between sites, because no tunnel carries marked packets"
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
	merge(r.counters, w.ended.counters)
	merge(r.drops, w.ended.drops)
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
		r.addMTU(s.machine.Stats())
	}
	r.add(s.describe(), "csf_")
}

// addReceiving tells of an arriving flow, once.
func (r *report) addReceiving(f *recvFlow) {
	if f.told == r.number {
		return
	}
	f.told = r.number
	r.counts.Receiving++
	r.held += int64(f.machine.Stats().Holding)
	r.add(f.describe(), "crf_")
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

func (r *report) add(f agentapi.Flow, prefix string) {
	for name, n := range f.Counters {
		r.counters[prefix+name] += n
	}
	for name, n := range f.Drops {
		r.drops[prefix+name] += n
	}
	if r.withFlows {
		r.flows = append(r.flows, f)
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

// ended keeps the totals of flows that are gone, so that counters never go back.
type ended struct{ counters, drops map[string]uint64 }

func (t *ended) add(f agentapi.Flow, prefix string) {
	if t.counters == nil {
		t.counters, t.drops = map[string]uint64{}, map[string]uint64{}
	}
	for name, n := range f.Counters {
		t.counters[prefix+name] += n
	}
	for name, n := range f.Drops {
		t.drops[prefix+name] += n
	}
}

// addReporter keeps the totals of a Path Reporter that is gone.
func (t *ended) addReporter(s *reporter.Stats) {
	if t.counters == nil {
		t.counters, t.drops = map[string]uint64{}, map[string]uint64{}
	}
	addReporter(t.counters, t.drops, s)
}

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

// fields turns a machine's Stats into counters by name: every uint64 is one, every array of uint64 is one per element, named by label.
func fields(stats any, label func(field string, i int) string) (counters map[string]uint64) {
	counters = make(map[string]uint64)
	v := reflect.Indirect(reflect.ValueOf(stats))
	for i := range v.NumField() {
		name, field := snake(v.Type().Field(i).Name), v.Field(i)
		switch field.Kind() {
		case reflect.Uint64:
			counters[name] = field.Uint()
		case reflect.Array:
			for j := range field.Len() {
				if field.Index(j).Kind() == reflect.Uint64 {
					counters[name+"_"+label(v.Type().Field(i).Name, j)] = field.Index(j).Uint()
				}
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
	a.Counters = map[string]uint64{}
	s.Each(func(name string, n uint64) { a.Counters[name] = n })
	a.Drops = map[string]uint64{}
	for i, n := range s.Drops {
		if n > 0 {
			a.Drops[csf.DropReason(i).String()] = n
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
	a.Counters = fields(s, crfLabel)
	a.Drops = map[string]uint64{}
	for i, n := range s.Drops {
		delete(a.Counters, "drops_"+crfLabel("Drops", i))
		if n > 0 {
			a.Drops[slug(crf.DropReason(i).String())] = n
		}
	}
}

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

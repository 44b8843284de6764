// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"time"

	"crem.dev/crem/agent/internal/flowtable"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Flow is a flow as PATH_REPORT names it: addresses, and the destination queue pair as 24-bit Flow Label.
type Flow = flowtable.Key

// labelMask is the octets of a Flow Label that count.
const labelMask = 1<<24 - 1

// numberUnit is the time in which the number of a report grows by one. Reports about one flow are further apart than as many units as one
// has entries of its own, so that their numbers grow, also after a restart and after the flow was forgotten (Section 8.2, rule 8).
const numberUnit = 10 * time.Microsecond

// Config is what a Reporter is made with.
type Config struct {
	Node      uint32        // Node ID of this measurement point
	Unix      time.Duration // Unix time when now is 0
	MTU       int           // IP MTU of the path to the CSFs, octets
	Flows     int           // most flows that are remembered
	Pending   int           // most reports in the making
	PerSecond float64       // reports of this port a second
}

// Action asks to send a report to the CSF of a flow.
type Action struct {
	Flow Flow
	Msg  []byte // a PATH_REPORT, valid until the next call of the Reporter
}

// Reporter is the Path Reporter of one port.
type Reporter struct {
	config  Config
	flows   *flowtable.Table[flow]
	reports []report
	pending int
	port    port
	limit   bucket
	due     time.Duration // nothing is due before
	list    wire.PSNList  // scratch
	msgs    []byte        // of the last Poll
	stats   Stats
}

// flow is what is known of a flow.
type flow struct {
	paced
	packets uint64                            // since the port's counters were read last
	share   float64                           // part of a packet that was attributed to it and not reported
	reports [wire.MethodNodeDrops + 1]*report // in the making, by method
}

// leastMTU has room for the head of a report and one full entry of every cause.
const leastMTU = 576

// New returns a reporter that knows nothing.
func New(c Config) *Reporter {
	c.MTU = max(c.MTU, leastMTU)
	r := &Reporter{
		config: c, flows: flowtable.New[flow](c.Flows), reports: make([]report, max(c.Pending, 1)), limit: newBucket(max(c.PerSecond, 1)), due: roce.Never,
		list: make(wire.PSNList, 0, c.MTU), msgs: make([]byte, 0, c.MTU*max(c.Pending, 1)),
	}
	for i := range r.reports {
		r.reports[i].psns = make([]named, 0, c.MTU/psnOctets)
	}
	return r
}

// Stats returns the counters, alive as long as the reporter.
func (r *Reporter) Stats() *Stats { return &r.stats }

// NextDeadline is when Poll must be called next, roce.Never if nothing is due.
func (r *Reporter) NextDeadline() time.Duration { return r.due }

// Poll makes the reports that are due and appends what is to be sent.
func (r *Reporter) Poll(now time.Duration, acts *[]Action) {
	if now < r.due {
		return
	}
	r.due, r.msgs = roce.Never, r.msgs[:0]
	for i := range r.reports {
		p := &r.reports[i]
		if !p.used {
			continue
		}
		p.due = max(p.due, p.known.due(p.since, p.drop)) // another report about the flow may have left since
		if now >= p.due {
			r.send(now, p, acts)
		}
		if p.used {
			r.due = min(r.due, p.due)
		}
	}
}

// send makes one report, if the limit of the port lets it leave.
func (r *Reporter) send(now time.Duration, p *report, acts *[]Action) {
	wait, ok := r.limit.take(now)
	if !ok {
		r.stats.Deferred++
		p.due = now + wait
		return
	}
	from := len(r.msgs)
	r.msgs = p.message(r.msgs, r.number(now), r.list[:0])
	*acts = append(*acts, Action{Flow: p.flow, Msg: r.msgs[from:len(r.msgs):len(r.msgs)]})
	r.stats.Reports++
	p.known.sent(now)
	r.end(p)
}

// number is that of a report that leaves now.
func (r *Reporter) number(now time.Duration) uint32 {
	return uint32((r.config.Unix + now) / numberUnit)
}

// end frees a report in the making.
func (r *Reporter) end(p *report) {
	p.used = false
	p.known.reports[p.method] = nil
	r.pending--
}

// flow returns what is known of a flow, which is remembered from now on. The flow that was silent for longest is forgotten for it.
func (r *Reporter) flow(k Flow) *flow {
	if f := r.flows.Get(k); f != nil {
		return f
	}
	if r.flows.Full() {
		r.evict()
	}
	return r.flows.Add(k)
}

// evict forgets the flow that was silent for longest, and the reports about it.
func (r *Reporter) evict() {
	k, f := r.flows.Oldest()
	for _, p := range f.reports {
		if p != nil {
			r.end(p)
			r.stats.Drops[DropEvicted]++
		}
	}
	r.flows.Delete(k)
	r.stats.Evicted++
}

// report returns the report in the making about a flow, a new one if there is none, nil if too many are.
func (r *Reporter) report(now time.Duration, k Flow, f *flow, method wire.Method) *report {
	p := f.reports[method]
	if p == nil {
		if r.pending == len(r.reports) {
			r.drop(DropPending)
			return nil
		}
		p = r.free()
		p.begin(now, k, f, method, r.config.MTU)
		f.reports[method] = p
		r.pending++
	}
	return p
}

// free returns a report that is not used. There must be one.
func (r *Reporter) free() *report {
	i := 0
	for r.reports[i].used {
		i++
	}
	return &r.reports[i]
}

// arm reckons when a report is due that something was added to.
func (r *Reporter) arm(p *report, drop bool) {
	p.drop = p.drop || drop
	p.due = p.known.due(p.since, p.drop)
	r.due = min(r.due, p.due)
}

// valid reports whether a flow can be named in a report.
func valid(k *Flow) bool {
	return k.Src.IsValid() && k.Dst.IsValid() && k.Src.Is4() == k.Dst.Is4() && k.Label <= labelMask
}

func (r *Reporter) drop(why DropReason) { r.stats.Drops[why]++ }

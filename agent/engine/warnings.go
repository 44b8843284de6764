// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
)

const (
	// cnpAge is how old a CNP may be, by the clocks of both nodes.
	cnpAge = 5 * time.Second
	// reactAfter is the least time between two CNPs of a flow and level that are acted upon.
	reactAfter = 10 * time.Millisecond
	// reactEvery is how often a reaction in force is looked at: its rate grows back.
	reactEvery = 10 * time.Millisecond
	// limitFor is how long the kernel holds a flow to a rate that nobody renews, limitBurst how early its packets may come.
	limitFor   = time.Second
	limitBurst = 2 * time.Millisecond
)

// newReceiver makes the judge of the CNPs that come to a worker's flows. A flow's CNPs all come to one worker, so each has its own.
func (w *worker) newReceiver() *ecn.Receiver {
	return ecn.NewReceiver(ecn.ReceiverConfig{
		Domain: func(from netip.Addr, _ uint32) bool { return w.snap.cfg.marks(from) },
		MaxAge: cnpAge, Every: reactAfter, Echo: echoFor, Senders: cnpFlows, Flows: cnpFlows,
	})
}

// marks reports whether a may tell of congestion: a gateway or reporter of a domain with tunnels.
func (c *Config) marks(a netip.Addr) bool {
	return slices.ContainsFunc(c.Domains, func(d Domain) bool { return d.WAN != nil && (d.isGateway(a) || d.isReporter(a)) })
}

// wanMessage sorts a message about tunnels.
func (w *worker) wanMessage(port uint16, m *packet.Message) {
	d := w.snap.cfg.domainByPort(port)
	switch {
	case d == nil || !d.inside(m.From.Addr()):
		w.drops[dropOutside]++
		return
	case d.WAN == nil || !d.admits(m):
		w.drops[dropLease]++
		return
	case ecn.IsLease(m.Data):
		w.lease(m)
		return
	case ecn.IsReadings(m.Data):
		w.readings(d, m)
		return
	}
	x, err := ecn.ParseCNP(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	if owner := workerOf(x.Flow.Src, x.Flow.Dst, len(w.e.workers)); owner != w.id {
		w.forward(owner, port, m)
		return
	}
	w.cnp(m)
}

// inTunnels are the kinds of flows that travel in tunnels.
var inTunnels = [...]struct {
	space     roce.Space
	transport roce.Transport
}{{roce.Request, roce.RoCEv2}, {roce.Response, roce.RoCEv2}, {roce.Request, roce.MRC}, {roce.Request, roce.VeRoCE}, {roce.Response, roce.VeRoCE}}

// cnp acts upon a CNP for a flow of this worker.
func (w *worker) cnp(m *packet.Message) {
	x, why := w.cnps.Handle(w.now, uint64(time.Now().UnixMicro()), m.From.Addr(), m.Data, nil)
	if why != ecn.DropNone {
		return // the receiver counts it
	}
	w.congested(x.Flow, x.Level)
}

// congested has the flows that a mark may mean react.
func (w *worker) congested(flow ecn.Flow, level ecn.Level) {
	key := roce.FlowKey{Src: flow.Src, Dst: flow.Dst, QPN: roce.QPN(flow.Label)}
	for _, kind := range inTunnels { // who met congestion does not know it
		key.Space, key.Transport = kind.space, kind.transport
		s := w.sending[key]
		if s == nil || s.reaction == nil {
			continue
		}
		s.reaction.Handle(w.now, level)
		w.react(s)
		w.timers.set(&s.timed, s.nextDeadline())
	}
}

// setReaction gives a flow that goes into tunnels its reaction to congestion there, and takes it from others.
func (w *worker) setReaction(s *sendFlow) {
	d := s.verdict.domain
	if d == nil || d.WAN == nil || s.key.Transport == roce.VeRoCE && !d.Transports.VeRoCE.Enabled || s.verdict.site == nil || !slices.Contains(d.WAN.Sites, s.verdict.site.Name) {
		w.endReaction(s)
		return
	}
	if s.reaction == nil {
		s.reaction = ecn.NewReaction(ecn.ReactionConfig{LeastRate: d.WAN.LeastRate})
	} else {
		s.reaction.SetLeastRate(d.WAN.LeastRate) // a limit in force follows when it is looked at next
	}
}

// react brings the repair budget and the kernel's limit in line with the reaction.
func (w *worker) react(s *sendFlow) {
	now, r := w.now, s.reaction
	share := r.RepairShare(now)
	rate, limited := r.Rate(now)
	warning := csf.Warning{Early: r.Warned(now), Congested: r.Congested(now), Withheld: 1 - share}
	if s.machine != nil {
		s.machine.SetWarning(warning)
	}
	switch {
	case limited:
		s.limited = w.snap.limiter != nil && w.snap.limiter.Limit(tunnelFlow(s.key), rate, limitBurst, now+limitFor) == nil
	case s.limited:
		w.unlimit(s)
	}
	s.warned, s.reactAt = limited || warning != csf.Warning{}, now+reactEvery
}

// endReaction forgets congestion in tunnels.
func (w *worker) endReaction(s *sendFlow) {
	if s.reaction == nil {
		return
	}
	if s.machine != nil {
		s.machine.SetWarning(csf.Warning{})
	}
	if s.limited {
		w.unlimit(s)
	}
	s.reaction, s.warned = nil, false
}

func tunnelFlow(key roce.FlowKey) bpf.TunnelFlow {
	return bpf.TunnelFlow{Src: key.Src, Dst: key.Dst, QPN: uint32(key.QPN)}
}

// limiter is what workers use of the programs of tunnels. It comes with the snapshot, and goes when every worker obeys one without: so no lock is
// needed, and none must be, since who attaches programs may take its time.
type limiter interface {
	Limit(f bpf.TunnelFlow, octetsPerSecond int64, burst, until time.Duration) error
	Unlimit(f bpf.TunnelFlow) error
}

// unlimit frees a flow in the kernel. Without tunnels nothing goes into one, and the limit ends by itself.
func (w *worker) unlimit(s *sendFlow) {
	if w.snap.limiter != nil {
		_ = w.snap.limiter.Unlimit(tunnelFlow(s.key)) // else it ends by itself too
	}
	s.limited = false
}

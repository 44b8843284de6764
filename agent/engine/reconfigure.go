// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// judgeAgain applies a new configuration to a flow that leaves.
func (w *worker) judgeAgain(s *sendFlow) {
	u := w.snap.uplinkOf(s.uplink)
	if u == nil {
		w.unprotect(s, verdict{why: "the interface by which the flow left is no uplink any more"})
		return
	}
	next := w.snap.cfg.judge(u.name, s.key)
	if next.profile == nil {
		w.unprotect(s, next)
		return
	}
	if s.machine == nil || s.machine.State() == csf.Closed || !s.speaksAs(next.domain) {
		w.unprotect(s, next)
		w.protect(s, u)
		return
	}
	s.verdict = next
	w.setReaction(s)
	s.machine.SetPeers(w.now, peersOf(next.domain, next.site, s.key), &w.csfActs)
	s.machine.SetParams(w.now, w.snap.csfParams(next.profile, u, next.site), &w.csfActs)
	w.finishSend(s)
}

// speaksAs reports whether the flow's messages would leave in the domain as they do now: its peer knows it by where they come from.
func (f *sendFlow) speaksAs(d *Domain) bool {
	return d.Name == f.domain && d.Port == f.port && d.sender(f.key) == f.from
}

// unprotect closes the flow's CSF, if it has one; the flow itself goes on.
func (w *worker) unprotect(s *sendFlow, why verdict) {
	if s.machine != nil {
		s.machine.Close(w.now, wire.CloseAdministrative, &w.csfActs)
		w.finishSend(s)
		w.endedSend(s)
		w.timers.set(&s.timed, roce.Never)
		w.dropNames(s)
		s.machine = nil
	}
	s.verdict = why
	w.setReaction(s)
}

// judgeReceiving applies a new configuration to a flow that arrives. A sender that is outside of the domain from now on is not heard any more: another
// one must be able to ask for the flow.
func (w *worker) judgeReceiving(r *recvFlow) {
	d := w.snap.cfg.domainByPort(r.port)
	var p *Profile
	if d != nil && d.Name == r.domain && d.inside(r.peer.Addr()) {
		p = w.snap.cfg.receivingProfile(d, r.key)
	}
	if p == nil {
		w.endRecv(r, wire.CloseAdministrative)
		return
	}
	r.profile, r.reportDrops = p.Name, d.ReportDrops
	mode := modeOf(p, r.key)
	if mode != r.mode && w.e.holder.UpdateFlow(r.index, r.mtu, mode) == nil {
		r.mode = mode
	}
	r.machine.SetParams(w.now, w.snap.crfParams(p), &w.crfActs)
	w.finishRecv(r)
}

// modeOf is how the kernel treats a flow: the receivers of multipath transports take packets in any order, whatever the profile says.
func modeOf(p *Profile, key roce.FlowKey) packet.Mode {
	if p.CRF.Delivery == crf.Immediate || key.Transport.Multipath() {
		return packet.Immediate
	}
	return packet.InOrder
}

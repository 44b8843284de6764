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
	if s.machine == nil || s.machine.State() == csf.Closed || next.domain.Port != s.port || next.domain.Name != s.domain {
		w.unprotect(s, next)
		w.protect(s, u)
		return
	}
	s.verdict = next
	s.machine.SetParams(w.now, w.snap.csfParams(next.profile, u, next.site), &w.csfActs)
	w.finishSend(s)
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
}

// judgeReceiving applies a new configuration to a flow that arrives.
func (w *worker) judgeReceiving(r *recvFlow) {
	d := w.snap.cfg.domainByPort(r.port)
	var p *Profile
	if d != nil && d.Name == r.domain {
		p = w.snap.cfg.receivingProfile(d, r.key)
	}
	if p == nil {
		w.endRecv(r, wire.CloseAdministrative)
		return
	}
	r.profile = p.Name
	mode := modeOf(p)
	if mode != r.mode && w.e.holder.UpdateFlow(r.index, r.mtu, mode) == nil {
		r.mode = mode
	}
	r.machine.SetParams(w.now, w.snap.crfParams(p), &w.crfActs)
	w.finishRecv(r)
}

func modeOf(p *Profile) packet.Mode {
	if p.CRF.Delivery == crf.Immediate {
		return packet.Immediate
	}
	return packet.InOrder
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	maxSendFlows = 65536
	sweepEvery   = time.Second
	forgetAfter  = 60 * time.Second // an unprotected flow without packets
	movesEvery   = time.Second      // a flow that is sprayed over several uplinks is not judged anew with every packet
)

// readTaps takes one batch from every uplink's tap.
func (w *worker) readTaps() bool {
	busy := false
	for i := range w.snap.uplinks {
		u := &w.snap.uplinks[i]
		n := u.taps[w.id].Next(w.frames[:])
		busy = busy || n == len(w.frames)
		if n > 0 {
			w.tappedAt = w.now
		}
		for j := range w.frames[:n] {
			w.tapped(u, &w.frames[j])
		}
	}
	return busy
}

// tapped sorts one copied frame: a source packet that left, or an answer that came.
func (w *worker) tapped(u *uplinkState, f *packet.Frame) {
	switch {
	case f.Flags&packet.VLAN != 0:
		w.drops[dropVLAN]++
		return
	case f.Flags&packet.GSO != 0:
		w.drops[dropSuperPacket]++
		return
	}
	if f.Flags&packet.Tunnelled != 0 && !w.snap.ends[f.Outer] {
		w.drops[dropTunnel]++
		return
	}
	pkt, reason := w.snap.transports.Parse(f.Data)
	if reason != roce.OK {
		w.drops[dropParse+drop(reason)]++
		return
	}
	if f.Flags&packet.Outgoing == 0 {
		w.answered(&pkt)
		return
	}
	if _, source := pkt.Source(); !source {
		return
	}
	key := pkt.Key()
	s := w.sending[key]
	if s == nil {
		if s = w.newSendFlow(u, key); s == nil {
			return
		}
	}
	s.last = w.now
	s.note(&pkt)
	if s.reaction != nil {
		s.reaction.Observe(w.now, f.Len)
	}
	if s.uplink != u.index && w.now-s.movedAt >= movesEvery {
		s.uplink, s.movedAt = u.index, w.now
		w.judgeAgain(s)
	}
	if s.machine == nil {
		w.counters[countUnprotected]++
		return
	}
	w.left(s, u.index, pkt.TOS())
	s.machine.HandleSource(w.now, &pkt, &w.csfActs)
	w.finishSend(s)
	if key.Transport == roce.RoCEv2 && pkt.Opcode().Answered() {
		w.expectResponses(s, &pkt)
	}
}

// newSendFlow meets a flow for the first time and decides by the configuration.
func (w *worker) newSendFlow(u *uplinkState, key roce.FlowKey) *sendFlow {
	if len(w.sending) >= maxSendFlows {
		w.drops[dropFlowTable]++
		return nil
	}
	s := &sendFlow{w: w, key: key, moving: newMoving(key), uplink: u.index, last: w.now}
	s.timed = timed{place: -1, poll: s}
	w.sending[key] = s
	if s.acknowledged() {
		w.byHosts[key.Hosts()] = append(w.byHosts[key.Hosts()], s)
	}
	w.protect(s, u)
	return s
}

// protect starts a CSF for the flow if the configuration wants one.
func (w *worker) protect(s *sendFlow, u *uplinkState) {
	s.verdict = w.snap.cfg.judge(u.name, s.key)
	w.setReaction(s)
	if s.verdict.profile == nil {
		return
	}
	d := s.verdict.domain
	s.domain, s.port, s.from = d.Name, d.Port, d.sender(s.key)
	params := w.snap.csfParams(s.verdict.profile, u, s.verdict.site)
	s.machine = csf.New(w.now, descriptor(s.key), peersOf(d, s.verdict.site, s.key), params, w.csfEnv)
	w.finishSend(s)
}

// peersOf are the addresses to ask: the gateways of the destination's site, or with none the destination itself, on whose path a CRF
// takes the HELLO (Section 5.1).
func peersOf(d *Domain, site *Site, key roce.FlowKey) []netip.AddrPort {
	if len(site.Gateways) == 0 {
		return []netip.AddrPort{netip.AddrPortFrom(key.Dst, d.Port)}
	}
	peers := make([]netip.AddrPort, len(site.Gateways))
	for i, g := range site.Gateways {
		peers[i] = netip.AddrPortFrom(g, d.Port)
	}
	return peers
}

// sender is the address from which a flow's messages leave, zero for the node's own. If the own site names no gateway it is the flow's source: the
// other site lets only addresses of the domain in (Section 11). Answers to it are taken on the path, as at the other end.
func (d *Domain) sender(key roce.FlowKey) netip.Addr {
	if own := d.ownSite(); own == nil || len(own.Gateways) > 0 {
		return netip.Addr{}
	}
	return key.Src
}

func descriptor(key roce.FlowKey) wire.FlowDescriptor {
	return wire.FlowDescriptor{Kind: wire.KindOf(key.Transport, key.Space), Src: key.Src, Dst: key.Dst, Label: uint32(key.QPN)}
}

// flowKey is the inverse of descriptor; false for a Flow Kind that this agent does not know.
func flowKey(d *wire.FlowDescriptor) (roce.FlowKey, bool) {
	transport, space, ok := d.Kind.Space()
	return roce.FlowKey{Src: d.Src, Dst: d.Dst, QPN: roce.QPN(d.Label & 0xffffff), Space: space, Transport: transport}, ok
}

// finishSend carries out what the machine decided, follows its names and moves its deadline.
func (w *worker) finishSend(s *sendFlow) {
	if len(w.csfActs) > 0 {
		for i := range w.csfActs {
			a := &w.csfActs[i]
			w.send(s.port, a.To, s.from, a.TOS, a.Msg)
		}
		clear(w.csfActs)
		w.csfActs = w.csfActs[:0]
	}
	if s.machine.Nonce() != s.nonce || s.machine.ID() != s.known.id {
		w.learnNames(s)
	}
	w.timers.set(&s.timed, s.nextDeadline())
}

// learnNames keeps the tables by which answers find the flow.
func (w *worker) learnNames(s *sendFlow) {
	if nonce := s.machine.Nonce(); nonce != s.nonce {
		delete(w.byNonce, s.nonce)
		s.nonce = nonce
		if nonce != 0 {
			w.byNonce[nonce] = s
		}
	}
	known := peerFlow{}
	if id := s.machine.ID(); id != 0 {
		known = peerFlow{peer: s.machine.Peer().Addr(), id: id}
	}
	if known == s.known {
		return
	}
	w.dropKnown(s)
	s.known = known
	if known.id != 0 {
		w.sendKnown[known] = s
		w.e.owners.add(known, w.id)
	}
}

// dropNames takes the flow out of those tables: whatever a peer still says about it finds nothing.
func (w *worker) dropNames(s *sendFlow) {
	delete(w.byNonce, s.nonce)
	s.nonce = 0
	w.dropKnown(s)
}

func (w *worker) dropKnown(s *sendFlow) {
	if s.known.id != 0 {
		delete(w.sendKnown, s.known)
		w.e.owners.remove(s.known)
	}
	s.known = peerFlow{}
}

// answered uses what came back: ACKs confirm sent packets; requests of the other side announce responses of ours.
func (w *worker) answered(pkt *roce.Packet) {
	if psn, space, ok := pkt.Acked(); ok {
		w.acked(pkt, psn, space)
	}
}

// acked finds the flow that an acknowledging packet confirms.
func (w *worker) acked(pkt *roce.Packet, psn roce.PSN, space roce.Space) {
	flows := w.byHosts[pkt.Key().Reverse()]
	if len(flows) == 0 {
		return
	}
	s := w.pairs.match(w.now, backKey{pkt.Dst(), pkt.Src(), pkt.QPN(), pkt.Transport(), space}, psn, flows)
	if s == nil || s.machine == nil {
		return
	}
	s.machine.HandleAck(w.now, psn)
	w.finishSend(s)
}

// endedSend keeps the totals of a flow whose machine ends.
func (w *worker) endedSend(s *sendFlow) {
	if w.telling != nil {
		w.telling.addSending(s)
	}
	s.count(&w.ended.sent)
	w.endedSites.addReports(s)
}

// forgetSend takes the flow out of every table.
func (w *worker) forgetSend(s *sendFlow) {
	w.endedSend(s)
	s.gone = true
	w.endReaction(s)
	delete(w.sending, s.key)
	w.timers.set(&s.timed, roce.Never)
	w.dropNames(s)
	w.pairs.forget(s)
	if !s.acknowledged() {
		return
	}
	hosts := s.key.Hosts()
	list := w.byHosts[hosts]
	for i := range list {
		if list[i] == s {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if len(list) == 0 {
		delete(w.byHosts, hosts)
	} else {
		w.byHosts[hosts] = list
	}
}

// sweep forgets flows that ended, once a second.
func (w *worker) sweep() {
	for _, s := range w.sending {
		idle := w.now - s.last
		switch {
		case idle < forgetAfter:
		case s.machine == nil:
			w.forgetSend(s)
		case s.machine.State() == csf.Idle || s.machine.State() == csf.Closed:
			w.forgetSend(s)
		}
	}
	for _, r := range w.receiving {
		if r.machine.State() == crf.Closed && !packet.Word(w.e.holder.Word(r.index).Load()).Hold() {
			w.forgetRecv(r)
		}
	}
	w.pairs.expire(w.now)
}

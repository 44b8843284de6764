// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	maxRecvFlows = 16384
	// seenLately is how long ago a packet of a flow may have arrived that counts as seen: a HELLO follows on a packet at once.
	seenLately = 2 * time.Second
	// silentSender is how long a sender has said nothing before another one of its site may have its flow. Without losses a sender is silent too.
	silentSender = 5 * time.Second
)

// readRing takes packets of protected flows from the kernel program until the ring is empty or a batch is full.
func (w *worker) readRing() bool {
	n := w.ring.Next(w.frames[:])
	for i := range w.frames[:n] {
		w.arrived(&w.frames[i])
	}
	for _, r := range w.changed {
		r.busy = false
		w.finishRecv(r)
	}
	clear(w.changed)
	w.changed = w.changed[:0]
	return n == len(w.frames)
}

// arrived handles one frame of the ring. A held frame that no machine takes is put back at once: the kernel gave it up.
func (w *worker) arrived(f *packet.Frame) {
	if f.Flags&packet.Taken != 0 {
		w.taken(f)
		return
	}
	held := f.Flags&packet.Held != 0
	pkt, reason := w.snap.transports.Parse(f.Data)
	if reason != roce.OK || f.Flags&(packet.VLAN|packet.GSO) != 0 {
		w.drops[dropParse+drop(reason)]++
		w.passOn(f, held)
		return
	}
	r := w.flowOf(f, &pkt)
	if r == nil {
		w.passOn(f, held)
		return
	}
	r.last, r.ifindex = w.now, f.Ifindex
	if r.doubtful() {
		r.machine.Unseen()
		r.seen(f.Time)
	}
	w.came(r, f.Ifindex, pkt.TOS())
	r.machine.HandleSource(w.now, &pkt, held, &w.crfActs)
	w.carryOut(r)
	if !r.busy {
		r.busy = true
		w.changed = append(w.changed, r)
	}
	if r.key.Space == roce.Response && r.key.Transport == roce.RoCEv2 {
		w.responded(r, &pkt)
	}
}

// flowOf finds the flow of a ring frame. The index may lag behind the table, so the key decides.
func (w *worker) flowOf(f *packet.Frame, pkt *roce.Packet) *recvFlow {
	if f.Flow < 0 || f.Flow >= len(w.recvIndex) {
		return nil
	}
	r := w.recvIndex[f.Flow]
	if r == nil || r.key != pkt.Key() {
		return nil
	}
	return r
}

func (w *worker) passOn(f *packet.Frame, held bool) {
	if !held {
		return
	}
	w.counters[countPassedOn]++
	w.inj.Inject(f.Ifindex, f.Data, nil)
}

// responded lets a READ response or ATOMIC acknowledgement confirm the request that it answers, and moves the range of expected responses.
func (w *worker) responded(r *recvFlow, pkt *roce.Packet) {
	if pkt.Opcode().Ends() {
		if psn, space, ok := pkt.Acked(); ok {
			w.acked(pkt, psn, space)
		}
	}
	if r.sure.passed(pkt.PSN()) {
		w.e.holder.SetSure(r.index, uint32(r.sure.from), uint32(r.sure.to))
	}
}

// expectResponses tells the receiver of the opposite direction which PSNs a READ or ATOMIC request will be answered with.
func (w *worker) expectResponses(s *sendFlow, request *roce.Packet) {
	qpn, ok := s.localQPN()
	if !ok {
		return
	}
	r := w.recvByKey[roce.FlowKey{Src: s.key.Dst, Dst: s.key.Src, QPN: qpn, Space: roce.Response}]
	if r == nil {
		return
	}
	n := roce.Advance(request, r.mtu)
	r.machine.HandleReadRequest(w.now, request.PSN(), n)
	if r.sure.add(request.PSN(), n) {
		w.e.holder.SetSure(r.index, uint32(r.sure.from), uint32(r.sure.to))
	}
	w.timers.set(&r.timed, r.nextDeadline())
}

// carryOut does what the machine decided; the deadline is moved by finishRecv, once a batch.
func (w *worker) carryOut(r *recvFlow) {
	for i := range w.crfActs {
		a := &w.crfActs[i]
		switch a.Kind {
		case crf.Send:
			w.send(r.port, a.To, a.From, a.TOS, a.Msg)
		case crf.Inject:
			w.inj.Inject(r.ifindex, a.Head, a.Payload)
		}
	}
	clear(w.crfActs)
	w.crfActs = w.crfActs[:0]
}

// finishRecv carries out actions, moves the deadline and notes that the flow may be handed back. A flow that a HELLO of the same batch replaced is
// out of every table: there is nothing left to finish.
func (w *worker) finishRecv(r *recvFlow) {
	if r.index < 0 {
		return
	}
	w.carryOut(r)
	w.timers.set(&r.timed, r.nextDeadline())
	if psn, ok := r.machine.Expects(); ok && r.mode == packet.InOrder {
		w.expect(r, psn)
	}
	if !r.holding && r.mode == packet.InOrder && packet.Word(w.e.holder.Word(r.index).Load()).Hold() {
		r.holding = true
		w.holding = append(w.holding, r)
	}
}

// expect moves the kernel's expectation back to where a sender that went back has come. If the kernel holds, or the word changes, nothing is
// done: then the machine meets what follows by itself.
func (w *worker) expect(r *recvFlow, psn roce.PSN) {
	word := w.e.holder.Word(r.index)
	if old := packet.Word(word.Load()); !old.Hold() && !old.Learn() {
		word.CompareAndSwap(uint64(old), uint64(old.InOrderAt(uint32(psn))))
		w.counters[countRewinds]++
	}
}

// handBack returns flows to the kernel whose machine holds and awaits nothing. The kernel agrees only if it has held exactly the packets that the
// machine has seen, so that none overtakes another.
func (w *worker) handBack() {
	keep := w.holding[:0]
	w.holdPause = maxHolding
	for _, r := range w.holding {
		if r.index < 0 {
			continue
		}
		word := packet.Word(w.e.holder.Word(r.index).Load())
		if !word.Hold() {
			r.holding = false
			continue
		}
		if next, ok := r.machine.Idle(); ok && w.e.holder.HandBack(r.index, r.held(), uint32(next), r.machine.Inside()) {
			w.counters[countHandedBack]++
			r.holding = false
			continue
		}
		w.holdPause = min(w.holdPause, max(minHolding, r.machine.SRTT()/64))
		keep = append(keep, r)
	}
	clear(w.holding[len(keep):])
	w.holding = keep
}

// hello answers a HELLO (Section 5.1): only for flows whose packets arrive here, from inside the domain, within the sender's limits.
// Everything else is met with silence and a counter.
func (w *worker) hello(d *Domain, m *packet.Message, h *wire.Hello) {
	key, known := flowKey(&h.Flow)
	if !known {
		w.drops[dropFlowKind]++
		return
	}
	if m.To != key.Dst && !w.snap.local[m.To] {
		w.drops[dropWrongAddress]++
		return
	}
	if key.Transport.Multipath() && h.Extensions&wire.ExtDigest == 0 { // as a kind that is not known (Section 4.4, rule 3)
		w.drops[dropFlowKind]++
		return
	}
	profile := w.snap.cfg.receivingProfile(d, key)
	if profile == nil {
		w.drops[dropNoProfile]++
		return
	}
	r := w.recvByKey[key]
	if r != nil && r.nonce == h.Nonce && r.peer == m.From {
		r.heard = w.now
		r.machine.HandleHello(w.now, h, &w.crfActs)
		w.finishRecv(r)
		return
	}
	if r != nil && r.past.has(h.Nonce) {
		w.drops[dropReplay]++
		return
	}
	seen, arrives := w.arrivesHere(key, r)
	if !arrives {
		w.drops[dropNotOnPath]++
		return
	}
	if r != nil && !r.yields(w.now, d, m.From.Addr()) {
		w.drops[dropOtherPeer]++
		return
	}
	if r == nil && len(w.receiving) >= maxRecvFlows {
		w.drops[dropFlowTable]++
		return
	}
	if !w.limits.admit(w.now, m.From.Addr()) {
		w.drops[dropHelloRate]++
		return
	}
	w.accept(d, profile, key, m, h, r, seen)
}

// arrivesHere reports whether packets of the flow arrive on an uplink of this node, and when the last one did, or its destination is the node itself.
// Of several gateways that know the flow, the one that it has left must not answer. r is the flow if it is protected already.
func (w *worker) arrivesHere(key roce.FlowKey, r *recvFlow) (last time.Duration, ok bool) {
	switch {
	case w.snap.local[key.Dst]:
		return w.now, true
	case r != nil:
		return r.last, w.now-r.last < seenLately
	}
	age, ok := w.e.holder.Seen(holderKey(key))
	return w.now - age, ok && age < seenLately
}

// yields reports whether another sender may have the flow. A flow has one; it keeps it while it lives. When it is not heard any more, another gateway
// of its site may follow it, or whoever the configuration has put in its place; anybody may have what has ended, or what no packet is seen of.
func (r *recvFlow) yields(now time.Duration, d *Domain, from netip.Addr) bool {
	peer := r.peer.Addr()
	if peer == from || now-r.last >= forgetAfter || r.machine.State() == crf.Closed {
		return true
	}
	return d.sends(from, r.key) && (now-r.heard >= silentSender || !d.sends(peer, r.key))
}

func holderKey(key roce.FlowKey) packet.FlowKey {
	return packet.FlowKey{Src: key.Src, Dst: key.Dst, QPN: uint32(key.QPN), Response: key.Space == roce.Response, Transport: uint8(key.Transport)}
}

// accept makes the CRF of a flow. It takes the place of old in the kernel's table, or one of its own. seen is when the flow's last packet arrived.
func (w *worker) accept(d *Domain, p *Profile, key roce.FlowKey, m *packet.Message, h *wire.Hello, old *recvFlow, seen time.Duration) {
	r := &recvFlow{
		w: w, key: key, id: w.newFlowID(), nonce: h.Nonce, peer: m.From, domain: d.Name, profile: p.Name, port: d.Port,
		mtu: int(h.MTU), mode: modeOf(p, key), ifindex: m.Ifindex, last: seen, heard: w.now,
		digest: (p.CRF.Digest || key.Transport.Multipath()) && h.Extensions&wire.ExtDigest != 0, local: m.To,
		moving: newMoving(key), reportDrops: d.ReportDrops,
	}
	if err := w.enter(r, old); err != nil {
		w.limits.done(m.From.Addr())
		w.drops[dropFlowTable]++
		return
	}
	r.past.add(h.Nonce)
	r.timed = timed{place: -1, poll: r}
	r.machine = crf.New(w.now, r.id, h, m.From, r.local, w.snap.crfParams(p), w.crfEnv)
	if old != nil {
		r.machine.Succeed(old.machine)
	}
	w.receiving[r.id] = r
	w.recvByKey[key] = r
	for len(w.recvIndex) <= r.index {
		w.recvIndex = append(w.recvIndex, nil)
	}
	w.recvIndex[r.index] = r
	r.machine.HandleHello(w.now, h, &w.crfActs)
	w.finishRecv(r)
}

// enter puts a flow into the kernel's table. In the place of another one it goes on with what the kernel holds: were the flow taken out and put in anew,
// packets would pass by those that are still in the ring.
func (w *worker) enter(r, old *recvFlow) (err error) {
	if old == nil {
		r.index, err = w.e.holder.RegisterFlow(holderKey(r.key), w.id, r.mtu, r.mode)
		return err
	}
	r.index, r.past, r.sure, r.missed, r.unseen = old.index, old.past, old.sure, old.missed, old.unseen
	r.heldBefore = old.held()
	w.dismiss(old)
	if err = w.e.holder.UpdateFlow(r.index, r.mtu, r.mode); err != nil {
		w.e.dropFromKernel(r)
	}
	return err
}

// newFlowID is random among unused values; modulo the number of workers it names its worker, so that REPAIR finds it. 0 is never assigned.
func (w *worker) newFlowID() uint32 {
	n := uint32(len(w.e.workers))
	for {
		id := uint32(w.e.random())
		id = id - id%n + uint32(w.id)
		if _, used := w.receiving[id]; id != 0 && !used {
			return id
		}
	}
}

// endRecv ends a flow towards its peer and releases what is held. It is forgotten with the next sweep that finds it handed back, so that packets which
// the kernel holds until then are still passed on, in order.
func (w *worker) endRecv(r *recvFlow, reason wire.CloseReason) {
	r.machine.Close(w.now, reason, &w.crfActs)
	w.finishRecv(r)
}

// forgetRecv gives the flow back to the kernel and forgets it, without a word to the peer.
func (w *worker) forgetRecv(r *recvFlow) {
	w.e.dropFromKernel(r)
	w.dismiss(r)
}

// dismiss takes the flow out of every table of the worker; what it holds goes on.
func (w *worker) dismiss(r *recvFlow) {
	w.releaseHeld(r)
	if w.telling != nil {
		w.telling.addReceiving(r)
	}
	r.count(&w.ended.received)
	w.timers.set(&r.timed, roce.Never)
	delete(w.receiving, r.id)
	delete(w.recvByKey, r.key)
	w.recvIndex[r.index] = nil
	r.index = -1
	w.limits.done(r.peer.Addr())
}

// releaseHeld lets all held packets go, in order; nothing is sent to the peer.
func (w *worker) releaseHeld(r *recvFlow) {
	r.machine.Close(w.now, wire.CloseIdle, &w.crfActs)
	for i := range w.crfActs {
		if a := &w.crfActs[i]; a.Kind == crf.Inject {
			w.inj.Inject(r.ifindex, a.Head, a.Payload)
		}
	}
	clear(w.crfActs)
	w.crfActs = w.crfActs[:0]
}

// receivingProfile finds the profile for a flow that comes from another site of the domain into the own one.
func (c *Config) receivingProfile(d *Domain, key roce.FlowKey) *Profile {
	own, src := d.ownSite(), d.siteOf(key.Src)
	if d.barred() || !c.protects(d, key.Transport) || own == nil || src == nil || src == own || !own.contains(key.Dst) {
		return nil
	}
	if r := d.receivingRule(key, own); r != nil {
		return r.Profile
	}
	return nil
}

// taken handles a CREM message that was addressed to an endpoint of our site and taken from the path.
func (w *worker) taken(f *packet.Frame) {
	m, port, ok := messageOf(f)
	if !ok {
		w.drops[dropMessage]++
		return
	}
	if d := w.snap.cfg.domainByPort(port); d != nil && d.RequireIPsec {
		w.drops[dropUnsecured]++ // the kernel has not compared it with its policies
		return
	}
	w.message(port, &m)
}

// messageOf reads addresses, TOS and UDP payload of a taken frame: an IPv4 or IPv6 UDP datagram, as the kernel program checked.
func messageOf(f *packet.Frame) (packet.Message, uint16, bool) {
	b := f.Data
	if len(b) < ethernetRoom+28 {
		return packet.Message{}, 0, false
	}
	m := packet.Message{Ifindex: f.Ifindex}
	ip := b[ethernetRoom:]
	var udp []byte
	var from, to netip.Addr
	if ip[0]>>4 == 4 {
		from, _ = netip.AddrFromSlice(ip[12:16])
		to, _ = netip.AddrFromSlice(ip[16:20])
		m.TOS = ip[1]
		udp = ip[20:]
	} else {
		if len(ip) < 48 {
			return packet.Message{}, 0, false
		}
		from, _ = netip.AddrFromSlice(ip[8:24])
		to, _ = netip.AddrFromSlice(ip[24:40])
		m.TOS = ip[0]<<4 | ip[1]>>4
		udp = ip[40:]
	}
	m.From = netip.AddrPortFrom(from, uint16(udp[0])<<8|uint16(udp[1]))
	m.To = to
	port := uint16(udp[2])<<8 | uint16(udp[3])
	m.Data = udp[8:]
	if f.Flags&packet.Segment == 0 {
		n := int(udp[4])<<8 | int(udp[5])
		if n < 8 || n > len(udp) {
			return packet.Message{}, 0, false
		}
		m.Data = udp[8:n]
	}
	return m, port, true
}

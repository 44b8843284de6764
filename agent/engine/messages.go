// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"sync"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/wire"
)

// letter is a message on its way to the worker that owns its flow.
type letter struct {
	port uint16
	m    packet.Message
	buf  []byte
}

var letters = sync.Pool{New: func() any { return new(letter) }}

// readMessages takes one batch from every socket and all letters of other workers.
func (w *worker) readMessages() bool {
	busy := false
	for i := range w.snap.ports {
		p := &w.snap.ports[i]
		n := p.sockets[w.id].Recv(w.messages[:])
		busy = busy || n == len(w.messages)
		if n > 0 {
			w.overtakeNothing()
		}
		for j := range w.messages[:n] {
			w.message(p.port, &w.messages[j])
		}
	}
	for {
		select {
		case l := <-w.letters:
			if ecn.IsCNP(l.m.Data) {
				w.cnp(&l.m)
			} else {
				w.deliver(l.port, &l.m)
			}
			letters.Put(l)
		default:
			return busy
		}
	}
}

// overtakeNothing takes what is in the ring before messages are handled that were received already. A REPAIR comes behind the packets that it
// protects; handled before them, it would make losses of them, and late copies (Section 6.2, CRF 1).
func (w *worker) overtakeNothing() {
	for w.readRing() {
		continue
	}
}

// message finds the worker that owns the message's flow and hands it over, or handles it here.
func (w *worker) message(port uint16, m *packet.Message) {
	w.counters[countMessages]++
	if ecn.IsLease(m.Data) || ecn.IsCNP(m.Data) || ecn.IsReadings(m.Data) {
		w.wanMessage(port, m)
		return
	}
	h, err := wire.ParseHeader(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	owner := w.owner(&h, m)
	if owner == w.id {
		w.deliver(port, m)
		return
	}
	w.forward(owner, port, m)
}

// forward hands a message to the worker that owns its flow.
func (w *worker) forward(owner int, port uint16, m *packet.Message) {
	l := letters.Get().(*letter)
	l.port, l.m = port, *m
	l.buf = append(l.buf[:0], m.Data...)
	l.m.Data = l.buf
	select {
	case w.e.workers[owner].letters <- l:
		w.counters[countForwarded]++
	default:
		letters.Put(l)
		w.drops[dropMailbox]++
	}
}

// owner is the worker of the message's flow: the Flow ID names it towards the CRF, the nonce and the table of owners towards the CSF, the
// host pair before there is a Flow ID.
func (w *worker) owner(h *wire.Header, m *packet.Message) int {
	n := len(w.e.workers)
	if n == 1 {
		return 0
	}
	switch h.Type {
	case wire.TypeHello:
		if x, err := wire.ParseHello(m.Data); err == nil {
			return workerOf(x.Flow.Src, x.Flow.Dst, n)
		}
	case wire.TypePathReport:
		if x, err := wire.ParsePathReport(m.Data); err == nil {
			return workerOf(x.Src, x.Dst, n)
		}
	case wire.TypeHelloAck:
		if x, err := wire.ParseHelloAck(m.Data); err == nil {
			return int(x.Nonce % uint64(n))
		}
	case wire.TypeRepair, wire.TypeParamUpdate:
		return int(h.FlowID % uint32(n))
	case wire.TypeParamAck, wire.TypeRepairRequest, wire.TypeLossReport:
		if id, ok := w.e.owners.find(peerFlow{m.From.Addr(), h.FlowID}); ok {
			return id
		}
	case wire.TypeClose:
		if id, ok := w.e.owners.find(peerFlow{m.From.Addr(), h.FlowID}); ok {
			return id
		}
		return int(h.FlowID % uint32(n))
	}
	return w.id
}

// deliver handles a message of a flow of this worker. Only addresses of the domain are listened to at all (Section 11): the kernel program has
// dropped the others on the uplinks, this is the second look for datagrams that came by another interface.
func (w *worker) deliver(port uint16, m *packet.Message) {
	d := w.snap.cfg.domainByPort(port)
	if d == nil || !d.inside(m.From.Addr()) {
		w.drops[dropOutside]++
		return
	}
	if !d.admits(m) {
		w.drops[dropUnsecured]++
		return
	}
	h, err := wire.ParseHeader(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	switch h.Type {
	case wire.TypeRepair, wire.TypeParamUpdate:
		w.toReceiver(d, m, &h)
	case wire.TypeHello:
		if x, err := wire.ParseHello(m.Data); err != nil {
			w.drops[dropMessage]++
		} else {
			w.hello(d, m, &x)
		}
	case wire.TypePathReport:
		w.pathReport(d, m)
	case wire.TypeClose:
		w.close(m, &h)
	default:
		w.toSender(d, m, &h)
	}
}

// toReceiver gives REPAIR and PARAM_UPDATE to their CRF.
func (w *worker) toReceiver(d *Domain, m *packet.Message, h *wire.Header) {
	r := w.receiving[h.FlowID]
	if r == nil {
		w.drops[dropUnknownFlow]++
		w.answerUnknown(d, m, h)
		return
	}
	if !w.belongs(m, r.peer.Addr(), r.local) {
		return
	}
	r.heard = w.now
	if h.Type == wire.TypeRepair {
		x, err := wire.ParseRepair(m.Data)
		if err != nil {
			w.drops[dropMessage]++
			return
		}
		if r.doubtful() {
			r.machine.Unseen()
		}
		r.machine.HandleRepair(w.now, &x, m.TOS&ecnMask == ecnCE, &w.crfActs)
	} else {
		x, err := wire.ParseParamUpdate(m.Data)
		if err != nil {
			w.drops[dropMessage]++
			return
		}
		r.machine.HandleParamUpdate(w.now, &x, &w.crfActs)
	}
	w.finishRecv(r)
}

const (
	ecnMask = 3
	ecnCE   = 3
)

// toSender gives HELLO_ACK, PARAM_ACK, REPAIR_REQUEST and LOSS_REPORT to their CSF.
func (w *worker) toSender(d *Domain, m *packet.Message, h *wire.Header) {
	if h.Type == wire.TypeHelloAck {
		w.helloAck(m)
		return
	}
	s := w.sendKnown[peerFlow{m.From.Addr(), h.FlowID}]
	if s == nil {
		w.drops[dropUnknownFlow]++
		w.answerUnknown(d, m, h)
		return
	}
	if !w.belongs(m, s.known.peer, s.from) {
		return
	}
	switch h.Type {
	case wire.TypeParamAck:
		if x, err := wire.ParseParamAck(m.Data); err != nil {
			w.drops[dropMessage]++
		} else {
			s.machine.HandleParamAck(w.now, m.From, &x, &w.csfActs)
		}
	case wire.TypeRepairRequest:
		if x, err := wire.ParseRepairRequest(m.Data); err != nil {
			w.drops[dropMessage]++
		} else {
			s.machine.HandleRequest(w.now, m.From, &x, &w.csfActs)
		}
	case wire.TypeLossReport:
		if x, err := wire.ParseLossReport(m.Data); err != nil {
			w.drops[dropMessage]++
		} else {
			s.machine.HandleLossReport(w.now, m.From, &x, &w.csfActs)
		}
	}
	w.finishSend(s)
}

func (w *worker) helloAck(m *packet.Message) {
	x, err := wire.ParseHelloAck(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	s := w.byNonce[x.Nonce]
	if s == nil {
		w.drops[dropUnknownFlow]++
		return
	}
	if !w.belongs(m, m.From.Addr(), s.from) {
		return
	}
	s.machine.HandleHelloAck(w.now, m.From, &x, &w.csfActs)
	w.finishSend(s)
}

// close ends a flow in whichever role the peer's address and Flow ID name.
func (w *worker) close(m *packet.Message, h *wire.Header) {
	x, err := wire.ParseClose(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	if s := w.sendKnown[peerFlow{m.From.Addr(), h.FlowID}]; s != nil {
		if w.belongs(m, s.known.peer, s.from) {
			s.machine.HandleClose(w.now, m.From, &x, &w.csfActs)
			w.finishSend(s)
		}
		return
	}
	r := w.receiving[h.FlowID]
	if r == nil {
		w.drops[dropUnknownFlow]++
		return
	}
	if w.belongs(m, r.peer.Addr(), r.local) {
		r.machine.HandleClose(w.now, &x, &w.crfActs)
		w.finishRecv(r)
	}
}

// belongs reports whether a message is one of a flow's peer, sent to the address that the flow uses here: the node's own, or that of an endpoint
// whose HELLO went by the path. What is taken from the path for another endpoint has nothing to do with the flow. It may be the answer that a
// stranger has provoked from the peer, with the flow's ID in it.
func (w *worker) belongs(m *packet.Message, peer, own netip.Addr) bool {
	switch {
	case m.From.Addr() != peer:
		w.drops[dropWrongPeer]++
		return false
	case m.To != own && !w.snap.local[m.To]:
		w.drops[dropWrongAddress]++
		return false
	}
	return true
}

// answerUnknown tells a peer that its flow does not exist here, so that after a restart it asks again instead of sending repairs for nobody. A
// CLOSE is smaller than what it answers, goes only to addresses of the domain, and is limited in number.
func (w *worker) answerUnknown(d *Domain, m *packet.Message, h *wire.Header) {
	if h.FlowID == 0 || !w.unknown.take(w.now) {
		return
	}
	c := wire.Close{FlowID: h.FlowID, Reason: wire.CloseIdle}
	buf := w.pool.Buffer(closeLen)
	if buf == nil {
		return
	}
	w.counters[countCloseSent]++
	w.send(d.Port, m.From, m.To, m.TOS&^ecnMask|ecnECT0, c.Append(buf[:0]))
}

const (
	closeLen = 12
	ecnECT0  = 2
)

// pathReport takes reports from the domain's reporters only (Section 8.2).
func (w *worker) pathReport(d *Domain, m *packet.Message) {
	if !d.isReporter(m.From.Addr()) {
		w.drops[dropReporter]++
		return
	}
	x, err := wire.ParsePathReport(m.Data)
	if err != nil {
		w.drops[dropMessage]++
		return
	}
	if !w.toSenders(m.From, &x) && !w.pass(&x, m.Data) {
		w.drops[dropUnknownFlow]++
	}
}

// toSenders gives a report to the flow's CSFs, if they are here: a reporter does not know the kind.
func (w *worker) toSenders(from netip.AddrPort, x *wire.PathReport) (known bool) {
	for _, kind := range wire.Kinds() {
		key, _ := flowKey(&wire.FlowDescriptor{Kind: kind, Src: x.Src, Dst: x.Dst, Label: x.Label})
		if s := w.sending[key]; s != nil && s.machine != nil {
			known = true
			s.machine.HandlePathReport(w.now, from, x, &w.csfActs)
			w.finishSend(s)
		}
	}
	return known
}

// send queues one message on the domain's socket.
func (w *worker) send(port uint16, to netip.AddrPort, from netip.Addr, tos uint8, msg []byte) {
	for _, ports := range [...][]portState{w.snap.ports, w.parting} {
		for i := range ports {
			if ports[i].port == port {
				source, ok := ports[i].source(to.Addr(), from)
				if !ok {
					w.drops[dropUnsecured]++
					return
				}
				ports[i].sockets[w.id].Send(to, source, tos, msg)
				return
			}
		}
	}
	w.drops[dropNoSocket]++
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// queuePair is a connection between an endpoint of each site. It sends what a test tells it to; what arrives is compared with that, messages are
// acknowledged, and READ requests answered. It repeats nothing by itself.
type queuePair struct {
	w   *world
	end [2]struct {
		addr netip.Addr
		qpn  uint32 // under which the other end sends
	}
	requests, responses [2]*stream // by the site that sends them
}

// stream is what a queue pair sends one way in one PSN space.
type stream struct {
	q        *queuePair
	key      roce.FlowKey
	from     int // site
	next     roce.PSN
	inside   int                 // packets of the message under way
	copies   uint16              // other copies made
	frames   map[roce.PSN][]byte // first copies
	sent     map[roce.PSN][][]byte
	arrived  map[roce.PSN]arrival
	got      map[roce.PSN]int // deliveries
	order    []delivery       // first deliveries, the latest last
	restored int              // packets that were delivered and have not arrived
}

// arrival is when the first copy of a packet that the path let through left, and how often the order of its flow had been given up by then.
type arrival struct {
	at     time.Duration
	number uint64
	excuse int
}

type delivery struct {
	psn    roce.PSN
	number uint64
}

// connect makes a queue pair of RoCEv2. Its PSNs begin at psn in all spaces.
func (w *world) connect(psn roce.PSN) *queuePair { return w.connectAs(roce.RoCEv2, psn) }

// connectAs makes a queue pair of a transport. Where there are two workers they have every second one each.
func (w *world) connectAs(transport roce.Transport, psn roce.PSN) *queuePair {
	q := &queuePair{w: w}
	i := len(w.queues)
	for site := range q.end {
		a := endpoints[site].Addr().As4()
		a[3] = byte(1 + (1+site)*i)
		q.end[site].addr, q.end[site].qpn = netip.AddrFrom4(a), uint32(0x100+2*i+site)
	}
	for site := range q.end {
		key := roce.FlowKey{Src: q.end[site].addr, Dst: q.end[1-site].addr, QPN: roce.QPN(q.end[1-site].qpn), Transport: transport}
		q.requests[site] = w.stream(q, site, key, psn)
		key.Space = roce.Response
		q.responses[site] = w.stream(q, site, key, psn)
	}
	w.queues = append(w.queues, q)
	return q
}

func (w *world) stream(q *queuePair, site int, key roce.FlowKey, psn roce.PSN) *stream {
	s := &stream{
		q: q, key: key, from: site, next: psn, frames: map[roce.PSN][]byte{}, sent: map[roce.PSN][][]byte{}, arrived: map[roce.PSN]arrival{}, got: map[roce.PSN]int{},
	}
	w.streams[key] = s
	return s
}

const messagePackets = 6

// packet is the packet of a PSN: its octets follow from the flow and the PSN, but for those that tell copies apart.
func (s *stream) packet(psn roce.PSN, op roce.Opcode, dma uint32, id uint16) frames.RoCE {
	data := make([]byte, rdmaMTU)
	if op.Answered() {
		data = nil
	}
	x := uint64(s.key.QPN)<<32 | uint64(s.key.Space)<<24 | uint64(psn)
	for i := range data {
		x = x*6364136223846793005 + 1442695040888963407
		data[i] = byte(x >> 56)
	}
	r := frames.RoCE{
		Headers: frames.Headers{Src: s.key.Src, Dst: s.key.Dst, TOS: 2, ID: id},
		Opcode:  op, QPN: uint32(s.key.QPN), PSN: uint32(psn), DMALength: dma, Data: data, AckReq: op.Ends(),
	}
	if s.key.Transport.Multipath() {
		s.spray(&r)
	}
	return r
}

// spray gives a packet what its transport has beside RoCEv2: a path of its own for every copy, and a flag in those that are sent again.
func (s *stream) spray(r *frames.RoCE) {
	r.SrcPort, r.Checksum, r.Extension = uint16(s.q.w.random.Uint32())|0x8000, true, make([]byte, 24)
	again := r.ID >= 0x8000
	if s.key.Transport == roce.MRC {
		r.Opcode += roce.MRCWriteFirst - roce.SendFirst // the messages have the same parts
		if again {
			r.Flags = worldTransports.MRC.Retransmission
		}
		return
	}
	if r.DstPort = worldTransports.VeRoCE.Port; again {
		r.Flags = worldTransports.VeRoCE.Retransmission
	}
}

// emit sends one packet, and notes it.
func (s *stream) emit(psn roce.PSN, frame []byte) {
	if s.frames[psn] == nil {
		s.frames[psn] = frame
	}
	s.sent[psn] = append(s.sent[psn], frame)
	n := s.q.w.nodes[s.from]
	s.q.w.emitted = s.q.w.net.Now()
	n.rouse()
	n.other().rouse()
	n.Transmit(frame)
}

// send sends n packets of messages, in the response space those of READ responses that nobody asked for.
func (s *stream) send(n int) {
	for range n {
		op := roce.SendMiddle
		switch s.inside {
		case 0:
			op = roce.SendFirst
		case messagePackets - 1:
			op = roce.SendLast
		}
		if s.key.Space == roce.Response {
			op += roce.ReadResponseFirst - roce.SendFirst // the messages have the same parts
		}
		s.inside = (s.inside + 1) % messagePackets
		s.emit(s.next, s.packet(s.next, op, 0, uint16(s.next)).Frame())
		s.next = s.next.Add(1)
	}
}

// read asks for n packets of the other end's memory.
func (s *stream) read(n int) {
	s.inside = 0
	s.emit(s.next, s.packet(s.next, roce.ReadRequest, uint32(n*rdmaMTU), uint16(s.next)).Frame())
	s.next = s.next.Add(n)
}

// repeat sends packets again: the same octets, or as another copy of the same content.
func (s *stream) repeat(first roce.PSN, n int, other bool) {
	for i := range n {
		psn := first.Add(i)
		frame := s.frames[psn]
		if frame == nil {
			continue
		}
		if other {
			pkt, _ := worldTransports.Parse(frame)
			dma, _ := pkt.DMALength()
			s.copies++
			frame = s.packet(psn, pkt.Opcode(), dma, 0x8000+s.copies).Frame()
		}
		s.emit(psn, frame)
	}
}

// respond answers a READ request.
func (s *stream) respond(psn roce.PSN, n int) {
	for i := range n {
		op := roce.ReadResponseMiddle
		switch {
		case n == 1:
			op = roce.ReadResponseOnly
		case i == 0:
			op = roce.ReadResponseFirst
		case i == n-1:
			op = roce.ReadResponseLast
		}
		s.emit(psn.Add(i), s.packet(psn.Add(i), op, 0, uint16(psn.Add(i))).Frame())
	}
}

// acknowledge confirms a request, or a response of veRoCE. Acknowledgements of veRoCE are in turn plain and selective.
func (s *stream) acknowledge(psn roce.PSN) {
	n := s.q.w.nodes[1-s.from]
	r := frames.RoCE{
		Headers: frames.Headers{Src: s.key.Dst, Dst: s.key.Src, TOS: 2},
		Opcode:  roce.Acknowledge, QPN: s.q.end[s.from].qpn, PSN: uint32(psn),
	}
	switch s.key.Transport {
	case roce.VeRoCE:
		v, selective := &worldTransports.VeRoCE, int(psn)/messagePackets%2
		r.DstPort, r.Extension = v.Port, make([]byte, 12)
		if r.Opcode = [...]roce.Opcode{roce.Acknowledge, v.SACK}[selective]; s.key.Space == roce.Response {
			r.Opcode = [...]roce.Opcode{v.ResponseACK, v.ResponseSACK}[selective]
		}
	case roce.MRC:
		r.Opcode, r.Extension = roce.MRCSACK, make([]byte, 36)
		binary.BigEndian.PutUint32(r.Extension[12:], uint32(psn)) // cumulative
	default:
	}
	n.Transmit(r.Frame())
}

// onPath sees every frame that leaves a node for the other one, and says whether it is lost.
func (n *node) onPath(frame []byte) (lost bool) {
	w := n.w
	pkt, reason := worldTransports.Parse(frame)
	if reason != roce.OK {
		w.captured = append(w.captured, append([]byte{}, frame...))
		if len(w.captured) > 64 {
			w.captured = w.captured[1:]
		}
		return n.lose.next(&n.lose.messages, w)
	}
	s := w.streams[pkt.Key()]
	if _, source := pkt.Source(); !source || s == nil {
		return false
	}
	if n.lose.next(&n.lose.sources, w) {
		return true
	}
	w.arrivals++
	if _, again := s.arrived[pkt.PSN()]; !again {
		s.arrived[pkt.PSN()] = arrival{w.emitted + n.path.Delay, w.arrivals, n.other().excuse()}
	}
	return false
}

func (l *losing) next(count *int, w *world) bool {
	if *count > 0 {
		*count--
		return true
	}
	return l.rate > 0 && w.random.Float64() < l.rate
}

// accounts are what must be true of a node's packets, reckoned without the engine's own ideas.
type accounts struct {
	held, injected map[string]int // by octets
	restored       uint64         // packets injected by the last settlement that came from no held one
	excuses        int            // changes after which a packet may pass one that came before it
	disorder       bool           // nothing is promised about order any more: the path keeps none
}

func (a *accounts) forgetAccounts() {
	a.held, a.injected = map[string]int{}, map[string]int{}
}

// excuse counts all that lets packets of an InOrder flow pass others: the kernel program failed open, or order was not asked for.
func (n *node) excuse() int {
	s := n.Program().Stats()
	open := s[bpf.OpenBypass] + s[bpf.OpenStale] + s[bpf.OpenTooLong] + s[bpf.OpenRingFull]
	return int(open) + n.excuses
}

func (n *node) noteInjected(frame []byte) {
	n.injected[string(frame)]++
}

// collect takes what was delivered everywhere.
func (w *world) collect() {
	w.t.Helper()
	for _, n := range w.nodes {
		for _, f := range n.Held() {
			n.held[string(f)]++
		}
		for _, f := range n.Delivered() {
			w.delivered(n, f)
		}
	}
}

// delivered judges one packet that an endpoint received.
func (w *world) delivered(n *node, frame []byte) {
	w.t.Helper()
	pkt, reason := worldTransports.Parse(frame)
	if reason == roce.NotRoCE {
		return // a message for an endpoint that nobody took
	}
	if reason != roce.OK {
		w.t.Fatalf("%s: a packet that is %v was delivered: %x", siteNames[n.site], reason, frame)
	}
	if _, source := pkt.Source(); !source {
		return
	}
	s := w.streams[pkt.Key()]
	if s == nil {
		w.t.Fatalf("%s: a packet of no flow was delivered: %x", siteNames[n.site], frame)
	}
	psn := pkt.PSN()
	if !s.wasSent(psn, frame) {
		w.t.Fatalf("%s: PSN %v of %v was delivered with octets that nobody sent:\n%x\n%x", siteNames[n.site], psn, s.key, frame, s.sent[psn])
	}
	s.got[psn]++
	if s.got[psn] == 1 {
		s.first(n, psn)
	}
	if s.key.Space == roce.Response {
		if s.key.Transport == roce.VeRoCE && pkt.AckReq() {
			s.acknowledge(psn)
		}
		return
	}
	answers := s.q.responses[1-s.from]
	switch {
	case pkt.Opcode().Answered():
		if s.got[psn] == 1 {
			answers.respond(psn, roce.Advance(&pkt, rdmaMTU))
		}
	case pkt.AckReq():
		s.acknowledge(psn)
	}
}

// wasSent compares with every copy; routers may change the congestion bits, and with them the checksum of the IPv4 header.
func (s *stream) wasSent(psn roce.PSN, frame []byte) bool {
	for _, f := range s.sent[psn] {
		if bytes.Equal(immutable(f), immutable(frame)) {
			return true
		}
	}
	return false
}

func immutable(frame []byte) []byte {
	b := bytes.Clone(frame[ethernetRoom:])
	b[1] |= 3
	b[10], b[11] = 0, 0
	return b
}

// first checks the order of first deliveries: a packet that arrived before another one, with a higher PSN, of its flow is delivered before it.
func (s *stream) first(n *node, psn roce.PSN) {
	a, arrived := s.arrived[psn]
	if !arrived || n.w.net.Now() < a.at {
		s.restored++ // a copy that the sender repeats may be on its way
		return
	}
	for i := len(s.order) - 1; i >= max(0, len(s.order)-256); i-- {
		o := s.order[i]
		if o.number > a.number && o.psn.After(psn) && n.excuse() == a.excuse && !n.disorder && !n.setting.immediate {
			n.w.t.Fatalf("%s: PSN %v of %v was overtaken by %v", siteNames[n.site], psn, s.key, o.psn)
		}
	}
	s.order = append(s.order, delivery{psn, a.number})
}

// settle balances the accounts of an agent that has ended, or holds nothing: every packet that the kernel gave up came out again, once.
func (n *node) settle(killed bool) {
	n.w.t.Helper()
	n.w.collect()
	var held, injected int
	for f, h := range n.held {
		held += h
		if i := n.injected[f]; i < h {
			if !killed {
				pkt, _ := worldTransports.Parse([]byte(f))
				n.w.t.Fatalf("%s: PSN %v of %v was held %d times and let go %d times", siteNames[n.site], pkt.PSN(), pkt.Key(), h, i)
			}
			held -= h - i
		}
	}
	for _, i := range n.injected {
		injected += i
	}
	if own := n.ownPackets(); uint64(injected-held) != own && !killed {
		n.w.t.Fatalf("%s: %d packets injected, %d held and %d restored or given again", siteNames[n.site], injected, held, own)
	}
	n.forgetAccounts()
	n.restored = n.ownPackets()
	if killed || n.engine.stopped() {
		n.restored = 0
	}
}

// ownPackets is how many packets the engine injected that were not held, since the last settlement.
func (n *node) ownPackets() (sum uint64) {
	for _, k := range n.engine.workers {
		r := k.report(false)
		sum += r.counters["crf_restored"] + r.counters["crf_given_again"]
	}
	return sum - n.restored
}

func (e *Engine) stopped() bool {
	select {
	case <-e.stop:
		return true
	default:
		return false
	}
}

// message puts a CREM message on the way to a node, as the stranger: with any source address.
func (w *world) message(from netip.AddrPort, to netip.Addr, port uint16, msg []byte) {
	w.stranger.Transmit(frames.Headers{Src: from.Addr(), Dst: to, SrcPort: from.Port(), DstPort: port, TOS: 2}.Frame(msg))
}

// messageParts are source, destination, port and payload of a captured message.
func messageParts(frame []byte) (from netip.AddrPort, to netip.Addr, port uint16, msg []byte) {
	m, port, _ := messageOf(&packet.Frame{Data: frame})
	return m.From, m.To, port, m.Data
}

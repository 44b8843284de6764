// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/rc"
)

// QP is one end of a connection. It is used as rc.QP is. It is not safe for concurrent use.
type QP struct {
	cfg    Config
	format format
	build  builder
	pace   rc.Pacer
	stats  rc.Stats

	send endpoint.Sender // of data: what this end writes, or the other one reads
	here numbers         // of what this end sends, in either PSN space
	high uint64          // sequence number after the newest packet with data that left

	take   endpoint.Receiver // of data: what the other end writes, or this one reads
	there  numbers           // of what the other end sends, in either PSN space
	memory rc.Memory
	coming []arriving // of message n at n modulo Depth
	oldest uint64     // message that is not complete

	poster endpoint.Poster       // one of the two
	asked  *endpoint.SenderStats // of what was posted here
	posted []message             // not complete, oldest first
	number uint64                // of the next message
	end    uint64                // sequence number after the last posted packet
	done   []rc.Completion
	ended  []endpoint.Completion
}

// message is one that was posted.
type message struct {
	number uint64
	first  uint64 // sequence number
	size   int
	posted time.Duration
}

// arriving is a message of the other end.
type arriving struct {
	open   bool
	octets int // placed
	size   int // 0: not known yet
}

// New returns a connected queue pair, or why the configuration can't be.
func New(c Config) (*QP, error) {
	c.RC.Local.Addr, c.RC.Remote.Addr = c.RC.Local.Addr.Unmap(), c.RC.Remote.Addr.Unmap()
	machine, path, err := c.machine()
	if err != nil {
		return nil, err
	}
	q := &QP{
		cfg: c, format: c.format(), build: newBuilder(&c), pace: rc.Pacer{Rate: c.RC.Rate}, memory: rc.NewMemory(&c.RC),
		here: numbers{c.RC.Local.PSN}, there: numbers{c.RC.Remote.PSN}, coming: make([]arriving, c.RC.Depth),
	}
	if q.send, q.take, err = endpoint.New(machine, path); err != nil {
		return nil, err
	}
	q.poster, q.asked = q.send, q.send.Stats()
	if r, reads := q.take.(endpoint.ReadRequester); reads {
		q.poster, q.asked = r, r.Requests()
	}
	return q, nil
}

// Post adds a message of size octets to the send queue. It is false when the queue is full, the connection has failed, the size is out of range, or it is
// another operation than that of the queue pair.
func (q *QP) Post(now time.Duration, op rc.Op, size int) bool {
	if op != q.cfg.Operation || q.Err() != "" || len(q.posted) == q.cfg.RC.Depth || size < 1 || size > q.cfg.RC.MaxMessage {
		return false
	}
	q.poster.Post(now, int64(size))
	q.posted = append(q.posted, message{number: q.number, first: q.end, size: size, posted: now})
	q.number++
	q.end += uint64((size + q.cfg.RC.MTU - 1) / q.cfg.RC.MTU)
	return true
}

// HandlePacket takes a packet that arrived at now. Like a NIC it drops silently what is not for this queue pair or has a wrong ICRC.
func (q *QP) HandlePacket(now time.Duration, p *roce.Packet) {
	switch {
	case p.Transport() != q.cfg.Transport || p.QPN() != q.cfg.RC.Local.QPN || p.Src() != q.cfg.RC.Remote.Addr || p.Dst() != q.cfg.RC.Local.Addr:
		q.stats.Strangers++
		return
	case !roce.CheckICRC(p):
		q.stats.BadICRC++
		return
	}
	if p.ECN() == 3 {
		q.stats.CE++
	}
	_, source := p.Source()
	switch {
	case source && q.carries(p.Opcode()):
		q.takeData(now, p)
	case source:
		q.takeRequest(now, p)
	default:
		q.takeAnswer(now, p)
	}
	q.complete()
}

// data is the PSN space of what carries data.
func (q *QP) data() roce.Space {
	if q.cfg.Operation == rc.Read {
		return roce.Response
	}
	return roce.Request
}

// carries says that an opcode is one of those that carry data here.
func (q *QP) carries(op roce.Opcode) bool {
	for _, first := range [...]bool{false, true} {
		if op == q.format.opcode(first, false) || op == q.format.opcode(first, true) {
			return true
		}
	}
	return false
}

// takeAnswer gives an answer to the machine that has the PSN space which it is about.
func (q *QP) takeAnswer(now time.Duration, p *roce.Packet) {
	machine, near := interface {
		Handle(now time.Duration, p *endpoint.Packet)
	}(q.send), q.high
	if q.format.answers(p.Opcode()) != q.data() {
		machine, near = q.take, q.asked.Needed
	}
	a, ok := q.format.answer(p, q.here, near)
	if !ok {
		q.stats.Strangers++
		return
	}
	machine.Handle(now, &a)
}

// takeRequest gives the READ request of the other end to the machine.
func (q *QP) takeRequest(now time.Duration, p *roce.Packet) {
	responder, reads := q.send.(endpoint.ReadResponder)
	if !reads {
		q.stats.Responder.ProtocolErrors++
		return
	}
	seq := q.there.seq(p.PSN(), responder.Requests().Accepted)
	if seq < 0 {
		return // from before the connection
	}
	size, ok := q.format.(veroce).request(p, uint64(seq))
	if !ok {
		q.stats.Responder.ProtocolErrors++
		return
	}
	packets, last := split(size, q.cfg.RC.MTU)
	responder.Handle(now, &endpoint.Packet{Kind: endpoint.Request, Seq: uint64(seq), Edge: packets, Data: last, AckReq: p.AckReq(), Again: p.Retransmitted()})
}

// split returns how many packets a message has, and how many octets are in the last one.
func split(size, mtu int) (packets uint64, last int32) {
	n := (size + mtu - 1) / mtu
	return uint64(n), int32(size - (n-1)*mtu)
}

// takeData gives a data packet to the machine, and places its data if it is new.
func (q *QP) takeData(now time.Duration, p *roce.Packet) {
	at, rest, ok := q.format.place(p)
	seq := q.there.seq(p.PSN(), q.take.Expected())
	if !ok {
		q.stats.Responder.ProtocolErrors++
		return
	}
	if seq < 0 {
		return // from before the connection
	}
	pad := int(p.P()[1] >> 4 & 3)
	if len(rest) < pad+icrcLen {
		q.stats.Responder.ProtocolErrors++
		return
	}
	data := rest[:len(rest)-pad-icrcLen]
	if q.cfg.Operation == rc.Read && uint64(seq) >= q.take.Expected() && !q.answered(uint64(seq), &at) {
		q.stats.Responder.ProtocolErrors++
		return
	}
	accepted := q.take.Stats().Accepted
	q.take.Handle(now, &endpoint.Packet{
		Kind: endpoint.Data, Seq: uint64(seq), Other: uint64(seq), Data: int32(len(data)), AckReq: p.AckReq(), First: at.first, Again: p.Retransmitted(),
	})
	if q.take.Stats().Accepted > accepted {
		q.put(at, data)
	}
}

// answered completes the place of a READ response by what was asked for. It is false for one that no request of ours has as its answer.
func (q *QP) answered(seq uint64, at *place) bool {
	for i := range q.posted {
		m := &q.posted[i]
		if packets, _ := split(m.size, q.cfg.RC.MTU); seq-m.first < packets {
			at.size = m.size
			return uint64(at.offset) == (seq-m.first)*uint64(q.cfg.RC.MTU) && at.message == m.number&0xffffff
		}
	}
	return false
}

// put places new data in memory, and verifies the message when its last octets have come.
func (q *QP) put(at place, data []byte) {
	width := q.format.messageBits()
	number := q.oldest + (at.message-q.oldest)&(1<<width-1)
	if number-q.oldest >= uint64(len(q.coming)) || max(at.offset+len(data), at.size) > q.cfg.RC.MaxMessage {
		q.stats.Responder.ProtocolErrors++
		return
	}
	m := &q.coming[number%uint64(len(q.coming))]
	if !m.open {
		*m = arriving{open: true}
		q.memory.Reopen(number)
	}
	copy(q.memory.Slot(number)[at.offset:], data)
	m.octets += len(data)
	if at.size > 0 {
		m.size = at.size
	}
	if m.size == 0 || m.octets < m.size {
		return
	}
	q.verify(number, m)
	m.size = -1 // complete
	for o := &q.coming[q.oldest%uint64(len(q.coming))]; o.open && o.size < 0; o = &q.coming[q.oldest%uint64(len(q.coming))] {
		o.open = false
		q.oldest++
	}
}

// verify compares a message that is there with what was sent.
func (q *QP) verify(number uint64, m *arriving) {
	wrong := q.memory.Complete(number, m.size)
	corrupt := wrong > 0 || m.octets > m.size
	if ask := &q.stats.Requester; q.cfg.Operation == rc.Read {
		ask.CorruptOctets += uint64(wrong)
		if corrupt {
			ask.CorruptMessages++
		}
		return
	}
	r := &q.stats.Responder
	r.Messages++
	r.WrittenOctets += uint64(m.octets)
	r.CorruptOctets += uint64(wrong)
	if corrupt {
		r.CorruptMessages++
	}
}

// complete notes the messages that the machine has completed.
func (q *QP) complete() {
	q.ended = q.poster.Completed(q.ended[:0])
	for i, e := range q.ended {
		m := &q.posted[i]
		q.done = append(q.done, rc.Completion{Number: m.number, Op: q.cfg.Operation, Size: m.size, Posted: m.posted, Completed: e.Completed})
	}
	q.posted = append(q.posted[:0], q.posted[len(q.ended):]...)
}

// Poll runs timers and appends what is to be sent at now. If the batch is full afterwards, there may be more.
func (q *QP) Poll(now time.Duration, out *rc.Batch) {
	for !out.Full() {
		p, ok := q.take.Next(now)
		if !ok {
			break
		}
		q.emit(out, &p, q.data())
	}
	for !out.Full() && q.pace.Ready(now) {
		p, ok := q.send.Next(now)
		if !ok {
			break
		}
		q.pace.Sent(now, q.emit(out, &p, roce.Request))
	}
}

// emit builds a packet, and returns how long its frame is. answered is the PSN space that answers are about.
func (q *QP) emit(out *rc.Batch, p *endpoint.Packet, answered roce.Space) int {
	var frame []byte
	switch p.Kind {
	case endpoint.Data:
		frame = q.dataPacket(out.Slot(), p)
	case endpoint.Request:
		frame = q.requestPacket(out.Slot(), p)
	default:
		op, seq, ext := q.format.appendAnswer(q.build.ext[:0], p, answered, q.there)
		q.build.ext = ext
		frame, _ = q.build.frame(out.Slot(), op, 0, q.there.psn(seq), ext, 0)
	}
	out.Add(q.build.seal(frame))
	return len(frame)
}

// flags are the bits of BTH octet 8.
func (q *QP) flags(p *endpoint.Packet) (flags uint8) {
	if p.AckReq {
		flags = ackRequest
	}
	if p.Again {
		flags |= q.retransmission()
	}
	return flags
}

// dataPacket builds a packet with data.
func (q *QP) dataPacket(mem []byte, p *endpoint.Packet) []byte {
	q.high = max(q.high, p.Seq+1)
	at := place{message: p.Edge, offset: int(p.Seq-p.Other) * q.cfg.RC.MTU, first: p.First} // as a READ's responder has it
	if q.cfg.Operation != rc.Read {
		i := 0
		for i+1 < len(q.posted) && q.posted[i+1].first <= p.Seq {
			i++
		}
		m := &q.posted[i]
		at = place{message: m.number, offset: int(p.Seq-m.first) * q.cfg.RC.MTU, size: m.size, first: p.First}
	}
	q.build.ext = q.format.appendPlace(q.build.ext[:0], &at)
	frame, data := q.build.frame(mem, q.format.opcode(at.first, p.Last), q.flags(p), q.here.psn(p.Seq), q.build.ext, int(p.Data))
	rc.Fill(data, q.cfg.RC.Seed, at.message, at.offset)
	return frame
}

// requestPacket builds a READ request: of as many octets as its last packet and those before it have.
func (q *QP) requestPacket(mem []byte, p *endpoint.Packet) []byte {
	size := int(p.Edge-p.Other-1)*q.cfg.RC.MTU + int(p.Data)
	q.build.ext = q.format.(veroce).appendRequest(q.build.ext[:0], p.Seq, size)
	frame, _ := q.build.frame(mem, roce.ReadRequest, q.flags(p), q.here.psn(p.Seq), q.build.ext, 0)
	return frame
}

// retransmission is the flag of a packet that is sent again; 0 where it is not known.
func (q *QP) retransmission() uint8 {
	if q.cfg.Transport == roce.MRC {
		return q.cfg.Settings.MRC.Retransmission
	}
	return q.cfg.Settings.VeRoCE.Retransmission
}

// NextDeadline returns when Poll has something to do; not after now means at once, roce.Never that only a packet or a post can change anything.
func (q *QP) NextDeadline() time.Duration {
	return min(q.take.NextDeadline(), max(q.send.NextDeadline(), q.pace.Next()))
}

// Completions appends the messages completed since the last call, in order.
func (q *QP) Completions(dst []rc.Completion) []rc.Completion {
	dst = append(dst, q.done...)
	q.done = q.done[:0]
	return dst
}

// Outstanding returns how many posted messages are not complete.
func (q *QP) Outstanding() int { return len(q.posted) }

// Err returns why the connection has failed, "" while it has not.
func (q *QP) Err() string {
	if err := q.poster.Err(); err != "" {
		return err
	}
	return q.send.Err()
}

// Stats returns the totals so far.
func (q *QP) Stats() *rc.Stats {
	s, r := q.asked, q.take.Stats()
	ask, answer := &q.stats.Requester, &q.stats.Responder
	ask.Posted, ask.Completed, ask.CompletedOctets, ask.AckedOctets = s.Posted, s.Completed, s.CompletedOctets, s.CompletedOctets
	ask.Sent, ask.Needed, ask.SentOctets, ask.Retransmitted = s.Sent, s.Needed, s.SentOctets, s.Retransmitted
	ask.Acks, ask.NAKs, ask.Timeouts, ask.Stale, ask.Err = s.Acks, s.NAKs, s.Timeouts, s.Stale, q.Err()
	if responder, reads := q.send.(endpoint.ReadResponder); reads {
		sent := responder.Stats()
		answer.ResponsesSent, answer.ResponsesNeeded, answer.ResponseOctets, answer.Messages = sent.Sent, sent.Needed, sent.SentOctets, sent.Posted
		ask.Responses = r.Accepted
		r = responder.Requests()
	}
	answer.Received, answer.Executed, answer.Duplicates, answer.OutOfSequence = r.Received, r.Accepted, r.Duplicates, r.OutOfSequence
	answer.AcksSent, answer.NAKsSent = r.AcksSent, r.NAKsSent
	return &q.stats
}

// Audit compares all memory again with what was sent and returns how many octets differ.
func (q *QP) Audit() int { return q.memory.Audit(0, false) }

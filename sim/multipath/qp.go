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

	send   endpoint.Sender
	asks   numbers   // of what this end writes
	high   uint64    // sequence number after the newest packet that left
	posted []message // not complete, oldest first
	number uint64    // of the next message
	end    uint64    // sequence number after the last posted packet
	done   []rc.Completion
	ended  []endpoint.Completion

	take    endpoint.Receiver
	answers numbers // of what the other end writes
	memory  rc.Memory
	coming  []arriving // of message n at n modulo Depth
	oldest  uint64     // message that is not complete
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
	send, _, err := endpoint.New(machine, path)
	if err != nil {
		return nil, err
	}
	_, take, err := endpoint.New(machine, path)
	if err != nil {
		return nil, err
	}
	q := &QP{
		cfg: c, build: newBuilder(&c), pace: rc.Pacer{Rate: c.RC.Rate}, send: send, take: take, memory: rc.NewMemory(&c.RC),
		asks: numbers{c.RC.Local.PSN}, answers: numbers{c.RC.Remote.PSN}, coming: make([]arriving, c.RC.Depth),
	}
	if q.format = format(mrc{slot: c.RC.MaxMessage}); c.Transport == roce.VeRoCE {
		q.format = veroce{settings: &c.Settings.VeRoCE, mtu: c.RC.MTU}
	}
	return q, nil
}

// Post adds a message of size octets to the send queue. It is false when the queue is full, the connection has failed, the size is out of range, or it is
// no WRITE.
func (q *QP) Post(now time.Duration, op rc.Op, size int) bool {
	if op != rc.Write || q.Err() != "" || len(q.posted) == q.cfg.RC.Depth || size < 1 || size > q.cfg.RC.MaxMessage {
		return false
	}
	q.send.Post(now, int64(size))
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
	if _, source := p.Source(); source {
		q.takeData(now, p)
		return
	}
	a, ok := q.format.answer(p, q.asks, q.high)
	if !ok {
		q.stats.Strangers++
		return
	}
	q.send.Handle(now, &a)
	q.complete()
}

// takeData gives a data packet to the machine, and places its data if it is new.
func (q *QP) takeData(now time.Duration, p *roce.Packet) {
	at, rest, ok := q.format.place(p)
	seq := q.answers.seq(p.PSN(), q.take.Expected())
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
	accepted := q.take.Stats().Accepted
	q.take.Handle(now, &endpoint.Packet{
		Kind: endpoint.Data, Seq: uint64(seq), Other: uint64(seq), Data: int32(len(data)), AckReq: p.AckReq(), First: at.first, Again: p.Retransmitted(),
	})
	if q.take.Stats().Accepted > accepted {
		q.put(at, data)
	}
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
	r := &q.stats.Responder
	r.Messages++
	r.WrittenOctets += uint64(m.octets)
	if wrong := q.memory.Complete(number, m.size); wrong > 0 || m.octets > m.size {
		r.CorruptMessages++
		r.CorruptOctets += uint64(wrong)
	}
	m.size = -1 // complete
	for o := &q.coming[q.oldest%uint64(len(q.coming))]; o.open && o.size < 0; o = &q.coming[q.oldest%uint64(len(q.coming))] {
		o.open = false
		q.oldest++
	}
}

// complete notes the messages that the machine has completed.
func (q *QP) complete() {
	q.ended = q.send.Completed(q.ended[:0])
	for i, e := range q.ended {
		m := &q.posted[i]
		q.done = append(q.done, rc.Completion{Number: m.number, Op: rc.Write, Size: m.size, Posted: m.posted, Completed: e.Completed})
	}
	q.posted = append(q.posted[:0], q.posted[len(q.ended):]...)
}

// Poll runs timers and appends what is to be sent at now. If the batch is full afterwards, there may be more.
func (q *QP) Poll(now time.Duration, out *rc.Batch) {
	for !out.Full() {
		a, ok := q.take.Next(now)
		if !ok {
			break
		}
		op, seq, ext := q.format.appendAnswer(q.build.ext[:0], &a, q.answers)
		frame, _ := q.build.frame(out.Slot(), op, 0, q.answers.psn(seq), ext, 0)
		q.build.ext = ext
		out.Add(q.build.seal(frame))
	}
	for !out.Full() && q.pace.Ready(now) {
		p, ok := q.send.Next(now)
		if !ok {
			break
		}
		frame := q.data(out.Slot(), &p)
		out.Add(frame)
		q.pace.Sent(now, len(frame))
	}
}

// data builds a data packet.
func (q *QP) data(mem []byte, p *endpoint.Packet) []byte {
	q.high = max(q.high, p.Seq+1)
	i := 0
	for i+1 < len(q.posted) && q.posted[i+1].first <= p.Seq {
		i++
	}
	m := &q.posted[i]
	at := place{message: m.number, offset: int(p.Seq-m.first) * q.cfg.RC.MTU, size: m.size, first: p.Seq == m.first}
	n := min(q.cfg.RC.MTU, m.size-at.offset)
	flags := uint8(0)
	if p.AckReq {
		flags = ackRequest
	}
	if p.Again {
		flags |= q.retransmission()
	}
	q.build.ext = q.format.appendPlace(q.build.ext[:0], &at)
	frame, data := q.build.frame(mem, q.format.opcode(at.first, at.offset+n == m.size), flags, q.asks.psn(p.Seq), q.build.ext, n)
	rc.Fill(data, q.cfg.RC.Seed, m.number, at.offset)
	return q.build.seal(frame)
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
func (q *QP) Err() string { return q.send.Err() }

// Stats returns the totals so far.
func (q *QP) Stats() *rc.Stats {
	s, r := q.send.Stats(), q.take.Stats()
	ask, answer := &q.stats.Requester, &q.stats.Responder
	ask.Posted, ask.Completed, ask.CompletedOctets, ask.AckedOctets = s.Posted, s.Completed, s.CompletedOctets, s.CompletedOctets
	ask.Sent, ask.Needed, ask.SentOctets, ask.Retransmitted = s.Sent, s.Needed, s.SentOctets, s.Retransmitted
	ask.Acks, ask.NAKs, ask.Timeouts, ask.Stale, ask.Err = s.Acks, s.NAKs, s.Timeouts, s.Stale, q.Err()
	answer.Received, answer.Executed, answer.Duplicates, answer.OutOfSequence = r.Received, r.Accepted, r.Duplicates, r.OutOfSequence
	answer.AcksSent, answer.NAKsSent = r.AcksSent, r.NAKsSent
	return &q.stats
}

// Audit compares all memory again with what was sent and returns how many octets differ.
func (q *QP) Audit() int { return q.memory.Audit(0, false) }

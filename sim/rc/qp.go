// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// QP is one end of a connection. It is not safe for concurrent use.
type QP struct {
	cfg    Config
	build  builder
	pace   Pacer
	ask    requester
	answer responder
	stats  Stats
}

// New returns a connected queue pair, or why the configuration can't be.
func New(c Config) (*QP, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Local.Addr, c.Remote.Addr = c.Local.Addr.Unmap(), c.Remote.Addr.Unmap()
	q := &QP{cfg: c, build: newBuilder(&c), pace: Pacer{Rate: c.Rate}}
	q.ask = newRequester(&q.cfg, &q.build, &q.pace, &q.stats.Requester)
	q.answer = newResponder(&q.cfg, &q.build, &q.pace, &q.stats.Responder)
	return q, nil
}

// Post adds a message of size octets to the send queue. It is false when the queue is full, the connection has failed, or the size is out of range.
func (q *QP) Post(now time.Duration, op Op, size int) bool { return q.ask.post(now, op, size) }

// HandlePacket takes a packet that arrived at now. Like a NIC it drops silently what is not for this queue pair or has a wrong ICRC. The packet is not
// kept. What is to be sent because of it leaves at the next Poll.
func (q *QP) HandlePacket(now time.Duration, p *roce.Packet) {
	switch op := p.Opcode(); {
	case p.QPN() != q.cfg.Local.QPN || p.Src() != q.cfg.Remote.Addr || p.Dst() != q.cfg.Local.Addr:
		q.stats.Strangers++
		return
	case !roce.CheckICRC(p):
		q.stats.BadICRC++
		return
	case op == roce.CNP:
		q.stats.CNP++
	case op.HeaderLen() == 0 || op.Class() != roce.ClassRC || p.Data() == nil:
		q.stats.Strangers++
	case op == roce.Acknowledge || op >= roce.ReadResponseFirst && op <= roce.ReadResponseOnly:
		q.ask.handle(now, p)
	default:
		q.answer.handle(p)
	}
	if p.ECN() == 3 {
		q.stats.CE++
	}
}

// Poll runs timers and appends what is to be sent at now. If the batch is full afterwards, there may be more.
func (q *QP) Poll(now time.Duration, out *Batch) {
	q.answer.poll(now, out)
	q.ask.poll(now, out)
}

// NextDeadline returns when Poll has something to do; not after now means at once, roce.Never that only a packet or a post can change anything.
func (q *QP) NextDeadline() time.Duration { return min(q.answer.deadline(), q.ask.deadline()) }

// Completions appends the messages completed since the last call, in order.
func (q *QP) Completions(dst []Completion) []Completion {
	dst = append(dst, q.ask.done...)
	q.ask.done = q.ask.done[:0]
	return dst
}

// Outstanding returns how many posted messages are not complete.
func (q *QP) Outstanding() int { return int(q.ask.tail - q.ask.head) }

// Err returns why the connection has failed, "" while it has not.
func (q *QP) Err() string { return q.stats.Requester.Err }

// Stats returns the totals, which the queue pair goes on changing.
func (q *QP) Stats() *Stats { return &q.stats }

// Audit compares all memory again with what was sent and returns how many octets differ. It may be called at any time.
func (q *QP) Audit() int {
	return q.answer.mem.Audit(q.answer.number, q.answer.open) + q.ask.mem.Audit(q.ask.head, q.Outstanding() > 0)
}

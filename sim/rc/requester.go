// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// Op is the operation of a message.
type Op uint8

// The operations.
const (
	Write Op = iota
	Send
	Read
)

// String returns the operation's name.
func (o Op) String() string {
	switch o {
	case Write:
		return "write"
	case Send:
		return "send"
	case Read:
		return "read"
	}
	return "unknown"
}

// ackInterval is how many packets Soft-RoCE sends without asking for an ACK inside a message.
const ackInterval = 65

// message is one entry of the send queue. Its packets have the sequence numbers first to first+packets-1.
type message struct {
	op      Op
	size    int
	first   uint64
	packets uint64
	posted  time.Duration
}

// requester sends the requests. Sequence numbers count packets since the connection was made: 64 bits, the PSN is their low part.
type requester struct {
	cfg   *Config
	build *builder
	pace  *Pacer
	mem   Memory
	stats *RequesterStats

	queue []message // of message n at n modulo Depth
	head  uint64    // oldest message that is not complete
	tail  uint64    // number of the next message to post
	cur   uint64    // message of next
	end   uint64    // sequence number after the last posted message

	una  uint64 // oldest sequence number not acknowledged (for a READ: not answered)
	next uint64 // to be sent next
	high uint64 // never sent so far

	reads    int           // READs in flight
	silent   int           // packets since one asked for an ACK
	progress time.Duration // when the ACK timer began
	retries  int           // rewinds without progress
	rewound  bool          // for a gap, since una moved last
	done     []Completion
}

func newRequester(c *Config, b *builder, p *Pacer, s *RequesterStats) requester {
	return requester{cfg: c, build: b, pace: p, mem: NewMemory(c), stats: s, queue: make([]message, c.Depth)}
}

func (r *requester) at(number uint64) *message { return &r.queue[number%uint64(len(r.queue))] }

func (r *requester) psn(seq uint64) roce.PSN { return r.cfg.Local.PSN.Add(int(seq & 0xffffff)) }

// seq returns the sequence number nearest to una that has the PSN; false for one before the first.
func (r *requester) seq(p roce.PSN) (uint64, bool) {
	s := int64(r.una) + int64(p.Sub(r.psn(r.una)))
	return uint64(s), s >= 0
}

func (r *requester) failed() bool { return r.stats.Err != "" }

func (r *requester) fail(why string) {
	if !r.failed() {
		r.stats.Err = why
	}
}

// post adds a message; false if the queue is full, the queue pair in error, or the size out of range.
func (r *requester) post(now time.Duration, op Op, size int) bool {
	if r.failed() || r.tail-r.head == uint64(len(r.queue)) || size < 1 || size > r.cfg.MaxMessage {
		return false
	}
	packets := uint64((size + r.cfg.MTU - 1) / r.cfg.MTU)
	*r.at(r.tail) = message{op: op, size: size, first: r.end, packets: packets, posted: now}
	r.tail++
	r.end += packets
	r.stats.Posted++
	return true
}

// sendable says whether window, queue and initiator depth let the next packet go.
func (r *requester) sendable() bool {
	if r.failed() || r.cur == r.tail || r.next-r.una >= uint64(r.cfg.Window) {
		return false
	}
	return r.at(r.cur).op != Read || r.reads < r.cfg.Reads
}

// poll runs the ACK timer and sends what may go.
func (r *requester) poll(now time.Duration, out *Batch) {
	if now >= r.timer() {
		r.stats.Timeouts++
		r.rewind(now)
	}
	for r.sendable() && !out.Full() && r.pace.Ready(now) {
		if r.una == r.next {
			r.progress = now
		}
		frame := r.send(out.Slot())
		out.Add(frame)
		r.pace.Sent(now, len(frame))
		r.stats.Sent++
		r.stats.SentOctets += uint64(len(frame))
	}
}

// timer returns when the local ACK timeout expires.
func (r *requester) timer() time.Duration {
	if r.failed() || r.una == r.next {
		return roce.Never
	}
	return r.progress + r.cfg.Timeout
}

func (r *requester) deadline() time.Duration {
	d := r.timer()
	if r.sendable() {
		d = min(d, r.pace.Next())
	}
	return d
}

// send builds the packet of next.
func (r *requester) send(mem []byte) []byte {
	m := r.at(r.cur)
	if r.next < r.high {
		r.stats.Retransmitted++
	} else {
		r.stats.Needed++
	}
	build := r.dataPacket
	if m.op == Read {
		build = r.readRequest
	}
	frame := build(mem, m)
	r.high = max(r.high, r.next)
	if r.next == m.first+m.packets {
		r.cur++
	}
	return frame
}

// readRequest asks for what is missing of a READ: all of it, or the rest after a loss.
func (r *requester) readRequest(mem []byte, m *message) []byte {
	from := int(r.next-m.first) * r.cfg.MTU
	frame, _ := r.build.open(mem, roce.ReadRequest, r.psn(r.next), true, 0)
	r.build.putRETH(frame, r.mem.Address(r.cur)+uint64(from), m.size-from)
	r.next = m.first + m.packets
	r.reads++
	r.silent = 0
	return r.build.seal(frame)
}

var writeOps = [4]roce.Opcode{roce.WriteMiddle, roce.WriteFirst, roce.WriteLast, roce.WriteOnly}
var sendOps = [4]roce.Opcode{roce.SendMiddle, roce.SendFirst, roce.SendLast, roce.SendOnly}

// dataPacket builds a packet of a WRITE or SEND.
func (r *requester) dataPacket(mem []byte, m *message) []byte {
	index := r.next - m.first
	kind := 0
	if index == 0 {
		kind |= 1
	}
	if index == m.packets-1 {
		kind |= 2
	}
	op := writeOps[kind]
	if m.op == Send {
		op = sendOps[kind]
	}
	ack := kind&2 != 0 || r.silent >= min(ackInterval, r.cfg.Window/2)
	if r.silent++; ack {
		r.silent = 0
	}
	from := int(index) * r.cfg.MTU
	frame, data := r.build.open(mem, op, r.psn(r.next), ack, min(r.cfg.MTU, m.size-from))
	if m.op == Write && index == 0 {
		r.build.putRETH(frame, r.mem.Address(r.cur), m.size)
	}
	Fill(data, r.cfg.Seed, r.cur, from)
	r.next++
	return r.build.seal(frame)
}

// rewind is go-back-N: everything from the oldest unacknowledged packet on is sent again. Too many without progress end the connection.
func (r *requester) rewind(now time.Duration) {
	if r.cfg.Retries >= 0 && r.retries >= r.cfg.Retries {
		r.fail("transport retry counter exceeded")
		return
	}
	r.retries++
	r.rewound = false
	r.progress = now
	r.next, r.cur, r.reads = r.una, r.head, 0
	r.silent = 0
}

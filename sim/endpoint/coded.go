// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"math/bits"
	"time"

	"crem.dev/crem/agent/roce"
)

// codedSender is a fixed erasure code (SDR-RDMA Section 4.2): every K packets of data are followed by M of parity. Blocks that the receiver
// could not restore are sent again as a whole, by selective repeat. One transfer is under way at a time.
type codedSender struct {
	book
	scoreboard
	cfg     Config
	run     uint64 // number of the next packet of data of the first run
	parity  int    // parity packets of the present block that have been sent
	silence time.Duration
}

func newCodedSender(c Config, p Path) *codedSender {
	s := &codedSender{book: book{path: p, bare: c.Bare}, cfg: c, silence: roce.Never}
	s.timeout = c.Timeout + p.Packet
	return s
}

// Post implements Sender.
func (s *codedSender) Post(now time.Duration, octets int64) { s.post(now, octets) }

// Err implements Sender.
func (s *codedSender) Err() string { return "" }

// running says that the first run of the present transfer is not over.
func (s *codedSender) running() bool {
	return len(s.open) > 0 && (s.run < s.open[0].end() || s.parity < s.cfg.Code.M)
}

// NextDeadline implements Sender.
func (s *codedSender) NextDeadline() time.Duration {
	if s.running() || s.resend.len() > 0 {
		return 0
	}
	return min(s.timer(), s.silence)
}

// Next implements Sender.
func (s *codedSender) Next(now time.Duration) (Packet, bool) {
	expired, _ := s.expire(now)
	s.stats.Timeouts += expired
	if seq, ok := s.waiting(); ok {
		s.resend.pop()
		p := s.packet(seq)
		p.Edge = s.open[0].end()
		s.book.sent(&p, true)
		s.scoreboard.sent(now, seq)
		return p, true
	}
	switch {
	case s.running():
		s.silence = now + s.patience()
		return s.first(), true
	case now >= s.silence && len(s.open) > 0:
		// The receiver should have said something: its answer is lost, or the whole end of the transfer is.
		s.stats.Timeouts++
		s.silence = now + s.patience()
		return s.last(), true
	}
	return Packet{}, false
}

// patience is how long the receiver may be silent: it waits by itself, and answers by a round trip.
func (s *codedSender) patience() time.Duration {
	return time.Duration((s.cfg.Code.Patience + repeatRTTs) * float64(s.path.RTT))
}

// first returns the next packet of the first run: a block's data, then its parity.
func (s *codedSender) first() Packet {
	t := &s.open[0]
	k := uint64(s.cfg.Code.K)
	i := s.run - t.first
	inBlock := i % k
	if i > 0 && (inBlock == 0 || s.run == t.end()) && s.parity < s.cfg.Code.M {
		p := s.parityPacket((i-1)/k, s.parity)
		s.parity++
		s.book.sent(&p, false)
		return p
	}
	p := s.packet(s.run)
	p.Edge = t.end()
	s.parity = 0
	s.run++
	s.book.sent(&p, false)
	return p
}

// last is the last packet of the first run once more.
func (s *codedSender) last() Packet {
	t := &s.open[0]
	p := s.parityPacket((t.packets-1)/uint64(s.cfg.Code.K), s.cfg.Code.M-1)
	s.book.sent(&p, true)
	return p
}

func (s *codedSender) parityPacket(block uint64, index int) Packet {
	t := &s.open[0]
	p := Packet{Kind: Parity, Seq: t.first + block*uint64(s.cfg.Code.K), Other: uint64(index), Edge: t.end(), Octets: int32(s.path.MTU)}
	if !s.bare {
		p.Octets += headers
	}
	return p
}

// Handle implements Sender.
func (s *codedSender) Handle(now time.Duration, p *Packet) {
	if len(s.open) == 0 || p.Kind != Done && (p.Seq < s.open[0].first || p.Seq >= s.open[0].end()) {
		s.stats.Stale++
		return
	}
	s.silence = now + s.patience()
	switch t := &s.open[0]; p.Kind {
	case Ack:
		s.stats.Acks++
		s.ack(p.Other)
	case NACK:
		s.stats.NAKs++
		s.stats.Fallbacks++
		s.reach(t.end())
		for seq := p.Seq; seq < min(p.Other, t.end()); seq++ {
			s.queue(seq)
		}
	case Done:
		if p.Seq == t.end() {
			s.finish(now)
		}
	default:
	}
}

// finish ends the present transfer and begins the next.
func (s *codedSender) finish(now time.Duration) {
	end := s.open[0].end()
	s.complete(now, end)
	clear(s.ring)
	s.scoreboard = scoreboard{timeout: s.timeout, una: end, ring: s.ring}
	s.run, s.parity, s.silence = end, 0, roce.Never
}

// codedReceiver restores blocks, and asks for those that it can't.
type codedReceiver struct {
	cfg      Config
	path     Path
	expected uint64 // first packet of the present transfer
	end      uint64 // after its last one; expected: nothing of it has come
	blocks   []codedBlock
	missing  int           // blocks that are not restored
	due      time.Duration // when to ask for those
	answering
}

// codedBlock is what has come of a block.
type codedBlock struct {
	data, parity uint64 // by place
	n            int    // packets of data
	whole        bool
	asked        bool // to be sent again: then every packet of data must come
	heard        bool // something of it has come since
}

func newCodedReceiver(c Config, p Path) *codedReceiver {
	return &codedReceiver{cfg: c, path: p, due: roce.Never}
}

// Handle implements Receiver.
func (r *codedReceiver) Handle(now time.Duration, p *Packet) {
	r.stats.Received++
	if p.Cut {
		return
	}
	if p.Seq < r.expected {
		r.stats.Duplicates++
		r.answers.push(Packet{Kind: Done, Seq: r.expected, Octets: ackOctets})
		return
	}
	if r.end == r.expected {
		r.begin(now, p)
	}
	k := uint64(r.cfg.Code.K)
	at := p.Seq - r.expected
	b := &r.blocks[at/k]
	b.heard = true
	if b.asked && p.Kind == Data {
		r.answers.push(Packet{Kind: Ack, Seq: r.expected, Other: p.Seq, Octets: ackOctets})
	}
	if b.whole {
		r.stats.Duplicates++
		return
	}
	r.stats.Accepted++
	if p.Kind == Data {
		b.data |= 1 << (at % k)
	} else if !b.asked {
		b.parity |= 1 << p.Other
	}
	if b.restorable(&r.cfg.Code) {
		r.stats.Decoded += uint64(b.n - bits.OnesCount64(b.data))
		b.whole = true
		r.missing--
	}
	if r.missing == 0 {
		r.expected = r.end
		r.due = roce.Never
		r.answers.push(Packet{Kind: Done, Seq: r.end, Octets: ackOctets})
	}
}

// begin prepares for the transfer of a packet, as its posted receive does.
func (r *codedReceiver) begin(now time.Duration, p *Packet) {
	k, m := r.cfg.Code.K, r.cfg.Code.M
	r.end = p.Edge
	packets := int(r.end - r.expected)
	n := (packets + k - 1) / k
	r.blocks = r.blocks[:0]
	for i := range n {
		r.blocks = append(r.blocks, codedBlock{n: min(k, packets-i*k)})
	}
	r.missing = n
	// When the last packet comes follows from the place of this one.
	at := int(p.Seq - r.expected)
	before := at + at/k*m
	if p.Kind == Parity {
		before += k + int(p.Other)
	}
	left := packets + n*m - 1 - before
	r.due = now + time.Duration(left)*r.path.Packet + time.Duration(r.cfg.Code.Patience*float64(r.path.RTT))
}

// restorable says whether all data of a block is there or follows from the parity.
func (b *codedBlock) restorable(c *Code) bool {
	lost := (uint64(1)<<(b.n-1)<<1 - 1) &^ b.data
	if !c.XOR {
		return bits.OnesCount64(lost) <= bits.OnesCount64(b.parity)
	}
	// Parity i is over the packets j with j modulo M = i.
	for i := range c.M {
		n := 0
		for j := i; j < b.n; j += c.M {
			n += int(lost >> j & 1)
		}
		if n > 1 || n == 1 && b.parity>>i&1 == 0 {
			return false
		}
	}
	return true
}

// ask names the blocks that are not restored. Those that were asked for and of which nothing has come since are named again.
func (r *codedReceiver) ask(now time.Duration) {
	k := uint64(r.cfg.Code.K)
	n := 0
	for i := range r.blocks {
		b := &r.blocks[i]
		if b.whole || b.asked && b.heard {
			continue
		}
		first := r.expected + uint64(i)*k
		r.answers.push(Packet{Kind: NACK, Seq: first, Other: first + uint64(b.n), Octets: ackOctets})
		b.asked, b.heard, b.data, b.parity = true, false, 0, 0
		n += b.n
	}
	r.due = now + 2*r.path.RTT + time.Duration(n)*r.path.Packet
}

// Next implements Receiver.
func (r *codedReceiver) Next(now time.Duration) (Packet, bool) {
	if now >= r.due {
		r.ask(now)
	}
	return r.answering.Next(now)
}

// NextDeadline implements Receiver.
func (r *codedReceiver) NextDeadline() time.Duration {
	if r.answers.len() > 0 {
		return 0
	}
	return r.due
}

// Expected implements Receiver.
func (r *codedReceiver) Expected() uint64 { return r.expected }

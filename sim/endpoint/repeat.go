// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// repeatSender is selective repeat (SDR-RDMA Section 4.1): every packet is acknowledged by itself, and sent again when its acknowledgement has
// not come within the timeout, or when the receiver names it as missing. What is sent again goes before what is new.
type repeatSender struct {
	book
	scoreboard
	cfg  Config
	next uint64 // never sent so far
}

func newRepeatSender(c Config, p Path) *repeatSender {
	// An acknowledgement comes a round trip after the packet has left the wire.
	s := &repeatSender{book: book{path: p, bare: c.Bare}, cfg: c}
	s.timeout = c.Timeout + p.Packet
	return s
}

// Post implements Sender.
func (s *repeatSender) Post(now time.Duration, octets int64) { s.post(now, octets) }

// Err implements Sender.
func (s *repeatSender) Err() string { return "" }

func (s *repeatSender) sendable() bool { return s.next < s.end && s.next-s.una < uint64(s.cfg.Window) }

// NextDeadline implements Sender.
func (s *repeatSender) NextDeadline() time.Duration {
	if s.sendable() || s.resend.len() > 0 {
		return 0
	}
	return s.timer()
}

// Next implements Sender.
func (s *repeatSender) Next(now time.Duration) (Packet, bool) {
	expired, _ := s.expire(now)
	s.stats.Timeouts += expired
	seq, repeated := s.waiting()
	switch {
	case repeated:
		s.resend.pop()
	case s.sendable():
		seq = s.next
		s.next++
		s.reach(s.next)
	default:
		return Packet{}, false
	}
	p := s.packet(seq)
	s.book.sent(&p, repeated)
	s.scoreboard.sent(now, seq)
	return p, true
}

// Handle implements Sender.
func (s *repeatSender) Handle(now time.Duration, p *Packet) {
	switch p.Kind {
	case Ack:
		s.stats.Acks++
		s.acknowledge(now, p)
	case NACK:
		s.stats.NAKs++
		s.missing(now, p)
	default:
		s.stats.Stale++
	}
}

func (s *repeatSender) acknowledge(now time.Duration, p *Packet) {
	if !s.come(p, s.next) {
		s.stats.Stale++
		return
	}
	s.complete(now, s.una)
}

// missing takes the packets that the receiver names. A packet that was sent less than a round trip ago may not have been there when it was named.
func (s *repeatSender) missing(now time.Duration, p *Packet) {
	for seq := max(p.Seq, s.una); seq < min(p.Other, s.next); seq++ {
		if e := s.at(seq); e.at == flying && now-e.sent >= s.path.RTT {
			s.queue(seq)
		}
	}
}

// repeatReceiver acknowledges each packet, and names gaps if it is told to.
type repeatReceiver struct {
	record
	cfg  Config
	path Path
	gaps fifo[gap]
	answering
}

// gap is packets that were missing when they were named last.
type gap struct {
	first, end uint64
	due        time.Duration // when to name again what is still missing
}

func newRepeatReceiver(c Config, p Path) *repeatReceiver { return &repeatReceiver{cfg: c, path: p} }

// Handle implements Receiver.
func (r *repeatReceiver) Handle(now time.Duration, p *Packet) {
	r.stats.Received++
	if newest := r.newest; p.Seq > newest || p.Cut && p.Seq == newest {
		r.stats.OutOfSequence++
		r.pass(p.Seq)
		if p.Cut {
			r.pass(p.Seq + 1)
		}
		if r.cfg.NACK {
			r.name(now, newest, r.newest)
		}
	}
	if p.Cut {
		return
	}
	if r.accept(p.Seq) {
		r.stats.Accepted++
	} else {
		r.stats.Duplicates++
	}
	r.answers.push(Packet{Kind: Ack, Seq: r.expected, Other: p.Seq, Octets: ackOctets})
}

// name tells the sender that packets are missing, and looks again when they could have come.
func (r *repeatReceiver) name(now time.Duration, first, end uint64) {
	r.answers.push(Packet{Kind: NACK, Seq: first, Other: end, Octets: ackOctets})
	r.gaps.push(gap{first, end, now + r.path.RTT + 2*r.path.Packet})
}

// nameAgain names what is still missing of gaps that are due.
func (r *repeatReceiver) nameAgain(now time.Duration) {
	for r.gaps.len() > 0 && r.gaps.front().due <= now {
		g := r.gaps.pop()
		for seq := g.first; seq < g.end; seq++ {
			if r.has(seq) {
				continue
			}
			first := seq
			for seq < g.end && !r.has(seq) {
				seq++
			}
			r.name(now, first, seq)
		}
	}
}

// Next implements Receiver.
func (r *repeatReceiver) Next(now time.Duration) (Packet, bool) {
	r.nameAgain(now)
	return r.answering.Next(now)
}

// NextDeadline implements Receiver.
func (r *repeatReceiver) NextDeadline() time.Duration {
	switch {
	case r.answers.len() > 0:
		return 0
	case r.gaps.len() > 0:
		return r.gaps.front().due
	}
	return roce.Never
}

// Expected implements Receiver.
func (r *repeatReceiver) Expected() uint64 { return r.expected }

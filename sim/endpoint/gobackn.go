// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// ackInterval is how many packets are sent without asking for an ACK inside a message, as Soft-RoCE does.
const ackInterval = 65

// goBackNSender is an RC requester that writes or sends. Its rules are those of sim/rc, where each is explained.
type goBackNSender struct {
	book
	cfg Config
	err string

	una  uint64 // oldest packet that is not acknowledged
	next uint64 // to be sent next
	high uint64 // never sent so far

	silent   int           // packets since one asked for an ACK
	progress time.Duration // when the ACK timer began
	retries  int           // times in a row that the sender went back without progress
	rewound  bool          // for a gap, since una moved last
}

func newGoBackNSender(c Config, p Path) *goBackNSender {
	return &goBackNSender{book: book{path: p, bare: c.Bare, op: c.Operation}, cfg: c}
}

// Post implements Sender.
func (s *goBackNSender) Post(now time.Duration, octets int64) { s.post(now, octets) }

// Err implements Sender.
func (s *goBackNSender) Err() string { return s.err }

func (s *goBackNSender) sendable() bool {
	return s.err == "" && s.next < s.end && s.next-s.una < uint64(s.cfg.Window)
}

// timer is when the local ACK timeout expires.
func (s *goBackNSender) timer() time.Duration {
	if s.err != "" || s.una == s.next {
		return roce.Never
	}
	return s.progress + s.cfg.Timeout
}

// NextDeadline implements Sender.
func (s *goBackNSender) NextDeadline() time.Duration {
	if s.sendable() {
		return 0
	}
	return s.timer()
}

// Next implements Sender.
func (s *goBackNSender) Next(now time.Duration) (Packet, bool) {
	if now >= s.timer() {
		s.stats.Timeouts++
		s.rewind(now)
	}
	if !s.sendable() {
		return Packet{}, false
	}
	if s.una == s.next {
		s.progress = now
	}
	p := s.packet(s.next)
	p.AckReq = p.Last || s.silent >= min(ackInterval, s.cfg.Window/2)
	if s.silent++; p.AckReq {
		s.silent = 0
	}
	s.sent(&p, s.next < s.high)
	s.next++
	s.high = max(s.high, s.next)
	return p, true
}

// Handle implements Sender.
func (s *goBackNSender) Handle(now time.Duration, p *Packet) {
	switch {
	case s.err != "":
		s.stats.Stale++
	case p.Kind == Ack:
		s.stats.Acks++
		s.acknowledge(now, p.Seq)
	case p.Kind == NAK:
		s.nak(now, p.Seq)
	}
}

// nak takes a sequence error: everything before seq has come, seq has not.
func (s *goBackNSender) nak(now time.Duration, seq uint64) {
	s.stats.NAKs++
	if seq < s.una || seq >= s.high {
		s.stats.Stale++
		return
	}
	if seq > s.una {
		s.acknowledge(now, seq)
	}
	if s.una == seq {
		s.goBack(now)
	}
}

// goBack rewinds once a gap: until there is progress, further signs of it are older than the rewinding, and only the timer helps.
func (s *goBackNSender) goBack(now time.Duration) {
	if s.rewound || s.una == s.next {
		s.stats.Stale++
		return
	}
	s.rewind(now)
	s.rewound = true
}

func (s *goBackNSender) acknowledge(now time.Duration, upto uint64) {
	if upto > s.high || upto <= s.una {
		s.stats.Stale++
		return
	}
	s.una = upto
	s.progress = now
	s.retries, s.rewound = 0, false
	s.next = max(s.next, s.una) // acknowledged in the middle of sending it again
	s.complete(now, s.una)
}

func (s *goBackNSender) rewind(now time.Duration) {
	if s.cfg.Retries >= 0 && s.retries >= s.cfg.Retries {
		s.err = "transport retry counter exceeded"
		return
	}
	s.retries++
	s.rewound = false
	s.progress = now
	s.next = s.una
	s.silent = 0
}

// goBackNReceiver is an RC responder.
type goBackNReceiver struct {
	expected uint64
	nakSent  bool // for the present gap: one NAK, then silence
	answers  []Packet
	stats    ReceiverStats
}

func newGoBackNReceiver(Config) *goBackNReceiver { return &goBackNReceiver{} }

// Handle implements Receiver.
func (r *goBackNReceiver) Handle(_ time.Duration, p *Packet) {
	r.stats.Received++
	switch {
	case p.Cut: // a NIC drops it for its CRC
	case p.Seq > r.expected:
		r.stats.OutOfSequence++
		if !r.nakSent {
			r.nakSent = true
			r.answer(NAK)
		}
	case p.Seq < r.expected:
		r.stats.Duplicates++
		r.answer(Ack)
	default:
		r.nakSent = false
		r.stats.Accepted++
		r.expected++
		if p.AckReq {
			r.answer(Ack)
		}
	}
}

// answer queues an answer. An ACK that still waits last takes the new number, as in hardware.
func (r *goBackNReceiver) answer(kind PacketKind) {
	if n := len(r.answers); kind == Ack && n > 0 && r.answers[n-1].Kind == Ack {
		r.answers[n-1].Seq, r.answers[n-1].Other = r.expected, r.expected
		return
	}
	r.answers = append(r.answers, Packet{Kind: kind, Seq: r.expected, Other: r.expected, Octets: ackOctets})
}

// Next implements Receiver.
func (r *goBackNReceiver) Next(time.Duration) (Packet, bool) {
	if len(r.answers) == 0 {
		return Packet{}, false
	}
	p := r.answers[0]
	r.answers = append(r.answers[:0], r.answers[1:]...)
	r.stats.answered(&p)
	return p, true
}

// NextDeadline implements Receiver.
func (r *goBackNReceiver) NextDeadline() time.Duration {
	if len(r.answers) > 0 {
		return 0
	}
	return roce.Never
}

// Expected implements Receiver.
func (r *goBackNReceiver) Expected() uint64 { return r.expected }

// Stats implements Receiver.
func (r *goBackNReceiver) Stats() *ReceiverStats { return &r.stats }

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// ackInterval is how many packets are sent without asking for an ACK inside a message, as Soft-RoCE does.
const ackInterval = 65

// goBackNSender is an RC requester that writes or sends.
type goBackNSender struct {
	requester
	silent int // packets since one asked for an ACK
}

func newGoBackNSender(c Config, p Path) *goBackNSender {
	return &goBackNSender{requester: requester{book: book{path: p, bare: c.Bare, op: c.Operation}, cfg: c}}
}

// NextDeadline implements Sender.
func (s *goBackNSender) NextDeadline() time.Duration {
	if s.open() {
		return 0
	}
	return s.timer()
}

// Next implements Sender.
func (s *goBackNSender) Next(now time.Duration) (Packet, bool) {
	if now >= s.timer() {
		s.stats.Timeouts++
		s.again(s.rewind(now))
	}
	if !s.open() {
		return Packet{}, false
	}
	s.begin(now)
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
		s.again(s.goBack(now))
	}
}

func (s *goBackNSender) acknowledge(now time.Duration, upto uint64) {
	if upto > s.high || upto <= s.una {
		s.stats.Stale++
		return
	}
	s.advance(now, upto)
	s.complete(now, s.una)
}

// again follows a rewinding: the packets that are sent again ask for ACKs anew.
func (s *goBackNSender) again(rewound bool) {
	if rewound {
		s.silent = 0
	}
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

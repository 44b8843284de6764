// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// An RC READ turns the roles around: transfers are posted at the end that data comes to, which asks for them and takes the responses in order; the other
// end sends what it is asked for and has no timer. A lost response shows by the next one (implied NAK), and the rest is asked for again. The rules are
// those of sim/rc.

// readRequester takes what it asks for. It is the Receiver, and a Poster.
type readRequester struct {
	requester
	reads int // requests that are not answered whole
	got   ReceiverStats
}

func newReadRequester(c Config, p Path) *readRequester {
	return &readRequester{requester: requester{book: book{path: p, bare: c.Bare, op: Read}, cfg: c}}
}

func (r *readRequester) askable() bool { return r.open() && r.reads < r.cfg.Reads }

// NextDeadline implements Receiver.
func (r *readRequester) NextDeadline() time.Duration {
	if r.askable() {
		return 0
	}
	return r.timer()
}

// Next implements Receiver: a request for what is missing of a message, all of it or the rest after a loss.
func (r *readRequester) Next(now time.Duration) (Packet, bool) {
	if now >= r.timer() {
		r.stats.Timeouts++
		r.again(r.rewind(now))
	}
	if !r.askable() {
		return Packet{}, false
	}
	r.begin(now)
	first, end := r.message(r.next)
	last := r.packet(end - 1)
	p := Packet{Kind: Request, Seq: r.next, Other: first, Edge: end, Data: last.Data, Octets: headers + reth}
	r.next = end
	r.high = max(r.high, end)
	r.reads++
	return p, true
}

// Handle implements Receiver.
func (r *readRequester) Handle(now time.Duration, p *Packet) {
	switch {
	case p.Kind == NAK: // a request was lost
		r.stats.NAKs++
		if p.Seq >= r.una && p.Seq < r.high {
			r.again(r.goBack(now))
		}
		return
	case p.Cut || r.err != "":
		return
	}
	r.got.Received++
	switch {
	case p.Seq < r.una || p.Seq >= r.high:
		r.got.Duplicates++
	case p.Seq > r.una:
		r.got.OutOfSequence++
		r.again(r.goBack(now))
	default:
		r.got.Accepted++
		r.place(now)
	}
}

// place takes the expected packet.
func (r *readRequester) place(now time.Duration) {
	_, end := r.message(r.una)
	r.advance(now, r.una+1)
	if r.una == end {
		r.reads = max(r.reads-1, 0)
		r.complete(now, r.una)
	}
}

// again follows a rewinding: the requests before it are not waited for any more.
func (r *readRequester) again(rewound bool) {
	if rewound {
		r.reads = 0
	}
}

// Expected implements Receiver.
func (r *readRequester) Expected() uint64 { return r.una }

// Stats implements Receiver.
func (r *readRequester) Stats() *ReceiverStats { return &r.got }

// readResponder sends what it is asked for. It is the Sender.
type readResponder struct {
	asker    *readRequester // for what is counted of both
	expected uint64         // first packet of the next new request
	nakSent  bool           // for the present gap: one NAK, then silence
	answers  []response
	high     uint64 // never sent so far
}

// response waits to be sent: a NAK, or the packets next to end-1 of a message.
type response struct {
	nak        bool
	next, end  uint64
	first      uint64 // of the message
	lastOctets int32  // of data in its last packet
}

// Post implements Sender: transfers are posted at the other end.
func (s *readResponder) Post(time.Duration, int64) {}

// Completed implements Sender: they complete at the other end.
func (s *readResponder) Completed(dst []Completion) []Completion { return dst }

// Err implements Sender.
func (s *readResponder) Err() string { return "" }

// Stats implements Sender.
func (s *readResponder) Stats() *SenderStats { return &s.asker.stats }

// Handle implements Sender.
func (s *readResponder) Handle(_ time.Duration, p *Packet) {
	switch {
	case p.Seq > s.expected:
		if !s.nakSent {
			s.nakSent = true
			s.answers = append(s.answers, response{nak: true, next: s.expected, end: s.expected + 1})
		}
		return
	case p.Seq == s.expected:
		s.nakSent = false
		s.expected = p.Edge
	default:
		s.forget(p.Seq)
	}
	s.answers = append(s.answers, response{next: p.Seq, end: p.Edge, first: p.Other, lastOctets: p.Data})
}

// forget drops what waits from a number on: the requester has gone back to it and asks for the rest again.
func (s *readResponder) forget(seq uint64) {
	kept := s.answers[:0]
	for _, a := range s.answers {
		if !a.nak {
			a.end = min(a.end, seq)
		}
		if a.next < a.end {
			kept = append(kept, a)
		}
	}
	s.answers = kept
}

// NextDeadline implements Sender.
func (s *readResponder) NextDeadline() time.Duration {
	if len(s.answers) > 0 {
		return 0
	}
	return roce.Never
}

// Next implements Sender.
func (s *readResponder) Next(time.Duration) (Packet, bool) {
	if len(s.answers) == 0 {
		return Packet{}, false
	}
	a := &s.answers[0]
	book := &s.asker.book
	var p Packet
	if a.nak {
		p = Packet{Kind: NAK, Seq: a.next, Other: a.next, Octets: ackOctets}
	} else {
		p = Packet{Kind: Data, Seq: a.next, Other: a.next, Data: int32(book.path.MTU), First: a.next == a.first, Last: a.next+1 == a.end}
		if p.Last {
			p.Data = a.lastOctets
		}
		p.Octets = book.size(&p)
		book.sent(&p, a.next < s.high)
		s.high = max(s.high, a.next+1)
	}
	if a.next++; a.next == a.end {
		s.answers = append(s.answers[:0], s.answers[1:]...)
	}
	return p, true
}

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// veRoCE (ByteDance, Transport Protocol 2.0.4): RoCE's acknowledgements with a bitmap. A receiver acknowledges cumulatively (aPSN), and tells by
// SACK which packets have come once they are far enough apart (lazy SACK). What public descriptions say, with the sentence that each test
// proves, is in docs/design/simulator.md. This is one PSN space with its transmitter and its acceptor; requests and responses have one each.

const (
	veroceBits   = 128
	veroceOctets = headers + 4 + 20 // AETH, SACKETH
)

// veroceSender is the transmitter of a PSN space.
type veroceSender struct {
	book
	scoreboard
	cfg   Config
	next  uint64 // never sent so far
	rxt   uint64 // RxtPSN: holes before it have been taken for lost by an earlier SACK
	rxtAt time.Duration
	err   string
}

func newVeRoCESender(c Config, p Path) *veroceSender {
	s := &veroceSender{book: book{path: p, bare: c.Bare}, cfg: c}
	s.timeout = c.Timeout
	return s
}

// Post implements Sender.
func (s *veroceSender) Post(now time.Duration, octets int64) { s.post(now, octets) }

// Err implements Sender.
func (s *veroceSender) Err() string { return s.err }

func (s *veroceSender) sendable() bool {
	return s.next < s.end && s.next-s.una < uint64(min(s.cfg.Window, s.cfg.Range))
}

// NextDeadline implements Sender.
func (s *veroceSender) NextDeadline() time.Duration {
	if s.err != "" {
		return roce.Never
	}
	if _, ok := s.waiting(); ok || s.sendable() {
		return 0
	}
	return min(s.timer(), s.again())
}

// again is when RxtPSN has stood still for so long that the copies of the holes before it must be lost too.
func (s *veroceSender) again() time.Duration {
	if s.una >= s.rxt {
		return roce.Never
	}
	return s.rxtAt + s.path.RTT + s.patience()
}

// patience is what queues and the spacing of SACKs may add to a round trip.
func (s *veroceSender) patience() time.Duration { return s.path.RTT/8 + veroceBits*s.path.Packet }

// secondRound sets RxtPSN back to aPSN: all holes that were sent again a round trip ago are sent once more.
func (s *veroceSender) secondRound(now time.Duration) {
	for seq := s.una; seq < s.rxt; seq++ {
		if e := s.at(seq); e.at == flying && now-e.sent >= s.path.RTT+s.patience() {
			s.queue(seq)
		}
	}
	s.rxtAt = now
}

// Next implements Sender.
func (s *veroceSender) Next(now time.Duration) (Packet, bool) {
	expired, most := s.expire(now)
	s.stats.Timeouts += expired
	if s.cfg.Retries >= 0 && most > s.cfg.Retries {
		s.err = "transport retry counter exceeded"
	}
	if now >= s.again() {
		s.secondRound(now)
	}
	seq, repeated := s.waiting()
	switch {
	case s.err != "":
		return Packet{}, false
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
	p.Again = repeated
	p.AckReq = p.Last
	s.book.sent(&p, repeated)
	s.scoreboard.sent(now, seq)
	return p, true
}

// Handle implements Sender.
func (s *veroceSender) Handle(now time.Duration, p *Packet) {
	switch p.Kind {
	case Ack, SACK:
		s.stats.Acks++
		if !s.come(p, s.next) {
			s.stats.Stale++
		}
		if p.Kind == SACK {
			s.repeat(now, p)
		}
		s.complete(now, s.una)
	case NACK: // Packet Drop NAK: one packet
		s.stats.NAKs++
		if p.Seq >= s.una && p.Seq < s.next && s.at(p.Seq).at == flying {
			s.queue(p.Seq)
		}
	default:
		s.stats.Stale++
	}
}

// repeat sends the holes of a SACK again that no SACK before has shown.
func (s *veroceSender) repeat(now time.Duration, p *Packet) {
	newest, ok := p.highest()
	if !ok || newest >= s.next {
		return
	}
	for seq := max(s.una, s.rxt, p.Edge); seq < newest; seq++ {
		if e := s.at(seq); e.at == flying && now-e.sent >= s.path.RTT { // else its copy can't have been there: a NAK has named it
			s.queue(seq)
		}
	}
	if newest+1 > s.rxt {
		s.rxt, s.rxtAt = newest+1, now
	}
}

// veroceReceiver is the acceptor of a PSN space.
type veroceReceiver struct {
	record
	cfg    Config
	silent int // packets since the last answer
	sacks  int
	answering
}

func newVeRoCEReceiver(c Config) *veroceReceiver { return &veroceReceiver{cfg: c} }

// Handle implements Receiver.
func (r *veroceReceiver) Handle(_ time.Duration, p *Packet) {
	r.stats.Received++
	switch {
	case p.Seq >= r.expected+uint64(r.cfg.Range):
		r.stats.OutOfWindow++ // beyond the physical bitmap: it can't be told from a duplicate later
		return
	case p.Cut:
		r.answers.push(Packet{Kind: NACK, Seq: p.Seq, Other: p.Seq + 1, Reason: Trimmed, Octets: ackOctets})
		return
	case r.has(p.Seq):
		r.stats.Duplicates++
		r.answer()
		return
	}
	ends := r.take(p)
	r.stats.Accepted++
	r.silent++
	// hPSN - aPSN is newest - expected here: aPSN is the packet before expected.
	far := r.newest-r.expected > uint64(r.cfg.Distance)
	if far {
		r.stats.OutOfSequence++
	}
	if ends || p.AckReq || p.Again || r.silent >= veroceBits/2 || far && r.silent >= sackEvery {
		r.answer()
	}
}

// answer acknowledges: by ACK while packets come in order or nearly so, by SACK once they are further apart (lazy SACK).
func (r *veroceReceiver) answer() {
	r.silent = 0
	if r.newest-r.expected <= uint64(r.cfg.Distance) {
		r.answers.push(Packet{Kind: Ack, Seq: r.expected, Other: r.expected, Octets: ackOctets})
		return
	}
	r.sacks++
	edge := r.expected
	if r.newest > r.expected+veroceBits && r.sacks%everyNth != 0 {
		edge = r.newest - veroceBits
	}
	p := Packet{Kind: SACK, Seq: r.expected, Other: r.expected, Edge: edge, Octets: veroceOctets}
	p.Bits = [2]uint64{r.bits(edge), r.bits(edge + 64)}
	r.answers.push(p)
}

// Expected implements Receiver.
func (r *veroceReceiver) Expected() uint64 { return r.expected }

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// veRoCE (ByteDance, Transport Protocol 2.0.4): RoCE's acknowledgements with a bitmap. A receiver acknowledges cumulatively (aPSN), and tells by
// SACK which packets have come once they are far enough apart (lazy SACK). What public descriptions say, with the sentence that each test
// proves, is in docs/design/simulator.md. Here is one PSN space with its transmitter and its acceptor; requests and responses have one each, and
// veroceread.go has both.

const (
	veroceBits   = 128
	veroceOctets = headers + 4 + 20 // AETH, SACKETH
)

// transmitter is the sending end of a PSN space: which packet leaves next. What is in it, its owner knows.
type transmitter struct {
	scoreboard
	cfg   Config
	path  Path
	next  uint64 // never sent so far
	end   uint64 // number after the last packet that there is
	rxt   uint64 // RxtPSN: holes before it have been taken for lost by an earlier SACK
	rxtAt time.Duration
	err   string
	stats *SenderStats
}

func newTransmitter(c Config, p Path, stats *SenderStats) transmitter {
	return transmitter{scoreboard: scoreboard{timeout: c.Timeout}, cfg: c, path: p, stats: stats}
}

func (t *transmitter) sendable() bool {
	return t.next < t.end && t.next-t.una < uint64(min(t.cfg.Window, t.cfg.Range))
}

// deadline is when leave must be called next.
func (t *transmitter) deadline() time.Duration {
	if t.err != "" {
		return roce.Never
	}
	if _, ok := t.waiting(); ok || t.sendable() {
		return 0
	}
	return min(t.timer(), t.again())
}

// again is when RxtPSN has stood still for so long that the copies of the holes before it must be lost too.
func (t *transmitter) again() time.Duration {
	if t.una >= t.rxt {
		return roce.Never
	}
	return t.rxtAt + t.path.RTT + t.patience()
}

// patience is what queues and the spacing of SACKs may add to a round trip.
func (t *transmitter) patience() time.Duration { return t.path.RTT/8 + veroceBits*t.path.Packet }

// secondRound sets RxtPSN back to aPSN: all holes that were sent again a round trip ago are sent once more.
func (t *transmitter) secondRound(now time.Duration) {
	for seq := t.una; seq < t.rxt; seq++ {
		if e := t.at(seq); e.at == flying && now-e.sent >= t.path.RTT+t.patience() {
			t.queue(seq)
		}
	}
	t.rxtAt = now
}

// leave runs the timers, and returns the packet that leaves now, and whether it was sent before; false if none may.
func (t *transmitter) leave(now time.Duration) (seq uint64, repeated, ok bool) {
	expired, most := t.expire(now)
	t.stats.Timeouts += expired
	if t.cfg.Retries >= 0 && most > t.cfg.Retries {
		t.err = "transport retry counter exceeded"
	}
	if now >= t.again() {
		t.secondRound(now)
	}
	seq, repeated = t.waiting()
	switch {
	case t.err != "":
		return 0, false, false
	case repeated:
		t.resend.pop()
	case t.sendable():
		seq = t.next
		t.next++
		t.reach(t.next)
	default:
		return 0, false, false
	}
	t.sent(now, seq)
	return seq, repeated, true
}

// handle takes an answer of the space's acceptor.
func (t *transmitter) handle(now time.Duration, p *Packet) {
	switch p.Kind {
	case Ack, SACK:
		t.stats.Acks++
		if !t.come(p, t.next) {
			t.stats.Stale++
		}
		if p.Kind == SACK {
			t.repeat(now, p)
		}
	case NACK: // Packet Drop NAK: one packet
		t.stats.NAKs++
		if p.Seq >= t.una && p.Seq < t.next && t.at(p.Seq).at == flying {
			t.queue(p.Seq)
		}
	default:
		t.stats.Stale++
	}
}

// repeat sends the holes of a SACK again that no SACK before has shown.
func (t *transmitter) repeat(now time.Duration, p *Packet) {
	newest, ok := p.highest()
	if !ok || newest >= t.next {
		return
	}
	for seq := max(t.una, t.rxt, p.Edge); seq < newest; seq++ {
		if e := t.at(seq); e.at == flying && now-e.sent >= t.path.RTT { // else its copy can't have been there: a NAK has named it
			t.queue(seq)
		}
	}
	if newest+1 > t.rxt {
		t.rxt, t.rxtAt = newest+1, now
	}
}

// veroceSender sends the data of a PSN space: WRITEs as the requester, or what READs have asked for.
type veroceSender struct {
	book
	space transmitter
}

func newVeRoCESender(c Config, p Path) *veroceSender {
	s := &veroceSender{book: book{path: p, bare: c.Bare, op: c.Operation}}
	s.space = newTransmitter(c, p, &s.stats)
	return s
}

// Post implements Sender.
func (s *veroceSender) Post(now time.Duration, octets int64) {
	s.post(now, octets)
	s.space.end = s.end
}

// Err implements Sender.
func (s *veroceSender) Err() string { return s.space.err }

// NextDeadline implements Sender.
func (s *veroceSender) NextDeadline() time.Duration { return s.space.deadline() }

// Next implements Sender.
func (s *veroceSender) Next(now time.Duration) (Packet, bool) {
	seq, repeated, ok := s.space.leave(now)
	if !ok {
		return Packet{}, false
	}
	p := s.packet(seq)
	p.Again = repeated
	p.AckReq = p.Last
	s.sent(&p, repeated)
	return p, true
}

// Handle implements Sender.
func (s *veroceSender) Handle(now time.Duration, p *Packet) {
	s.space.handle(now, p)
	s.complete(now, s.space.una)
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

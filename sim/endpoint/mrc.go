// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// Multipath Reliable Connection (OCP MRC 1.0): a reliability layer of its own below the RDMA semantics, one PSN space, packets placed in any
// order, each acknowledged by bitmap. What public descriptions say, with the sentence that each test proves, is in docs/design/simulator.md;
// what they leave to implementations (how holes become losses, how often a responder answers) is decided here.

const (
	// rangeUnit and mostRange are those of MRC's field for max_psn_range: 8 bits in units of 128 PSNs.
	rangeUnit = 128
	mostRange = 255 * rangeUnit
	// sackEvery is how many new packets a responder lets pass without a SACK: half of what a bitmap of 64 tells of, so that each packet is
	// told of twice.
	sackEvery = 32
	// everyNth SACK is followed by one that tells of the oldest packets that are not acknowledged.
	everyNth   = 4
	sackOctets = headers + 28 + 8 // SETH and congestion state
	nackOctets = headers + 20     // NETH
)

// mrcSender is the requester.
type mrcSender struct {
	book
	scoreboard
	cfg   Config
	next  uint64 // never sent so far
	limit uint64 // max_psn_range: no packet from here on may be sent
	err   string
}

func newMRCSender(c Config, p Path) *mrcSender {
	s := &mrcSender{book: book{path: p, bare: c.Bare, kind: MRC}, cfg: c, limit: uint64(c.Range)}
	s.timeout = c.Timeout
	return s
}

// Post implements Sender.
func (s *mrcSender) Post(now time.Duration, octets int64) { s.post(now, octets) }

// Err implements Sender.
func (s *mrcSender) Err() string { return s.err }

// mayLeave says that max_psn_range and window let a packet leave. To be marked for retransmission is one thing, to be allowed to leave another: this holds
// for both kinds.
func (s *mrcSender) mayLeave(seq uint64) bool {
	return s.err == "" && seq < s.limit && s.aloft < s.cfg.Window
}

// candidate is the packet that would leave next, false if none waits. What is sent again goes first.
func (s *mrcSender) candidate() (seq uint64, repeated, ok bool) {
	if seq, ok = s.waiting(); ok {
		return seq, true, true
	}
	return s.next, false, s.next < s.end
}

// NextDeadline implements Sender.
func (s *mrcSender) NextDeadline() time.Duration {
	if s.err != "" {
		return roce.Never
	}
	if seq, _, ok := s.candidate(); ok && s.mayLeave(seq) {
		return 0
	}
	return s.timer()
}

// Next implements Sender.
func (s *mrcSender) Next(now time.Duration) (Packet, bool) {
	expired, most := s.expire(now)
	s.stats.Timeouts += expired
	if s.cfg.Retries >= 0 && most > s.cfg.Retries {
		s.err = "transport retry counter exceeded"
	}
	seq, repeated, ok := s.candidate()
	if !ok || !s.mayLeave(seq) {
		return Packet{}, false
	}
	if repeated {
		s.resend.pop()
	} else {
		s.next++
		s.reach(s.next)
	}
	p := s.packet(seq)
	p.Again = repeated
	p.AckReq = p.Last
	s.book.sent(&p, repeated)
	s.scoreboard.sent(now, seq)
	return p, true
}

// Handle implements Sender.
func (s *mrcSender) Handle(now time.Duration, p *Packet) {
	switch p.Kind {
	case SACK:
		s.stats.Acks++
		if !s.come(p, s.next) {
			s.stats.Stale++
		}
		s.limit = max(s.limit, p.Seq+uint64(p.Range))
		s.infer(now, p)
		s.complete(now, s.una)
	case NACK:
		s.stats.NAKs++
		if p.Seq >= s.una && p.Seq < s.next && s.at(p.Seq).at == flying {
			s.queue(p.Seq)
		}
	default:
		s.stats.Stale++
	}
}

// infer takes the holes of a bitmap for lost that lie further behind the newest packet in it than packets are reordered. A packet is taken for
// lost in this way once: whether its second copy is lost too only a NACK or the timer tells. A copy that left less than a round trip ago can't
// have been there.
func (s *mrcSender) infer(now time.Duration, p *Packet) {
	newest, ok := p.highest()
	if !ok || newest >= s.next {
		return
	}
	for seq := max(s.una, p.Edge); seq+uint64(s.cfg.Distance) < newest; seq++ {
		if e := s.at(seq); e.at == flying && !e.inferred && now-e.sent >= s.path.RTT {
			e.inferred = true
			s.queue(seq)
		}
	}
}

// mrcReceiver is the responder.
type mrcReceiver struct {
	record
	cfg    Config
	silent int // new packets since the last SACK
	sacks  int
	answering
}

func newMRCReceiver(c Config) *mrcReceiver { return &mrcReceiver{cfg: c} }

// Handle implements Receiver.
func (r *mrcReceiver) Handle(_ time.Duration, p *Packet) {
	r.stats.Received++
	switch {
	case p.Seq >= r.expected+uint64(r.cfg.Range):
		r.stats.OutOfWindow++
		r.nack(p.Seq, OutOfWindow)
		return
	case p.Cut:
		r.nack(p.Seq, Trimmed)
		return
	case r.has(p.Seq):
		r.stats.Duplicates++
		r.sack(p.Seq)
		return
	case p.Seq != r.expected && r.stats.Accepted-r.expected >= uint64(r.cfg.Room): // those that came before an older one
		if r.silent > 0 { // only what fills the hole changes anything: tell now which it is
			r.sack(r.expected)
		}
		r.nack(p.Seq, NoBuffer)
		return
	}
	if p.Seq > r.newest {
		r.stats.OutOfSequence++
	}
	ends := r.take(p)
	r.stats.Accepted++
	if r.silent++; r.silent >= sackEvery || ends || p.AckReq || p.Again {
		r.sack(p.Seq)
	}
}

func (r *mrcReceiver) nack(seq uint64, why Reason) {
	r.answers.push(Packet{Kind: NACK, Seq: seq, Other: seq + 1, Reason: why, Octets: nackOctets})
}

// sack reports 64 of the newest packets, and now and then also the oldest that matter, when these are others.
func (r *mrcReceiver) sack(seq uint64) {
	r.silent = 0
	newest := r.expected
	if r.newest > r.expected+64 {
		newest = r.newest - 64
	}
	r.report(seq, newest)
	if r.sacks++; r.sacks%everyNth == 0 && newest != r.expected {
		r.report(seq, r.expected)
	}
}

// report queues a SACK: the cumulative acknowledgement, a packet that has just come, the 64 packets from edge on, and how far the requester may go.
func (r *mrcReceiver) report(seq, edge uint64) {
	p := Packet{Kind: SACK, Seq: r.expected, Other: seq, Edge: edge, Range: int32(r.cfg.Range), Octets: sackOctets}
	p.Bits[0] = r.bits(edge)
	r.answers.push(p)
}

// Expected implements Receiver.
func (r *mrcReceiver) Expected() uint64 { return r.expected }

// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"slices"

	"github.com/zeebo/xxh3"

	"crem.dev/crem/agent/roce"
)

// Audit collects the packets of one run. It is not safe for concurrent use.
type Audit struct {
	mtu     int
	streams map[roce.FlowKey]*stream
	report  Report
}

// stream is one PSN space of one direction of a queue pair.
type stream struct {
	sent      map[roce.PSN][]uint64 // hash of P of every different copy
	delivered []copied              // compared at the end: the two sides are seen by two observers, in no common order
	sentNext  frontier
	gotNext   frontier
}

type copied struct {
	psn  roce.PSN
	hash uint64
}

// frontier is the PSN after the newest one seen.
type frontier struct {
	next  roce.PSN
	known bool
}

// pass moves the frontier over p. It returns how far ahead of it p lies: 0 is the expected packet, below 0 a PSN that was passed before.
func (f *frontier) pass(p *roce.Packet, mtu int) (ahead int) {
	psn, n := p.PSN(), roce.Advance(p, mtu)
	if f.known {
		ahead = psn.Sub(f.next)
	}
	if end := psn.Add(n); !f.known || end.After(f.next) {
		f.next, f.known = end, true
	}
	return ahead
}

// Report is the result of one run. A data packet is one that carries payload: SEND, WRITE, READ response.
type Report struct {
	Data          map[string]uint64 `json:"data"`          // data packets sent, by source address, every copy counted
	Distinct      map[string]uint64 `json:"distinct"`      // of these, the first copies
	Requests      uint64            `json:"requests"`      // READ and ATOMIC requests sent
	Retransmitted uint64            `json:"retransmitted"` // packets with a PSN that their sender had passed before
	Naks          uint64            `json:"naks"`          // NAKs sent by the endpoints
	Delivered     uint64            `json:"delivered"`     // packets with a PSN of their own that reached an endpoint
	Gaps          uint64            `json:"gaps"`          // of these, how many came although the one in front was missing
	BadICRC       uint64            `json:"bad_icrc"`      // delivered with a wrong invariant CRC
	Foreign       uint64            `json:"foreign"`       // delivered, but equal to no packet that was sent with that PSN
	Unreadable    uint64            `json:"unreadable"`    // RoCEv2 frames that are not whole
}

// Corrupt is the number of packets that no endpoint should ever have been given.
func (r *Report) Corrupt() uint64 { return r.BadICRC + r.Foreign }

// New starts the audit of one run; mtu is the RDMA MTU of its queue pairs, in octets of payload.
func New(mtu int) *Audit {
	return &Audit{
		mtu:     mtu,
		streams: make(map[roce.FlowKey]*stream),
		report:  Report{Data: make(map[string]uint64), Distinct: make(map[string]uint64)},
	}
}

func (a *Audit) stream(k roce.FlowKey) *stream {
	s := a.streams[k]
	if s == nil {
		s = &stream{sent: make(map[roce.PSN][]uint64)}
		a.streams[k] = s
	}
	return s
}

// read parses a frame; only packets with a PSN of their own have a stream.
func (a *Audit) read(frame []byte) (p roce.Packet, s *stream) {
	p, reason := roce.Parse(frame)
	switch reason {
	case 0:
	case roce.NotRoCE:
		return p, nil
	default:
		a.report.Unreadable++
		return p, nil
	}
	if _, ok := p.Source(); ok {
		s = a.stream(p.Key())
	}
	return p, s
}

// Sent takes a frame as its endpoint put it on the wire. The frame is not kept.
func (a *Audit) Sent(frame []byte) {
	p, s := a.read(frame)
	if s == nil {
		a.countNak(&p)
		return
	}
	if h := xxh3.Hash(p.P()); !slices.Contains(s.sent[p.PSN()], h) {
		s.sent[p.PSN()] = append(s.sent[p.PSN()], h)
	}
	again := s.sentNext.pass(&p, a.mtu) < 0
	if again {
		a.report.Retransmitted++
	}
	if p.Opcode().Answered() {
		a.report.Requests++
		return
	}
	from := p.Src().String()
	a.report.Data[from]++
	if !again {
		a.report.Distinct[from]++
	}
}

func (a *Audit) countNak(p *roce.Packet) {
	if len(p.Head()) == 0 || p.Opcode().Operation() != roce.Acknowledge {
		return
	}
	if syndrome, ok := p.Syndrome(); ok {
		if kind, _ := roce.AckOf(syndrome); kind == roce.AckNAK {
			a.report.Naks++
		}
	}
}

// Delivered takes a frame as it reaches an endpoint. The frame is not kept.
func (a *Audit) Delivered(frame []byte) {
	p, s := a.read(frame)
	if len(p.Head()) > 0 && !roce.CheckICRC(&p) {
		a.report.BadICRC++
		return
	}
	if s == nil {
		return
	}
	a.report.Delivered++
	s.delivered = append(s.delivered, copied{p.PSN(), xxh3.Hash(p.P())})
	if s.gotNext.pass(&p, a.mtu) > 0 {
		a.report.Gaps++
	}
}

// Report ends the run: it compares what was delivered with what was sent.
func (a *Audit) Report() Report {
	r := a.report
	for _, s := range a.streams {
		for _, c := range s.delivered {
			if !slices.Contains(s.sent[c.psn], c.hash) {
				r.Foreign++
			}
		}
	}
	return r
}

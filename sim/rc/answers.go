// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// handle takes an ACK, a NAK or a READ response.
func (r *requester) handle(now time.Duration, p *roce.Packet) {
	seq, ok := r.seq(p.PSN())
	if r.failed() || !ok {
		r.stats.Stale++
		return
	}
	if p.Opcode() != roce.Acknowledge {
		r.response(now, p, seq)
		return
	}
	syndrome, ok := p.Syndrome()
	if !ok {
		r.stats.Stale++
		return
	}
	switch kind, code := roce.AckOf(syndrome); {
	case kind == roce.AckPositive:
		r.stats.Acks++
		r.acknowledge(now, seq+1)
	case kind == roce.AckNAK && code == roce.NAKSequence:
		r.nak(now, seq)
	case kind == roce.AckNAK:
		r.fail(roce.AckString(syndrome))
	default:
		r.stats.Stale++
	}
}

// nak takes a sequence error: everything before seq has arrived, seq has not.
func (r *requester) nak(now time.Duration, seq uint64) {
	r.stats.NAKs++
	if seq < r.una || seq >= r.high {
		r.stats.Stale++
		return
	}
	if seq > r.una {
		r.acknowledge(now, seq)
	}
	if r.una == seq {
		r.goBack(now)
	}
}

// impliedNAK goes back because an answer tells that READ responses before it are lost.
func (r *requester) impliedNAK(now time.Duration) {
	if r.goBack(now) {
		r.stats.Implied++
	}
}

// goBack rewinds once a gap: until there is progress, further signs of the same gap are older than the rewinding, and only the timer helps.
func (r *requester) goBack(now time.Duration) bool {
	if r.rewound || r.una == r.next {
		r.stats.Stale++
		return false
	}
	r.rewind(now)
	r.rewound = true
	return true
}

// acknowledge moves una up to upto. WRITEs and SENDs before it are complete. A READ is complete by its responses only: an acknowledgement of something
// behind it says that responses are lost (implied NAK).
func (r *requester) acknowledge(now time.Duration, upto uint64) {
	if upto > r.high || upto <= r.una {
		r.stats.Stale++
		return
	}
	for r.una < upto {
		m := r.at(r.head)
		if m.op == Read {
			r.impliedNAK(now)
			return
		}
		end := m.first + m.packets
		r.moved(now, m, min(upto, end))
		if r.una == end {
			r.complete(now, m, 0)
		}
	}
}

// moved notes progress to una within, or to the end of, the oldest message.
func (r *requester) moved(now time.Duration, m *message, una uint64) {
	from, to := int(r.una-m.first)*r.cfg.MTU, int(una-m.first)*r.cfg.MTU
	r.stats.AckedOctets += uint64(min(to, m.size) - from)
	r.una = una
	r.progress = now
	r.retries, r.rewound = 0, false
	if r.next < una { // acknowledged in the middle of sending it again
		r.next = una
	}
	for r.cur < r.tail && r.at(r.cur).first+r.at(r.cur).packets <= r.next {
		r.cur++
	}
}

// complete finishes the oldest message.
func (r *requester) complete(now time.Duration, m *message, corrupt int) {
	r.done = append(r.done, Completion{r.head, m.op, m.size, m.posted, now, corrupt})
	r.stats.Completed++
	r.stats.CompletedOctets += uint64(m.size)
	r.head++
	r.cur = max(r.cur, r.head)
}

// response takes a READ response. It acknowledges all requests before its READ.
func (r *requester) response(now time.Duration, p *roce.Packet, seq uint64) {
	if seq < r.una || seq >= r.high {
		r.stats.Stale++
		return
	}
	for n := r.head; n < r.tail; n++ {
		if m := r.at(n); seq < m.first+m.packets {
			if m.op != Read {
				r.stats.Stale++
				return
			}
			if r.una < m.first {
				r.acknowledge(now, m.first)
			}
			break
		}
	}
	m := r.at(r.head)
	switch {
	case seq == r.una && m.op == Read:
		r.place(now, p, m)
	case seq > r.una:
		r.impliedNAK(now)
	default:
		r.stats.Stale++
	}
}

// place puts the expected READ response into memory.
func (r *requester) place(now time.Duration, p *roce.Packet, m *message) {
	index := int(r.una - m.first)
	from := index * r.cfg.MTU
	data, want := p.Data(), min(r.cfg.MTU, m.size-from)
	last := index == int(m.packets)-1
	if len(data) != want || p.Opcode().Ends() != last || p.Opcode() == roce.ReadResponseOnly && index != 0 {
		r.stats.Stale++
		return
	}
	copy(r.mem.Slot(r.head)[from:], data)
	r.stats.Responses++
	number := r.head
	r.moved(now, m, r.una+1)
	if !last {
		return
	}
	corrupt := r.mem.Complete(number, m.size)
	if corrupt > 0 {
		r.stats.CorruptMessages++
		r.stats.CorruptOctets += uint64(corrupt)
	}
	if r.reads > 0 {
		r.reads--
	}
	r.complete(now, m, corrupt)
}

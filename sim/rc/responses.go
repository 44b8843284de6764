// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// answer waits to be sent: an ACK or NAK, or the READ responses next to end-1. Answers leave in the order of the requests.
type answer struct {
	read     bool
	next     uint64
	end      uint64
	syndrome uint8
}

// queueAck adds an ACK or NAK. A positive one that still waits at the end of the queue takes the new number, if the queue pair coalesces.
func (r *responder) queueAck(seq uint64, syndrome uint8) {
	if n := len(r.answers); r.cfg.Coalesce && syndrome == unlimited && n > 0 {
		if last := &r.answers[n-1]; !last.read && last.syndrome == unlimited {
			last.next = max(last.next, seq)
			return
		}
	}
	r.answers = append(r.answers, answer{next: seq, end: seq + 1, syndrome: syndrome})
}

func (r *responder) queueRead(from, to uint64) {
	r.answers = append(r.answers, answer{read: true, next: from, end: to})
}

// dropAnswers forgets what waits from a sequence number on: the requester has gone back to it and will ask for the rest again.
func (r *responder) dropAnswers(seq uint64) {
	kept := r.answers[:0]
	for _, a := range r.answers {
		if a.end > seq && a.read {
			a.end = seq
		}
		if a.read && a.next < a.end || !a.read && (a.next < seq || a.syndrome != unlimited) {
			kept = append(kept, a)
		}
	}
	r.answers = kept
}

// poll sends answers.
func (r *responder) poll(now time.Duration, out *Batch) {
	sent := 0
	for sent < len(r.answers) && !out.Full() {
		a := &r.answers[sent]
		if !a.read {
			r.sendAck(a, out)
		} else if r.pace.Ready(now) {
			r.sendResponse(now, a, out)
		} else {
			break
		}
		if a.next == a.end {
			sent++
		}
	}
	r.answers = append(r.answers[:0], r.answers[sent:]...)
}

func (r *responder) deadline() time.Duration {
	switch {
	case len(r.answers) == 0:
		return roce.Never
	case r.answers[0].read:
		return r.pace.Next()
	}
	return 0
}

func (r *responder) sendAck(a *answer, out *Batch) {
	frame, _ := r.build.open(out.Slot(), roce.Acknowledge, r.psn(a.next), false, 0)
	r.build.putAETH(frame, a.syndrome, uint32(r.number))
	out.Add(r.build.seal(frame))
	if a.syndrome == unlimited {
		r.stats.AcksSent++
	} else {
		r.stats.NAKsSent++
	}
	a.next = a.end
}

// sendResponse sends the next packet of a READ. The opcode is that of its place in the whole READ: one that is resumed begins with MIDDLE or LAST.
func (r *responder) sendResponse(now time.Duration, a *answer, out *Batch) {
	x := r.resource(a.next)
	if x == nil { // the requester has more READs in flight than it said
		a.next = a.end
		return
	}
	index := a.next - x.first
	op := roce.ReadResponseMiddle
	switch {
	case x.packets == 1:
		op = roce.ReadResponseOnly
	case index == 0:
		op = roce.ReadResponseFirst
	case index == x.packets-1:
		op = roce.ReadResponseLast
	}
	from := int(index) * r.cfg.MTU
	frame, data := r.build.open(out.Slot(), op, r.psn(a.next), false, min(r.cfg.MTU, x.size-from))
	if op != roce.ReadResponseMiddle {
		r.build.putAETH(frame, unlimited, uint32(r.number))
	}
	Fill(data, r.cfg.Seed, x.number, from)
	out.Add(r.build.seal(frame))
	r.pace.Sent(now, len(frame))
	r.stats.ResponsesSent++
	r.stats.ResponseOctets += uint64(len(frame))
	if index == x.sent {
		x.sent++
		r.stats.ResponsesNeeded++
	}
	a.next++
}

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"math/bits"
	"time"

	"crem.dev/crem/agent/roce"
)

// standing is where a packet stands with its sender.
type standing uint8

const (
	unsent standing = iota
	flying          // sent, and its timer runs
	again           // to be sent again
	acked
)

// entry is what a scoreboard knows of a packet.
type entry struct {
	sent     time.Duration // the last time
	at       standing
	inferred bool  // taken for lost once because others have come
	tries    uint8 // timeouts
}

// timed is a transmission that is given up on at sent plus timeout.
type timed struct {
	seq  uint64
	sent time.Duration
}

// scoreboard is what a sender knows of each packet from una on. Every transmission has the same timeout, so the timers are a queue.
type scoreboard struct {
	timeout time.Duration
	una     uint64  // all before are acknowledged
	ring    []entry // from una on, by number modulo its length, a power of two
	timers  fifo[timed]
	resend  fifo[uint64]
	aloft   int // packets that are flying
}

// reach makes room for packets before end.
func (b *scoreboard) reach(end uint64) {
	n := max(len(b.ring), 64)
	for end-b.una > uint64(n) {
		n *= 2
	}
	if n == len(b.ring) {
		return
	}
	ring := make([]entry, n)
	for i := range b.ring {
		seq := b.una + uint64(i)
		ring[seq&uint64(n-1)] = *b.at(seq)
	}
	b.ring = ring
}

func (b *scoreboard) at(seq uint64) *entry { return &b.ring[seq&uint64(len(b.ring)-1)] }

// in says whether a packet is on the board.
func (b *scoreboard) in(seq uint64) bool { return seq >= b.una && seq-b.una < uint64(len(b.ring)) }

// sent notes a transmission.
func (b *scoreboard) sent(now time.Duration, seq uint64) {
	e := b.at(seq)
	e.sent, e.at = now, flying
	b.aloft++
	b.timers.push(timed{seq, now})
}

// queue marks a packet to be sent again.
func (b *scoreboard) queue(seq uint64) {
	if e := b.at(seq); e.at != again && e.at != acked {
		b.land(e)
		e.at = again
		b.resend.push(seq)
	}
}

// ack notes that a packet has come, and says whether that is news.
func (b *scoreboard) ack(seq uint64) bool {
	if !b.in(seq) || b.at(seq).at == acked {
		return false
	}
	b.land(b.at(seq))
	b.at(seq).at = acked
	return true
}

// land takes a packet out of those in flight.
func (b *scoreboard) land(e *entry) {
	if e.at == flying {
		b.aloft--
	}
}

// settle moves una over what is acknowledged. What it passes over is unsent when its place is used anew.
func (b *scoreboard) settle() {
	for len(b.ring) > 0 && b.at(b.una).at == acked {
		*b.at(b.una) = entry{}
		b.una++
	}
}

// stale says that a timer is no longer that of its packet.
func (b *scoreboard) stale(t timed) bool {
	if !b.in(t.seq) {
		return true
	}
	e := b.at(t.seq)
	return e.at != flying || e.sent != t.sent
}

// timer is when the next transmission is given up on.
func (b *scoreboard) timer() time.Duration {
	for b.timers.len() > 0 && b.stale(*b.timers.front()) {
		b.timers.pop()
	}
	if b.timers.len() == 0 {
		return roce.Never
	}
	return b.timers.front().sent + b.timeout
}

// expire queues what is given up on by now. It returns how many those are, and how often the one was that was given up on most.
func (b *scoreboard) expire(now time.Duration) (n uint64, most int) {
	for b.timer() <= now {
		seq := b.timers.pop().seq
		e := b.at(seq)
		if e.tries < 255 {
			e.tries++
		}
		most = max(most, int(e.tries))
		b.queue(seq)
		n++
	}
	return n, most
}

// come takes the news of an answer that all packets before upto, another one, and those of a bitmap have come. Packets from next on have not
// been sent. It says whether anything is news.
func (b *scoreboard) come(p *Packet, next uint64) (news bool) {
	if p.Other != p.Seq && p.Other < next {
		news = b.ack(p.Other)
	}
	for seq := b.una; seq < min(p.Seq, next); seq++ {
		news = b.ack(seq) || news
	}
	for i, word := range p.Bits {
		for ; word != 0; word &= word - 1 {
			if seq := p.Edge + uint64(64*i+bits.TrailingZeros64(word)); seq < next {
				news = b.ack(seq) || news
			}
		}
	}
	b.settle()
	return news
}

// highest is the newest packet that a bitmap names, false if it is empty.
func (p *Packet) highest() (uint64, bool) {
	for i := len(p.Bits) - 1; i >= 0; i-- {
		if p.Bits[i] != 0 {
			return p.Edge + uint64(64*i+bits.Len64(p.Bits[i])-1), true
		}
	}
	return 0, false
}

// waiting returns the next packet to be sent again, false without any.
func (b *scoreboard) waiting() (uint64, bool) {
	for b.resend.len() > 0 {
		if seq := *b.resend.front(); b.in(seq) && b.at(seq).at == again {
			return seq, true
		}
		b.resend.pop()
	}
	return 0, false
}

// fifo is a queue that reuses its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) front() *T { return &q.items[q.head] }

func (q *fifo[T]) push(x T) {
	if len(q.items) == cap(q.items) && q.head > cap(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, x)
}

func (q *fifo[T]) pop() T {
	x := q.items[q.head]
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return x
}

// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math/rand/v2"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
)

// Pipe is a running Link that carries packets of type T. It is not safe for concurrent use.
type Pipe[T any] struct {
	link  Link
	rng   *rand.Rand
	lanes []lane
	turn  int // lane of the next packet
	way   arrivals[T]
	stats Stats
}

// lane is one of the paths.
type lane struct {
	busy   int64 // picoseconds until which the wire is taken
	skew   time.Duration
	last   time.Duration // latest arrival, so that jitter does not reorder
	losses losses
	marker marker
}

// NewPipe returns the link ready for use, or what is wrong with it. All its random decisions come from seed.
func NewPipe[T any](l Link, seed uint64) (*Pipe[T], error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	const stream = 0x6c696e6b // distinguishes a pipe's numbers from others of the same seed
	p := &Pipe[T]{link: l, rng: rand.New(rand.NewPCG(seed, stream))}
	n := max(l.Lanes, 1)
	p.link.Rate = max(l.Rate/int64(n), 1)
	for i := range n {
		m, err := newMarker(l.Queue.Marking, p.rng)
		if err != nil {
			return nil, err
		}
		x := lane{losses: newLosses(l.Loss, p.rng), marker: m}
		if n > 1 {
			x.skew = l.Skew * time.Duration(i) / time.Duration(n-1)
		}
		p.lanes = append(p.lanes, x)
	}
	return p, nil
}

// Free is when the wire that the next packet takes will have sent what was given to it. A sender that waits for it neither fills a queue
// nor leaves a gap.
func (p *Pipe[T]) Free() time.Duration { return nanoseconds(p.lanes[p.turn].busy) }

// Send puts a packet of so many octets on its way. What is Lost or Full never arrives, and the caller may reuse it.
func (p *Pipe[T]) Send(now time.Duration, packet T, octets int, field ecn.Codepoint) Fate {
	p.stats.Sent++
	p.stats.SentOctets += uint64(octets)
	l := &p.lanes[p.turn]
	if p.turn++; p.turn == len(p.lanes) {
		p.turn = 0
	}
	start := l.busy
	if idle := int64(now)*1000 - start; idle >= 1000 { // less is what Free has rounded up
		start = int64(now) * 1000
	}
	waiting := p.waiting(start - int64(now)*1000)
	p.stats.Peak = max(p.stats.Peak, waiting)
	a := arrival[T]{packet: packet, octets: int32(octets)}
	if p.full(waiting, octets) {
		if p.link.Queue.Trim == 0 {
			p.stats.Full++
			return Full
		}
		p.stats.Trimmed++
		a.marks.Trimmed, a.octets = true, int32(min(octets, p.link.Queue.Trim))
		start = int64(now) * 1000 // what is left overtakes the queue
	}
	size := int(a.octets) + p.link.Framing
	end := start + p.link.Picoseconds(int64(size))
	if a.marks.Trimmed {
		l.busy += p.link.Picoseconds(int64(size))
	} else {
		l.busy = end
	}
	a.marks.ECN = l.marker.mark(now, waiting, field)
	p.count(field, a.marks.ECN)
	if l.losses.next(size) {
		p.stats.Lost++
		return Lost
	}
	a.at = p.arrivalTime(l, nanoseconds(end))
	p.way.push(a)
	return OnItsWay
}

// waiting is the octets that take so many picoseconds to send.
func (p *Pipe[T]) waiting(ps int64) int64 {
	if ps <= 0 {
		return 0
	}
	return int64(float64(ps) * float64(p.link.Rate) / 8e12)
}

func (p *Pipe[T]) full(waiting int64, octets int) bool {
	return p.link.Queue.Octets > 0 && waiting+int64(octets) > p.link.Queue.Octets
}

func (p *Pipe[T]) count(before, after ecn.Codepoint) {
	switch {
	case before == after:
	case after == ecn.CE:
		p.stats.CE++
	case after == ecn.ECT1:
		p.stats.Early++
	}
}

// arrivalTime adds propagation to the end of sending.
func (p *Pipe[T]) arrivalTime(l *lane, sent time.Duration) time.Duration {
	at := sent + p.link.Delay + l.skew
	if p.link.Jitter > 0 {
		at += time.Duration(p.rng.Int64N(int64(p.link.Jitter) + 1))
		at = max(at, l.last)
		l.last = at
	}
	if r := p.link.Reorder; r.Share > 0 && p.rng.Float64() < r.Share {
		at += time.Duration(p.rng.Int64N(int64(r.By) + 1))
	}
	return at
}

// NextDeadline is when the next packet arrives, roce.Never if none is on its way.
func (p *Pipe[T]) NextDeadline() time.Duration {
	if a := p.way.first(); a != nil {
		return a.at
	}
	return roce.Never
}

// Receive takes out the next packet that has arrived by now.
func (p *Pipe[T]) Receive(now time.Duration) (packet T, marks Marks, ok bool) {
	a := p.way.first()
	if a == nil || a.at > now {
		return packet, marks, false
	}
	out := p.way.pop()
	p.stats.Delivered++
	p.stats.DeliveredOctets += uint64(out.octets)
	return out.packet, out.marks, true
}

// Stats returns the counters, alive as long as the pipe.
func (p *Pipe[T]) Stats() *Stats { return &p.stats }

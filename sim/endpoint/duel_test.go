// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/sim/world"
)

const (
	testMTU   = 1000
	testDelay = 5 * time.Millisecond
	testRTT   = 2 * testDelay
	testTick  = time.Microsecond // a packet of bare data at 8 Gbit/s
	nothing   = PacketKind(255)  // a packet that is lost
)

// duel runs a transport over a link that loses what a test says.
type duel struct {
	t           *testing.T
	s           Sender
	r           Receiver
	poster      Poster // one of the two
	posted      int
	now         time.Duration
	forth, back *world.Pipe[Packet]
	// lose says whether a packet is lost; n counts the packets of its kind and number that have been sent, from 1.
	lose      func(p Packet, n int) bool
	cut       func(p Packet, n int) bool // trimmed
	times     map[Packet]int
	forthLog  []sentPacket
	backLog   []sentPacket
	delivered map[uint64]int // data packets that reached the receiver, lost and cut ones excluded
	done      []Completion
}

type sentPacket struct {
	at time.Duration
	Packet
}

func newDuel(t *testing.T, c Config) *duel {
	return newDuelOver(t, c, world.Link{Rate: 8e9, Delay: testDelay})
}

func newDuelOver(t *testing.T, c Config, l world.Link) *duel {
	t.Helper()
	c.Bare = true
	d := &duel{t: t, times: map[Packet]int{}, delivered: map[uint64]int{}}
	var err error
	if d.s, d.r, err = New(c, Path{MTU: testMTU, RTT: testRTT, Packet: testTick}); err != nil {
		t.Fatal(err)
	}
	d.poster = PosterOf(d.s, d.r)
	if d.forth, err = world.NewPipe[Packet](l, 1); err != nil {
		t.Fatal(err)
	}
	d.back, _ = world.NewPipe[Packet](l, 2)
	return d
}

// post posts transfers of so many packets now.
func (d *duel) post(packets ...int) *duel {
	for _, n := range packets {
		d.poster.Post(d.now, int64(n)*testMTU)
		d.posted++
	}
	return d
}

// send puts a packet on its way, unless the test loses it.
func (d *duel) send(pipe *world.Pipe[Packet], p Packet) {
	key := Packet{Kind: p.Kind, Seq: p.Seq, Other: p.Other}
	d.times[key]++
	switch {
	case d.lose != nil && d.lose(p, d.times[key]):
		p.Kind = nothing // it takes the wire all the same
	case d.cut != nil && d.cut(p, d.times[key]):
		p.Cut = true
	}
	pipe.Send(d.now, p, int(p.Octets), ecn.ECT0)
}

// run lets everything happen up to a time, or until all that was posted has completed.
func (d *duel) run(until time.Duration) *duel {
	d.t.Helper()
	for steps := 0; len(d.done) < d.posted && d.s.Err() == "" && d.poster.Err() == ""; steps++ {
		d.done = d.poster.Completed(d.done)
		if steps > 1e7 {
			d.t.Fatal("busy loop")
		}
		switch {
		case d.forth.NextDeadline() <= d.now:
			p, _, _ := d.forth.Receive(d.now)
			if p.Kind == nothing {
				continue
			}
			if p.Kind == Data && !p.Cut {
				d.delivered[p.Seq]++
			}
			d.r.Handle(d.now, &p)
		case d.back.NextDeadline() <= d.now:
			p, _, _ := d.back.Receive(d.now)
			if p.Kind == nothing {
				continue
			}
			d.s.Handle(d.now, &p)
		case d.r.NextDeadline() <= d.now && d.back.Free() <= d.now:
			if p, ok := d.r.Next(d.now); ok {
				d.backLog = append(d.backLog, sentPacket{d.now, p})
				d.send(d.back, p)
			}
		case d.s.NextDeadline() <= d.now && d.forth.Free() <= d.now:
			if p, ok := d.s.Next(d.now); ok {
				d.forthLog = append(d.forthLog, sentPacket{d.now, p})
				d.send(d.forth, p)
			}
		default:
			next := min(d.forth.NextDeadline(), d.back.NextDeadline(), max(d.r.NextDeadline(), d.back.Free()), max(d.s.NextDeadline(), d.forth.Free()))
			if next > until {
				d.now = until
				return d
			}
			d.now = next
		}
	}
	return d
}

// copies returns when the copies of a data packet left.
func (d *duel) copies(seq uint64) (at []time.Duration) {
	for _, p := range d.forthLog {
		if p.Kind == Data && p.Seq == seq {
			at = append(at, p.at)
		}
	}
	return at
}

// answers returns the answers of a kind to what the sender sends.
func (d *duel) answers(kind PacketKind) (out []sentPacket) { return of(d.backLog, kind) }

// of returns the packets of a kind.
func of(log []sentPacket, kind PacketKind) (out []sentPacket) {
	for _, p := range log {
		if p.Kind == kind {
			out = append(out, p)
		}
	}
	return out
}

// complete fails the test unless so many transfers have completed, each once, in order.
func (d *duel) complete(n int) {
	d.t.Helper()
	if len(d.done) != n || d.s.Err()+d.poster.Err() != "" {
		d.t.Fatalf("%d of %d transfers have completed at %v, %q %q", len(d.done), n, d.now, d.s.Err(), d.poster.Err())
	}
	for i := 1; i < n; i++ {
		if d.done[i].Completed < d.done[i-1].Completed {
			d.t.Errorf("transfer %d completed before the one before it", i)
		}
	}
}

// each runs a transport over random losses in both directions, at many rates: every transfer completes once, every packet is accepted once, and
// nothing completes before its packets have come.
func eachPacketOnce(t *testing.T, c Config) {
	t.Helper()
	for _, loss := range []float64{0, 0.001, 0.05, 0.3} {
		l := world.Link{Rate: 8e9, Delay: testDelay, Loss: world.Loss{Rate: loss}, Reorder: world.Reorder{Share: 0.01, By: 100 * time.Microsecond}}
		d := newDuelOver(t, c, l)
		d.post(1, 500, 1, 64, 2000, 33)
		d.run(10 * time.Minute)
		d.complete(6)
		for seq := range uint64(2599) {
			if c.Kind != Coded && d.delivered[seq] == 0 {
				t.Fatalf("loss %g: packet %d never came, and all is complete", loss, seq)
			}
		}
		if got := d.r.Expected(); got != 2599 {
			t.Errorf("loss %g: the receiver expects %d", loss, got)
		}
		if len(d.poster.Completed(nil)) > 0 {
			t.Errorf("loss %g: a transfer completed twice", loss)
		}
		if c.Kind != Coded && d.r.Stats().Accepted != 2599 {
			t.Errorf("loss %g: %d packets were accepted, not 2599", loss, d.r.Stats().Accepted)
		}
	}
}

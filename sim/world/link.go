// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"fmt"
	"time"

	"crem.dev/crem/agent/ecn"
)

// Link describes one direction of a path. The zero values of all but Rate mean: none of it.
type Link struct {
	Rate  int64         // bits per second of wire octets
	Delay time.Duration // of propagation, one way
	// Jitter adds to Delay between nothing and this much, evenly; packets of one lane keep their order.
	Jitter time.Duration
	// Framing is what each packet takes on the wire beside its own octets.
	Framing int

	Queue   Queue
	Loss    Loss
	Reorder Reorder

	// Lanes is how many paths of equal rate the packets are sprayed over, one after the other; 0: 1. Skew is how much longer than the
	// first the last one is; the others lie evenly between.
	Lanes int
	Skew  time.Duration
}

// Queue is what waits before the link.
type Queue struct {
	Octets int64 // of a lane, the most that may wait; 0: no bound
	// Trim cuts packets that find the queue full to this many octets, which overtake the queue, instead of dropping them; 0: drop.
	Trim    int
	Marking Marking
}

// MarkingKind is how a queue tells of congestion.
type MarkingKind uint8

// Kinds of marking. Packets that are not ECN-capable are not marked.
const (
	NoMarking    MarkingKind = iota
	Step                     // CE when more than Low octets wait
	RED                      // CE with a probability linear in the average queue, from 0 at Low to Most at High, all above
	TwoThreshold             // early warning above Low, CE above High (agent/ecn)
)

// Marking is the thresholds of a queue's marking, in octets.
type Marking struct {
	Kind      MarkingKind
	Low, High int64
	Most      float64       // RED: probability at High; TwoThreshold: of CE at twice High. 0: 0.5
	Average   time.Duration // time constant of the average of RED and TwoThreshold; 0: 100 microseconds
}

// Loss is what the path loses at random.
type Loss struct {
	Rate float64 // share of packets, below 1
	// Burst is the mean length of a run of losses, in packets; at most 1: losses are independent. Runs have geometric length
	// (Gilbert).
	Burst float64
	// Inside is the share of packets that are lost within a run, 0: all (Gilbert-Elliott).
	Inside float64
	// Reference, if not 0, makes loss grow with size as independent bit errors do: Rate is that of packets of so many wire octets.
	Reference int
}

// Reorder delays some packets so that others overtake them.
type Reorder struct {
	Share float64       // of packets
	By    time.Duration // at most, evenly
}

// Check returns what makes the link impossible.
func (l *Link) Check() error {
	probability := func(p float64) bool { return p >= 0 && p < 1 }
	switch {
	case l.Rate < 1 || l.Rate > 1e15:
		return fmt.Errorf("a rate of %d bit/s is not between 1 and 10^15", l.Rate)
	case l.Delay < 0 || l.Jitter < 0 || l.Skew < 0 || l.Reorder.By < 0 || l.Framing < 0:
		return errors.New("delay, jitter, skew, reordering and framing can't be negative")
	case !probability(l.Loss.Rate) || l.Loss.Burst < 0 || l.Loss.Inside < 0 || l.Loss.Inside > 1 || l.Loss.Reference < 0:
		return errors.New("a loss rate is at least 0 and below 1, the rest of the loss not negative")
	case l.Loss.Burst > 1 && l.Loss.Rate >= l.Loss.inside()*l.Loss.Burst/(l.Loss.Burst+1):
		return fmt.Errorf("a loss rate of %g is too high for runs of %g packets", l.Loss.Rate, l.Loss.Burst)
	case l.Reorder.Share < 0 || l.Reorder.Share > 1:
		return errors.New("the share of reordered packets is between 0 and 1")
	case l.Lanes < 0 || l.Lanes > 1024:
		return fmt.Errorf("%d lanes are not between 0 and 1024", l.Lanes)
	case l.Queue.Octets < 0 || l.Queue.Trim < 0:
		return errors.New("queue and trimmed packets can't be negative")
	}
	return l.Queue.Marking.check()
}

func (m *Marking) check() error {
	switch {
	case m.Kind > TwoThreshold:
		return fmt.Errorf("marking %d is not known", m.Kind)
	case m.Kind != NoMarking && m.Low < 1, m.Kind > Step && m.High <= m.Low:
		return errors.New("marking thresholds must be positive and grow")
	case m.Most < 0 || m.Most > 1 || m.Average < 0:
		return errors.New("a marking probability is between 0 and 1, a time constant not negative")
	}
	return nil
}

// Time is how long octets take on a wire of the rate, without delay.
func (l *Link) Time(octets int64) time.Duration { return nanoseconds(l.Picoseconds(octets)) }

// Picoseconds is how long octets take on a wire.
func (l *Link) Picoseconds(octets int64) int64 {
	const perSecond = 8e12
	if octets <= 1<<20 { // exact in 64 bits
		return octets * perSecond / l.Rate
	}
	return int64(float64(octets) * perSecond / float64(l.Rate))
}

func nanoseconds(ps int64) time.Duration { return time.Duration((ps + 999) / 1000) }

// Stats counts packets, and wire octets without framing.
type Stats struct {
	Sent, SentOctets           uint64 // offered
	Delivered, DeliveredOctets uint64 // handed out
	Lost                       uint64 // by the path
	Full                       uint64 // dropped because the queue was full
	Trimmed, Early, CE         uint64
	Peak                       int64 // the most octets that waited in a lane
}

// Fate is what became of a packet that was sent.
type Fate uint8

// Fates.
const (
	OnItsWay Fate = iota
	Lost
	Full
)

// Marks is what the network wrote on a packet.
type Marks struct {
	ECN     ecn.Codepoint
	Trimmed bool
}

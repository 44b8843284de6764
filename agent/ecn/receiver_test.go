// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"net/netip"
	"testing"
	"time"
)

// receiving is a Receiver that hears nodes of a domain, and has marks of its own.
type receiving struct {
	*Receiver
	now, echo time.Duration
	sequence  uint64
}

func newReceiving() *receiving {
	r := receiver()
	r.config.Echo = time.Second
	return &receiving{Receiver: r, now: time.Minute, echo: time.Second}
}

func (r *receiving) hear(level Level) DropReason {
	r.sequence++
	_, why := r.Handle(r.now, wall, node, cnp(1, r.sequence, wall, level), nil)
	return why
}

// WAN ECN, CNP: what comes back of an own mark is of that mark's level alone, comes once for each mark that was acted upon, and is told from others even
// where it comes within the limit of the flow.
func TestWANECN_WhatIsAnEcho(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(r *receiving) DropReason
		want DropReason
	}{
		{"of a level that was not marked", func(r *receiving) DropReason {
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += 2 * every
			return r.hear(LevelSevere)
		}, DropNone},
		{"of a mark over the limit", func(r *receiving) DropReason {
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += every - 1
			_ = r.hear(LevelEarly) // the echo
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += 2 * every
			return r.hear(LevelEarly)
		}, DropNone},
		{"within the limit", func(r *receiving) DropReason {
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += every / 2
			return r.hear(LevelEarly)
		}, DropEcho},
		{"after the one within the limit", func(r *receiving) DropReason {
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += every / 2
			_ = r.hear(LevelEarly)
			r.now += 2 * every
			return r.hear(LevelEarly)
		}, DropNone},
		{"just in time", func(r *receiving) DropReason {
			_ = r.Own(r.now, flow4, LevelEarly)
			r.now += r.echo - 1
			return r.hear(LevelEarly)
		}, DropEcho},
	} {
		if got := x.do(newReceiving()); got != x.want {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
	}
}

// WAN ECN, CNP: times and sequences are believed up to the greatest age, to the microsecond.
func TestWANECN_AgesToTheMicrosecond(t *testing.T) {
	age := uint64(maxAge.Microseconds())
	for _, x := range []struct{ sequence, at uint64 }{{1, wall - age}, {1, wall + age}, {wall + age, wall}} {
		if _, why := receiver().Handle(0, wall, node, cnp(1, x.sequence, x.at, LevelEarly), nil); why != DropNone {
			t.Errorf("sequence %d, time %d at %d: %v", x.sequence, x.at, wall, why)
		}
	}
}

// WAN ECN, CNP: each node, and each address, has a window of sequences of its own, which keeps what it knows when it moves.
func TestWANECN_WindowsOfSequences(t *testing.T) {
	r := receiver()
	other := netip.MustParseAddr("192.0.2.10")
	r.config.Domain = func(netip.Addr, uint32) bool { return true }
	take := func(from netip.Addr, sequence uint64) DropReason {
		_, why := r.Handle(time.Duration(sequence)*every, wall, from, cnp(1, sequence, wall, LevelEarly), nil)
		return why
	}
	for _, x := range []struct {
		from     netip.Addr
		sequence uint64
		want     DropReason
	}{
		{node, 1000, DropNone}, {other, 1000, DropLimit}, {other, 1000, DropReplayed}, // believed, of the same flow
		{node, 1000 + replayWindow - 1, DropNone}, {node, 1000, DropReplayed}, {node, 1001, DropLimit},
		{node, 2000, DropNone}, {node, 2000, DropReplayed}, {node, 2001 - replayWindow, DropLimit},
		{node, 2000 + replayWindow, DropNone},
	} {
		if got := take(x.from, x.sequence); got != x.want {
			t.Errorf("%d from %v: %v, want %v", x.sequence, x.from, got, x.want)
		}
	}
}

// Security considerations: a clock that goes back lets no node be forgotten that could be replayed.
func TestWANECN_ClockThatGoesBack(t *testing.T) {
	age := uint64(maxAge.Microseconds())
	r := NewReceiver(ReceiverConfig{Domain: func(netip.Addr, uint32) bool { return true }, MaxAge: maxAge, Every: every, Senders: 1, Flows: 1})
	for i, x := range []struct {
		wall uint64
		id   uint32
		want DropReason
	}{
		{wall + age, 1, DropNone},
		{wall, 1, DropNone},
		{wall, 2, DropTable},
		{wall + 3*age, 2, DropTable},
		{wall + 3*age + 1, 2, DropNone},
	} {
		if _, why := r.Handle(time.Duration(i+1)*every, x.wall, node, cnp(x.id, uint64(i+1), x.wall, LevelEarly), nil); why != x.want {
			t.Errorf("%d, node %d: %v, want %v", i, x.id, why, x.want)
		}
	}
}

// WAN ECN, CNP (SHOULD): what the ingress does not see of the queue contradicts no CNP, and without a domain nobody is believed.
func TestWANECN_WhatContradictsNothing(t *testing.T) {
	unknown := func(Flow) Observation { return Observation{} }
	if _, why := receiver().Handle(0, wall, node, cnp(1, 1, wall, LevelSevere), unknown); why != DropNone {
		t.Errorf("nothing is known of the queue: %v", why)
	}
	r := NewReceiver(ReceiverConfig{MaxAge: maxAge, Every: every, Senders: 1, Flows: 1})
	if _, why := r.Handle(0, wall, node, cnp(1, 1, wall, LevelSevere), nil); why != DropForeign {
		t.Errorf("without a domain: %v", why)
	}
}

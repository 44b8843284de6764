// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"math/rand/v2"
	"testing"
	"time"
)

// send lets a flow send at a rate until a time, and returns the octets that passed.
func send(r *Reaction, from, to time.Duration, octetsPerSecond float64) (passed int) {
	const packet = 1000
	gap := time.Duration(packet / octetsPerSecond * float64(time.Second))
	for now := from; now < to; now += gap {
		if r.Take(now, packet) {
			passed += packet
		}
	}
	return passed
}

// Early warnings shrink the repair budget first; only when it is at its least they cut the rate, a little.
func TestWANECN_EarlyShrinksRepairBeforeRate(t *testing.T) {
	r := NewReaction(ReactionConfig{})
	send(r, 0, 50*time.Millisecond, 1e8)
	now := 50 * time.Millisecond
	for _, want := range []float64{0.5, 0.25, 0.125} {
		r.Handle(now, LevelEarly)
		if got := r.RepairShare(now); got != want {
			t.Errorf("share %g, want %g", got, want)
		}
		if _, limited := r.Rate(now); limited {
			t.Error("the rate was cut before the budget was at its least")
		}
	}
	if !r.Warned(now) || r.Congested(now) {
		t.Error("an early warning: m must not grow, and losses are no congestion")
	}
	r.Handle(now, LevelEarly)
	rate, limited := r.Rate(now)
	if !limited || rate < 90e6 || rate > 97e6 {
		t.Errorf("rate %d", rate)
	}
}

// Severe: the flow is cut at once and stronger, its losses are congestion for a while; then all comes back, and nothing is raised above.
func TestWANECN_SevereCutsAndComesBack(t *testing.T) {
	r := NewReaction(ReactionConfig{})
	send(r, 0, 50*time.Millisecond, 1e8)
	now := 50 * time.Millisecond
	r.Handle(now, LevelSevere)
	rate, limited := r.Rate(now)
	if !limited || rate < 70e6 || rate > 80e6 || !r.Congested(now) || r.RepairShare(now) != 0.125 {
		t.Fatalf("rate %d", rate)
	}
	passed := send(r, now, now+100*time.Millisecond, 2e8) // it asks for more than that
	if got := float64(passed) / 0.1; got > 1.02*float64(rate)+leastBurst/0.1 || got < 0.9*float64(rate) {
		t.Errorf("%g octets a second passed at a rate of %d", got, rate)
	}
	if r.Congested(now + 100*time.Millisecond) {
		t.Error("congested for ever")
	}
	for end := now + 2*time.Second; now < end; now += time.Millisecond {
		if rate, limited := r.Rate(now); limited && float64(rate) > 1.05e8 {
			t.Fatalf("raised to %d", rate)
		}
	}
	if _, limited := r.Rate(now); limited || r.RepairShare(now) != 1 || r.Stats().Freed != 1 {
		t.Error("it does not come back")
	}
}

// However many CNPs come: the rate has a floor, and the share stays within 1/8 and 1. Time that stands still or jumps breaks nothing.
func TestReactionIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	r, now := NewReaction(ReactionConfig{}), time.Duration(0)
	for range 200_000 {
		switch rng.IntN(6) {
		case 0:
			r.Handle(now, Level(rng.IntN(4)))
		case 1:
			now += time.Duration(rng.IntN(int(time.Second)))
		case 2:
			now += time.Duration(rng.IntN(1000))
		default:
			r.Take(now, rng.IntN(9000))
		}
		share := r.RepairShare(now)
		rate, limited := r.Rate(now)
		if share < 0.125 || share > 1 || limited && (rate < 1e6-1 || float64(rate) > r.before+1) {
			t.Fatalf("share %g, rate %d (%v)", share, rate, limited)
		}
		if d := r.NextDeadline(now); d <= now {
			t.Fatalf("deadline %v at %v", d, now)
		}
		if at := r.ReadyAt(now, 9000); at < now {
			t.Fatalf("ready at %v, now %v", at, now)
		}
	}
	if n := testing.AllocsPerRun(100, func() { r.Take(now, 1000); r.RepairShare(now) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// What no cut goes below may change while a limit is in force. More raises the limit at once, up to none; less lets the next cut go deeper.
func TestWANECN_LeastRateChanges(t *testing.T) {
	r := NewReaction(ReactionConfig{LeastRate: 60e6})
	send(r, 0, 50*time.Millisecond, 1e8)
	now := 50 * time.Millisecond
	rate := func() int64 {
		n, _ := r.Rate(now)
		return n
	}
	for range 3 {
		r.Handle(now, LevelSevere)
	}
	if got := rate(); got != 60e6 {
		t.Fatalf("rate %d, want the least one", got)
	}
	if r.SetLeastRate(80e6); rate() != 80e6 {
		t.Errorf("rate %d after the least one rose to 80 MB", rate())
	}
	if r.SetLeastRate(10e6); rate() != 80e6 {
		t.Errorf("rate %d after the least one fell", rate())
	}
	if r.Handle(now, LevelSevere); rate() != 60e6 {
		t.Errorf("rate %d after a cut, want 3/4 of 80 MB", rate())
	}
	r.SetLeastRate(200e6)
	if n, limited := r.Rate(now); limited {
		t.Errorf("held to %d, and it sends less than what every flow keeps", n)
	}
}

// While a CNP is in force nothing comes back, and then as much a period as the time says, however often it is asked. What is no level changes nothing.
func TestWANECN_GrowthFollowsTime(t *testing.T) {
	const hold, period = 100 * time.Millisecond, 10 * time.Millisecond
	r := NewReaction(ReactionConfig{Hold: hold, Period: period})
	send(r, 0, 50*time.Millisecond, 1e8)
	now := 50 * time.Millisecond
	r.Handle(now, LevelNone)
	if r.Handle(now, LevelSevere+1); r.Warned(now) || r.RepairShare(now) != 1 || *r.Stats() != (ReactionStats{}) {
		t.Errorf("no level: %+v", *r.Stats())
	}
	r.Handle(now, LevelSevere)
	cut, _ := r.Rate(now)
	if !r.Warned(now+hold-1) || r.Warned(now+hold) || !r.Congested(now+hold-1) || r.Congested(now+hold) {
		t.Error("a CNP is in force for its time")
	}
	for _, at := range []time.Duration{hold / 2, hold, hold} {
		if rate, _ := r.Rate(now + at); rate != cut || r.RepairShare(now+at) != leastShare {
			t.Errorf("after %v: rate %d, share %g; a CNP was in force", at, rate, r.RepairShare(now+at))
		}
	}
	for i := range 4 {
		at := now + hold + time.Duration(i+1)*period/4
		r.Rate(at)
		r.Rate(at) // again
	}
	rate, _ := r.Rate(now + hold + period)
	if want := float64(cut) + growRate*r.before; float64(rate) < want-2 || float64(rate) > want+2 {
		t.Errorf("rate %d a period later, want %.0f", rate, want)
	}
	if got := r.RepairShare(now + hold + period); got != leastShare+growShare {
		t.Errorf("share %g a period later", got)
	}
}

// A cut starts from the larger of what a flow sent lately, so not from the pause between two bursts; one that sends no more than every flow keeps is not
// limited. The bucket of a new limit is full, and a packet that is larger than it goes when it is.
func TestWANECN_WhatACutStartsFrom(t *testing.T) {
	r := NewReaction(ReactionConfig{})
	send(r, 0, 20*time.Millisecond, 1e8)
	send(r, 20*time.Millisecond, 31*time.Millisecond, 5e6) // a pause, nearly
	r.Handle(31*time.Millisecond, LevelSevere)
	if rate, limited := r.Rate(31 * time.Millisecond); !limited || rate < 70e6 {
		t.Errorf("rate %d after a pause", rate)
	}

	r = NewReaction(ReactionConfig{LeastRate: 1e6})
	send(r, 0, 50*time.Millisecond, 1e6)
	if r.Handle(50*time.Millisecond, LevelSevere); r.Stats().RateCuts != 0 {
		t.Error("cut to what it sends")
	}

	r = NewReaction(ReactionConfig{})
	send(r, 0, 20*time.Millisecond, 2e6)
	r.Handle(20*time.Millisecond, LevelSevere)
	if _, limited := r.Rate(20 * time.Millisecond); !limited || !r.Take(20*time.Millisecond, leastBurst) || r.Take(20*time.Millisecond, 1) {
		t.Error("the bucket of a new limit is not full, or too large")
	}
	if r.Take(50*time.Millisecond, 2*leastBurst) {
		t.Error("a packet larger than the bucket went before that was full")
	}
	if !r.Take(70*time.Millisecond, 2*leastBurst) {
		t.Error("a packet larger than the bucket never goes")
	}
}

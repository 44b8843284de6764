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

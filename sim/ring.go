// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"time"
)

// Ring is all-reduces over sites in a ring. Each of 2N-2 stages moves an Nth of the buffer from every site to the next, over a connection and a link
// of its own; a site begins a stage when its own transfer of the stage before has completed, and the one that comes to it has.
type Ring struct {
	Scenario     // of each connection; MessageOctets is the buffer, Messages and Warmup count all-reduces
	Sites    int // at least 2
}

// RunRing runs the all-reduces. In the Result, Completions and Ideal are those of whole all-reduces, Cost is of all connections together; the other
// counters are those of the first connection.
func RunRing(r Ring) (Result, error) {
	x, err := newRing(r)
	if err != nil {
		return Result{}, err
	}
	for x.step() {
		continue
	}
	return x.result(), nil
}

// ring is all-reduces under way.
type ring struct {
	sites  []*Simulation
	stages int // of an all-reduce
	begun  []time.Duration
	ended  []time.Duration
	skip   int // all-reduces of the warm-up
}

func newRing(r Ring) (*ring, error) {
	if r.Sites < 2 || r.Sites > 1024 {
		return nil, errors.New("a ring has 2 to 1,024 sites")
	}
	x := &ring{stages: 2*r.Sites - 2, skip: r.Warmup}
	s := r.Scenario
	s.Outstanding = 1
	s.MessageOctets = (s.MessageOctets + int64(r.Sites) - 1) / int64(r.Sites)
	s.Messages, s.Warmup = s.Messages*x.stages, s.Warmup*x.stages
	for i := range r.Sites {
		s.Seed = r.Seed + uint64(i)<<32
		site, err := New(s)
		if err != nil {
			return nil, err
		}
		site.allowed = 1
		x.sites = append(x.sites, site)
	}
	return x, nil
}

// step lets the next thing happen, wherever it does.
func (x *ring) step() bool {
	next, at := -1, time.Duration(0)
	for i, s := range x.sites {
		if s.sender.Err() != "" {
			return false
		}
		if s.over() {
			continue
		}
		if d := max(s.NextDeadline(), s.now); next < 0 || d < at {
			next, at = i, d
		}
	}
	if next < 0 {
		return false
	}
	s := x.sites[next]
	posted, completed := s.posted, s.completed
	if !s.Step(1) && s.now >= s.scenario.Until {
		return false
	}
	if s.posted > posted {
		x.begin(s)
	}
	if s.completed > completed {
		x.allow(next, s.now)
		x.allow((next+1)%len(x.sites), s.now)
		x.end(s)
	}
	return true
}

// allow lets a site begin its next stage if both transfers of the stage before have completed.
func (x *ring) allow(i int, now time.Duration) {
	s, before := x.sites[i], x.sites[(i+len(x.sites)-1)%len(x.sites)]
	allowed := min(s.completed, before.completed) + 1
	if allowed > s.allowed && allowed <= s.scenario.Warmup+s.scenario.Messages {
		s.allowed, s.postAt = allowed, max(s.postAt, now)
	}
}

// begin notes when the first site has begun an all-reduce.
func (x *ring) begin(s *Simulation) {
	if n := (s.posted - 1) / x.stages; n == len(x.begun) {
		x.begun = append(x.begun, s.now)
	}
}

// end notes when the last site has ended an all-reduce.
func (x *ring) end(s *Simulation) {
	n := len(x.ended)
	for _, other := range x.sites {
		if other.completed < (n+1)*x.stages {
			return
		}
	}
	x.ended = append(x.ended, s.now)
}

func (x *ring) result() Result {
	r := x.sites[0].Result()
	r.Ideal *= time.Duration(x.stages)
	r.Completions = nil
	for i := x.skip; i < len(x.ended); i++ {
		r.Completions = append(r.Completions, x.ended[i]-x.begun[i])
	}
	for _, s := range x.sites[1:] {
		other := s.Result()
		r.Cost = r.Cost.plus(other.Cost)
		r.Done = r.Done && other.Done
		r.Now = max(r.Now, other.Now)
		r.Wrong += other.Wrong
		if r.Error == "" {
			r.Error = other.Error
		}
	}
	return r
}

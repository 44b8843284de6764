// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"time"

	"crem.dev/crem/agent/fec"
)

const (
	// leaveClean and returnClean are the hysteresis of OnDemand: it leaves m = 0 when p is over 1.2 times the rate up to which one
	// coded round meets the target, and returns when p is under half of it (Section 5.3, rule 4).
	leaveClean  = 1.2
	returnClean = 0.5

	// savedPart of what a block leaves of epsilon is saved up for others. The rest covers what an estimate does not know, and that an incomplete block
	// delays all messages of a round trip.
	savedPart = 0.1
)

// redundancy is the choice of m (Section 5.3).
type redundancy struct {
	byCount [256]choiceOfM // by number of sources
	spare   float64        // what the blocks before left of epsilon
	onRound bool           // OnDemand relies on coded rounds: m = 0
	decided bool           // onRound has been set once
	credit  float64        // part of a symbol that the reaction to congestion still allows
	limit   Why            // what decided the last m
}

// choiceOfM is the smallest m that meets the target, and what it leaves to chance.
type choiceOfM struct {
	m     uint8
	known bool    // computed since the last change
	risk  float32 // of being incomplete, with m symbols
	less  float32 // the same with one fewer, 0 where m is 0
}

// forget drops what was computed: loss estimate, parameters or configuration have changed.
func (r *redundancy) forget() { r.byCount = [256]choiceOfM{} }

// spend takes a block's choice. The smallest m leaves a part of epsilon unused, because symbols are whole: it is saved up until a block can do
// with one symbol fewer. So of all blocks a share of epsilon at most is incomplete, and no symbol is sent beyond that. No more is saved
// than one such block takes.
func (r *redundancy) spend(c *choiceOfM, epsilon float64) int {
	less := float64(c.less)
	r.spare = min(r.spare, less)
	if c.m > 0 && r.spare+epsilon >= less {
		r.spare += epsilon - less
		return int(c.m) - 1
	}
	r.spare += savedPart * (epsilon - float64(c.risk))
	return int(c.m)
}

// epsilon is the target for one block. With MessageSize it is what the blocks of a message may miss each, so that the whole
// message meets Epsilon.
func (f *Flow) epsilon() float64 {
	e := f.params.Epsilon
	if f.params.MessageSize <= 0 {
		return e
	}
	octets := int64(min(max(f.params.K, 1), 255)) * int64(f.announcedMTU())
	blocks := (f.params.MessageSize + octets - 1) / octets
	return -math.Expm1(math.Log1p(-e) / float64(blocks))
}

// needed is the smallest m, up to most, that meets the target for a block of n sources. It weighs how much is known: little
// evidence asks for more.
func (f *Flow) needed(n, most int, e *lossEstimate) int {
	known, burst := e.known(), e.burst()
	if f.params.FixedM >= 0 {
		return min(f.params.FixedM, most)
	}
	if f.params.LossModel == Empirical {
		return fec.MinBurstRepair(n, known.upper(burst), burst, f.epsilon(), most)
	}
	a, b := known.beta()
	return fec.MinRepairGiven(n, a, b, f.epsilon(), most)
}

// risk is the probability that a block of n sources and m symbols loses more than m packets.
func (f *Flow) risk(n, m int, e *lossEstimate) float64 {
	known, burst := e.known(), e.burst()
	if f.params.LossModel == Empirical {
		return fec.BurstTail(n+m, m, known.upper(burst), burst)
	}
	a, b := known.beta()
	return fec.TailGiven(n+m, m, a, b)
}

// targetM is how many ordinary symbols a block of n sources should have. It only reckons with loss; what Section 10 takes off
// comes later.
func (f *Flow) targetM(b *block, n int, cause CloseCause) int {
	r := &f.redundancy
	most, bound := f.mostOrdinary(b), WhyMaxM
	switch {
	case f.breaker.open:
		r.limit = WhyBreaker
		return 0
	case f.params.FixedM >= 0:
		r.limit = WhyFixed
		return min(f.params.FixedM, most)
	case f.params.Strategy == OnDemand && f.relyOnRounds(b.config.k):
		r.limit = WhyOnDemand
		return 0
	}
	c := &r.byCount[n]
	if !c.known {
		f.choose(c, n)
	}
	if few := int(f.params.MaxRepairRatio * float64(n)); few < most && f.onRequest(cause) {
		most, bound = few, WhySparse
	}
	if int(c.m) > most {
		r.limit = bound
		return most
	}
	r.limit = WhyTarget
	return r.spend(c, f.epsilon())
}

// choose computes the choice for a block of n sources.
func (f *Flow) choose(c *choiceOfM, n int) {
	e, _ := f.evidence()
	m := f.needed(n, min(f.params.MaxM+1, maxOrdinary), e) // one more than allowed tells that more is needed
	*c = choiceOfM{m: uint8(m), known: true, risk: float32(f.risk(n, m, e))}
	if m > 0 {
		c.less = float32(f.risk(n, m-1, e))
	}
}

// mostOrdinary is the bound of a block's ordinary symbols. A smaller MaxM acts at once, without a new configuration.
func (f *Flow) mostOrdinary(b *block) int {
	return min(b.config.m, max(f.params.MaxM, f.params.FixedM))
}

// relyOnRounds decides for OnDemand whether one coded round meets the target without ordinary symbols: 1 - (1 - p^2)^k is below
// epsilon.
func (f *Flow) relyOnRounds(k int) bool {
	r := &f.redundancy
	clean := math.Sqrt(-math.Expm1(math.Log1p(-f.epsilon()) / float64(k)))
	switch p := f.lossRate(); {
	case !r.decided:
		r.onRound, r.decided = p < clean, true
	case p > leaveClean*clean:
		r.onRound = false
	case p < returnClean*clean:
		r.onRound = true
	}
	return r.onRound
}

// reduced applies the reaction to congestion on the repair path (Section 10, rule 3): of m symbols it lets through the present
// share, fractions carried over to the next block.
func (f *Flow) reduced(now time.Duration, m int) int {
	share := f.repairPath.shareAt(now, f.rtt.smoothed())
	if share >= 1 {
		f.redundancy.credit = 0
		return m
	}
	c := f.redundancy.credit + share*float64(m)
	n := min(int(c), m)
	f.redundancy.credit = c - float64(n)
	if n < m {
		f.redundancy.limit = WhyCongestion
	}
	return n
}

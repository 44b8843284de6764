// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// ReactionConfig is how an ingress PE answers congestion for a flow. Zero values stand for the defaults of NewReaction.
type ReactionConfig struct {
	Hold      time.Duration // a CNP is in force for this long; 0: 100 ms
	Period    time.Duration // one step of growth: about a round trip; 0: 10 ms
	LeastRate int64         // octets per second that no cut goes below; 0: 1 MB/s
	Burst     time.Duration // of the token bucket at its rate, at least leastBurst octets; 0: 1 ms
}

const (
	leastShare  = 1.0 / 8   // of the repair budget
	earlyShare  = 1.0 / 2   // an early warning leaves this part of the share,
	earlyRate   = 15.0 / 16 // and when the share is at its least, this part of the rate
	severeRate  = 3.0 / 4
	growShare   = 1.0 / 16 // comes back a period, as on the repair path (Section 10, rule 3)
	growRate    = 1.0 / 32 // of the rate before the first cut
	leastBurst  = 64 << 10 // octets
	meterWindow = 10 * time.Millisecond
)

// Reaction is what an ingress PE does about CNPs for one flow (WAN ECN, Ingress PE Action). It only ever takes away: nothing is raised
// above what the flow has without it.
type Reaction struct {
	config ReactionConfig

	warned, congested time.Duration // until when
	share             float64       // of the repair budget, as of grown
	grown             time.Duration

	limited bool
	rate    float64       // octets per second, as of raised
	before  float64       // before the first cut
	raised  time.Duration // growth is reckoned up to here
	tokens  float64
	filled  time.Duration

	meter meter
	stats ReactionStats
}

// ReactionStats is the counters of a Reaction.
type ReactionStats struct {
	Early, Severe uint64 // CNPs acted upon
	RateCuts      uint64
	Freed         uint64 // times that the rate came back to unlimited
	Withheld      uint64 // packets that Take refused
}

// NewReaction returns the reaction of a flow without congestion.
func NewReaction(c ReactionConfig) *Reaction {
	if c.Hold <= 0 {
		c.Hold = 100 * time.Millisecond
	}
	if c.Period <= 0 {
		c.Period = 10 * time.Millisecond
	}
	if c.Burst <= 0 {
		c.Burst = time.Millisecond
	}
	r := &Reaction{config: c, share: 1}
	r.SetLeastRate(c.LeastRate)
	return r
}

// SetLeastRate makes octetsPerSecond what no cut goes below; 0 stands for the default. A limit below it is raised to it at once; with a lower one the next
// cuts go deeper.
func (r *Reaction) SetLeastRate(octetsPerSecond int64) {
	if octetsPerSecond <= 0 {
		octetsPerSecond = 1e6
	}
	r.config.LeastRate = octetsPerSecond
	r.rate = max(r.rate, float64(octetsPerSecond))
}

// Stats returns the counters, alive as long as the reaction.
func (r *Reaction) Stats() *ReactionStats { return &r.stats }

// Handle takes a CNP that a Receiver accepted. Early: the share of the repair budget shrinks; only when it is at its least, the rate is cut
// a little. Severe: all of that at once, a stronger cut, and losses count as congestion.
func (r *Reaction) Handle(now time.Duration, level Level) {
	r.settle(now)
	switch level {
	case LevelEarly:
		r.stats.Early++
		if r.share > leastShare {
			r.share = max(r.share*earlyShare, leastShare)
		} else {
			r.cut(now, earlyRate)
		}
	case LevelSevere:
		r.stats.Severe++
		r.share = leastShare
		r.congested = now + r.config.Hold
		r.cut(now, severeRate)
	default:
		return
	}
	r.warned = now + r.config.Hold
}

// cut multiplies the rate, of the flow's own if it has no limit yet. A flow that sends nothing has nothing to cut.
func (r *Reaction) cut(now time.Duration, factor float64) {
	if !r.limited {
		own := r.meter.rate(now)
		if own <= float64(r.config.LeastRate) {
			return
		}
		r.limited, r.rate, r.before = true, own, own
		r.tokens, r.filled = r.depth(), now
	}
	r.rate = max(r.rate*factor, float64(r.config.LeastRate))
	r.stats.RateCuts++
}

// settle brings share and rate up to now. They grow back linearly, and only while no CNP is in force.
func (r *Reaction) settle(now time.Duration) {
	from := max(r.grown, r.warned)
	if now > from {
		periods := float64(now-from) / float64(r.config.Period)
		r.share = min(r.share+growShare*periods, 1)
	}
	r.grown = max(r.grown, now)
	if r.limited {
		r.grow(now)
	}
}

// grow is the additive increase; once the rate is above what the flow had before the first cut, the limit is gone.
func (r *Reaction) grow(now time.Duration) {
	r.fill(now)
	if from := max(r.raised, r.warned); now > from {
		r.rate += growRate * r.before * float64(now-from) / float64(r.config.Period)
	}
	r.raised = max(r.raised, now)
	if r.rate > r.before {
		r.limited = false
		r.stats.Freed++
	}
}

func (r *Reaction) fill(now time.Duration) {
	if now > r.filled {
		r.tokens = min(r.tokens+r.rate*(now-r.filled).Seconds(), r.depth())
		r.filled = now
	}
}

func (r *Reaction) depth() float64 { return max(r.rate*r.config.Burst.Seconds(), leastBurst) }

// RepairShare returns the part of the repair budget that the flow may use now, from 1/8 to 1.
func (r *Reaction) RepairShare(now time.Duration) float64 {
	r.settle(now)
	return r.share
}

// Warned reports whether a CNP of any level is in force: m must not grow.
func (r *Reaction) Warned(now time.Duration) bool { return now < r.warned }

// Congested reports whether losses count as congestion now.
func (r *Reaction) Congested(now time.Duration) bool { return now < r.congested }

// Rate returns the octets per second that the flow may send into the tunnel now; limited is false if there is no limit.
func (r *Reaction) Rate(now time.Duration) (octetsPerSecond int64, limited bool) {
	r.settle(now)
	if !r.limited {
		return 0, false
	}
	return int64(r.rate), true
}

// Take reports whether a packet of so many octets may be sent now, and takes it off. Every packet of the flow goes through it, since a cut
// starts from the flow's own rate. A packet larger than the bucket goes when that is full.
func (r *Reaction) Take(now time.Duration, octets int) bool {
	r.settle(now)
	if r.limited {
		if r.tokens < min(float64(octets), r.depth()) {
			r.stats.Withheld++
			return false
		}
		r.tokens -= float64(octets)
	}
	r.meter.add(now, octets)
	return true
}

// Observe counts a packet that has left, where somebody else holds the flow to the rate: a cut starts from what the flow sends.
func (r *Reaction) Observe(now time.Duration, octets int) { r.meter.add(now, octets) }

// ReadyAt returns when a packet that Take refuses now will pass, if no CNP comes in between; it may be a little early.
func (r *Reaction) ReadyAt(now time.Duration, octets int) time.Duration {
	r.settle(now)
	missing := min(float64(octets), r.depth()) - r.tokens
	if !r.limited || missing <= 0 {
		return now
	}
	return now + max(time.Duration(missing/r.rate*float64(time.Second)), time.Microsecond)
}

// NextDeadline returns when Congested, Warned or the existence of a limit changes next by itself, roce.Never if nothing is in force.
func (r *Reaction) NextDeadline(now time.Duration) time.Duration {
	r.settle(now)
	next := roce.Never
	for _, at := range [...]time.Duration{r.warned, r.congested} {
		if at > now {
			next = min(next, at)
		}
	}
	if next == roce.Never && r.limited {
		periods := (r.before - r.rate) / (growRate * r.before)
		return now + time.Duration(periods*float64(r.config.Period)) + time.Microsecond
	}
	return next
}

// meter measures a rate over windows of meterWindow.
type meter struct {
	started      bool
	start        time.Duration
	octets       float64
	last, before float64 // octets per second of the last two whole windows
}

func (m *meter) add(now time.Duration, octets int) {
	m.roll(now)
	m.octets += float64(octets)
}

func (m *meter) roll(now time.Duration) {
	if !m.started {
		m.started, m.start = true, now
	}
	span := now - m.start
	if span < meterWindow {
		return
	}
	m.before, m.last = m.last, m.octets/span.Seconds()
	m.octets, m.start = 0, now
}

// rate returns the larger of the last two windows: a cut must not start from the pause between two bursts.
func (m *meter) rate(now time.Duration) float64 {
	if m.started {
		m.roll(now)
	}
	return max(m.last, m.before)
}

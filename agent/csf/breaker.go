// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	// The circuit breaker opens when loss before restoration or CE exceeds these fractions over a second, closes after ten seconds
	// without, and closes the flow after more than a minute with it (Section 10, rule 5).
	breakerLoss    = 0.10
	breakerCE      = 0.50
	breakerWindow  = time.Second
	breakerRecover = 10 * time.Second
	breakerGiveUp  = 60 * time.Second

	// Few packets prove nothing: of 20, two are lost once in four seconds at a loss of 5 %. A window reaches back until it has this many packets, or
	// as many losses or marks as would be a tenth of them, or is as long as the time without. At 5 % it then opens by chance once in some hours.
	breakerEvidence = 400
	breakerTelling  = breakerEvidence * breakerLoss

	// reportsCease SRTTs after the last report nothing is known of the present.
	reportsCease = 2

	// breakerSteps of a window are told apart; reports that cover less are taken together.
	breakerSteps = 32
)

// breaker is the circuit breaker of a flow, in the sense of RFC 8084. With every report it looks at the newest ones that together cover
// a second, more for a slow flow: whichever second it is in which the condition holds, it shows as soon as that is over.
type breaker struct {
	open bool

	// A ring of steps, of which n are in use from first on. All but the newest are full, and twice breakerSteps full ones are a window.
	steps    [2*breakerSteps + 2]sample
	first, n int
	sum      sample

	judged bool          // there was a window
	bad    bool          // the condition holds
	since  time.Duration // so long
	seen   time.Duration // the last report came
	excess float64       // of it, over the threshold
}

// sample is what LOSS_REPORTs say.
type sample struct {
	span                         time.Duration
	expected, lost, received, ce uint64
}

func (s *sample) add(x *sample) {
	s.span += x.span
	s.expected += x.expected
	s.lost += x.lost
	s.received += x.received
	s.ce += x.ce
}

// part is what the first d of a sample hold, as if it were the same all the time.
func (s *sample) part(d time.Duration) sample {
	share := min(float64(d)/float64(s.span), 1)
	of := func(n uint64) uint64 { return uint64(share * float64(n)) }
	return sample{span: min(d, s.span), expected: of(s.expected), lost: of(s.lost), received: of(s.received), ce: of(s.ce)}
}

func (s *sample) subtract(x *sample) {
	s.span -= x.span
	s.expected -= x.expected
	s.lost -= x.lost
	s.received -= x.received
	s.ce -= x.ce
}

// window reports whether the reports say enough.
func (s *sample) window() bool {
	return s.span >= breakerWindow && (s.expected >= breakerEvidence || s.telling() || s.span >= breakerRecover)
}

// full reports whether the reports are a whole step.
func (s *sample) full() bool {
	return s.span >= breakerWindow/breakerSteps && (s.expected >= breakerEvidence/breakerSteps || s.span >= breakerRecover/breakerSteps)
}

func (s *sample) telling() bool { return max(s.lost, s.ce) >= breakerTelling }

// impaired is the condition.
func (s *sample) impaired() bool { return s.telling() && s.excess() > 0 }

// excess is how far the loss or the marks are over their threshold, of the packets.
func (s *sample) excess() float64 {
	return max(float64(s.lost)/float64(max(s.expected, 1))-breakerLoss, float64(s.ce)/float64(max(s.received, 1))-breakerCE)
}

// verdict is what a report does to the breaker.
type verdict uint8

const (
	unchanged verdict = iota
	opened
	recovered
	persistent
)

// add takes a LOSS_REPORT that came now.
func (b *breaker) add(now time.Duration, m *wire.LossReport) verdict {
	b.slide(&sample{
		span: time.Duration(m.Interval) * time.Microsecond, expected: uint64(m.Expected), lost: uint64(lostOf(m)), received: uint64(m.Received), ce: uint64(m.CEMarked),
	})
	newest := b.newest()
	if !newest.window() {
		return unchanged
	}
	b.judge(now, newest.impaired(), newest.excess())
	switch lasted := now - b.since; {
	case b.bad && !b.open:
		b.open = true
		return opened
	case b.bad && lasted > breakerGiveUp:
		return persistent
	case b.recover(now):
		return recovered
	}
	return unchanged
}

// judge notes whether the condition holds. It began or ended between two reports; when, follows from how far each is off the threshold.
func (b *breaker) judge(now time.Duration, bad bool, excess float64) {
	if !b.judged || bad != b.bad {
		b.since = now
		if b.judged && (excess > 0) != (b.excess > 0) {
			b.since -= time.Duration(float64(now-b.seen) * excess / (excess - b.excess))
		}
		b.judged, b.bad = true, bad
	}
	b.seen, b.excess = now, excess
}

// recover closes the breaker when the condition has been absent for long enough.
func (b *breaker) recover(now time.Duration) bool {
	if now < b.recovers() {
		return false
	}
	b.open = false
	return true
}

// recovers is when the breaker closes if the condition stays absent, roce.Never while it holds.
func (b *breaker) recovers() time.Duration {
	if !b.open || b.bad {
		return roce.Never
	}
	return b.since + breakerRecover
}

// pollBreaker closes the breaker between two reports; without any of late it waits for one.
func (f *Flow) pollBreaker(now time.Duration) {
	b := &f.breaker
	if now-b.seen < reportsCease*f.rtt.smoothed() && b.recover(now) {
		f.settle()
	}
}

// breakerDeadline is when pollBreaker may have something to do.
func (f *Flow) breakerDeadline() time.Duration {
	if at := f.breaker.recovers(); at-f.breaker.seen < reportsCease*f.rtt.smoothed() {
		return at
	}
	return roce.Never
}

// newest is the newest second of what the reports say, as exactly as their intervals tell, or as much more as it takes to tell.
func (b *breaker) newest() sample {
	over := b.sum.span - breakerWindow
	if over <= 0 {
		return b.sum
	}
	rest, oldest := b.sum, b.at(0).part(over)
	if rest.subtract(&oldest); rest.window() {
		return rest
	}
	return b.sum
}

// slide moves the window on to a report: the oldest steps that it does not need go.
func (b *breaker) slide(x *sample) {
	if newest := b.at(b.n - 1); b.n > 0 && !newest.full() {
		newest.add(x)
	} else {
		*b.at(b.n) = *x
		b.n++
	}
	b.sum.add(x)
	for b.n > 1 {
		rest := b.sum
		if rest.subtract(b.at(0)); !rest.window() {
			return
		}
		b.sum = rest
		b.first = (b.first + 1) % len(b.steps)
		b.n--
	}
}

// at returns the i-th step, oldest first.
func (b *breaker) at(i int) *sample { return &b.steps[(b.first+i+len(b.steps))%len(b.steps)] }

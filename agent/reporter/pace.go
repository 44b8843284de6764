// SPDX-License-Identifier: Apache-2.0

package reporter

import "time"

const (
	// aggregation is how long what happens to a flow is gathered before it is reported (Section 8.2, rule 3).
	aggregation = 50 * time.Microsecond
	// usualGap is the least time between two reports about a flow, dropGap the same when a drop has occurred.
	usualGap = 10 * time.Millisecond
	dropGap  = 100 * time.Microsecond
	// burstOf is the part of a second whose reports a port may send at once.
	burstOf = 10
)

// paced says when a flow was reported last.
type paced struct {
	at time.Duration
}

// due is when a report may leave whose first event was at a time.
func (p *paced) due(since time.Duration, drop bool) time.Duration {
	gap := usualGap
	if drop {
		gap = dropGap
	}
	return max(since+aggregation, p.at+gap)
}

func (p *paced) sent(now time.Duration) { p.at = now }

// bucket is a token bucket of reports.
type bucket struct {
	perSecond, burst float64
	tokens           float64
	filled           time.Duration
}

func newBucket(perSecond float64) bucket {
	burst := max(perSecond/burstOf, 1)
	return bucket{perSecond: perSecond, burst: burst, tokens: burst}
}

// take reports whether a report may leave now; else wait is how long none may.
func (b *bucket) take(now time.Duration) (wait time.Duration, ok bool) {
	if now > b.filled {
		b.tokens = min(b.tokens+b.perSecond*(now-b.filled).Seconds(), b.burst)
		b.filled = now
	}
	if b.tokens >= 1 {
		b.tokens--
		return 0, true
	}
	return max(time.Duration((1-b.tokens)/b.perSecond*float64(time.Second)), time.Microsecond), false
}

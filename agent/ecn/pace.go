// SPDX-License-Identifier: Apache-2.0

package ecn

import "time"

// paced limits what happens for one flow: each level once in an interval, so that a severe one need not wait for an early one.
type paced struct {
	level Level         // of the last one
	until time.Duration // no other of that level or below before
}

// allows reports whether level may happen now, and remembers that it does.
func (p *paced) allows(now time.Duration, level Level, every time.Duration) bool {
	if now < p.until && level <= p.level {
		return false
	}
	p.level, p.until = level, now+every
	return true
}

// bucket is a token bucket of events.
type bucket struct {
	perSecond float64
	burst     float64
	tokens    float64
	filled    time.Duration
	any       bool
}

func (b *bucket) take(now time.Duration) bool {
	if !b.any {
		b.any, b.tokens, b.filled = true, b.burst, now
	}
	if now > b.filled {
		b.tokens = min(b.tokens+b.perSecond*(now-b.filled).Seconds(), b.burst)
		b.filled = now
	}
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// pacer keeps repair messages at no more than the flow's own rate (Section 10, rule 4): a bucket that holds at most four symbols
// and may go below zero by one message. Every source packet pours its own octets in, so that a batch of packets which carry one
// time lets its repairs out between them. While no packet comes, the bucket fills at the rate of the busiest sixteenth of the last
// SRTT in which the flow sent; what time has poured in since the last packet is taken off the next one.
type pacer struct {
	tokens float64 // octets
	timed  float64 // of these, poured in by time since the last source packet
	filled time.Duration
}

// pour takes the octets of a source packet.
func (p *pacer) pour(now time.Duration, octets, depth float64) {
	p.tokens = min(p.tokens+max(octets-p.timed, 0), depth)
	p.timed, p.filled = 0, now
}

// paced reports whether a message may leave now. If not, it arms the deadline at which one may.
func (f *Flow) paced(now time.Duration) bool {
	depth := float64(f.leastBudget())
	f.window.measure(now, f.rtt.smoothed())
	rate := max(f.window.rate, depth/f.rtt.smoothed().Seconds())
	p := &f.pacer
	poured := rate * (now - p.filled).Seconds()
	p.tokens, p.timed, p.filled = min(p.tokens+poured, depth), p.timed+poured, now
	if p.tokens > 0 {
		return true
	}
	wait := time.Duration(-p.tokens / rate * float64(time.Second))
	f.sendAt = now + max(wait, time.Microsecond)
	return false
}

// pump sends what waits, answers first, then what was reported dropped, as far as pacing and budgets let it.
func (f *Flow) pump(now time.Duration, acts *[]Action) {
	f.sendAt = roce.Never
	for len(f.answers) > 0 {
		if !f.paced(now) {
			return
		}
		f.sendAnswer(now, acts)
	}
	for len(f.early) > 0 {
		if !f.paced(now) {
			return
		}
		f.sendEarly(now, f.early[0], acts)
	}
	for len(f.queue) > 0 {
		b := f.queue[0]
		if b.sent == b.released {
			return
		}
		if !f.paced(now) {
			return
		}
		f.sendOrdinary(now, b, acts)
	}
}

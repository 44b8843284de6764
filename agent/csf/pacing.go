// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// pacer keeps repair messages at no more than the flow's own rate (Section 10, rule 4): a bucket that holds at most four
// symbols, fills at the rate of the busiest sixteenth of the last SRTT in which the flow sent, and may go below zero by one
// message.
type pacer struct {
	tokens float64 // octets
	filled time.Duration
}

// paced reports whether a message may leave now. If not, it arms the deadline at which one may.
func (f *Flow) paced(now time.Duration) bool {
	burst := float64(floorSymbols * f.symbolSize())
	f.window.measure(now, f.rtt.smoothed())
	rate := max(f.window.rate, burst/f.rtt.smoothed().Seconds())
	p := &f.pacer
	p.tokens = min(p.tokens+rate*(now-p.filled).Seconds(), burst)
	p.filled = now
	if p.tokens > 0 {
		return true
	}
	wait := time.Duration(-p.tokens / rate * float64(time.Second))
	f.sendAt = now + max(wait, time.Microsecond)
	return false
}

// pump sends what waits, answers first, as far as pacing and budgets let it.
func (f *Flow) pump(now time.Duration, acts *[]Action) {
	f.sendAt = roce.Never
	for len(f.answers) > 0 {
		if !f.paced(now) {
			return
		}
		f.sendAnswer(now, acts)
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

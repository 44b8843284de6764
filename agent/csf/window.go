// SPDX-License-Identifier: Apache-2.0

package csf

import "time"

const (
	slotsPerRTT = 16
	maxSlots    = 2 * slotsPerRTT
)

// slot is what a flow sent during a sixteenth of an SRTT.
type slot struct {
	start, end, last time.Duration // begins, is over, had its last event
	source           int64         // octets of source packets
	ordinary         int64         // octets of ordinary repair symbols
	answers          int64         // octets of answers to requests
	demand           int64         // octets that requests asked for
}

// window is the recent past of a flow, slot by slot, oldest first. It answers what was sent in the last SRTT, and errs on the
// safe side: of a slot that is only partly inside, repairs count and sources do not.
type window struct {
	slots [maxSlots]slot
	n     int
	rate  float64 // source octets per second of the busiest slot of the last SRTT in which anything was sent
}

// at returns the slot for an event now.
func (w *window) at(now, srtt time.Duration) *slot {
	if w.n > 0 {
		if s := &w.slots[w.n-1]; now < s.end {
			s.last = now
			return s
		}
		w.measure(now, srtt)
	}
	if w.n == maxSlots {
		w.drop(now, srtt)
	}
	s := &w.slots[w.n]
	w.n++
	*s = slot{start: now, last: now, end: now + max(srtt/slotsPerRTT, time.Microsecond)}
	return s
}

// drop makes room for a slot: the oldest goes if it is past, else it is merged with the next.
func (w *window) drop(now, srtt time.Duration) {
	a, b := &w.slots[0], &w.slots[1]
	if a.last > now-srtt {
		b.start = a.start
		b.source += a.source
		b.ordinary += a.ordinary
		b.answers += a.answers
		b.demand += a.demand
	}
	copy(w.slots[:], w.slots[1:])
	w.n--
}

// measure brings the rate up to date. While the flow is silent the rate stays what it was.
func (w *window) measure(now, srtt time.Duration) {
	most := 0.0
	for i := range w.slots[:w.n] {
		if s := &w.slots[i]; s.last > now-srtt && s.end <= now {
			most = max(most, float64(s.source)/(s.end-s.start).Seconds())
		}
	}
	if most > 0 {
		w.rate = most
	}
}

// sum is the octets of the last SRTT.
func (w *window) sum(now, srtt time.Duration) (t slot) {
	for i := range w.slots[:w.n] {
		s := &w.slots[i]
		if s.last <= now-srtt {
			continue
		}
		if s.start > now-srtt {
			t.source += s.source
		}
		t.ordinary += s.ordinary
		t.answers += s.answers
		t.demand += s.demand
	}
	return t
}

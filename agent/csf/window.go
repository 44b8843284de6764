// SPDX-License-Identifier: Apache-2.0

package csf

import "time"

const (
	slotsPerRTT = 16
	maxSlots    = 4 * slotsPerRTT
)

// slot is what a flow sent during a sixteenth of an SRTT, or during a part of one in which it sent much: a flow that sends in short bursts would have
// all of a burst in one slot.
type slot struct {
	begin, end  time.Duration // of the sixteenth
	start, last time.Duration // first and last event
	source      int64         // octets of source packets
	ordinary    int64         // octets of ordinary repair symbols
	answers     int64         // octets of answers to requests
	demand      int64         // octets that requests asked for
}

// window is the recent past of a flow, slot by slot, oldest first, two SRTTs long, since SRTT may grow. It answers what was sent in the last SRTT, and errs on the
// safe side: of a slot that is only partly inside, repairs count and sources do not.
type window struct {
	slots [maxSlots]slot
	n     int
	most  int64   // source octets after which a slot is over before its time: a sixteenth of an SRTT's, from two SRTTs; 0: there were none
	rate  float64 // source octets per second of the busiest sixteenth of the last SRTT in which anything was sent
}

// at returns the slot for an event now.
func (w *window) at(now, srtt time.Duration) *slot {
	next := slot{begin: now, end: now + max(srtt/slotsPerRTT, time.Microsecond), start: now, last: now}
	if w.n > 0 {
		s := &w.slots[w.n-1]
		switch {
		case now >= s.end:
			w.measure(now, srtt)
			w.most = w.sum(now, 2*srtt).source / (2 * slotsPerRTT)
		case w.most == 0 || s.source < w.most:
			s.last = now
			return s
		default:
			next.begin, next.end = s.begin, s.end
		}
	}
	if w.n == maxSlots {
		w.drop(now, srtt)
	}
	s := &w.slots[w.n]
	w.n++
	*s = next
	return s
}

// drop makes room for a slot: the oldest goes if all of it is two SRTTs ago, else two neighbours become one; not one of the last SRTT
// with one before it, whose repairs would then count again.
func (w *window) drop(now, srtt time.Duration) {
	i := 0
	switch past := now - srtt; {
	case w.slots[0].last <= past-srtt:
		copy(w.slots[:], w.slots[1:])
		w.n--
		return
	case w.slots[0].last <= past && w.slots[1].last > past:
		i = 1
	}
	a, b := &w.slots[i], &w.slots[i+1]
	b.begin, b.start = a.begin, a.start
	b.source += a.source
	b.ordinary += a.ordinary
	b.answers += a.answers
	b.demand += a.demand
	copy(w.slots[i:], w.slots[i+1:])
	w.n--
}

// measure brings the rate up to date. While the flow is silent the rate stays what it was.
func (w *window) measure(now, srtt time.Duration) {
	most := 0.0
	for i := 0; i < w.n; {
		first, last, source := &w.slots[i], time.Duration(0), int64(0)
		for ; i < w.n && w.slots[i].begin == first.begin; i++ {
			last = w.slots[i].last
			source += w.slots[i].source
		}
		if last > now-srtt && first.end <= now {
			most = max(most, float64(source)/(first.end-first.begin).Seconds())
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

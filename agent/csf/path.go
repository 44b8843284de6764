// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/wire"
)

const (
	// reporters is how many measurement points of a flow's path are told apart.
	reporters = wire.MaxHops
	// periodLives is how long a marking period of a measurement point is remembered: one that counts anew after a restart is
	// believed again then.
	periodLives = 10 * time.Second
	// risePart of SRTT, and at least leastRise, is a rise of queueing delay that means congestion (Section 5.3, rule 2).
	risePart  = 10
	leastRise = 100 * time.Microsecond
)

// path is what PATH_REPORTs said of the flow's path lately (Section 8.2). It only ever makes loss count as congestion: it influences
// redundancy, and never what the CSF deems delivered.
type path struct {
	periods [reporters]period
	until   time.Duration // a report is in force until then: one SRTT
	rise    bool          // one of those in force told of a rise of queueing delay
	counted float64       // packets lost by congestion, as counted by those in force, that no LOSS_REPORT has accounted for
}

// period is the newest marking period that a measurement point reported, and how many lost packets of it were counted so far.
type period struct {
	node, number uint32
	method       wire.Method // a node may count its drops and measure, each with numbers of its own
	lost         uint32
	at           time.Duration
	known        bool
}

// HandlePathReport takes a PATH_REPORT about the flow from one of the domain's reporters, which the engine has checked. What is late or
// repeated changes nothing but counters.
func (f *Flow) HandlePathReport(now time.Duration, _ netip.AddrPort, m *wire.PathReport, acts *[]Action) {
	f.stats.PathReports++
	srtt := f.rtt.smoothed()
	for i := range m.Hops[:m.HopCount] {
		h := &m.Hops[i]
		lost, fresh := f.path.news(now, m.Method, h)
		if !fresh {
			f.stats.PathOutdated++
			continue
		}
		f.path.take(now, srtt, h, lost)
		f.handleDrops(now, h)
	}
	f.pump(now, acts)
}

// news is how many lost packets a Hop Entry adds to what its node said before. A Lost Count is that of a whole marking period, so another
// report about the same period adds the difference. Fresh is false for an entry that adds nothing to the same period, or is about an earlier
// one. With no place left the node that was silent for longest is forgotten.
func (p *path) news(now time.Duration, method wire.Method, h *wire.Hop) (lost uint32, fresh bool) {
	lost = max(h.Lost, uint32(h.PSNs.Len()))
	q := p.place(h.NodeID, method)
	before := uint32(0)
	if q.is(h.NodeID, method) && now-q.at < periodLives {
		switch later := int32(h.Period - q.number); {
		case later < 0 || later == 0 && lost <= q.lost:
			return 0, false
		case later == 0:
			before = q.lost
		}
	}
	*q = period{node: h.NodeID, method: method, number: h.Period, lost: lost, at: now, known: true}
	return lost - before, true
}

// is reports whether the period is one of a node, by a method.
func (q *period) is(node uint32, method wire.Method) bool {
	return q.known && q.node == node && q.method == method
}

// place is where the period of a node is, or may be put.
func (p *path) place(node uint32, method wire.Method) *period {
	place := &p.periods[0]
	for i := range p.periods {
		q := &p.periods[i]
		switch {
		case q.is(node, method):
			return q
		case place.known && (!q.known || q.at < place.at):
			place = q
		}
	}
	return place
}

// take notes what a Hop Entry says of congestion. lost is what it adds.
func (p *path) take(now, srtt time.Duration, h *wire.Hop, lost uint32) {
	rise := time.Duration(h.DelayChange)*time.Microsecond > max(srtt/risePart, leastRise)
	congestion := h.Cause == wire.CauseCongestion && lost > 0
	if !rise && !congestion {
		return
	}
	p.expire(now)
	p.until = now + srtt
	p.rise = p.rise || rise
	if congestion {
		p.counted += float64(lost)
	}
}

// expire forgets what was said more than an SRTT ago.
func (p *path) expire(now time.Duration) {
	if now >= p.until {
		p.rise, p.counted = false, 0
	}
}

// transmission is how many of the packets that a LOSS_REPORT misses were lost by transmission. congested is true if all of them count as
// lost by congestion; where reports gave counts only the remainder is left (Section 5.3, rule 2).
func (p *path) transmission(now time.Duration, lost uint32) (remainder uint32, congested bool) {
	p.expire(now)
	if p.counted == 0 {
		return lost, p.rise
	}
	byCongestion := min(p.counted, float64(lost))
	p.counted -= byCongestion
	return lost - uint32(byCongestion), false
}

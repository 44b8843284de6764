// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math"
	"time"

	"crem.dev/crem/agent/wire"
)

// Counters are totals of a port, as its interface and queues have them: packets that passed it and packets that it dropped.
type Counters struct{ Passed, Dropped uint64 }

// port is the last counters that were read.
type port struct {
	last  Counters
	known bool
}

// Count takes packets of a flow that passed the port.
func (r *Reporter) Count(k Flow, packets int) {
	if !valid(&k) || packets < 0 {
		r.drop(DropMalformed)
		return
	}
	r.flow(k).packets += uint64(packets)
}

// HandleCounters takes the port's counters. What it dropped since the last ones is shared out among the flows by their part of what it passed:
// a queue does not tell whose packets it drops. Parts of a packet add up over time. Cause: queue overflow.
func (r *Reporter) HandleCounters(now time.Duration, c Counters) {
	last := r.port.last
	first := !r.port.known
	r.port.last, r.port.known = c, true
	if first {
		r.forgetPackets()
		return
	}
	if c.Passed < last.Passed || c.Dropped < last.Dropped {
		r.stats.PortRestarts++
		r.forgetPackets()
		return
	}
	passed, dropped := c.Passed-last.Passed, c.Dropped-last.Dropped
	r.stats.PortDropped += dropped
	for k, f := range r.flows.All {
		if dropped > 0 && f.packets > 0 {
			r.attribute(now, k, f, float64(dropped), max(float64(passed), float64(f.packets)))
		}
		f.packets = 0
	}
}

// attribute gives a flow its part of the packets that the port dropped, at most as many as it sent.
func (r *Reporter) attribute(now time.Duration, k Flow, f *flow, dropped, passed float64) {
	share := min(dropped*float64(f.packets)/passed, math.MaxUint32)
	f.share += share
	lost := uint32(min(f.share, math.MaxUint32))
	if lost == 0 {
		return
	}
	f.share -= float64(lost)
	if r.lose(now, k, f, lost, wire.CauseCongestion) {
		r.stats.Attributed += uint64(lost)
	}
}

// forgetPackets begins a new reading.
func (r *Reporter) forgetPackets() {
	for _, f := range r.flows.All {
		f.packets = 0
	}
}

// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"time"

	"crem.dev/crem/agent/wire"
)

// Merge takes the Hop Entries of a report that came from further down the path and is on its way to the CSF (Section 8.2, rule 3). It
// returns false if it cannot take all of them: then the caller forwards the report as it is. No entry is ever cut.
func (r *Reporter) Merge(now time.Duration, x *wire.PathReport) bool {
	k := Flow{Src: x.Src, Dst: x.Dst, Label: x.Label & labelMask}
	if !valid(&k) || x.Method < wire.MethodAlternateMarking || x.Method > wire.MethodNodeDrops || x.HopCount == 0 {
		r.drop(DropMalformed)
		return false
	}
	need, drop := 0, false
	for i := range x.Hops[:x.HopCount] {
		h := &x.Hops[i]
		if h.NodeID == r.config.Node {
			r.drop(DropOwnNode)
			return false
		}
		need += entryOctets + len(h.PSNs)
		drop = drop || h.Lost > 0 || h.PSNs.Len() > 0
	}
	p := r.report(now, k, r.flow(k), x.Method)
	if p == nil {
		return false
	}
	if need > p.room || p.n+x.HopCount > wire.MaxHops {
		r.drop(DropForwarded)
		if p.n == 0 {
			r.end(p)
		}
		return false
	}
	for i := range x.Hops[:x.HopCount] {
		h := &x.Hops[i]
		hop := p.entry(*h, false)
		for j := range h.PSNs.Len() {
			p.name(hop, h.PSNs.At(j))
		}
	}
	p.truncated = p.truncated || x.Truncated
	r.stats.Merged += uint64(x.HopCount)
	r.arm(p, drop)
	return true
}

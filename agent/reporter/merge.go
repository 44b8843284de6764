// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"time"

	"crem.dev/crem/agent/wire"
)

// Merge takes the Hop Entries of a report that came from further down the path and is on its way to the CSF (Section 8.2, rule 3). It
// returns false if it cannot take all of them: then the report may go on as it is (Forward). Dropped PSNs are cut only if the report would not
// fit the path MTU by itself.
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
	if overhead(&k)+need > r.config.MTU {
		need = entryOctets * x.HopCount
	}
	if need > p.room || p.n+x.HopCount > wire.MaxHops {
		r.drop(DropForwarded) // p is not empty: one that is has room for every entry (leastMTU)
		return false
	}
	first := p.n
	for i := range x.Hops[:x.HopCount] {
		p.entry(x.Hops[i], false)
	}
	for i := range x.Hops[:x.HopCount] {
		r.nameAll(p, first+i, x.Hops[i].PSNs)
	}
	p.truncated = p.truncated || x.Truncated
	r.stats.Merged += uint64(x.HopCount)
	r.arm(p, drop)
	return true
}

// nameAll adds the dropped PSNs of an entry of another report, as far as they fit.
func (r *Reporter) nameAll(p *report, hop int, psns wire.PSNList) {
	for i := range psns.Len() {
		if !p.name(hop, psns.At(i)) {
			r.drop(DropTruncated)
		}
	}
}

// Forward reports whether a report that Merge did not take may go on to the CSF as it is: one that names this node came from here, and the limits
// of the flow and the port hold for it as for a report of this node's own.
func (r *Reporter) Forward(now time.Duration, x *wire.PathReport) bool {
	k := Flow{Src: x.Src, Dst: x.Dst, Label: x.Label & labelMask}
	octets, drop := overhead(&k), false
	for i := range x.Hops[:x.HopCount] {
		h := &x.Hops[i]
		octets += entryOctets + len(h.PSNs)
		drop = drop || h.Lost > 0 || h.PSNs.Len() > 0
		if h.NodeID == r.config.Node {
			return false // counted by Merge
		}
	}
	switch {
	case !valid(&k) || x.HopCount == 0:
		return false // counted by Merge
	case octets > r.config.MTU:
		r.drop(DropTooLong)
		return false
	}
	f := r.flow(k)
	if now < f.due(now-aggregation, drop) {
		r.drop(DropPaced)
		return false
	}
	if _, ok := r.limit.take(now); !ok {
		r.drop(DropPaced)
		return false
	}
	f.sent(now)
	r.stats.Forwarded++
	return true
}

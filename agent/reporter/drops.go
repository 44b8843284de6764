// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// HandleDrop takes a packet of a flow that the node itself dropped.
func (r *Reporter) HandleDrop(now time.Duration, k Flow, psn roce.PSN, cause wire.Cause) {
	if !valid(&k) {
		r.drop(DropMalformed)
		return
	}
	r.stats.Dropped++
	p, hop := r.ownEntry(now, k, r.flow(k), cause)
	if p == nil {
		return
	}
	p.lose(hop, 1)
	if !p.name(hop, psn) {
		r.drop(DropTruncated)
	}
	r.arm(p, true)
}

// lose adds dropped packets of a flow whose PSNs nobody knows.
func (r *Reporter) lose(now time.Duration, k Flow, f *flow, lost uint32, cause wire.Cause) bool {
	p, hop := r.ownEntry(now, k, f, cause)
	if p == nil {
		return false
	}
	p.lose(hop, lost)
	r.arm(p, true)
	return true
}

// ownEntry returns the report about the node's own drops and its entry for a cause, nil if there is no place for it.
func (r *Reporter) ownEntry(now time.Duration, k Flow, f *flow, cause wire.Cause) (*report, int) {
	if cause > wire.CausePolicy {
		cause = wire.CauseUnknown
	}
	p := r.report(now, k, f, wire.MethodNodeDrops)
	if p == nil {
		return nil, 0
	}
	hop := p.ownEntry(r.config.Node, cause)
	if hop < 0 {
		r.drop(DropPending)
		return nil, 0
	}
	return p, hop
}

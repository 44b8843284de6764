// SPDX-License-Identifier: Apache-2.0

package crf

import "crem.dev/crem/agent/roce"

// kernel is the hold program of one flow (docs/design/seams.md): it passes packets in order, holds them after a gap.
type kernel struct {
	hold, learn, inside bool
	expected            roce.PSN
	held                uint64
	failOpen            bool // ring full or stale heartbeat: everything passes
	missed              bool // something has passed without a copy since the last copy
	response            bool
	immediate           bool
	from, to            roce.PSN // PSNs that responses will use
}

// judge returns whether the packet is held, and whether a copy is in the ring.
func (k *kernel) judge(p *roce.Packet, mtu int) (gaveUp, copied bool) {
	n := roce.Advance(p, mtu)
	ahead := p.PSN().Sub(k.expected)
	switch {
	case k.failOpen:
		k.missed = true
		if !k.immediate && (k.learn || ahead >= 0) {
			k.expected, k.hold, k.learn = p.PSN().Add(n), false, false
		}
		return false, false
	case k.immediate:
		return false, true
	case !k.learn && ahead < 0:
		return false, true
	case !k.learn && (k.hold || ahead > 0 && (!k.response || k.inside || !p.Opcode().Starts() || k.sure(ahead))):
		k.hold = true
		k.held++
		return true, true
	}
	k.learn = false
	k.expected = p.PSN().Add(n)
	k.inside = !p.Opcode().Ends()
	return false, true
}

// sure says that responses use one of the next n PSNs.
func (k *kernel) sure(n int) bool {
	for p := k.from; p != k.to; p = p.Add(1) {
		if d := p.Sub(k.expected); d >= 0 && d < n {
			return true
		}
	}
	return false
}

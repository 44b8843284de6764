// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"time"
)

// Limits on what one address may ask for (Section 11; docs/protocol.md: 512 new flows a second, bursts of 1024, 4096 flows in all). Over
// them: silence.
const (
	helloRate     = 512
	helloBurst    = 1024
	flowsPerPeer  = 4096
	rememberPeers = 65536
)

type peerLimit struct {
	tokens float64
	last   time.Duration
	flows  int
}

// helloLimits counts HELLOs and flows by sender address.
type helloLimits struct{ peers map[netip.Addr]*peerLimit }

func newHelloLimits() helloLimits { return helloLimits{peers: make(map[netip.Addr]*peerLimit)} }

// admit reports whether from may open one more flow now, and takes a token if so.
func (h *helloLimits) admit(now time.Duration, from netip.Addr) bool {
	p := h.peers[from]
	if p == nil {
		if len(h.peers) >= rememberPeers {
			h.expire(now)
		}
		if len(h.peers) >= rememberPeers {
			return false
		}
		p = &peerLimit{tokens: helloBurst, last: now}
		h.peers[from] = p
	}
	p.tokens = min(helloBurst, p.tokens+(now-p.last).Seconds()*helloRate)
	p.last = now
	if p.tokens < 1 || p.flows >= flowsPerPeer {
		return false
	}
	p.tokens--
	p.flows++
	return true
}

// done takes a flow of from off the count.
func (h *helloLimits) done(from netip.Addr) {
	if p := h.peers[from]; p != nil && p.flows > 0 {
		p.flows--
	}
}

func (h *helloLimits) expire(now time.Duration) {
	for a, p := range h.peers {
		if p.flows == 0 && now-p.last > time.Minute {
			delete(h.peers, a)
		}
	}
}

// bucket is a token bucket: rate tokens a second, burst at most.
type bucket struct {
	rate, burst, tokens float64
	last                time.Duration
}

func (b *bucket) take(now time.Duration) bool {
	b.tokens = min(b.burst, b.tokens+(now-b.last).Seconds()*b.rate)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

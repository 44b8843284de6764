// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/fec"
)

// Strategy says when repair symbols are sent (Section 5.3, rule 4).
type Strategy uint8

const (
	// Proactive sends as many symbols with every block as the loss rate asks for.
	Proactive Strategy = iota
	// OnDemand sends none as long as one round of coded retransmission meets Epsilon.
	OnDemand
)

// String returns the strategy as a CREMProfile writes it.
func (s Strategy) String() string {
	if s == OnDemand {
		return "OnDemand"
	}
	return "Proactive"
}

// LossModel says how the number of lost packets of a block is distributed (Section 5.3, rule 5).
type LossModel uint8

const (
	// Independent means losses without memory: binomial.
	Independent LossModel = iota
	// Empirical means as dispersed as the LOSS_REPORTs show them to be, for bursty paths.
	Empirical
)

// String returns the model as a CREMProfile writes it.
func (l LossModel) String() string {
	if l == Empirical {
		return "Empirical"
	}
	return "Independent"
}

// Params is what an operator can set about the sender's side. It is immutable and replaced whole (Flow.SetParams); several
// flows and workers may share one.
type Params struct {
	K    int // positions of a block, 1 to 255
	MaxM int // most ordinary repair symbols of a block

	// Epsilon is the probability, in (0,1), with which a block may lose more packets than it has repair symbols. With
	// MessageSize (octets, 0: not set) it is the probability for a whole message of that size.
	Epsilon     float64
	MessageSize int64

	// Schemes in order of preference. Empty means Cauchy. SourceCopy is always understood; named here it means no coding.
	Schemes []fec.Scheme

	Strategy  Strategy
	LossModel LossModel

	// MaxRepairRatio bounds repair octets by source octets in any SRTT (Section 10, rule 1).
	MaxRepairRatio float64

	Spread bool // spread a block's repair symbols over the next block's packets
	Digest bool // offer the block digest

	// LeastBurstGap raises burstGap to what the packet source can tell: copies that come in batches a millisecond apart would
	// end a block with every batch. 0: no raise.
	LeastBurstGap time.Duration

	// PathMTU is the IP MTU towards the peer, TunnelOverhead what a tunnel (ESP) adds to each datagram, both in octets. A
	// REPAIR must fit with the don't-fragment bit set, otherwise the flow is not protected.
	PathMTU        int
	TunnelOverhead int

	// FixedM, if not negative, is the number of ordinary symbols of every block, whatever the loss rate is. The limits of
	// Section 10 hold all the same. -1: adaptive.
	FixedM int

	// PeerSite names the site of the peer. Flows with the same PeerSite, and the same Env or Env.Site, share what they learn about the path's
	// loss, so that a new flow starts from it. Empty: nothing is shared.
	PeerSite string
}

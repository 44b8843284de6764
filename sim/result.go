// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// Result is what came of a scenario. Counters are totals of all transfers, warm-up included, unless they say otherwise. Octets are those
// on the wire, headers included, unless they say otherwise.
type Result struct {
	Done  bool          // all transfers have completed
	Error string        // why the connection has failed; empty if it has not
	Now   time.Duration // virtual time at the end
	Began time.Duration // virtual time at the end of the warm-up
	// Ideal is how long a transfer takes on the same link without loss, repair and other traffic.
	Ideal time.Duration
	// Completions is how long each transfer that counts took, from post to completion, in the order of the posts.
	Completions []time.Duration

	Sender   endpoint.SenderStats
	Receiver endpoint.ReceiverStats
	Link     world.Stats
	Back     world.Stats

	// Cost is of the transfers that count alone.
	Cost Cost

	// With CREM.
	Peak  Memory // the most memory that the gateways had in use
	Wrong uint64 // packets that the receiver got from CREM and no sender had sent: must be 0
	CSF   csf.Stats
	CRF   crf.Stats
}

// Cost is what transfers took.
type Cost struct {
	Sent, Needed             uint64 // packets of the transport; those of them that had to be sent once
	SentOctets, NeededOctets uint64
	DataOctets               uint64 // of the transfers that completed
	NAKs, Timeouts           uint64
	// With CREM, in octets of UDP payloads, as the agent's metrics count them.
	SourceOctets uint64 // of packets that carried a new PSN
	RepairOctets uint64 // of all REPAIRs with a symbol
}

func (c Cost) minus(d Cost) Cost {
	return Cost{
		Sent: c.Sent - d.Sent, Needed: c.Needed - d.Needed, SentOctets: c.SentOctets - d.SentOctets, NeededOctets: c.NeededOctets - d.NeededOctets,
		DataOctets: c.DataOctets - d.DataOctets, NAKs: c.NAKs - d.NAKs, Timeouts: c.Timeouts - d.Timeouts,
		SourceOctets: c.SourceOctets - d.SourceOctets, RepairOctets: c.RepairOctets - d.RepairOctets,
	}
}

func (c Cost) plus(d Cost) Cost { return c.minus(Cost{}.minus(d)) }

// Memory is octets of pools.
type Memory struct{ Sender, Receiver int64 }

// Mean is the mean completion time, 0 without any.
func (r *Result) Mean() time.Duration {
	if len(r.Completions) == 0 {
		return 0
	}
	var sum time.Duration
	for _, d := range r.Completions {
		sum += d
	}
	return sum / time.Duration(len(r.Completions))
}

// Quantile is the smallest completion time that at least a share q of the transfers, 0 to 1, does not exceed; 0 without any.
func (r *Result) Quantile(q float64) time.Duration {
	n := len(r.Completions)
	if n == 0 {
		return 0
	}
	sorted := slices.Clone(r.Completions)
	slices.Sort(sorted)
	i := int(q*float64(n)+0.999999) - 1
	return sorted[min(max(i, 0), n-1)]
}

// OverIdeal is a completion time over the lossless one.
func (r *Result) OverIdeal(d time.Duration) float64 { return float64(d) / float64(r.Ideal) }

// SentOverNeeded is the packets of the transport that were sent over those that had to be sent once: 1 is best.
func (c *Cost) SentOverNeeded() float64 {
	if c.Needed == 0 {
		return 1
	}
	return float64(c.Sent) / float64(c.Needed)
}

// RepairRatio is repair octets over source octets.
func (c *Cost) RepairRatio() float64 {
	if c.SourceOctets == 0 {
		return 0
	}
	return float64(c.RepairOctets) / float64(c.SourceOctets)
}

// Goodput is the octets of data per second of virtual time in the transfers that count.
func (r *Result) Goodput() float64 {
	if r.Now <= r.Began {
		return 0
	}
	return float64(r.Cost.DataOctets) / (r.Now - r.Began).Seconds()
}

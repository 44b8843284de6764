// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/sim"
)

// Memory is what one direction takes at both gateways, in octets, when the link is full.
type Memory struct {
	Sender   float64 `json:"senderOctets"`   // packets that are kept until they are acknowledged
	Receiver float64 `json:"receiverOctets"` // packets that wait for order or for their block, and those kept for a sender that goes back
	Limit    string  `json:"memoryFlag"`     // for crem-agent run --memory, both directions
}

// memory of one direction.
func (in *Input) memory(c candidate) Memory {
	flows, cell, bounds := float64(in.Flows), in.cell(), sim.CREM().Receive
	m := Memory{Sender: flows * (in.inFlight() + 2*float64(c.crem.K)) * cell, Receiver: flows * 4 * float64(c.crem.K) * cell}
	if in.delivery() == crf.InOrder {
		hold := min(c.maxHold.Seconds()/in.path().PacketTime(in.message())*cell, float64(bounds.HoldBytes-bounds.ReplayBytes))
		held := 1.0 // a share of the flows has a gap at a time
		if in.Loss > 0 {
			held = min(1, in.gapsAtATime(c))
		}
		m.Receiver += flows * (held*hold + float64(bounds.ReplayBytes))
	}
	const gib = 1 << 30
	m.Limit = octets(int64(max(math.Ceil(1.2*(m.Sender+m.Receiver)/gib), 1)) * gib)
	return m
}

// gapsAtATime is how many gaps a flow waits for on average, up to one.
func (in *Input) gapsAtATime(c candidate) float64 {
	block := float64(c.crem.K) * in.path().PacketTime(in.message())
	out := c.crem.Outcome(in.path(), in.message())
	wait := out.InTime*block + (out.OnRequest+out.Left)*c.maxHold.Seconds()
	return wait / block
}

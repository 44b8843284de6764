// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"time"

	"crem.dev/crem/agent/crf"
)

// Memory is what one direction takes at both gateways, in octets, when the link is full.
type Memory struct {
	Sender   float64 `json:"senderOctets"`   // packets that are kept until they are acknowledged
	Receiver float64 `json:"receiverOctets"` // packets that wait for order or for their block, and those kept for a sender that goes back
	Worker   float64 `json:"workerOctets"`   // what a packet worker must have, so that one flow may take what its order needs
	Limit    string  `json:"memoryFlag"`     // for crem-agent run --memory, both directions
}

// largestMemory is what an agent may be asked to take.
const largestMemory = 64 << 30

// hold is the memory of one flow at the receiving gateway as an agent reckons it, for packets that wait for order up to maxHold and for those
// kept for a sender that goes back, in octets.
func (in *Input) hold(maxHold time.Duration) (all, replay int64) {
	memory := in.Memory
	if memory == 0 {
		memory = largestMemory
	}
	return crf.Hold(int64(in.rate()), maxHold, memory)
}

// memory of one direction.
func (in *Input) memory(c candidate) Memory {
	flows, cell := float64(in.Flows), in.cell()
	m := Memory{Sender: flows * (in.inFlight() + 2*float64(c.crem.K)) * cell, Receiver: flows * 4 * float64(c.crem.K) * cell}
	if in.delivery() == crf.InOrder {
		all, replay := in.hold(c.maxHold)
		hold := min(c.maxHold.Seconds()/in.path().PacketTime(in.message())*cell, float64(all-replay))
		held := 1.0 // a share of the flows has a gap at a time
		if in.Loss > 0 {
			held = min(1, in.gapsAtATime(c))
		}
		m.Worker = 2 * float64(all)
		kept := min(float64(replay), in.inFlight()*cell)
		m.Receiver += flows * (held*hold + kept)
	}
	const gib = 1 << 30
	m.Limit = octets(int64(max(math.Ceil(max(1.2*(m.Sender+m.Receiver), m.Worker)/gib), 1)) * gib)
	return m
}

// gapsAtATime is how many gaps a flow waits for on average, up to one.
func (in *Input) gapsAtATime(c candidate) float64 {
	block := float64(c.crem.K) * in.path().PacketTime(in.message())
	out := c.crem.Outcome(in.path(), in.message())
	wait := out.InTime*block + (out.OnRequest+out.Left)*c.maxHold.Seconds()
	return wait / block
}

// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

const (
	// FastestRate is the rate in bits per second that is reckoned with where nobody knows that of a flow: the fastest port there is for one queue pair.
	FastestRate = 400_000_000_000
	// cellShare is what a packet's cell takes over its octets, as a fraction: 5/4 covers packets from 1 KiB on.
	cellShareNumerator, cellShareDenominator = 5, 4
	// replayShare is the part of a flow's memory in which packets are kept for a sender that goes back.
	replayShare = 4
	// flowShare is the part of a pool that one flow may take, so that others find room.
	flowShare = 2
	// leastHold is what a flow may take in any case: 1 Gbit/s for 100 ms.
	leastHold = 16 << 20
)

// Hold returns HoldBytes and ReplayBytes for a flow of a rate in bits per second, 0: not known, whose packets wait for order up to maxHold. What comes
// in that time must find room, beside a quarter that is kept for a sender that goes back; but no flow takes more than half of the pool, in octets. Both ends of that
// range follow from an operator's words: maxHold is the profile's, the pool is the agent's memory over its workers.
func Hold(rate int64, maxHold time.Duration, pool int64) (hold, replay int64) {
	if rate <= 0 {
		rate = FastestRate
	}
	waiting := int64(float64(rate) / 8 * maxHold.Seconds() * cellShareNumerator / cellShareDenominator)
	hold = max(min(waiting/(replayShare-1)*replayShare, pool/flowShare), leastHold)
	return hold, hold / replayShare
}

// SPDX-License-Identifier: Apache-2.0

package packet

import "time"

// epoch ties Go's monotonic reading to CLOCK_MONOTONIC, which the kernel programs read.
var epoch, epochMonotonic = tieClocks()

// Now is CLOCK_MONOTONIC, the clock of Frame.Time and Holder.Beat, without a system call.
func Now() time.Duration { return epochMonotonic + time.Since(epoch) }

// tieClocks reads both clocks as close together as it can: between two readings the thread may lose its processor.
func tieClocks() (time.Time, time.Duration) {
	const tries = 8
	var at time.Time
	var middle, least time.Duration
	for i := range tries {
		before := monotonic()
		now := time.Now()
		after := monotonic()
		if gap := after - before; i == 0 || gap < least {
			at, middle, least = now, before+gap/2, gap
		}
	}
	return at, middle
}

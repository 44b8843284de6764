// SPDX-License-Identifier: Apache-2.0

package packet

import "time"

// epoch ties Go's monotonic reading to CLOCK_MONOTONIC, which the kernel programs read.
var epoch, epochMonotonic = time.Now(), monotonic()

// Now is CLOCK_MONOTONIC, the clock of Frame.Time and Holder.Beat, without a system call.
func Now() time.Duration { return epochMonotonic + time.Since(epoch) }

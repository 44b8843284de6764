// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"
)

// Section 6.1, rule 8: the memory of a flow holds what its rate brings in maxHold, and leaves room in the pool for others.
func TestSection6_1_HoldFollowsRate(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		rate         int64
		maxHold      time.Duration
		pool         int64
		hold, replay int64
	}{
		{400e9, 50 * time.Millisecond, 64 * gib, 4_166_666_664, 1_041_666_666}, // 2.5 GB that come, in cells, and a quarter for replays
		{0, 50 * time.Millisecond, 64 * gib, 4_166_666_664, 1_041_666_666},     // the same where nobody knows the rate
		{10e9, 100 * time.Millisecond, 64 * gib, 208_333_332, 52_083_333},
		{400e9, 50 * time.Millisecond, gib, gib / 2, gib / 8}, // half of the pool is left to others
		{1e6, time.Millisecond, gib, 16 << 20, 4 << 20},       // and no flow has less than it needs to be useful
		{400e9, 2 * time.Second, 1 << 20, 16 << 20, 4 << 20},
	} {
		hold, replay := Hold(c.rate, c.maxHold, c.pool)
		if hold != c.hold || replay != c.replay {
			t.Errorf("%g Gbit/s for %v of a pool of %d MiB: %d and %d, want %d and %d", float64(c.rate)/1e9, c.maxHold, c.pool>>20, hold, replay, c.hold, c.replay)
		}
		packets := (hold - replay) / cellOctets(4136)
		if room := time.Duration(float64(packets) * 4096 * 8 / float64(max(c.rate, 1e6)) * 1e9); hold < c.pool/2 && c.rate > 0 && room < c.maxHold {
			t.Errorf("%d packets of 4 KiB last %v of %v", packets, room, c.maxHold)
		}
	}
}

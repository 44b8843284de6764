// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"testing"
	"time"

	"crem.dev/crem/agent/wire"
)

// Section 8.2, rule 3: a port may send at least one report, however slow it is; a wait moves time on; a clock that goes back takes nothing away.
func TestSection8_2_BurstOfAPort(t *testing.T) {
	for _, x := range []struct {
		perSecond float64
		burst     int
	}{{100, 10}, {5, 1}, {1, 1}} {
		b, sent := newBucket(x.perSecond), 0
		for range 20 {
			if _, ok := b.take(time.Minute - time.Duration(sent)*time.Second); ok {
				sent++
			}
		}
		if sent != x.burst {
			t.Errorf("%g a second: %d at once, want %d", x.perSecond, sent, x.burst)
		}
	}
	b := bucket{perSecond: 1e6, burst: 1, tokens: 1 - 1e-9}
	if wait, ok := b.take(0); ok || wait < time.Microsecond {
		t.Errorf("wait %v, %v", wait, ok)
	}
}

// A port without a rate has the least one.
func TestSection8_2_LeastRateOfAPort(t *testing.T) {
	c := testConfig()
	c.PerSecond = 0
	b := newBench(t, c)
	for n := range 3 {
		b.r.HandleDrop(b.now, testFlow(n), 1, wire.CauseCongestion)
	}
	if got := b.wait(2*time.Second + 2*aggregation); len(got) != 3 {
		t.Errorf("%d reports in two seconds", len(got))
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"
	"time"

	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// The lab's demo on real network namespaces (README: 400 Mbit/s, 20 ms, WRITEs of 1 MiB, 16 outstanding, four bandwidth-delay products in flight) and the
// simulator agree within 10 % in goodput over the lossless one and in packets sent over needed.
func TestAgreesWithTheLab(t *testing.T) {
	const bdp, frame = 1_000_000, 58 + 4096 // octets
	scenario := func(loss, burst float64, protected bool) Scenario {
		s := Scenario{
			Link:          world.Link{Rate: 400e6, Delay: 10 * time.Millisecond, Loss: world.Loss{Rate: loss, Burst: burst}},
			Transport:     endpoint.Config{Window: 4 * bdp / frame, Timeout: 268 * time.Millisecond, Retries: -1},
			MessageOctets: mib, Messages: 250, Warmup: 40, Outstanding: 16, MTU: 4096, Seed: 1,
		}
		if protected {
			s.Protection = CREM()
			s.Protection.Send.K, s.Protection.Send.MaxM, s.Protection.Send.Epsilon = 192, 24, 2e-3
			s.Protection.Receive.MaxHold = 100 * time.Millisecond
		}
		return s
	}
	clean := run(t, scenario(0, 0, false))
	for _, c := range []struct {
		loss, burst   float64
		protected     bool
		goodput, sent float64 // as the demo printed them
	}{
		{0.001, 0, false, 0.784, 1.279},
		{0.001, 0, true, 0.986, 1},
		{0.01, 0, true, 0.961, 1},
		{0.02, 0, true, 0.937, 1},
		{0.01, 5, true, 0.942, 1.008},
	} {
		r := run(t, scenario(c.loss, c.burst, c.protected))
		goodput, sent := r.Goodput()/clean.Goodput(), r.Cost.SentOverNeeded()
		t.Logf("loss %g, bursts of %g, CREM %v: goodput %.3f, the lab's %.3f; sent over needed %.3f, %.3f", c.loss, c.burst, c.protected, goodput, c.goodput, sent, c.sent)
		if math.Abs(goodput-c.goodput) > 0.1*c.goodput || math.Abs(sent-c.sent) > 0.1*c.sent {
			t.Errorf("loss %g, bursts of %g, CREM %v: not within 10 %% of the lab", c.loss, c.burst, c.protected)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"

	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// What the makers of MRC and veRoCE publish for induced loss inside a data centre: MRC stays near the line rate at 0.1 % where RoCEv2 collapses,
// and keeps about a third of it at 1 %; veRoCE keeps 95.7 % at 2 %. Their timers and windows are not published. With a local ACK timeout of
// 2.1 ms (n = 9) and 10 microseconds of round trip the first two come out; the third asks for a window of 4,096 packets, since a copy that is
// lost too is missed only when the window is used up. With RoCEv2 it is the lost copies as well, which wait for the timeout.
func TestPublishedUnderInducedLoss(t *testing.T) {
	share := func(loss float64, c endpoint.Config, transfers int) float64 {
		c.Timeout, c.Retries = 2097152*time.Nanosecond, -1
		l := world.Link{Rate: 400e9, Delay: 5 * time.Microsecond, Loss: world.Loss{Rate: loss}}
		s := Scenario{Link: l, MessageOctets: mib, Messages: transfers, Warmup: 16, Outstanding: 16, MTU: 4096, Seed: 1, Transport: c}
		r := run(t, s)
		if !r.Done {
			t.Fatalf("%v at %g: %q", c.Kind, loss, r.Error)
		}
		lossless := float64(s.MessageOctets) / (r.Ideal - s.RTT()).Seconds()
		return r.Goodput() / lossless
	}
	for _, c := range []struct {
		loss        float64
		transport   endpoint.Config
		least, most float64
	}{
		{1e-3, endpoint.Config{Kind: endpoint.MRC}, 0.96, 1},
		{1e-2, endpoint.Config{Kind: endpoint.MRC}, 0.24, 0.42},
		{2e-2, endpoint.Config{Kind: endpoint.VeRoCE, Window: 4096}, 0.90, 0.98},
		{1e-2, endpoint.Config{Kind: endpoint.GoBackN}, 0, 0.15},
	} {
		if got := share(c.loss, c.transport, 600); got < c.least || got > c.most {
			t.Errorf("%v at %g: %.3f of the line rate, expected %.2f to %.2f", c.transport.Kind, c.loss, got, c.least, c.most)
		} else {
			t.Logf("%v at %g: %.3f of the line rate", c.transport.Kind, c.loss, got)
		}
	}
}

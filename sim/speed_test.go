// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"
	"time"
)

// BenchmarkTwoMillionPackets is issue 5's: 8 GiB with CREM on both sides, on one core.
func BenchmarkTwoMillionPackets(b *testing.B) {
	for _, c := range []struct {
		name string
		loss float64
	}{{"1e-6", 1e-6}, {"1e-4", 1e-4}, {"1e-2", 1e-2}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				s := Scenario{Link: wan(c.loss), Protection: CREM(), MessageOctets: 8 * gib, Messages: 1, Warmup: 0, MTU: 4096, Seed: 1, Until: time.Minute}
				r, err := Run(s)
				if err != nil || !r.Done {
					b.Fatal(err, r.Done, r.Error)
				}
				b.ReportMetric(float64(r.Sender.Sent)/1e6, "Mpackets")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(r.Sender.Sent), "ns/packet")
				b.ReportMetric(r.OverIdeal(r.Mean()), "over-ideal")
			}
		})
	}
}

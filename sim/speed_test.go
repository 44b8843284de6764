// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"testing"
	"time"

	"crem.dev/crem/sim/world"
)

// BenchmarkTwoMillionPackets is issue 5's: 8 GiB with CREM on both sides, on one core. They are 64 transfers, of which the first two are the handshake's and the
// estimate's: a flow that begins with a transfer that lasts for ten round trips goes back over all of it while nothing is protected yet.
func BenchmarkTwoMillionPackets(b *testing.B) {
	for _, loss := range []float64{1e-6, 1e-4, 1e-2} {
		b.Run(fmt.Sprint(loss), func(b *testing.B) {
			for range b.N {
				s := Scenario{Link: wan(loss), Back: &world.Link{Rate: 400e9, Delay: 12500 * time.Microsecond}, Protection: CREM(), MessageOctets: 128 * mib, Messages: 62, Warmup: 2, MTU: 4096, Seed: 1}
				s.Protection.Send.MessageSize, s.Protection.Send.Epsilon, s.Protection.Send.MaxRepairRatio = 128*mib, 1e-3, 0.4
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

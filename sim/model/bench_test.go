// SPDX-License-Identifier: Apache-2.0

package model

import "testing"

// BenchmarkP999 is what a cell of a map costs.
func BenchmarkP999(b *testing.B) {
	p := Path{Bandwidth: 10e9, RTT: 1e-3, Loss: 5e-2}
	m := Message{Octets: 8 * gib, Packet: 4096}
	for name, d := range map[string]Distribution{
		"selective repeat": SelectiveRepeat(p, m, NACK*p.RTT), "fixed code": SDR(MDS).Completion(p, m), "go-back-N": GoBackN(p, m, 67e-3),
		"CREM": CREM{K: 32, M: 9, Repair: 1.01, Rounds: 3, LastResort: 1}.Completion(p, m),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Quantile(d, 0.999)
				d.Mean()
			}
		})
	}
}

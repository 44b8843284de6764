// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"

	"crem.dev/crem/agent/fec"
)

// A flow of much loss keeps the marks of its recent past alone, however long it lasts. Segments that are not quiet when the history passes them
// are freed later; kept, they would grow to the whole directory, and its end would pass for a restart of the PSNs.
func TestSegmentsOfALossyFlowAreFreed(t *testing.T) {
	const k, rounds, blocks = 32, 8, 100
	w := configured(t, fec.Cauchy, k, 1)
	next := 0
	for range rounds {
		for range blocks { // at one time: the doubt about what was restored lasts for more packets than the history has
			w.packets(next, k, next+7)
			w.repair(w.src.repair(next, k, 0))
			next += k
		}
		w.reset()
		w.wait(testRTT)
	}
	count := 0
	for n := w.f.win.low; n < w.f.win.high; n++ {
		if w.f.win.segment(n) != nil {
			count++
		}
	}
	if most := (blocks*k + history) / segmentLen * 2; count > most {
		t.Errorf("%d segments are kept after %d positions, at most %d are of use", count, next, most)
	}
	if w.f.stats.Restored != rounds*blocks || w.f.stats.Restarts != 0 {
		t.Errorf("%d of %d packets were restored, %d restarts", w.f.stats.Restored, rounds*blocks, w.f.stats.Restarts)
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"math/rand/v2"
	"testing"
)

// lossy draws which of n packets are lost: in runs of a mean length, at a mean rate.
func lossy(rng *rand.Rand, n int, rate, length float64) []bool {
	lost := make([]bool, n)
	bad := false
	for i := range lost {
		if bad {
			bad = rng.Float64() >= 1/length
		} else {
			bad = rng.Float64() < rate/(1-rate)/length
		}
		lost[i] = bad
	}
	return lost
}

// told is what a CRF says of an interval, counted by the words of Section 8.1, rule 5.
func told(lost []bool) interval {
	i := interval{sent: len(lost), raise: true, detailed: true}
	before, within := false, 0
	for j, l := range lost {
		if j%clusterLen == 0 {
			within = 0
		}
		if l {
			i.lost++
			i.pairs += uint32(within)
			within++
			if !before {
				i.runs++
			}
		}
		before = l
	}
	return i
}

// Section 5.3, rule 5: runs are told from independent losses of the same rate within two hundred losses, and independent ones stay so.
func TestSection5_3_RunsOfLosses(t *testing.T) {
	for _, c := range []struct{ rate, length float64 }{{1e-3, 1}, {1e-2, 1}, {5e-2, 1}, {1e-3, 2}, {1e-2, 3}, {1e-2, 5}, {5e-2, 5}, {1e-2, 10}} {
		length := c.length
		if length == 1 {
			length = 1 / (1 - c.rate)
		}
		var burst, runs []float64
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 1))
			var e lossEstimate
			for sent := 0.0; sent*c.rate < 200; sent += 2500 {
				e.add(told(lossy(rng, 2500, c.rate, length)))
			}
			burst, runs = append(burst, e.burst()), append(runs, e.runLength())
		}
		// Within a block runs are cut off at its ends: its dispersion is that of shorter ones.
		lowest, highest := 0.55*c.length, 1.25*c.length
		if m := mean(burst); m < lowest || m > highest || m < 1 {
			t.Errorf("runs of %g at %g: taken for %.2f", c.length, c.rate, m)
		}
		if m := mean(runs); math.Abs(m-length) > 0.2*length {
			t.Errorf("runs of %g at %g: %.2f in a row", c.length, c.rate, m)
		}
	}
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// Nothing that a peer may say makes the estimate anything but a number in its bounds.
func TestSection5_3_ClustersThatMakeNoSense(t *testing.T) {
	for _, x := range []uint32{0, 1, 1000, math.MaxUint32} {
		for _, lost := range []int{0, 1, 1000, math.MaxUint32} {
			var e lossEstimate
			for range 100 {
				e.add(interval{sent: 1000, lost: lost, raise: true, detailed: true, runs: x, pairs: x})
				if b, r := e.burst(), e.runLength(); !(b >= 1 && b <= maxBurst) || !(r >= 1) || math.IsInf(r, 0) {
					t.Fatalf("%d lost, %d runs and pairs: %g, %g", lost, x, b, r)
				}
			}
		}
	}
}

// Loss by congestion says nothing of how transmission loses.
func TestSection5_3_CongestionIsNoBurst(t *testing.T) {
	var e lossEstimate
	for range 100 {
		e.add(interval{sent: 1000, lost: 10, raise: true, detailed: true, runs: 10, pairs: 1})
		e.add(interval{sent: 1000, lost: 10, detailed: true, runs: 1, pairs: 45})
	}
	if e.burst() > 1.1 {
		t.Errorf("%g", e.burst())
	}
}

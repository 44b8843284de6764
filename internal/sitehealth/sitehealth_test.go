// SPDX-License-Identifier: Apache-2.0

package sitehealth

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/api/v1alpha1"
)

func TestFlows(t *testing.T) {
	for _, row := range []struct {
		shown int32
		flows int
		want  int32
	}{
		{0, 0, 0}, {0, 1, 1}, {1, 2, 2}, {9, 8, 8}, {0, 99, 99}, {0, 104, 100}, {0, 105, 110}, {0, 995, 1000}, {0, 123456, 120000},
		{100, 110, 100}, {100, 90, 100}, {100, 111, 110}, {100, 89, 89}, {100, 0, 0}, {0, -1, 0}, {0, math.MaxInt, 1_000_000_000},
	} {
		if got := Flows(row.shown, row.flows); got != row.want {
			t.Errorf("%d flows where %d are shown: %d, not %d", row.flows, row.shown, got, row.want)
		}
	}
}

func TestRTT(t *testing.T) {
	for _, row := range []struct {
		shown int32
		rtt   time.Duration
		want  int32
	}{
		{0, 0, 0}, {20, 0, 0}, {0, 100 * time.Microsecond, 1}, {0, 20100 * time.Microsecond, 21}, {21, 20 * time.Millisecond, 21}, {21, 18 * time.Millisecond, 18},
		{1, 1900 * time.Microsecond, 1}, {1, 2100 * time.Microsecond, 3}, {0, 123 * time.Millisecond, 120}, {120, 132 * time.Millisecond, 120}, {120, 133 * time.Millisecond, 130},
	} {
		if got := RTT(row.shown, row.rtt); got != row.want {
			t.Errorf("%s where %d ms are shown: %d, not %d", row.rtt, row.shown, got, row.want)
		}
	}
}

func TestLoss(t *testing.T) {
	const none, low, medium, high, unknown = v1alpha1.LossNone, v1alpha1.LossLow, v1alpha1.LossMedium, v1alpha1.LossHigh, v1alpha1.LossUnknown
	for _, row := range []struct {
		shown v1alpha1.LossClass
		loss  float64
		want  v1alpha1.LossClass
	}{
		{unknown, 0, none}, {"", 9e-6, none}, {unknown, 1e-5, low}, {unknown, 1e-3, medium}, {unknown, 2e-2, high}, {unknown, 1, high},
		{none, 1e-5, low}, {low, 9e-6, low}, {low, 5e-6, low}, {low, 4e-6, none}, {high, 1.5e-2, high}, {high, 9e-3, medium}, {high, 1e-7, none}, {high, 9e-4, medium},
	} {
		if got := Loss(row.shown, row.loss); got != row.want {
			t.Errorf("a loss of %g where %s is shown: %s, not %s", row.loss, row.shown, got, row.want)
		}
	}
	if Worse(unknown, none) != none || Worse(high, low) != high || Worse(none, low) != low || Worse("Newer", low) != low {
		t.Error("the worse of two")
	}
}

// TestNothingFlaps: whatever value is measured, with the noise of a measurement on it, what is shown changes at most once.
func TestNothingFlaps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		flows, ms, loss := 1+r.IntN(100000), math.Exp(r.Float64()*7), math.Pow(10, -7*r.Float64())
		noisy := func(x, noise float64) float64 { return x * (1 - noise + 2*noise*r.Float64()) }
		shownFlows, shownRTT, shownLoss, changes := int32(0), int32(0), v1alpha1.LossUnknown, -3 // the first time is no change
		for range 200 {
			nowFlows := Flows(shownFlows, int(noisy(float64(flows), 0.02)))
			if flows < 100 {
				nowFlows = Flows(shownFlows, flows)
			}
			nowRTT := RTT(shownRTT, time.Duration(noisy(ms, 0.02)*float64(time.Millisecond)))
			nowLoss := Loss(shownLoss, noisy(loss, 0.3))
			for _, changed := range []bool{nowFlows != shownFlows, nowRTT != shownRTT, nowLoss != shownLoss} {
				if changed {
					changes++
				}
			}
			shownFlows, shownRTT, shownLoss = nowFlows, nowRTT, nowLoss
		}
		if changes > 1 { // a loss next to a border may get worse once
			t.Fatalf("%d flows, %g ms, a loss of %g: %d changes", flows, ms, loss, changes)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package sitehealth makes coarse values of what is measured of the path to another site, so that a status which shows them changes rarely. A value that was shown
// stays until the measured one is clearly another: none flaps at a border, as there is none where it stands.
package sitehealth

import (
	"math"
	"slices"
	"time"

	"crem.dev/crem/api/v1alpha1"
)

// Period is the least time between two changes of what one object shows of sites.
const Period = time.Minute

// A value that was shown stays while the measured one is within a tenth of it. A loss class gets better only when the loss is below half of its border; it gets
// worse at the border.
const (
	tolerance = 0.1
	clearly   = 2
)

// Flows gives the number of flows to show: at most two significant digits, exact below 10.
func Flows(shown int32, flows int) int32 {
	if flows > 0 && shown > 0 && math.Abs(float64(flows)-float64(shown)) <= tolerance*float64(shown) {
		return shown
	}
	return twoDigits(flows)
}

// RTT gives the milliseconds to show of a round-trip time: rounded up, at most two significant digits; 0 when none was measured.
func RTT(shown int32, rtt time.Duration) int32 {
	if rtt <= 0 {
		return 0
	}
	ms := float64(rtt) / float64(time.Millisecond)
	if shown > 0 && math.Abs(ms-float64(shown)) <= max(1, tolerance*float64(shown)) {
		return shown
	}
	return twoDigits(int(math.Ceil(ms)))
}

// twoDigits rounds to two significant digits, within what the field can hold.
func twoDigits(n int) int32 {
	n = min(max(n, 0), 1_000_000_000)
	step := 1
	for n/step >= 100 {
		step *= 10
	}
	return int32((n + step/2) / step * step)
}

// classes from the worst to the best, with the loss from which they are.
var classes = []struct {
	class v1alpha1.LossClass
	from  float64
}{{v1alpha1.LossHigh, 2e-2}, {v1alpha1.LossMedium, 1e-3}, {v1alpha1.LossLow, 1e-5}, {v1alpha1.LossNone, 0}}

// Loss gives the class to show of a loss.
func Loss(shown v1alpha1.LossClass, loss float64) v1alpha1.LossClass {
	is := classOf(loss)
	if badness(shown) <= badness(is) { // worse, the same, or nothing was known
		return is
	}
	if better := classOf(clearly * loss); badness(better) < badness(shown) {
		return better
	}
	return shown
}

func classOf(loss float64) v1alpha1.LossClass {
	for _, c := range classes {
		if loss >= c.from {
			return c.class
		}
	}
	return v1alpha1.LossUnknown
}

// Worse gives the worse of two classes. What is not known is better than anything that is.
func Worse(a, b v1alpha1.LossClass) v1alpha1.LossClass {
	if badness(a) < badness(b) {
		return b
	}
	return a
}

// badness orders classes; one that is not known, such as a newer agent's, is 0.
func badness(class v1alpha1.LossClass) int {
	for i, c := range classes {
		if c.class == class {
			return len(classes) - i
		}
	}
	return 0
}

// Suspends says whether repairs towards a site are suspended for which that is not shown. People must know at once.
func Suspends(shown, next []v1alpha1.SiteHealth) bool {
	for _, s := range next {
		if s.RepairsSuspended && !slices.ContainsFunc(shown, func(o v1alpha1.SiteHealth) bool { return o.Name == s.Name && o.RepairsSuspended }) {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"slices"
)

// Stream is the completion of units that are sent one after the other and recover on their own while others are sent: unit i of
// Units is sent at i*Step and complete a random delay later, and the last one to be complete counts. So the distribution is that of a
// maximum of independent variables. After is added to all.
//
// Units may be a fraction: losses in runs of B hit one unit in B independently.
type Stream struct {
	Units, Step float64
	Delay       []Delay // by At, the first at 0; the distribution is the same for all units
	After       float64
}

// Delay is a step of the distribution of a unit's delay: from At on, and until the next step, it is over At with probability Left.
type Delay struct{ At, Left float64 }

// at is a Stream that ends at t for sure.
func at(t float64) Stream { return Stream{After: t} }

// Span implements Distribution.
func (s Stream) Span() (least, most float64) {
	least = s.Units*s.Step + s.After
	if len(s.Delay) == 0 {
		return least, least
	}
	return least, least + s.Delay[len(s.Delay)-1].At + s.Step
}

// Tail implements Distribution.
func (s Stream) Tail(t float64) float64 {
	t -= s.After
	if sent := s.Units * s.Step; t < sent-1e-12*sent {
		return 1
	}
	return -math.Expm1(s.logarithm(func(x float64) float64 { return math.Floor(x/s.Step + 1e-9) }, t))
}

// logarithm is that of P[T <= t]: units that were sent the same number of tries ago are counted together. sent says how many units were
// sent in a time.
func (s Stream) logarithm(sent func(float64) float64, t float64) float64 {
	u, older := 0.0, s.Units
	for n := range s.Delay {
		yet := 0.0
		if n+1 < len(s.Delay) {
			yet = min(max(sent(t-s.Delay[n+1].At), 0), s.Units)
		}
		if c := older - yet; c > 0 && s.Delay[n].Left > 0 {
			u += c * math.Log1p(-s.Delay[n].Left)
		}
		if older = yet; older == 0 {
			break
		}
	}
	return u
}

// Mean implements Distribution. Units are taken as a fluid, of which half a unit's time is the most that it can be off: then the
// logarithm of P[T <= t] is a line between the moments when the first or the last unit begins another try, and its integral is known.
func (s Stream) Mean() float64 {
	sent := s.Units * s.Step
	if len(s.Delay) == 0 {
		return sent + s.After
	}
	fluid := func(x float64) float64 { return x/s.Step - 0.5 }
	kinks := []float64{sent}
	for _, d := range s.Delay[1:] {
		for _, k := range []float64{d.At + s.Step/2, d.At + s.Step/2 + sent} {
			if k > sent {
				kinks = append(kinks, k)
			}
		}
	}
	slices.Sort(kinks)
	sum := 0.0
	before := s.logarithm(fluid, kinks[0])
	for i, k := range kinks[1:] {
		u := s.logarithm(fluid, k)
		sum += (k - kinks[i]) * meanTail(before, u)
		before = u
	}
	return sent + sum + s.After
}

// meanTail is the mean of 1-exp(u) for u on the line from a to b, both at most 0.
func meanTail(a, b float64) float64 {
	if math.Abs(a-b) < 1e-2 {
		return -(math.Expm1(a) + 4*math.Expm1((a+b)/2) + math.Expm1(b)) / 6 // Simpson: exact to 1e-12
	}
	return 1 - (math.Expm1(a)-math.Expm1(b))/(a-b)
}

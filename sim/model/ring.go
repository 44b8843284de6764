// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// cells is the resolution of a Sum.
const cells = 2048

// Sum is a distribution on a grid: P[T = From + i*Step] is Mass[i].
type Sum struct {
	From, Step float64
	Mass       []float64
}

// Ring gives the completion of a ring all-reduce over a number of sites, each stage of which is one transfer: 2N-2 stages, of which
// each site can begin the next one when its transfer and that of its neighbour are complete. The truth lies between two bounds: chain,
// where a stage waits for one transfer, and barrier, where it waits for those of all sites.
func Ring(transfer Distribution, sites int) (chain, barrier Sum) {
	stages := 2*sites - 2
	one := discretise(transfer, func(tail float64) float64 { return tail })
	all := discretise(transfer, func(tail float64) float64 { return -math.Expm1(float64(sites) * math.Log1p(-tail)) })
	return one.times(stages), all.times(stages)
}

// discretise puts a distribution on a grid, rounded up. change is applied to its tail.
func discretise(d Distribution, change func(float64) float64) Sum {
	least, _ := d.Span()
	most := Quantile(d, 1-1e-9)
	s := Sum{From: least, Step: max((most-least)/(cells-1), least*1e-9), Mass: make([]float64, cells)}
	before := 1.0
	for i := range s.Mass {
		tail := change(min(d.Tail(least+float64(i)*s.Step), 1-1e-15))
		s.Mass[i] = max(before-tail, 0)
		before = min(before, tail)
	}
	s.Mass[cells-1] += before
	return s
}

// times is the sum of n independent variables with the distribution of s.
func (s Sum) times(n int) Sum {
	out := Sum{From: float64(n) * s.From, Step: s.Step, Mass: []float64{1}}
	for range n {
		out.Mass = convolve(out.Mass, s.Mass)
	}
	return out
}

func convolve(a, b []float64) []float64 {
	out := make([]float64, len(a)+len(b)-1)
	for i, x := range a {
		if x < negligible {
			continue
		}
		for j, y := range b {
			out[i+j] += x * y
		}
	}
	return out
}

// Mean implements Distribution.
func (s Sum) Mean() float64 {
	mean := 0.0
	for i, q := range s.Mass {
		mean += q * float64(i)
	}
	return s.From + mean*s.Step
}

// Tail implements Distribution.
func (s Sum) Tail(t float64) float64 {
	tail := 0.0
	for i := len(s.Mass) - 1; i >= 0 && s.From+float64(i)*s.Step > t; i-- {
		tail += s.Mass[i]
	}
	return tail
}

// Span implements Distribution.
func (s Sum) Span() (least, most float64) {
	return s.From, s.From + float64(len(s.Mass)-1)*s.Step
}

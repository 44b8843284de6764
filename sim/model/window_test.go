// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestWindowAgainstSamples: units one by one, each sent when the wire is free and all but the last window before it are complete.
func TestWindowAgainstSamples(t *testing.T) {
	const again = 3
	for _, tc := range []struct {
		units, window int
		share         float64 // of units that are delayed by one round trip; a tenth of these by three more
		rtt           float64 // in steps
	}{
		{1000, 100, 1e-3, 300}, // the window holds a third of a round trip
		{1000, 100, 1e-4, 300},
		{3000, 500, 1e-2, 200}, // over two round trips, and a loss in each
		{3000, 200, 2e-2, 200},
		{500, 499, 1e-2, 50},
		{2000, 7, 1e-3, 11},
		{300, 100, 0.3, 60},
		{30000, 400, 0.2, 150}, // in parts
	} {
		s := Stream{
			Units: float64(tc.units), Step: 1, After: tc.rtt,
			Delay: []Delay{{0, tc.share}, {tc.rtt, tc.share / 10}, {(1 + again) * tc.rtt, 0}},
		}
		samples := min(20000, 100_000_000/(tc.units*40))
		rng := rand.New(rand.NewPCG(5, 5))
		one := func() float64 {
			complete := make([]float64, tc.units+1) // all before the index
			sent := 0.0
			for i := range tc.units {
				begin := sent
				if i >= tc.window {
					begin = max(begin, complete[i-tc.window+1])
				}
				sent = begin + 1
				d := 0.0
				switch u := rng.Float64(); {
				case u < tc.share/10:
					d = (1 + again) * tc.rtt
				case u < tc.share:
					d = tc.rtt
				}
				complete[i+1] = max(complete[i], sent+tc.rtt+d)
			}
			return complete[tc.units]
		}
		t.Run(fmt.Sprint(tc), func(t *testing.T) { agree(t, s.Within(float64(tc.window)), sample(samples, one), 0.01) })
	}
}

// TestWindowThatHoldsAll: a message that fits is the same with and without a window, and one that never loses takes its rounds.
func TestWindowThatHoldsAll(t *testing.T) {
	s := Stream{Units: 100, Step: 1, After: 50, Delay: []Delay{{0, 1e-2}, {50, 0}}}
	if a, b := s.Within(100), Distribution(s); a.Mean() != b.Mean() || a.Tail(200) != b.Tail(200) {
		t.Errorf("mean %g and %g", a.Mean(), b.Mean())
	}
	s.Delay = []Delay{{0, 0}}
	for window, want := range map[float64]float64{10: 9*(51) + 10 + 50, 51: 150, 50: 50 + 50 + 1 + 50} {
		d := s.Within(window)
		if least, most := d.Span(); d.Mean() != want || least != want || most != want || d.Tail(want) != 0 || d.Tail(want-1) != 1 {
			t.Errorf("window %g: %g, want %g", window, d.Mean(), want)
		}
	}
}

// TestSelectiveWithinWide: with a window that is never used up MRC is selective repeat with a NACK, but for losses that no bitmap tells of.
func TestSelectiveWithinWide(t *testing.T) {
	p := Path{Bandwidth: 10e9, RTT: 10e-3, Loss: 1e-4}
	m := chunks(64*mib, 4*kib)
	if got, want := MRC(p, m, 67e-3, 1<<20).Mean(), SelectiveRepeat(p, m, p.RTT).Mean(); math.Abs(got-want) > 0.02*want {
		t.Errorf("MRC %g, selective repeat %g", got, want)
	}
	p.Loss = 0
	if got, want := VeRoCE(p, m, 67e-3, 1<<20).Mean(), p.Lossless(m); math.Abs(got-want) > 1e-6*want {
		t.Errorf("veRoCE without loss %g, want %g", got, want)
	}
}

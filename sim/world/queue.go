// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math"
	"math/rand/v2"
	"time"

	"crem.dev/crem/agent/ecn"
)

const (
	defaultMost    = 0.5
	defaultAverage = 100 * time.Microsecond
)

// marker writes on packets how long the queue is.
type marker struct {
	c       Marking
	rng     *rand.Rand
	two     *ecn.Marker
	average float64 // octets, RED
	at      time.Duration
}

func newMarker(c Marking, rng *rand.Rand) (marker, error) {
	if c.Most == 0 {
		c.Most = defaultMost
	}
	if c.Average == 0 {
		c.Average = defaultAverage
	}
	m := marker{c: c, rng: rng}
	var err error
	if c.Kind == TwoThreshold {
		m.two, err = ecn.NewMarker(ecn.MarkerConfig{T1: c.Low, T2: c.High, CEMax: c.Most, Average: c.Average, Random: rng.Uint32})
	}
	return m, err
}

// mark returns the ECN field of a packet that finds so many octets before it.
func (m *marker) mark(now time.Duration, waiting int64, field ecn.Codepoint) ecn.Codepoint {
	switch m.c.Kind {
	case NoMarking:
		return field
	case TwoThreshold:
		m.two.Sample(now, waiting)
		out, _ := m.two.Mark(field)
		return out
	case Step:
		if field != ecn.NotECT && waiting > m.c.Low {
			return ecn.CE
		}
		return field
	default:
		return m.red(now, waiting, field)
	}
}

// red marks by the average queue.
func (m *marker) red(now time.Duration, waiting int64, field ecn.Codepoint) ecn.Codepoint {
	m.average = float64(waiting) + (m.average-float64(waiting))*math.Exp(-float64(now-m.at)/float64(m.c.Average))
	m.at = now
	if field != ecn.NotECT && m.rng.Float64() < m.severity() {
		return ecn.CE
	}
	return field
}

// severity is RED's probability of a mark.
func (m *marker) severity() float64 {
	low, high := float64(m.c.Low), float64(m.c.High)
	switch {
	case m.average <= low:
		return 0
	case m.average >= high:
		return 1
	}
	return m.c.Most * (m.average - low) / (high - low)
}

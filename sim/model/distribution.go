// SPDX-License-Identifier: Apache-2.0

package model

// Distribution is that of a completion time T.
type Distribution interface {
	// Mean of T in seconds.
	Mean() float64
	// Tail is P[T > t], with a small relative error however small it is.
	Tail(t float64) float64
	// Span is the least T, and one that T does not pass but with negligible probability.
	Span() (least, most float64)
}

// negligible is the probability that is left out, small against any that a plan speaks of.
const negligible = 1e-18

// Quantile is the least t with P[T > t] <= 1-q, to a relative error of 1e-7 in t and of 1e-3 in 1-q: so times whose tails fall in steps
// are the same where they differ by next to nothing.
func Quantile(d Distribution, q float64) float64 {
	lo, hi := d.Span()
	over := (1 - q) * (1 + 1e-3)
	if d.Tail(lo) <= over {
		return lo
	}
	for hi-lo > 1e-7*hi {
		if mid := (lo + hi) / 2; d.Tail(mid) <= over {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi
}

// Mixture is Else with probability Weight, and Usual otherwise.
type Mixture struct {
	Usual, Else Distribution
	Weight      float64
}

// Mean implements Distribution.
func (m Mixture) Mean() float64 { return (1-m.Weight)*m.Usual.Mean() + m.Weight*m.Else.Mean() }

// Tail implements Distribution.
func (m Mixture) Tail(t float64) float64 {
	return (1-m.Weight)*m.Usual.Tail(t) + m.Weight*m.Else.Tail(t)
}

// Span implements Distribution.
func (m Mixture) Span() (least, most float64) {
	a, b := m.Usual.Span()
	c, d := m.Else.Span()
	return min(a, c), max(b, d)
}

// Late is T and, with probability First once and Again each time after that, a Timeout more: what the loss of the last acknowledgement costs.
type Late struct {
	Distribution
	First   float64 // below 1; 0: Again
	Again   float64 // below 1
	Timeout float64 // seconds
}

func (l Late) first() float64 {
	if l.First == 0 {
		return l.Again
	}
	return l.First
}

// Mean implements Distribution.
func (l Late) Mean() float64 { return l.Distribution.Mean() + l.first()/(1-l.Again)*l.Timeout }

// Tail implements Distribution.
func (l Late) Tail(t float64) float64 {
	rest := l.first() // probability of at least so many timeouts
	sum := (1 - rest) * l.Distribution.Tail(t)
	for rest > negligible {
		t -= l.Timeout
		sum += rest * (1 - l.Again) * l.Distribution.Tail(t)
		rest *= l.Again
	}
	return sum
}

// Span implements Distribution.
func (l Late) Span() (least, most float64) {
	least, most = l.Distribution.Span()
	for weight := l.first(); weight > negligible; weight *= l.Again {
		most += l.Timeout
	}
	return least, most
}

// Held is T, but with probability Share not before Until: what the wait for the end of a burst costs.
type Held struct {
	Distribution
	Until float64 // seconds
	Share float64
}

// Mean implements Distribution.
func (h Held) Mean() float64 {
	least, _ := h.Distribution.Span()
	const steps = 16
	wait, sum := max(h.Until-least, 0)/steps, 0.0
	for i := range steps {
		sum += 1 - h.Distribution.Tail(least+(float64(i)+0.5)*wait)
	}
	return h.Distribution.Mean() + h.Share*sum*wait
}

// Tail implements Distribution.
func (h Held) Tail(t float64) float64 {
	tail := h.Distribution.Tail(t)
	if t >= h.Until {
		return tail
	}
	return tail + (1-tail)*h.Share
}

// Span implements Distribution.
func (h Held) Span() (least, most float64) {
	least, most = h.Distribution.Span()
	return least, max(most, h.Until)
}

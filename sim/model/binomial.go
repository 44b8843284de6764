// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// binomial is P[Bin(n, p) = i].
func binomial(n, i, p float64) float64 {
	switch {
	case p <= 0:
		return indicator(i == 0)
	case i < 0 || i > n:
		return 0
	}
	return math.Exp(logChoose(n, i) + i*math.Log(p) + (n-i)*math.Log1p(-p))
}

func logChoose(n, i float64) float64 {
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(i + 1)
	c, _ := math.Lgamma(n - i + 1)
	return a - b - c
}

// grid bounds how many values of a binomial variable are looked at one by one.
const grid = 120

// likely is the range of a Bin(n, p) variable outside of which it is next to never, and steps of which at most grid cover it.
func likely(n, p float64) (first, last, step float64) {
	mean := n * p
	reach := 8*math.Sqrt(mean) + 12
	first, last = math.Floor(max(mean-reach, 0)), math.Ceil(min(mean+reach, n))
	return first, last, math.Ceil((last - first + 1) / grid)
}

// expect is the expectation of f(i) for i distributed as Bin(n, p).
func expect(n, p float64, f func(i float64) float64) float64 {
	first, last, step := likely(n, p)
	sum, all := 0.0, 0.0
	for i := first; i <= last; i += step {
		if w := binomial(n, i, p); w > 0 {
			all += w
			sum += w * f(i)
		}
	}
	return sum / all
}

func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// incompleteBeta is the regularised incomplete beta function I_x(a, b), a over 0 and b at least 0, by its continued fraction (Lentz's method).
// P[Bin(n, p) >= k] is I_p(k, n-k+1).
func incompleteBeta(a, b, x float64) float64 {
	switch {
	case x <= 0 || b == 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - incompleteBeta(b, a, 1-x)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	c, d := 1.0, 1-(a+b)*x/(a+1)
	if math.Abs(d) < tiny {
		d = tiny
	}
	d = 1 / d
	h := d
	for i := 1.0; i < 1e5; i++ {
		for _, n := range [2]float64{
			i * (b - i) * x / ((a + 2*i - 1) * (a + 2*i)),
			-(a + i) * (a + b + i) * x / ((a + 2*i) * (a + 2*i + 1)),
		} {
			if d = 1 + n*d; math.Abs(d) < tiny {
				d = tiny
			}
			if c = 1 + n/c; math.Abs(c) < tiny {
				c = tiny
			}
			d = 1 / d
			h *= c * d
			if n == 0 || math.Abs(c*d-1) < 1e-14 && n < 0 {
				return front * h
			}
		}
	}
	return front * h
}

// SPDX-License-Identifier: Apache-2.0

package fec

import "math"

// Tail returns P[Bin(n, p) > m]: the probability that more than m of n packets
// are lost when each is lost independently with probability p. It adds positive
// terms only, so the result is good to about 1e-13 of its own size, however
// small it is. n is a number of packets of one block, at most a few hundred.
func Tail(n, m int, p float64) float64 {
	switch {
	case m < 0:
		return 1
	case m >= n || !(p > 0):
		return 0
	case p >= 1:
		return 1
	case p > 0.5:
		return tailDown(n, m, p)
	}
	// t is P[Bin = i]; (1-p)^n does not underflow for p <= 0.5.
	odds, t := p/(1-p), math.Exp(float64(n)*math.Log1p(-p))
	for i := 0; i <= m; i++ {
		t *= float64(n-i) / float64(i+1) * odds
	}
	sum := 0.0
	for i := m + 1; i <= n; i++ {
		sum += t
		next := t * float64(n-i) / float64(i+1) * odds
		if next < t && next < sum*1e-17 {
			break // the terms only fall from here on
		}
		t = next
	}
	return sum
}

// tailDown is Tail for p > 0.5: the same sum from its other end, where p^n does
// not underflow.
func tailDown(n, m int, p float64) float64 {
	odds, t := (1-p)/p, math.Exp(float64(n)*math.Log(p))
	sum := 0.0
	for i := n; i > m; i-- {
		sum += t
		t *= float64(i) / float64(n-i+1) * odds
	}
	return sum
}

// MinRepair returns the smallest m for which a block of k sources and m repair
// symbols loses more than m packets with a probability below epsilon, if each
// packet is lost independently with probability p (section 5.3). If no m up to
// maxM is enough it returns maxM. The tail falls with every m, so the first hit
// is the smallest.
func MinRepair(k int, p, epsilon float64, maxM int) int {
	for m := 0; m < maxM; m++ {
		if Tail(k+m, m, p) < epsilon {
			return m
		}
	}
	return max(maxM, 0)
}

// TailGiven is Tail when the loss rate itself is known only by what was seen: it
// is distributed as Beta(a, b), a (over 0) being about the lost and b (1 or more)
// the arrived packets that the knowledge rests on. Little evidence gives a heavier
// tail; with much it comes near Tail(n, m, a/(a+b)).
func TailGiven(n, m int, a, b float64) float64 {
	switch {
	case m < 0:
		return 1
	case m >= n:
		return 0
	}
	// t is the beta-binomial P[X = i], beginning with P[X = 0], the product of
	// (b+i)/(a+b+i) over n packets.
	t := 1.0
	for i := range n {
		t *= (b + float64(i)) / (a + b + float64(i))
	}
	if t == 0 {
		return 1 // next to nothing arrives
	}
	sum := 0.0
	for i := range n {
		x := float64(i)
		t *= (float64(n) - x) * (a + x) / ((x + 1) * (b + float64(n) - x - 1))
		if i < m {
			continue
		}
		sum += t
		if t < sum*1e-17 {
			break
		}
	}
	return min(sum, 1)
}

// MinRepairGiven is MinRepair for a loss rate that is known as Beta(a, b).
func MinRepairGiven(k int, a, b, epsilon float64, maxM int) int {
	for m := 0; m < maxM; m++ {
		if TailGiven(k+m, m, a, b) < epsilon {
			return m
		}
	}
	return max(maxM, 0)
}

// MinBurstRepair is MinRepair for losses in runs of geometric length with the
// given mean (at least 1): runs begin at random, so the number of losses is a
// geometric Poisson (Polya-Aeppli) variable (section 5.3, rule 5).
func MinBurstRepair(k int, p, burst, epsilon float64, maxM int) int {
	for m := 0; m < maxM; m++ {
		if BurstTail(k+m, m, p, burst) < epsilon {
			return m
		}
	}
	return max(maxM, 0)
}

// BurstTail is the probability that more than m of n packets are lost, for loss
// rate p in runs of mean length burst. It is good to about 1e-15 in absolute
// terms.
func BurstTail(n, m int, p, burst float64) float64 {
	if p <= 0 || m >= n {
		return 0
	}
	runs := float64(n) * p / burst
	theta := 1 - 1/burst // probability that a run goes on
	before, term := 0.0, math.Exp(-runs)
	sum := term
	for i := 1; i <= m; i++ {
		x := float64(i)
		next := ((2*theta*(x-1)+runs*(1-theta))*term - theta*theta*(x-2)*before) / x
		before, term = term, next
		sum += term
	}
	return max(1-sum, 0)
}

// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestSection5_3_MinRepairGolden: the smallest m with P[Bin(k+m, p) > m] <
// epsilon, computed independently with 50 digits.
func TestSection5_3_MinRepairGolden(t *testing.T) {
	tables := []struct {
		epsilon float64
		p       []float64
		byK     map[int][]int
	}{
		{1e-4, []float64{1e-5, 1e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1}, map[int][]int{
			8:   {0, 1, 1, 2, 3, 3, 5, 7},
			16:  {1, 1, 2, 2, 3, 4, 6, 9},
			32:  {1, 1, 2, 3, 4, 5, 9, 13},
			64:  {1, 1, 2, 4, 5, 7, 12, 20},
			128: {1, 1, 3, 5, 7, 11, 19, 31},
		}},
		{1e-4, []float64{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 5e-2, 1e-1}, map[int][]int{
			32:  {0, 1, 1, 2, 4, 7, 9, 13},
			64:  {0, 1, 1, 2, 5, 9, 12, 20},
			128: {1, 1, 1, 3, 7, 13, 19, 31},
		}},
		{1e-6, []float64{1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 5e-2, 1e-1}, map[int][]int{
			32:  {1, 1, 2, 3, 6, 9, 11, 17},
			64:  {1, 1, 2, 3, 7, 12, 16, 25},
			128: {1, 1, 2, 4, 10, 17, 23, 37},
		}},
	}
	values := 0
	for _, tab := range tables {
		for k, row := range tab.byK {
			for c, want := range row {
				values++
				if got := MinRepair(k, tab.p[c], tab.epsilon, 127); got != want {
					t.Errorf("k = %d, p = %g, epsilon = %g: m = %d, want %d", k, tab.p[c], tab.epsilon, got, want)
				}
			}
		}
	}
	if values != 40+48 {
		t.Errorf("%d values", values)
	}
}

func TestMinRepairEdges(t *testing.T) {
	for _, c := range []struct {
		k          int
		p, epsilon float64
		maxM, want int
	}{
		{32, 0, 1e-4, 8, 0},          // nothing was ever lost
		{32, math.NaN(), 1e-4, 8, 0}, // nothing is known
		{32, 0.05, 1e-4, 4, 4},       // not enough, but all that is allowed
		{32, 0.05, 1e-4, 9, 9},       // just enough
		{32, 0.01, 1e-4, 0, 0},       // breaker open: no repair
		{32, 0.01, 1e-4, -1, 0},      //
		{32, 1, 1e-4, 8, 8},          // everything is lost
		{32, 3.12e-6, 1e-4, 8, 0},    // just below the p where m = 0 ends
		{32, 3.13e-6, 1e-4, 8, 1},    // just above
		{255, 0.1, 1e-4, 0, 0},       //
		{1, 0.5, 1e-4, 200, 13},      // repetition: 2^-14 < 1e-4 <= 2^-13
	} {
		if got := MinRepair(c.k, c.p, c.epsilon, c.maxM); got != c.want {
			t.Errorf("MinRepair(%d, %g, %g, %d) = %d, want %d", c.k, c.p, c.epsilon, c.maxM, got, c.want)
		}
	}
}

// bigTail is Tail by its definition with 400 bits.
func bigTail(n, m int, p float64) *big.Float {
	const precision = 400
	num := func(x float64) *big.Float { return new(big.Float).SetPrec(precision).SetFloat64(x) }
	P := num(p)
	Q := num(1)
	Q.Sub(Q, P)
	sum := num(0)
	for i := m + 1; i <= n; i++ {
		term := num(0).SetInt(new(big.Int).Binomial(int64(n), int64(i)))
		for range i {
			term.Mul(term, P)
		}
		for range n - i {
			term.Mul(term, Q)
		}
		sum.Add(sum, term)
	}
	return sum
}

// TestTailAccuracy: relative error against 400-bit numbers, from certain to
// 1e-300.
func TestTailAccuracy(t *testing.T) {
	worst := 0.0
	ns := []int{1, 2, 9, 40, 72, 160, 255}
	if testing.Short() {
		ns = []int{1, 9, 40}
	}
	for _, n := range ns {
		for _, p := range []float64{1e-9, 1e-7, 1e-4, 3e-3, 0.05, 0.1, 0.3, 0.5, 0.500001, 0.7, 0.99} {
			for m := 0; m < n; m += 1 + m/6 {
				want, _ := bigTail(n, m, p).Float64()
				if want < 1e-300 {
					continue
				}
				if e := math.Abs(Tail(n, m, p)-want) / want; e > worst {
					worst = e
					if e > 1e-12 {
						t.Errorf("Tail(%d, %d, %g) = %g, want %g", n, m, p, Tail(n, m, p), want)
					}
				}
			}
		}
	}
	t.Logf("worst relative error %.1e", worst)
}

func TestTailEdges(t *testing.T) {
	for _, c := range []struct {
		n, m    int
		p, want float64
	}{
		{10, -1, 0.1, 1}, {10, 10, 0.1, 0}, {10, 11, 0.1, 0}, {0, 0, 0.5, 0}, {10, 0, 0, 0}, {10, 0, -1, 0},
		{10, 9, 1, 1}, {10, 3, 2, 1}, {10, 3, math.NaN(), 0}, {10, 3, math.Inf(1), 1},
	} {
		if got := Tail(c.n, c.m, c.p); got != c.want {
			t.Errorf("Tail(%d, %d, %g) = %g, want %g", c.n, c.m, c.p, got, c.want)
		}
	}
	// (1-p)^n underflows here.
	if got := Tail(255, 127, 0.99); math.Abs(got-1) > 1e-12 {
		t.Errorf("Tail(255, 127, 0.99) = %g, want 1", got)
	}
}

// TailGiven against its definition: the mean of Tail over the distribution of the
// loss rate, integrated numerically. With much evidence it is Tail.
func TestSection5_3_TailGivenIsTheMeanOfTail(t *testing.T) {
	for _, c := range []struct {
		n, m int
		a, b float64
	}{{33, 1, 2, 500}, {40, 8, 3, 97}, {36, 4, 10, 1000}, {200, 8, 2.5, 300}, {12, 0, 1, 1000}} {
		const steps = 200_000
		norm, lgA := 0.0, lgamma(c.a+c.b)-lgamma(c.a)-lgamma(c.b)
		sum := 0.0
		for i := range steps {
			p := (float64(i) + 0.5) / steps
			w := math.Exp(lgA+(c.a-1)*math.Log(p)+(c.b-1)*math.Log1p(-p)) / steps
			norm += w
			sum += w * Tail(c.n, c.m, p)
		}
		if got, want := TailGiven(c.n, c.m, c.a, c.b), sum/norm; math.Abs(got-want) > 1e-4*want {
			t.Errorf("TailGiven(%d, %d, %g, %g) = %g, want %g", c.n, c.m, c.a, c.b, got, want)
		}
	}
	for _, p := range []float64{1e-6, 1e-3, 0.1, 0.5} {
		const much = 1e13
		if got, want := TailGiven(40, 2, p*much, (1-p)*much), Tail(40, 2, p); math.Abs(got-want) > 1e-4*want {
			t.Errorf("p = %g: %g with much evidence, want %g", p, got, want)
		}
	}
	for _, c := range []struct {
		n, m int
		want float64
	}{{10, -1, 1}, {10, 10, 0}, {509, 3, 1}} {
		if got := TailGiven(c.n, c.m, 1e9, 1); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("TailGiven(%d, %d) of a dead path = %g, want %g", c.n, c.m, got, c.want)
		}
	}
}

func lgamma(x float64) float64 { v, _ := math.Lgamma(x); return v }

// TestSection5_3_BurstModel: BurstTail against simulated runs of losses.
func TestSection5_3_BurstModel(t *testing.T) {
	const p, burst, trials = 0.01, 5.0, 400000
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{32, 40} {
		var more [16]int
		for range trials {
			lost := 0
			for range n { // runs begin at random, one may overlap the end
				if rng.Float64() < p/burst {
					for lost++; rng.Float64() < 1-1/burst; lost++ {
					}
				}
			}
			for m := range more {
				if lost > m {
					more[m]++
				}
			}
		}
		for m := range more {
			got, want := BurstTail(n, m, p, burst), float64(more[m])/trials
			if math.Abs(got-want) > 4*math.Sqrt(want/trials)+0.02*want {
				t.Errorf("n = %d: P[> %d] = %g, simulated %g", n, m, got, want)
			}
		}
	}
	if got, want := BurstTail(32, 2, 1e-3, 1), 5.2e-6; math.Abs(got-want) > 0.1*want { // no bursts: Poisson
		t.Errorf("%g", got)
	}
}

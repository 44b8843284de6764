// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// sampled is a distribution by samples, sorted.
type sampled []float64

func sample(n int, one func() float64) sampled {
	s := make(sampled, n)
	for i := range s {
		s[i] = one()
	}
	slices.Sort(s)
	return s
}

func (s sampled) mean() float64 {
	sum := 0.0
	for _, x := range s {
		sum += x
	}
	return sum / float64(len(s))
}

// tail is the share of samples over t.
func (s sampled) tail(t float64) float64 {
	i, _ := slices.BinarySearch(s, t)
	for i < len(s) && s[i] == t {
		i++
	}
	return float64(len(s)-i) / float64(len(s))
}

// agree compares the mean, and the tail at quantiles of the samples, within slack of their sizes and what chance does. Just before and
// just after is where a tail that falls in steps is compared.
func agree(t *testing.T, d Distribution, s sampled, slack float64) {
	t.Helper()
	n, want := float64(len(s)), s.mean()
	deviation := 0.0
	for _, x := range s {
		deviation += (x - want) * (x - want) / n
	}
	if got := d.Mean(); math.Abs(got-want) > slack*want+5*math.Sqrt(deviation/n) {
		t.Errorf("mean %.6g, sampled %.6g", got, want)
	}
	for _, q := range []float64{0.01, 0.1, 0.5, 0.9, 0.99, 0.999} {
		x := s[int(q*n)]
		for _, at := range []float64{0.98 * x, 1.02 * x} {
			want := s.tail(at)
			low, high := d.Tail(at*(1+slack)), d.Tail(at*(1-slack))
			chance := 5 * math.Sqrt(max(want*(1-want), 1/n)/n)
			if want < low-chance-slack*low || want > high+chance+slack*high {
				t.Errorf("P[T > %.6g] is %.6g to %.6g, sampled %.6g", at, low, high, want)
			}
		}
	}
}

// channel is a Gilbert channel: the length of the present run of losses is geometric.
func channel(rng *rand.Rand, p Path) func() bool {
	lost := false
	return func() bool {
		if p.runs() == 1 {
			return rng.Float64() < p.Loss
		}
		if lost {
			lost = rng.Float64() < 1-1/p.Burst
		} else {
			lost = rng.Float64() < p.Loss/(1-p.Loss)/p.Burst
		}
		return lost
	}
}

// TestSelectiveRepeatAgainstSamples: packets one by one.
func TestSelectiveRepeatAgainstSamples(t *testing.T) {
	for _, tc := range []struct {
		p       Path
		packets int
		timeout float64
		slack   float64
	}{
		{Path{10e9, 10e-3, 1e-3, 1e-3, 1}, 2000, 30e-3, 1e-3},
		{Path{1e9, 1e-3, 1e-2, 1e-2, 1}, 3000, 1e-3, 1e-3}, // many timeouts while it is sent
		{Path{10e9, 10e-3, 0.4, 0.4, 1}, 50, 10e-3, 1e-3},
		{Path{10e9, 10e-3, 0.2, 0.2, 1}, 1, 30e-3, 1e-3},
		{Path{10e9, 10e-3, 2e-3, 2e-3, 8}, 2000, 30e-3, 0.1}, // runs: packets sent again share their fate only nearly
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		m := Message{Octets: int64(tc.packets) * 4096, Packet: 4096}
		step := tc.p.PacketTime(m)
		one := func() float64 {
			last, lost := 0.0, channel(rng, tc.p)
			for i := 1; i <= tc.packets; i++ {
				x := float64(i) * step
				if lost() {
					for x += tc.timeout + step; rng.Float64() < tc.p.Loss; x += tc.timeout + step {
					}
				}
				last = max(last, x)
			}
			return last + tc.p.RTT
		}
		t.Run(fmt.Sprint(tc.p), func(t *testing.T) { agree(t, SelectiveRepeat(tc.p, m, tc.timeout), sample(20000, one), tc.slack) })
	}
}

// TestFixedCodeAgainstSamples: blocks with their parity, packet by packet; what fails goes through selective repeat.
func TestFixedCodeAgainstSamples(t *testing.T) {
	for _, tc := range []struct {
		f     FixedCode
		p     Path
		slack float64
	}{
		{FixedCode{8, 2, MDS, 0.5}, Path{10e9, 10e-3, 1e-2, 1e-2, 1}, 0.01},
		{FixedCode{8, 2, MDS, 0.5}, Path{10e9, 10e-3, 5e-2, 5e-2, 1}, 0.02},
		{FixedCode{8, 2, XOR, 0.5}, Path{10e9, 10e-3, 1e-2, 1e-2, 1}, 0.01},
		{FixedCode{32, 8, XOR, 1}, Path{10e9, 10e-3, 3e-3, 3e-3, 1}, 0.01},
		{FixedCode{32, 4, MDS, 0.5}, Path{10e9, 10e-3, 5e-3, 5e-3, 4}, 0.1},
	} {
		rng := rand.New(rand.NewPCG(3, 4))
		const packets = 640
		m := Message{Octets: packets * 4096, Packet: 4096}
		step, n := tc.p.PacketTime(m), tc.f.K+tc.f.M
		one := func() float64 {
			again, lost := 0, channel(rng, tc.p)
			for range packets / tc.f.K {
				group, all, bad := make([]int, tc.f.M), 0, false
				for j := range n {
					if lost() {
						all++
						group[j%tc.f.M]++
						bad = bad || group[j%tc.f.M] > 1
					}
				}
				if tc.f.Code == MDS && all > tc.f.M || tc.f.Code == XOR && bad {
					again += tc.f.K
				}
			}
			total := float64(packets*n/tc.f.K)*step + tc.p.RTT
			if again == 0 {
				return total
			}
			last := 0.0
			for i := 1; i <= again; i++ {
				x := float64(i) * step
				if lost() {
					for x += 3*tc.p.RTT + step; rng.Float64() < tc.p.Loss; x += 3*tc.p.RTT + step {
					}
				}
				last = max(last, x)
			}
			return total + (tc.f.Wait+1)*tc.p.RTT + last
		}
		t.Run(fmt.Sprint(tc.f, tc.p), func(t *testing.T) { agree(t, tc.f.Completion(tc.p, m), sample(20000, one), tc.slack) })
	}
}

// TestGoBackNAgainstSamples: the requester and the responder, packet by packet.
func TestGoBackNAgainstSamples(t *testing.T) {
	const timeout = 67e-3
	for _, tc := range []struct {
		p       Path
		packets int
		slack   float64
	}{
		{Path{10e9, 10e-3, 1e-4, 1e-4, 1}, 2000, 0.01},
		{Path{10e9, 10e-3, 1e-3, 1e-3, 1}, 2000, 0.01},
		{Path{10e9, 10e-3, 2e-2, 2e-2, 1}, 500, 0.02},
		{Path{10e9, 10e-3, 2e-3, 2e-3, 4}, 2000, 0.1},
	} {
		rng := rand.New(rand.NewPCG(5, 6))
		m := Message{Octets: int64(tc.packets) * 4096, Packet: 4096}
		step := tc.p.PacketTime(m)
		alone := func() bool { return rng.Float64() < tc.p.Loss }
		one := func() float64 {
			now, lost := tc.p.RTT, channel(rng, tc.p)
			for next := 0; next < tc.packets; {
				now += step
				if !lost() {
					next++
					continue
				}
				// The first packet behind the gap brings a NAK, and the packet comes again at once; unless either is lost, or none comes.
				behind := next + 1
				for behind < tc.packets && lost() {
					behind++
				}
				if behind < tc.packets && !alone() {
					now += tc.p.RTT + step
					if !alone() {
						next++
						continue
					}
				}
				for now += timeout; alone(); now += timeout {
				}
				next++
			}
			for alone() { // the last ACK
				now += timeout
			}
			return now
		}
		t.Run(fmt.Sprint(tc.p), func(t *testing.T) { agree(t, GoBackN(tc.p, m, timeout), sample(20000, one), tc.slack) })
	}
}

// TestManyTimeouts: where the normal distribution begins it gives nearly the same times as the sums do.
func TestManyTimeouts(t *testing.T) {
	p := Path{Bandwidth: 10e9, RTT: 10e-3, Loss: 2e-2, Back: 2e-2}
	r := GoBackN(p, Message{Octets: 130000 * 4096, Packet: 4096}, 67e-3)
	if r.Packets*r.Loss*r.Fail < manyTimeouts {
		t.Fatal("too few to compare")
	}
	for _, q := range []float64{0.5, 0.99, 0.999} {
		x := Quantile(r, q)
		if low, high := r.exactTail(0.98*x-r.Sent), r.exactTail(1.02*x-r.Sent); low < 1-q || high > 1-q {
			t.Errorf("quantile %g is %g, of which 2 %% less is passed with %g and 2 %% more with %g", q, x, low, high)
		}
	}
}

// TestLateAgainstSamples: the last acknowledgement may be lost several times.
func TestLateAgainstSamples(t *testing.T) {
	p := Path{Bandwidth: 10e9, RTT: 10e-3, Loss: 1e-2}
	m := Message{Octets: 100 * 4096, Packet: 4096}
	d := SelectiveRepeat(p, m, 30e-3)
	for _, first := range []float64{0.2, 0.05} {
		rng := rand.New(rand.NewPCG(11, 12))
		one := func() float64 {
			x := Quantile(d, rng.Float64())
			for again := first; rng.Float64() < again; again = 0.2 {
				x += 67e-3
			}
			return x
		}
		late := Late{Distribution: d, Again: 0.2, Timeout: 67e-3}
		if first != late.Again {
			late.First = first
		}
		agree(t, late, sample(20000, one), 0.005)
	}
}

// TestCREMAgainstSamples: blocks with the symbols that they hold, requests and answers, each of which may be lost.
func TestCREMAgainstSamples(t *testing.T) {
	for _, tc := range []struct {
		c CREM
		p Path
	}{
		{CREM{K: 32, M: 0, Repair: 1.01, Rounds: 3, LastResort: 1}, Path{10e9, 10e-3, 1e-3, 1e-3, 1}},
		{CREM{K: 32, M: 2, Repair: 1.01, Rounds: 3, LastResort: 1}, Path{10e9, 10e-3, 2e-2, 2e-2, 1}},
		{CREM{K: 16, M: 1, Repair: 1.01, Rounds: 1, LastResort: 0.5}, Path{10e9, 10e-3, 5e-2, 5e-2, 1}},
		{CREM{K: 16, M: 1, Repair: 1.01, Rounds: 0, LastResort: 0.5}, Path{10e9, 10e-3, 5e-3, 5e-3, 1}},
		{CREM{K: 8, M: 1, Repair: 1, Rounds: 3, LastResort: 0.5}, Path{10e9, 10e-3, 0.2, 0.2, 1}},
		{CREM{K: 32, M: 3, Repair: 1, Rounds: 3, LastResort: 0.5, Spread: true, BurstGap: 4e-3}, Path{10e9, 10e-3, 2e-2, 2e-2, 1}},
	} {
		rng := rand.New(rand.NewPCG(7, 8))
		const blocks = 20
		m := Message{Octets: int64(blocks*tc.c.K) * 4096, Packet: 4096}
		step := tc.p.PacketTime(m)
		lost := func() bool { return rng.Float64() < tc.p.Loss }
		count := func(n int) (come int) {
			for range n {
				if !lost() {
					come++
				}
			}
			return come
		}
		block := func(last bool) float64 { // what the losses of one block add
			missing, held := tc.c.K-count(tc.c.K), count(tc.c.M)
			if missing == 0 && held == tc.c.M {
				return 0
			}
			due := float64(tc.c.M) * tc.c.Repair * step
			if missing <= held {
				if last && tc.c.Spread && missing+tc.c.M-held > 1 {
					due = max(due, min(tc.c.BurstGap, tc.p.RTT/4))
				}
				return due
			}
			due += tc.p.RTT / 8 // within the bounds of the tolerance
			for n := range tc.c.Rounds {
				due += tc.p.RTT
				if n > 0 {
					due += tc.p.RTT / 8
				}
				if lost() {
					continue
				}
				ask := missing - held
				switch {
				case n == Rounds-1:
					ask = missing
				case tc.p.Loss > 0.01:
					ask = min(ask+1, missing)
				}
				if held += count(ask); held >= missing {
					return due
				}
			}
			return due + tc.c.LastResort
		}
		one := func() float64 {
			last := 0.0
			for i := 1; i <= blocks; i++ {
				last = max(last, float64(i)*(float64(tc.c.K)+float64(tc.c.M)*tc.c.Repair)*step+block(i == blocks))
			}
			return last + tc.p.RTT
		}
		t.Run(fmt.Sprint(tc.c, tc.p), func(t *testing.T) { agree(t, tc.c.Completion(tc.p, m), sample(40000, one), 0.02) })
	}
}

// TestTailAgainstExactProduct: the product over all units with 200 bits, from losses of 1e-9 to one half.
func TestTailAgainstExactProduct(t *testing.T) {
	for _, loss := range []float64{1e-9, 1e-6, 1e-3, 0.1, 0.5} {
		for _, packets := range []int{1, 7, 400} {
			p := Path{Bandwidth: 10e9, RTT: 1e-3, Loss: loss}
			m := Message{Octets: int64(packets) * 4096, Packet: 4096}
			d, step := SelectiveRepeat(p, m, 0.4e-3), p.PacketTime(m)
			for _, at := range []float64{0, 0.3, 1.2, 2.7, 5.1} {
				x := (float64(packets)+0.5)*step + at*0.4e-3 // between the steps
				want := exactTail(packets, step, 0.4e-3+step, loss, x)
				if got := d.Tail(x + p.RTT); math.Abs(got-want) > 1e-12*want+negligible {
					t.Errorf("loss %g, %d packets: P[T > %g] = %g, exactly %g", loss, packets, x, got, want)
				}
			}
		}
	}
}

func exactTail(packets int, step, again, loss, t float64) float64 {
	one := new(big.Float).SetPrec(200).SetInt64(1)
	product := new(big.Float).Copy(one)
	for i := 1; i <= packets; i++ {
		tries := int(math.Floor((t-float64(i)*step)/again)) + 1
		fail := new(big.Float).Copy(one)
		for range tries {
			fail.Mul(fail, big.NewFloat(loss))
		}
		product.Mul(product, fail.Sub(one, fail))
	}
	tail, _ := product.Sub(one, product).Float64()
	return tail
}

// TestMeanAgainstTail: the mean is the integral of the tail, however the tail falls.
func TestMeanAgainstTail(t *testing.T) {
	p := Path{Bandwidth: 10e9, RTT: 2e-3, Loss: 0.03}
	m := Message{Octets: 900 * 4096, Packet: 4096}
	for name, d := range map[string]Distribution{
		"selective repeat": SelectiveRepeat(p, m, 1e-3), "fixed code": FixedCode{8, 1, MDS, 0.5}.Completion(p, m),
		"CREM": CREM{K: 16, M: 1, Repair: 1, Rounds: 2, LastResort: 5e-3}.Completion(p, m),
	} {
		least, most := d.Span()
		const n = 20000
		sum := least
		for i := range n {
			sum += d.Tail(least+(float64(i)+0.5)*(most-least)/n) * (most - least) / n
		}
		if got := d.Mean(); math.Abs(got-sum) > 2e-3*sum {
			t.Errorf("%s: mean %g, integral %g", name, got, sum)
		}
	}
}

// TestSmallLosses: at 1e-9 the mean is still right, where 1 - (1 - p)^n has lost its digits.
func TestSmallLosses(t *testing.T) {
	p := Path{Bandwidth: 400e9, RTT: 25e-3, Loss: 1e-9}
	m := Message{Octets: 128 * mib, Packet: 4096}
	d := SelectiveRepeat(p, m, 3*p.RTT)
	want := m.Packets() * p.Loss * 3 * p.RTT // one timeout, for nearly every loss
	if got := d.Mean() - p.Lossless(m); math.Abs(got-want) > 0.1*want || got <= 0 {
		t.Errorf("losses add %g, want about %g", got, want)
	}
	if got, want := d.Tail(p.Lossless(m)+p.RTT), m.Packets()*p.Loss; math.Abs(got-want) > 1e-4*want {
		t.Errorf("tail %g, want %g", got, want)
	}
}

// TestRingBetweenItsBounds: the recursion of a ring, stage by stage, lies between the two distributions.
func TestRingBetweenItsBounds(t *testing.T) {
	for _, sites := range []int{4, 8} {
		p := Path{Bandwidth: 400e9, RTT: 25e-3, Loss: 1e-4}
		d := SelectiveRepeat(p, Message{Octets: 16 * mib, Packet: 4096}, 3*p.RTT)
		chain, barrier := Ring(d, sites)
		rng := rand.New(rand.NewPCG(9, uint64(sites)))
		transfers := make([]float64, 10000) // equally likely
		for i := range transfers {
			transfers[i] = Quantile(d, (float64(i)+0.5)/float64(len(transfers)))
		}
		one := func() float64 {
			done := make([]float64, sites)
			for range 2*sites - 2 {
				next := make([]float64, sites)
				for i := range done { // needs its own last transfer, and what its neighbour sent
					next[i] = max(done[i], done[(i+sites-1)%sites]) + transfers[rng.IntN(len(transfers))]
				}
				done = next
			}
			return slices.Max(done)
		}
		s := sample(2000, one)
		if c, b := chain.Mean(), barrier.Mean(); s.mean() < 0.99*c || s.mean() > 1.01*b {
			t.Errorf("%d sites: mean %g, not between %g and %g", sites, s.mean(), c, b)
		}
		for _, q := range []float64{0.5, 0.9, 0.99} {
			x := s[int(q*float64(len(s)))]
			if lo, hi := Quantile(chain, q), Quantile(barrier, q); x < 0.97*lo || x > 1.03*hi {
				t.Errorf("%d sites: quantile %g is %g, not between %g and %g", sites, q, x, lo, hi)
			}
		}
		if mean, want := chain.Mean(), float64(2*sites-2)*d.Mean(); math.Abs(mean-want) > 0.01*want {
			t.Errorf("%d sites: mean of a chain %g, want %g", sites, mean, want)
		}
	}
}

// TestRingAgainstSDR: what SDR-RDMA says of all-reduce over 4 to 8 sites: the p99.9 with a code is 3 to over 6 times lower than with
// a timer, and the gain grows with the loss.
func TestRingAgainstSDR(t *testing.T) {
	for _, sites := range []int{4, 8} {
		before := 0.0
		for _, loss := range []float64{1e-4, 1e-3, 1e-2} {
			p := wan(loss)
			m := chunks(128*mib, 4*kib)
			rto, _ := Ring(SelectiveRepeat(p, m, RTO*p.RTT), sites)
			mds, _ := Ring(SDR(MDS).Completion(p, m), sites)
			gain := Quantile(rto, 0.999) / Quantile(mds, 0.999)
			if gain < 3 || gain < before {
				t.Errorf("%d sites, loss %g: %.2f times lower", sites, loss, gain)
			}
			before = gain
		}
		if before < 6 {
			t.Errorf("%d sites, loss 1e-2: %.2f times lower, want over 6", sites, before)
		}
	}
}

// TestIncompleteBeta against sums of binomial terms.
func TestIncompleteBeta(t *testing.T) {
	for _, n := range []float64{1, 5, 40, 300} {
		for _, p := range []float64{1e-6, 0.01, 0.3, 0.5, 0.9} {
			sum := 0.0
			for k := n; k >= 1; k-- {
				sum += binomial(n, k, p)
				if got := incompleteBeta(k, n-k+1, p); math.Abs(got-sum) > 1e-10*sum+1e-300 {
					t.Fatalf("P[Bin(%g, %g) >= %g] = %g, want %g", n, p, k, got, sum)
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"math/rand/v2"
	"testing"
)

func TestPSNArithmetic(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0}, {0, 1, 1}, {0, -1, 0xffffff}, {0xffffff, 1, 0}, {0xfffff0, 0x20, 0x10}, {0x10, -0x20, 0xfffff0},
		{0x123456, 1 << 24, 0x123456}, {5, -(1 << 24) - 6, 0xffffff}, {0x800000, 0x800000, 0},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%v.Add(%d) = %v, want %v", c.p, c.n, got, c.want)
		}
	}
	for _, c := range []struct {
		p, q PSN
		want int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1},
		{0x7fffff, 0, 1<<23 - 1}, {0x800000, 0, -1 << 23}, {0, 0x800000, -1 << 23}, {0x800001, 0, -1<<23 + 1},
	} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%v.Sub(%v) = %d, want %d", c.p, c.q, got, c.want)
		}
		if before, after := c.p.Before(c.q), c.p.After(c.q); before != (c.want < 0) || after != (c.want > 0) {
			t.Errorf("%v, %v: before %v, after %v, distance %d", c.p, c.q, before, after, c.want)
		}
	}
	if got := PSN(0xabc).String(); got != "0x000abc" {
		t.Errorf("String = %q", got)
	}
}

// Add and Sub undo each other over the whole range of distances, and never leave 24 bits.
func TestPSNAddSub(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		p, n := PSN(r.Uint32()&psnMask), r.IntN(1<<24)-1<<23
		q := p.Add(n)
		if q > psnMask || q.Sub(p) != n {
			t.Fatalf("%v.Add(%d) = %v, Sub gives %d", p, n, q, q.Sub(p))
		}
	}
}

func TestQPN(t *testing.T) {
	for q, want := range map[QPN]bool{0: true, 1: true, 2: false, 0xffffff: false} {
		if q.Management() != want {
			t.Errorf("%v.Management() = %v", q, !want)
		}
	}
	if got := QPN(0x15).String(); got != "0x000015" {
		t.Errorf("String = %q", got)
	}
}

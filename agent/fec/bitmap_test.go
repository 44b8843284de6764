// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// set is the naive bitmap.
type set [256]bool

func (s set) bitmap() (b Bitmap) {
	for j, in := range s {
		if in {
			b.Set(j)
		}
	}
	return b
}

func randomSet(rng *rand.Rand) (s set) {
	density := rng.IntN(9)
	for j := range s {
		s[j] = rng.IntN(8) < density
	}
	return s
}

func TestBitmapAgainstNaiveSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		x, y := randomSet(rng), randomSet(rng)
		a, b := x.bitmap(), y.bitmap()
		and, or, andNot := a.And(b), a.Or(b), a.AndNot(b)
		count, first, last, contains := 0, -1, -1, true
		for j := range x {
			if a.Has(j) != x[j] || and.Has(j) != (x[j] && y[j]) || or.Has(j) != (x[j] || y[j]) || andNot.Has(j) != (x[j] && !y[j]) {
				t.Fatalf("position %d of %x, %x", j, a, b)
			}
			contains = contains && (x[j] || !y[j])
			if x[j] {
				count++
				last = j
				if first < 0 {
					first = j
				}
			}
		}
		if a.Count() != count || a.First() != first || a.Last() != last || a.Empty() != (count == 0) || a.Contains(b) != contains || !or.Contains(a) {
			t.Fatalf("%x: count %d first %d last %d", a, a.Count(), a.First(), a.Last())
		}
		for from := -3; from < 260; from++ {
			want := -1
			for j := max(from, 0); j < 256; j++ {
				if x[j] {
					want = j
					break
				}
			}
			if got := a.Next(from); got != want {
				t.Fatalf("Next(%d) of %x = %d, want %d", from, a, got, want)
			}
		}
		j := rng.IntN(256)
		a.Clear(j)
		if x[j] = false; a != x.bitmap() {
			t.Fatalf("Clear(%d)", j)
		}
	}
}

func TestBitmapFull(t *testing.T) {
	for k := -1; k <= 300; k++ {
		b := Full(k)
		want := min(max(k, 0), 256)
		if b.Count() != want || b.Last() != want-1 {
			t.Errorf("Full(%d) has %d positions, the last is %d", k, b.Count(), b.Last())
		}
	}
}

func TestBitmapOutside(t *testing.T) {
	b := Full(256)
	for _, j := range []int{-1, -256, 256, 257, 1 << 40} {
		if b.Has(j) {
			t.Errorf("Has(%d)", j)
		}
		b.Clear(j)
		var none Bitmap
		if none.Set(j); !none.Empty() {
			t.Errorf("Set(%d) set something", j)
		}
	}
	if b != Full(256) {
		t.Error("Clear outside cleared something")
	}
}

// TestSection9_2_BitmapOrder: the appendix's Present Bitmap of four positions
// is 0xF0000000, and that of {0, 1, 2} is 0xE0000000.
func TestSection9_2_BitmapOrder(t *testing.T) {
	for k, want := range map[int]uint32{3: 0xe0000000, 4: 0xf0000000} {
		b := Full(k)
		var wire [8]byte
		binary.BigEndian.PutUint64(wire[:], b[0])
		if got := binary.BigEndian.Uint32(wire[:]); got != want {
			t.Errorf("%d positions: %08x, want %08x", k, got, want)
		}
	}
}

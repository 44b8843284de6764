// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// subset returns the bitmap whose position j is bit j of x.
func subset(x int) (b Bitmap) {
	for j := 0; x>>j != 0; j++ {
		if x>>j&1 != 0 {
			b.Set(j)
		}
	}
	return b
}

// TestSection4_3_2_AllErasures: for all k + m <= 12 and every subset of lost
// packets the block is recovered exactly if as many symbols as sources are left
// ("maximum distance separable"), and refused otherwise. Surplus rows verify on
// the way.
func TestSection4_3_2_AllErasures(t *testing.T) {
	const T = 21
	rng := rand.New(rand.NewPCG(5, 5))
	s := newSolver(T)
	for n := 2; n <= 12; n++ {
		for k := 1; k < n; k++ {
			b := newBlock(t, rng, s.pool, Cauchy, T, k, Full(k))
			var all []Row
			for i := range n - k {
				all = append(all, row(i, Full(k), b.repair(i, Full(k))))
			}
			for lost := range 1 << n {
				unknown := subset(lost & (1<<k - 1))
				var rows []Row
				for i := range all {
					if lost>>(k+i)&1 == 0 {
						rows = append(rows, all[i])
					}
				}
				var want error
				if len(rows) < unknown.Count() {
					want = ErrRank
				}
				s.check(t, b, unknown, rows, b.symbols, want)
			}
		}
	}
}

// TestSection4_3_2_MixedRows: ordinary rows and up to two coded rows, for all
// sets of unknowns U and all L of k <= 5: L that contain U (the draft's case),
// and L that miss an unknown (rule CRF 1 made a source unknown after the
// request). The oracle says what can be solved.
func TestSection4_3_2_MixedRows(t *testing.T) {
	const T = 9
	rng := rand.New(rand.NewPCG(6, 6))
	s := newSolver(T)
	solved, refused := 0, 0
	for k := 1; k <= 5; k++ {
		if k == 5 && testing.Short() {
			break
		}
		b := newBlock(t, rng, s.pool, Cauchy, T, k, Full(k))
		for u := range 1 << k {
			for l1 := 1; l1 < 1<<k; l1++ {
				for l2 := range 1 << k {
					unknown, rows := subset(u), []Row(nil)
					for i := range rng.IntN(3) {
						rows = append(rows, row(i, Full(k), b.repair(i, Full(k))))
					}
					rows = append(rows, row(5, subset(l1), b.repair(5, subset(l1))))
					if l2 != 0 {
						i := 6 - l2&1 // sometimes the same index again, with another L
						rows = append(rows, row(i, subset(l2), b.repair(i, subset(l2))))
					}
					rng.Shuffle(len(rows), func(x, y int) { rows[x], rows[y] = rows[y], rows[x] })
					want, err := naiveSolve(b, unknown, rows)
					if err == nil {
						solved++
					} else {
						refused++
					}
					s.check(t, b, unknown, rows, want, err)
				}
			}
		}
	}
	if solved < 500 || refused < 500 {
		t.Errorf("%d solved, %d refused: one side is hardly tested", solved, refused)
	}
}

// TestSolveRandomLargeBlocks: up to k = 255, absent positions, many unknowns,
// ordinary and coded rows, against the oracle's rank and the true symbols.
func TestSolveRandomLargeBlocks(t *testing.T) {
	const T = 70
	rng := rand.New(rand.NewPCG(7, 7))
	s := newSolver(T)
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		k := 13 + rng.IntN(243)
		room := 255 - k + 1 // Repair Indices 0..255-k
		present := randomSet(rng).bitmap().And(Full(k))
		present.Set(rng.IntN(k))
		b := newBlock(t, rng, s.pool, Cauchy, T, k, present)
		var unknown Bitmap
		for range rng.IntN(min(room, present.Count()) + 1) {
			unknown.Set(nth(present, rng.IntN(present.Count())))
		}
		var rows []Row
		for i := range room {
			L := present
			switch rng.IntN(4) {
			case 0: // a coded row over the unknowns
				L = unknown
			case 1: // a coded row over some other set
				L = present.And(randomSet(rng).bitmap())
			}
			if !L.Empty() && (rng.IntN(room) < unknown.Count()+2 || rng.IntN(4) == 0) {
				rows = append(rows, row(i, L, b.repair(i, L)))
			}
		}
		want, err := naiveSolve(b, unknown, rows)
		s.check(t, b, unknown, rows, want, err)
		if err == nil {
			for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
				if string(want[j]) != string(b.symbols[j]) {
					t.Fatal("the oracle is wrong")
				}
			}
		}
		for _, c := range b.cells {
			s.pool.Put(c)
		}
		s.pool.Reclaim()
	}
}

// nth returns position number n of the set.
func nth(b Bitmap, n int) int {
	j := b.First()
	for range n {
		j = b.Next(j + 1)
	}
	return j
}

// TestSolveLargest: k = 127 of 254 symbols, all sources lost, in closed form and
// by elimination.
func TestSolveLargest(t *testing.T) {
	const T, k = 64, 127
	rng := rand.New(rand.NewPCG(8, 8))
	s := newSolver(T)
	b := newBlock(t, rng, s.pool, Cauchy, T, k, Full(k))
	var rows []Row
	for i := range k {
		rows = append(rows, row(i, Full(k), b.repair(i, Full(k))))
	}
	s.check(t, b, Full(k), rows, b.symbols, nil)
	less := Full(k - 1)
	rows[3] = row(3, less, b.repair(3, less))
	s.check(t, b, Full(k), rows, b.symbols, nil)
	s.check(t, b, Full(k), rows[1:], b.symbols, ErrRank)
}

// TestSection6_Rule3_SurplusVerifies: whatever octet of whatever row is wrong,
// more rows than unknowns give ErrSurplus, never a result.
func TestSection6_Rule3_SurplusVerifies(t *testing.T) {
	const T, k = 66, 6
	rng := rand.New(rand.NewPCG(9, 9))
	s := newSolver(T)
	b := newBlock(t, rng, s.pool, Cauchy, T, k, Full(k))
	coded := subset(0b1011)
	for u := range 4 {
		unknown := subset(0b1011 & (1<<u - 1))
		rows := []Row{row(4, coded, b.repair(4, coded))}
		for i := range unknown.Count() {
			rows = append(rows, row(i, Full(k), b.repair(i, Full(k))))
		}
		s.check(t, b, unknown, rows, b.symbols, nil)
		for r := range rows {
			for o := range T {
				rows[r].Symbol[o] ^= 1 << (o % 8)
				s.check(t, b, unknown, rows, b.symbols, ErrSurplus)
				rows[r].Symbol[o] ^= 1 << (o % 8)
			}
		}
		// A wrong known source spoils it as well (CRF 2 looks for those first).
		if known := nth(Full(k).AndNot(unknown), 1); u > 0 {
			b.cells[known].mem[MaxHead+5] ^= 0x10
			s.check(t, b, unknown, rows, b.symbols, ErrSurplus)
			b.cells[known].mem[MaxHead+5] ^= 0x10
		}
	}
}

// TestSection6_2_LateCopyIsNotRead: what lies in known for an unknown index, a
// late copy with other octets, has no influence.
func TestSection6_2_LateCopyIsNotRead(t *testing.T) {
	const T, k = 40, 5
	rng := rand.New(rand.NewPCG(10, 10))
	pool := NewPool(1 << 20)
	b := newBlock(t, rng, pool, Cauchy, T, k, Full(k))
	rows := []Row{row(0, Full(k), b.repair(0, Full(k)))}
	known, out := b.cells, [256]*Cell{2: pool.Get(T)}
	known[2] = pool.Get(T)
	_ = known[2].Set(nil, []byte("another copy"), T)
	var unknown Bitmap
	unknown.Set(2)
	if err := NewDecoder().Solve(T, Cauchy, unknown, &known, rows, &out); err != nil || string(out[2].Symbol(T)) != string(b.symbols[2]) {
		t.Errorf("%x, %v, want %x", out[2].Symbol(T), err, b.symbols[2])
	}
	if string(known[2].Payload()) != "another copy" {
		t.Error("the late copy was changed")
	}
}

// TestSection4_3_3_XOR: one row recovers one loss; it is never more than one
// equation.
func TestSection4_3_3_XOR(t *testing.T) {
	const T, k = 30, 7
	rng := rand.New(rand.NewPCG(11, 11))
	s := newSolver(T)
	b := newBlock(t, rng, s.pool, XOR, T, k, Full(k))
	r := row(0, Full(k), b.repair(0, Full(k)))
	for j := range k {
		s.check(t, b, subset(1<<j), []Row{r}, b.symbols, nil)
		s.check(t, b, subset(1<<j), []Row{r, r}, b.symbols, nil)
		s.check(t, b, subset(1<<j|1<<((j+1)%k)), []Row{r, r}, b.symbols, ErrRank)
	}
	r.Symbol[3] ^= 1
	s.check(t, b, Bitmap{}, []Row{r}, b.symbols, ErrSurplus)
}

func TestSolveRefuses(t *testing.T) {
	const T, k = 70, 4
	rng := rand.New(rand.NewPCG(12, 12))
	pool := NewPool(1 << 20)
	b := newBlock(t, rng, pool, Cauchy, T, k, Full(k))
	type call struct {
		T          int
		scheme     Scheme
		unknown    Bitmap
		known, out [256]*Cell
		rows       []Row
	}
	cases := []struct {
		name  string
		spoil func(c *call)
		want  error
	}{
		{"nothing wrong", func(*call) {}, nil},
		{"Source Copy", func(c *call) { c.scheme = SourceCopy }, ErrScheme},
		{"scheme 3", func(c *call) { c.scheme = 3 }, ErrScheme},
		{"no output", func(c *call) { c.out[1] = nil }, ErrBuffer},
		{"small output", func(c *call) { c.out[1] = pool.Get(64) }, ErrBuffer},
		{"small source", func(c *call) { c.known[0] = pool.Get(64) }, ErrBuffer},
		{"short row", func(c *call) { c.rows[0].Symbol = c.rows[0].Symbol[:T-1] }, ErrBuffer},
		{"row without room after it", func(c *call) { c.rows[0].Symbol = c.rows[0].Symbol[:T:T] }, ErrBuffer},
		{"no T", func(c *call) { c.T = 1 }, ErrBuffer},
		{"source missing", func(c *call) { c.known[3] = nil }, ErrSource},
		{"L beyond the block", func(c *call) { c.rows[0].L.Set(9) }, ErrSource},
		{"empty L", func(c *call) { c.rows[0].L = Bitmap{} }, ErrSource},
		{"index plus k of 256", func(c *call) { c.rows[0].Index = 252 }, ErrIndex},
		{"index 255", func(c *call) { c.rows[0].Index = 255 }, ErrIndex},
		{"XOR with index 1", func(c *call) { c.scheme, c.rows[0].Index = XOR, 1 }, ErrIndex},
		{"no rows", func(c *call) { c.rows = nil }, ErrRank},
		{"the same row twice", func(c *call) { c.rows[1] = c.rows[0] }, ErrRank},
	}
	for _, tc := range cases {
		c := call{T: T, scheme: Cauchy, unknown: subset(0b110), known: b.cells}
		c.known[1], c.known[2] = nil, nil
		c.out[1], c.out[2] = pool.Get(T), pool.Get(T)
		for i := range 2 {
			c.rows = append(c.rows, row(i, Full(k), b.repair(i, Full(k))))
		}
		tc.spoil(&c)
		if err := NewDecoder().Solve(c.T, c.scheme, c.unknown, &c.known, c.rows, &c.out); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

// TestSection4_3_2_HighestIndex: i + k = 255 is allowed and works.
func TestSection4_3_2_HighestIndex(t *testing.T) {
	const T = 10
	rng := rand.New(rand.NewPCG(13, 13))
	s := newSolver(T)
	for _, k := range []int{1, 4, 128, 255} {
		b := newBlock(t, rng, s.pool, Cauchy, T, k, Full(k))
		i := 255 - k
		out := make([]byte, Stride(T))
		if err := Encode(out, len(out), Cauchy, uint8(i), 1, T, Full(k), &b.cells); err != nil {
			t.Fatal(err)
		}
		s.check(t, b, subset(1), []Row{row(i, Full(k), out[:T])}, b.symbols, nil)
		if err := Encode(out, len(out), Cauchy, uint8(i+1), 1, T, Full(k), &b.cells); !errors.Is(err, ErrIndex) {
			t.Errorf("k = %d, index %d: %v", k, i+1, err)
		}
	}
}

func FuzzSolve(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(3), uint8(0), false)
	f.Add(uint64(2), uint8(32), uint8(8), uint8(3), false)
	f.Add(uint64(3), uint8(255), uint8(2), uint8(1), false)
	f.Add(uint64(4), uint8(9), uint8(4), uint8(200), true)
	const T = 11
	s := newSolver(T)
	f.Fuzz(func(t *testing.T, seed uint64, k, lost, flip uint8, xor bool) {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		scheme := Cauchy
		if xor {
			scheme = XOR
		}
		k = max(k, 1)
		present := randomSet(rng).bitmap().And(Full(int(k)))
		present.Set(rng.IntN(int(k)))
		b := newBlock(t, rng, s.pool, scheme, T, int(k), present)
		defer func() {
			for _, c := range b.cells {
				s.pool.Put(c)
			}
			s.pool.Reclaim()
		}()
		var unknown Bitmap
		for range lost % 24 {
			unknown.Set(nth(present, rng.IntN(present.Count())))
		}
		var rows []Row
		for range rng.IntN(unknown.Count() + 3) {
			L, i := present, rng.IntN(256-int(k))
			if xor {
				i = 0
			}
			switch rng.IntN(3) {
			case 0:
				L = unknown
			case 1:
				L = present.And(randomSet(rng).bitmap())
			}
			if !L.Empty() {
				rows = append(rows, row(i, L, b.repair(i, L)))
			}
		}
		if len(rows) > 0 && flip != 0 {
			rows[int(flip)%len(rows)].Symbol[int(flip)%T] ^= flip
		}
		want, err := naiveSolve(b, unknown, rows)
		s.check(t, b, unknown, rows, want, err)
	})
}

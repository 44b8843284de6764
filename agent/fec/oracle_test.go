// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// The oracle of this package's tests: multiplication by shift and add, symbols
// and systems of equations octet by octet. It shares nothing with the code.

// mulTable[a][b] is the product in GF(2^8) modulo 0x11D.
var mulTable = func() (p [256][256]byte) {
	for a := range 256 {
		for b := range 256 {
			x, y := a, b
			for ; y != 0; y >>= 1 {
				if y&1 != 0 {
					p[a][b] ^= byte(x)
				}
				if x <<= 1; x > 255 {
					x ^= 0x11d
				}
			}
		}
	}
	return p
}()

// inverse finds 1/a by trying.
func inverse(a byte) byte {
	for b := range 256 {
		if mulTable[a][b] == 1 {
			return byte(b)
		}
	}
	return 0
}

// naiveCoef is the coefficient by the text of sections 4.3.2 and 4.3.3.
func naiveCoef(scheme Scheme, i, j int) byte {
	if scheme == XOR {
		return 1
	}
	return inverse(byte(255-i) ^ byte(j))
}

// block is a block with its source symbols.
type block struct {
	T       int
	scheme  Scheme
	present Bitmap
	symbols [256][]byte // T octets each
	cells   [256]*Cell
}

// newBlock makes a block of k positions with random packets at the present ones.
func newBlock(t testing.TB, rng *rand.Rand, pool *Pool, scheme Scheme, T, k int, present Bitmap) *block {
	t.Helper()
	b := &block{T: T, scheme: scheme, present: present.And(Full(k))}
	for j := b.present.First(); j >= 0; j = b.present.Next(j + 1) {
		payload := fill(rng, make([]byte, rng.IntN(T-1)))
		b.cells[j] = pool.Get(T)
		if err := b.cells[j].Set([]byte("head"), payload, T); err != nil {
			t.Fatal(err)
		}
		b.symbols[j] = append(append([]byte{byte(len(payload) >> 8), byte(len(payload))}, payload...), make([]byte, T-2-len(payload))...)
	}
	return b
}

// repair computes a repair symbol by its definition.
func (b *block) repair(i int, L Bitmap) []byte {
	r := make([]byte, b.T)
	for j := L.First(); j >= 0; j = L.Next(j + 1) {
		c := naiveCoef(b.scheme, i, j)
		for o, x := range b.symbols[j] {
			r[o] ^= mulTable[c][x]
		}
	}
	return r
}

// row makes a Row of a repair symbol, with garbage in the memory after it.
func row(i int, L Bitmap, symbol []byte) Row {
	mem := make([]byte, Stride(len(symbol)))
	for o := range mem {
		mem[o] = byte(0xa5 + o)
	}
	copy(mem, symbol)
	return Row{Index: uint8(i), L: L, Symbol: mem[:len(symbol)]}
}

// naiveSolve solves by plain elimination of the augmented system.
func naiveSolve(b *block, unknown Bitmap, rows []Row) ([256][]byte, error) {
	type equation struct {
		coef [256]byte
		rhs  []byte
	}
	var left []equation
	for _, r := range rows {
		e := equation{rhs: append([]byte(nil), r.Symbol[:b.T]...)}
		for j := r.L.First(); j >= 0; j = r.L.Next(j + 1) {
			c := naiveCoef(b.scheme, int(r.Index), j)
			if unknown.Has(j) {
				e.coef[j] = c
				continue
			}
			for o, x := range b.symbols[j] {
				e.rhs[o] ^= mulTable[c][x]
			}
		}
		left = append(left, e)
	}
	add := func(to, from *equation, c byte) {
		for j := range to.coef {
			to.coef[j] ^= mulTable[c][from.coef[j]]
		}
		for o := range to.rhs {
			to.rhs[o] ^= mulTable[c][from.rhs[o]]
		}
	}
	var solved []equation
	var columns []int
	for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
		pivot := -1
		for i := range left {
			if left[i].coef[j] != 0 {
				pivot = i
			}
		}
		if pivot < 0 {
			return [256][]byte{}, ErrRank
		}
		p := left[pivot]
		left = append(left[:pivot:pivot], left[pivot+1:]...)
		add(&p, &p, inverse(p.coef[j])^1) // p times 1/coef
		for i := range left {
			add(&left[i], &p, left[i].coef[j])
		}
		for i := range solved {
			add(&solved[i], &p, solved[i].coef[j])
		}
		solved, columns = append(solved, p), append(columns, j)
	}
	for _, e := range left {
		if !zero(e.rhs) {
			return [256][]byte{}, ErrSurplus
		}
	}
	var out [256][]byte
	for i, j := range columns {
		out[j] = solved[i].rhs
	}
	return out, nil
}

// solver runs Solve and compares its answer, octets and errors, with the
// oracle's.
type solver struct {
	d    *Decoder
	pool *Pool
	outs [256]*Cell
	T    int
}

func newSolver(T int) *solver {
	s := &solver{d: NewDecoder(), pool: NewPool(64 << 20), T: T}
	for j := range s.outs {
		s.outs[j] = s.pool.Get(T)
		for o := range s.outs[j].mem {
			s.outs[j].mem[o] = 0x5a
		}
	}
	return s
}

// check returns what Solve returned, after comparing with want.
func (s *solver) check(t testing.TB, b *block, unknown Bitmap, rows []Row, want [256][]byte, wantErr error) {
	t.Helper()
	var known, out [256]*Cell
	for j := range known {
		if unknown.Has(j) {
			out[j] = s.outs[j]
		} else {
			known[j] = b.cells[j]
		}
	}
	err := s.d.Solve(b.T, b.scheme, unknown, &known, rows, &out)
	if !errors.Is(err, wantErr) {
		t.Fatalf("unknown %x, %d rows: error %v, want %v", unknown, len(rows), err, wantErr)
	}
	if err != nil {
		return
	}
	for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
		if string(out[j].Symbol(b.T)) != string(want[j]) {
			t.Fatalf("unknown %x, %d rows: symbol %d is %x, want %x", unknown, len(rows), j, out[j].Symbol(b.T), want[j])
		}
		if len(out[j].Head()) != 0 {
			t.Fatalf("a decoded symbol has headers")
		}
	}
}

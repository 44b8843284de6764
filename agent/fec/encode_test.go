// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/reedsolomon"
)

// TestEncodeAgainstDefinition: every scheme, any number of symbols, any first
// index, L and T, at unaligned addresses with a gap between symbols; in memory
// and in cells; octets between symbols stay as they were.
func TestEncodeAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 20))
	pool := NewPool(64 << 20)
	rounds := 400
	if testing.Short() {
		rounds = 60
	}
	for range rounds {
		T, k, scheme := 2+rng.IntN(200), 1+rng.IntN(255), Scheme(rng.IntN(3))
		L := randomSet(rng).bitmap().And(Full(k))
		L.Set(rng.IntN(k))
		b := newBlock(t, rng, pool, scheme, T, k, L)
		first, n := 0, 1
		switch scheme {
		case XOR: // has one symbol
		case Cauchy:
			first = rng.IntN(256 - k)
			n = 1 + rng.IntN(min(20, 256-k-first))
		case SourceCopy:
			first = nth(L, rng.IntN(L.Count()))
			for L.Has(first + n) {
				n++
			}
		}
		gap, at := rng.IntN(100), rng.IntN(64)
		stride := Stride(T) + gap
		mem := bytes.Repeat([]byte{0x77}, at+n*stride)
		if err := Encode(mem[at:], stride, scheme, uint8(first), n, T, L, &b.cells); err != nil {
			t.Fatalf("%v: %v", scheme, err)
		}
		cells := make([]*Cell, n)
		for r := range cells {
			cells[r] = pool.Get(T)
		}
		if err := EncodeCells(cells, scheme, uint8(first), T, L, &b.cells); err != nil {
			t.Fatalf("%v: %v", scheme, err)
		}
		for r := range n {
			want := b.symbols[first+r]
			if scheme != SourceCopy {
				want = b.repair(first+r, L)
			}
			got := mem[at+r*stride:][:stride]
			if !bytes.Equal(got[:T], want) || !zero(got[T:Stride(T)]) || !bytes.Equal(got[Stride(T):], bytes.Repeat([]byte{0x77}, gap)) {
				t.Fatalf("%v, T = %d, k = %d: symbol %d of %d is wrong", scheme, T, k, first+r, n)
			}
			if !bytes.Equal(cells[r].Symbol(T), want) || len(cells[r].Head()) != 0 {
				t.Fatalf("%v, T = %d, k = %d: symbol %d of %d is wrong in a cell", scheme, T, k, first+r, n)
			}
			pool.Put(cells[r])
		}
		for _, c := range b.cells {
			pool.Put(c)
		}
		pool.Reclaim()
	}
}

// TestSection4_3_3_XORIsExclusiveOr checks scheme 2 without any field.
func TestSection4_3_3_XORIsExclusiveOr(t *testing.T) {
	const T, k = 100, 5
	b := newBlock(t, rand.New(rand.NewPCG(21, 21)), NewPool(1<<20), XOR, T, k, subset(0b11011))
	out := make([]byte, Stride(T))
	if err := Encode(out, len(out), XOR, 0, 1, T, b.present, &b.cells); err != nil {
		t.Fatal(err)
	}
	for o := range T {
		if want := b.symbols[0][o] ^ b.symbols[1][o] ^ b.symbols[3][o] ^ b.symbols[4][o]; out[o] != want {
			t.Fatalf("octet %d: %02x, want %02x", o, out[o], want)
		}
	}
}

// customEncoder returns klauspost's codec with the coefficients of section
// 4.3.2. It must not be used with k + m > 256: it would be another code.
func customEncoder(t testing.TB, k, m int) reedsolomon.Encoder {
	t.Helper()
	rows := make([][]byte, m)
	for i := range rows {
		for j := range k {
			rows[i] = append(rows[i], inverse(byte(255^i^j)))
		}
	}
	e, err := reedsolomon.New(k, m, reedsolomon.WithCustomMatrix(rows), reedsolomon.WithMaxGoroutines(1))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestAgainstKlauspost: the same code in another implementation, there and back.
func TestAgainstKlauspost(t *testing.T) {
	rng := rand.New(rand.NewPCG(22, 22))
	s := newSolver(1074)
	for _, c := range []struct{ k, m int }{{1, 1}, {4, 2}, {10, 10}, {32, 1}, {32, 4}, {32, 8}, {33, 9}, {128, 31}, {200, 55}, {254, 1}} {
		b := newBlock(t, rng, s.pool, Cauchy, s.T, c.k, Full(c.k))
		theirs := make([][]byte, c.k+c.m)
		for j := range theirs {
			if theirs[j] = make([]byte, s.T); j < c.k {
				copy(theirs[j], b.symbols[j])
			}
		}
		codec := customEncoder(t, c.k, c.m)
		if err := codec.Encode(theirs); err != nil {
			t.Fatal(err)
		}
		ours := make([]byte, c.m*Stride(s.T))
		if err := Encode(ours, Stride(s.T), Cauchy, 0, c.m, s.T, Full(c.k), &b.cells); err != nil {
			t.Fatal(err)
		}
		var rows []Row
		for i := range c.m {
			symbol := ours[i*Stride(s.T):][:s.T]
			if !bytes.Equal(symbol, theirs[c.k+i]) {
				t.Fatalf("k = %d, m = %d: repair symbol %d differs from klauspost's", c.k, c.m, i)
			}
			rows = append(rows, Row{Index: uint8(i), L: Full(c.k), Symbol: symbol})
		}
		var unknown Bitmap
		for unknown.Count() < min(c.m, c.k) {
			j := rng.IntN(c.k)
			unknown.Set(j)
			theirs[j] = nil
		}
		if err := codec.ReconstructData(theirs); err != nil {
			t.Fatal(err)
		}
		var want [256][]byte
		copy(want[:], theirs[:c.k])
		s.check(t, b, unknown, rows, want, nil)
	}
}

func TestEncodeRefuses(t *testing.T) {
	const T, k = 70, 4
	pool := NewPool(1 << 20)
	b := newBlock(t, rand.New(rand.NewPCG(23, 23)), pool, Cauchy, T, k, Full(k))
	small := b.cells
	small[2] = pool.Get(64)
	buf := make([]byte, 20*Stride(T))
	cases := []struct {
		name   string
		out    []byte
		stride int
		scheme Scheme
		first  uint8
		n, T   int
		L      Bitmap
		syms   *[256]*Cell
		want   error
	}{
		{"nothing wrong", buf, 128, Cauchy, 0, 20, T, Full(k), &b.cells, nil},
		{"one symbol needs no stride", buf[:128], 0, Cauchy, 0, 1, T, Full(k), &b.cells, nil},
		{"no symbol", buf, 128, Cauchy, 0, 0, T, Full(k), &b.cells, ErrBuffer},
		{"no T", buf, 128, Cauchy, 0, 1, 1, Full(k), &b.cells, ErrBuffer},
		{"short memory", buf[:2*128-1], 128, Cauchy, 0, 2, T, Full(k), &b.cells, ErrBuffer},
		{"symbols that overlap", buf, 127, Cauchy, 0, 2, T, Full(k), &b.cells, ErrBuffer},
		{"negative stride", buf, -128, Cauchy, 0, 2, T, Full(k), &b.cells, ErrBuffer},
		{"scheme 3", buf, 128, 3, 0, 1, T, Full(k), &b.cells, ErrScheme},
		{"index plus k of 256", buf, 128, Cauchy, 250, 3, T, Full(k), &b.cells, ErrIndex},
		{"index past 255", buf, 128, Cauchy, 255, 2, T, Full(1), &b.cells, ErrIndex},
		{"second XOR symbol", buf, 128, XOR, 0, 2, T, Full(k), &b.cells, ErrIndex},
		{"XOR index 1", buf, 128, XOR, 1, 1, T, Full(k), &b.cells, ErrIndex},
		{"empty L", buf, 128, Cauchy, 0, 1, T, Bitmap{}, &b.cells, ErrSource},
		{"empty L of XOR", buf, 128, XOR, 0, 1, T, Bitmap{}, &b.cells, ErrSource},
		{"missing source", buf, 128, Cauchy, 0, 1, T, Full(k + 1), &b.cells, ErrSource},
		{"source of a smaller T", buf, 128, Cauchy, 0, 1, T, Full(k), &small, ErrSource},
		{"copy outside L", buf, 128, SourceCopy, 2, 2, T, Full(k - 1), &b.cells, ErrSource},
		{"copy of an absent source", buf, 128, SourceCopy, 3, 2, T, Full(k + 1), &b.cells, ErrSource},
		{"copy past 255", buf, 128, SourceCopy, 255, 2, T, Full(256), &b.cells, ErrSource},
		{"copy of a smaller T", buf, 128, SourceCopy, 2, 1, T, Full(k), &small, ErrSource},
	}
	for _, c := range cases {
		if err := Encode(c.out, c.stride, c.scheme, c.first, c.n, c.T, c.L, c.syms); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for name, out := range map[string][]*Cell{"no cell": {}, "nil cell": {nil}, "small cell": {pool.Get(T), pool.Get(64)}} {
		if err := EncodeCells(out, Cauchy, 0, T, Full(k), &b.cells); !errors.Is(err, ErrBuffer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemeString(t *testing.T) {
	for s, want := range map[Scheme]string{SourceCopy: "SourceCopy", Cauchy: "Cauchy", XOR: "XOR", 200: "Scheme(200)"} {
		if s.String() != want {
			t.Errorf("scheme %d: %s", s, s)
		}
	}
}

// TestSection4_3_Numbers pins the scheme numbers that the draft's example and
// order of text give.
func TestSection4_3_Numbers(t *testing.T) {
	if SourceCopy != 0 || Cauchy != 1 || XOR != 2 {
		t.Error("scheme numbers changed")
	}
}

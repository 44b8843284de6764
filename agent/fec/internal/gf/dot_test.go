// SPDX-License-Identifier: Apache-2.0

package gf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// twin is one implementation of Dot's work.
type twin struct {
	name string
	dot  func(outs, srcs [][]byte, n int, factors []Matrix, add bool)
}

// twins returns what can run here; each must give what the reference gives.
func twins(t testing.TB) []twin {
	list := []twin{{"portable", dotPortable}}
	if accelerated {
		return append(list, twin{"assembly", dotAssembly})
	}
	t.Log("no AVX-512 and GFNI here: the assembly is not tested")
	return list
}

// products is the reference's multiplication table, from slowMul.
var products = func() (p [256][256]byte) {
	for a := range 256 {
		for b := range 256 {
			p[a][b] = slowMul(byte(a), byte(b))
		}
	}
	return p
}()

// constant finds the c of a factor by its definition.
func constant(m Matrix) byte {
	for c := range 256 {
		if Times(byte(c)) == m {
			return byte(c)
		}
	}
	panic("no such factor")
}

// reference is Dot by its definition, octet by octet.
func reference(outs, srcs [][]byte, n int, factors []Matrix, add bool) {
	coef := make([]byte, len(factors))
	for i, f := range factors {
		coef[i] = constant(f)
	}
	for r, o := range outs {
		for i := range n {
			var sum byte
			if add {
				sum = o[i]
			}
			for s, src := range srcs {
				sum ^= products[coef[s*len(outs)+r]][src[i]]
			}
			o[i] = sum
		}
	}
}

// guard is the number of octets around each slice that must not change.
const guard = 130

// problem is one call of Dot. Slices lie at chosen offsets in larger memory.
type problem struct {
	outs, srcs [][]byte
	mem        [][]byte // memory around outs
	n          int
	factors    []Matrix
	add        bool
}

func newProblem(rng *rand.Rand, m, ns, n int, add bool) problem {
	p := problem{n: n, add: add, factors: make([]Matrix, m*ns)}
	for i := range p.factors {
		p.factors[i] = Times(byte(rng.Uint32()))
		if rng.IntN(8) == 0 { // 0 and 1 have shortcuts in places
			p.factors[i] = Times(byte(rng.IntN(2)))
		}
	}
	slice := func() (mem, s []byte) {
		mem = make([]byte, n+2*guard)
		fill(rng, mem)
		at := rng.IntN(65)
		return mem, mem[at:][:n]
	}
	for range m {
		mem, o := slice()
		p.mem, p.outs = append(p.mem, mem), append(p.outs, o)
	}
	for range ns {
		_, s := slice()
		p.srcs = append(p.srcs, s)
	}
	return p
}

func fill(rng *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// clone returns the problem with outputs of its own at the same alignment
// relative to their memory.
func (p problem) clone() problem {
	q := p
	q.mem, q.outs = nil, nil
	for r, mem := range p.mem {
		c := bytes.Clone(mem)
		at := len(mem) - cap(p.outs[r])
		q.mem, q.outs = append(q.mem, c), append(q.outs, c[at:][:p.n])
	}
	return q
}

// compare runs one implementation and the reference on equal problems.
func compare(t *testing.T, tw twin, p problem) {
	t.Helper()
	got, want := p.clone(), p.clone()
	tw.dot(got.outs, got.srcs, got.n, got.factors, got.add)
	reference(want.outs, want.srcs, want.n, want.factors, want.add)
	for r := range want.mem {
		if !bytes.Equal(got.mem[r], want.mem[r]) {
			t.Fatalf("%s: %d outputs, %d sources, %d octets, add %v: output %d or its surroundings differ from the reference",
				tw.name, len(p.outs), len(p.srcs), p.n, p.add, r)
		}
	}
}

func TestDotTwins(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sources := []int{1, 2, 3, 4, 7, 8, 31, 32, 33, 63, 64, 65, 254, 255}
	if testing.Short() {
		sources = []int{1, 2, 3, 32, 33, 65}
	}
	for _, tw := range twins(t) {
		for m := 1; m <= MaxOutputs; m++ {
			for _, ns := range sources {
				for _, n := range []int{64, 128, 192, 256, 1088} {
					for _, add := range []bool{false, true} {
						compare(t, tw, newProblem(rng, m, ns, n, add))
					}
				}
			}
			compare(t, tw, newProblem(rng, m, 5, 4224, false))
			compare(t, tw, newProblem(rng, m, 5, 65600, true))
		}
	}
}

// TestDotAllProducts has every coefficient meet every octet value in every
// output of every kernel, in the paired and the single position.
func TestDotAllProducts(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, tw := range twins(t) {
		for m := 1; m <= MaxOutputs; m++ {
			for c := range 256 {
				p := newProblem(rand.New(rand.NewPCG(uint64(c), 0)), m, 3, 256, false)
				p.srcs = [][]byte{all, all, all}
				for i := range p.factors {
					p.factors[i] = Times(byte(c + i)) // distinct, so that a swap of two shows
				}
				compare(t, tw, p)
			}
		}
	}
}

// TestDotRefuses checks that wrong numbers and short slices are refused before
// any memory is touched.
func TestDotRefuses(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cases := map[string]func(p *problem){
		"no output":       func(p *problem) { p.outs, p.factors = nil, nil },
		"nine outputs":    func(p *problem) { *p = newProblem(rng, 9, 2, 128, false) },
		"length not 64":   func(p *problem) { p.n = 100 },
		"negative length": func(p *problem) { p.n = -64 },
		"missing factor":  func(p *problem) { p.factors = p.factors[1:] },
		"extra factor":    func(p *problem) { p.factors = append(p.factors, 1) },
		"short output":    func(p *problem) { p.outs[1] = p.outs[1][:p.n-1] },
		"short source":    func(p *problem) { p.srcs[2] = p.srcs[2][:p.n-1] },
		"empty source":    func(p *problem) { p.srcs[0] = nil },
	}
	for name, spoil := range cases {
		p := newProblem(rng, 3, 4, 128, false)
		spoil(&p)
		var before [][]byte
		for _, mem := range p.mem {
			before = append(before, bytes.Clone(mem))
		}
		if Dot(p.outs, p.srcs, p.n, p.factors, p.add) {
			t.Errorf("%s: accepted", name)
		}
		for r := range p.mem {
			if !bytes.Equal(p.mem[r], before[r]) {
				t.Errorf("%s: output %d was changed", name, r)
			}
		}
	}
}

func TestDotEmptySum(t *testing.T) {
	p := newProblem(rand.New(rand.NewPCG(5, 6)), 2, 0, 128, true)
	before := bytes.Clone(p.outs[0])
	if !Dot(p.outs, nil, p.n, nil, true) || !bytes.Equal(p.outs[0], before) {
		t.Error("adding the empty sum changed the output")
	}
	if !Dot(p.outs, nil, p.n, nil, false) || !bytes.Equal(p.outs[0], make([]byte, 128)) {
		t.Error("the empty sum is not zero")
	}
	if !Dot(p.outs, nil, 0, nil, false) {
		t.Error("zero octets refused")
	}
}

func TestDotAllocates(t *testing.T) {
	p := newProblem(rand.New(rand.NewPCG(7, 8)), 4, 32, 1088, false)
	if n := testing.AllocsPerRun(100, func() { Dot(p.outs, p.srcs, p.n, p.factors, p.add) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

func FuzzDot(f *testing.F) {
	f.Add(uint64(1), uint8(4), uint8(32), uint8(17), false)
	f.Add(uint64(2), uint8(8), uint8(255), uint8(1), true)
	f.Add(uint64(3), uint8(1), uint8(1), uint8(2), true)
	f.Fuzz(func(t *testing.T, seed uint64, m, ns, columns uint8, add bool) {
		p := newProblem(rand.New(rand.NewPCG(seed, 0)), 1+int(m)%MaxOutputs, 1+int(ns), column*int(columns%40), add)
		for _, tw := range twins(t) {
			if p.n > 0 {
				compare(t, tw, p)
			}
		}
	})
}

func BenchmarkDot(b *testing.B) {
	for _, m := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("k=32/m=%d/n=1088", m), func(b *testing.B) {
			p := newProblem(rand.New(rand.NewPCG(9, 9)), m, 32, 1088, false)
			b.SetBytes(32 * 1088)
			for b.Loop() {
				Dot(p.outs, p.srcs, p.n, p.factors, false)
			}
		})
	}
}

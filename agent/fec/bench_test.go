// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/klauspost/reedsolomon"
)

// Names are key=value pairs, for hack/bench to read. The T are those of RoCE
// MTU 1024 and 4096 (header and ICRC included, 42 and 98 octets of room).
var benchT = []int{1074, 4202}

const benchK = 32

// codecs holds one block for each implementation.
type codecs struct {
	T, m    int
	block   *block
	out     []byte
	codec   reedsolomon.Encoder
	tight   [][]byte // shards of T octets
	padded  [][]byte // shards of Stride(T) octets, which klauspost prefers
	sources []byte   // all sources, for memcpy
	slab    []byte
}

func newCodecs(b *testing.B, T, m int) *codecs {
	c := &codecs{T: T, m: m, out: make([]byte, m*Stride(T)), codec: customEncoder(b, benchK, m)}
	c.block = newBlock(b, rand.New(rand.NewPCG(50, 50)), NewPool(4<<20), Cauchy, T, benchK, Full(benchK))
	for j := range benchK + m {
		tight, padded := align(Stride(T)), align(Stride(T))
		if j < benchK {
			copy(tight, c.block.symbols[j])
			copy(padded, c.block.symbols[j])
			c.sources = append(c.sources, c.block.symbols[j]...)
		}
		c.tight, c.padded = append(c.tight, tight[:T]), append(c.padded, padded)
	}
	c.slab = make([]byte, len(c.sources))
	return c
}

func (c *codecs) own() error {
	return Encode(c.out, Stride(c.T), Cauchy, 0, c.m, c.T, Full(benchK), &c.block.cells)
}

func (c *codecs) run(impl string) (err error) {
	switch impl {
	case "own":
		err = c.own()
	case "klauspost":
		err = c.codec.Encode(c.tight)
	case "klauspost-padded":
		err = c.codec.Encode(c.padded)
	case "memcpy":
		copy(c.slab, c.sources)
	}
	return err
}

// BenchmarkEncode is the coding of one block, as octets of sources a second.
func BenchmarkEncode(b *testing.B) {
	for _, T := range benchT {
		for _, m := range []int{1, 2, 4, 8} {
			c := newCodecs(b, T, m)
			for _, impl := range []string{"own", "klauspost", "klauspost-padded", "memcpy"} {
				b.Run(fmt.Sprintf("k=%d/m=%d/T=%d/impl=%s", benchK, m, T, impl), func(b *testing.B) {
					b.SetBytes(int64(benchK * T))
					b.ReportAllocs()
					for b.Loop() {
						if err := c.run(impl); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// BenchmarkEncodeRatio runs the implementations in turns, so that a busy machine
// hits all alike, and reports medians of the ratios of their times to ours.
func BenchmarkEncodeRatio(b *testing.B) {
	others := []string{"klauspost", "klauspost-padded", "memcpy"}
	for _, T := range benchT {
		for _, m := range []int{1, 2, 4, 8} {
			c := newCodecs(b, T, m)
			b.Run(fmt.Sprintf("k=%d/m=%d/T=%d", benchK, m, T), func(b *testing.B) {
				ratios := make([][]float64, len(others))
				for b.Loop() {
					own := c.time(b, "own")
					for i, impl := range others {
						ratios[i] = append(ratios[i], c.time(b, impl)/own)
					}
				}
				for i, impl := range others {
					slices.Sort(ratios[i])
					b.ReportMetric(ratios[i][len(ratios[i])/2], impl+"/own")
				}
			})
		}
	}
}

// time returns the nanoseconds of a few runs.
func (c *codecs) time(b *testing.B, impl string) float64 {
	start := time.Now()
	for range 16 {
		if err := c.run(impl); err != nil {
			b.Fatal(err)
		}
	}
	return float64(time.Since(start))
}

// BenchmarkDecode restores u lost sources from u ordinary repair symbols.
func BenchmarkDecode(b *testing.B) {
	for _, T := range benchT {
		for u := 1; u <= 8; u++ {
			b.Run(fmt.Sprintf("k=%d/u=%d/T=%d", benchK, u, T), func(b *testing.B) {
				benchmarkSolve(b, T, u, func(int) Bitmap { return Full(benchK) })
			})
		}
	}
}

// BenchmarkDecodeLate is the general case: one row misses an unknown, so
// elimination solves.
func BenchmarkDecodeLate(b *testing.B) {
	for _, T := range benchT {
		for _, u := range []int{2, 4, 8} {
			b.Run(fmt.Sprintf("k=%d/u=%d/T=%d", benchK, u, T), func(b *testing.B) {
				benchmarkSolve(b, T, u, func(i int) Bitmap {
					L := Full(benchK)
					if i == 0 {
						L.Clear(0)
					}
					return L
				})
			})
		}
	}
}

func benchmarkSolve(b *testing.B, T, u int, L func(i int) Bitmap) {
	s := newSolver(T)
	blk := newBlock(b, rand.New(rand.NewPCG(51, 51)), s.pool, Cauchy, T, benchK, Full(benchK))
	var rows []Row
	for i := range u {
		rows = append(rows, row(i, L(i), blk.repair(i, L(i))))
	}
	unknown := Bitmap{}
	for a := range u {
		unknown.Set(a * benchK / u)
	}
	b.SetBytes(int64(u * T))
	b.ReportAllocs()
	for b.Loop() {
		if err := s.d.Solve(T, Cauchy, unknown, &blk.cells, rows, &s.outs); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDigest is the digest of one block.
func BenchmarkDigest(b *testing.B) {
	for _, T := range benchT {
		b.Run(fmt.Sprintf("k=%d/T=%d", benchK, T), func(b *testing.B) {
			c := newCodecs(b, T, 1)
			var d Digest
			b.SetBytes(int64(benchK * T))
			b.ReportAllocs()
			for b.Loop() {
				d.Reset(7)
				for j := range benchK {
					d.Add(c.block.cells[j].Symbol(T))
				}
				d.Sum()
			}
		})
	}
}

// BenchmarkCell is the copy of one packet from a frame into a cell.
func BenchmarkCell(b *testing.B) {
	for _, T := range benchT {
		b.Run(fmt.Sprintf("T=%d", T), func(b *testing.B) {
			pool := NewPool(1 << 20)
			frame := align(42 + T)
			b.SetBytes(int64(T))
			for b.Loop() {
				c := pool.Get(T)
				if err := c.Set(frame[:42], frame[42:40+T], T); err != nil {
					b.Fatal(err)
				}
				pool.Put(c)
				pool.Reclaim()
			}
		})
	}
}

// BenchmarkMinRepair is the choice of m after one LOSS_REPORT.
func BenchmarkMinRepair(b *testing.B) {
	for _, p := range []float64{1e-4, 1e-2, 1e-1} {
		b.Run(fmt.Sprintf("k=%d/p=%g", benchK, p), func(b *testing.B) {
			for b.Loop() {
				MinRepair(benchK, p, 1e-4, 32)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"math/rand/v2"
	"testing"
)

// TestSteadyStateAllocatesNothing: what happens for each packet and each block,
// after a first round.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	const T, k, m, u = 1074, 32, 4, 3
	rng := rand.New(rand.NewPCG(40, 40))
	pool := NewPool(4 << 20)
	b := newBlock(t, rng, pool, Cauchy, T, k, Full(k))
	head, payload := make([]byte, 42), make([]byte, 1072)
	d := NewDecoder()
	var digest Digest
	var rows []Row
	for i := range u + 1 { // one surplus row
		rows = append(rows, row(i, Full(k), b.repair(i, Full(k))))
	}
	gauss := append([]Row(nil), rows...)
	for i := range 2 {
		L := Full(k)
		L.Clear(i) // misses an unknown
		gauss[i] = row(i, L, b.repair(i, L))
	}
	unknown := Full(u)
	out, repairs := [256]*Cell{}, make([]*Cell, m)
	for name, f := range map[string]func(){
		"pool and cell": func() {
			c := pool.Get(T)
			_ = c.Set(head, payload, T)
			_, _ = c.Parse(T)
			pool.Put(c)
		},
		"encode": func() {
			stride := Stride(T) + 64
			if Encode(pool.Buffer(m * stride)[40:], stride, Cauchy, 0, m, T, Full(k), &b.cells) != nil {
				t.Error("Encode failed")
			}
		},
		"encode to cells": func() {
			for r := range repairs {
				repairs[r] = pool.Get(T)
			}
			if EncodeCells(repairs, Cauchy, 0, T, Full(k), &b.cells) != nil {
				t.Error("EncodeCells failed")
			}
			for _, c := range repairs {
				pool.Put(c)
			}
		},
		"solve": func() {
			for j := range u {
				out[j] = pool.Get(T)
			}
			if d.Solve(T, Cauchy, unknown, &b.cells, rows, &out) != nil || d.Solve(T, Cauchy, unknown, &b.cells, gauss, &out) != nil {
				t.Error("Solve failed")
			}
			for j := range u {
				pool.Put(out[j])
			}
		},
		"digest": func() {
			digest.Reset(7)
			for j := range k {
				digest.Add(b.cells[j].Symbol(T))
			}
			digest.Sum()
		},
		"m": func() { MinRepair(k, 0.01, 1e-4, 16) },
	} {
		if n := testing.AllocsPerRun(50, func() { f(); pool.Reclaim() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

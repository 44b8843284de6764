// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"encoding/hex"
	"testing"
)

// The draft's appendix: scheme 1, k = 4, T = 16, payloads "RDMA-PKT-0".."-3".
const exampleT = 16

var (
	exampleSources = [4]string{
		"000a52444d412d504b542d3000000000", "000a52444d412d504b542d3100000000",
		"000a52444d412d504b542d3200000000", "000a52444d412d504b542d3300000000",
	}
	exampleCoef = [3][4]byte{
		{0xfd, 0x7e, 0xff, 0x7f}, {0x7e, 0xfd, 0x7f, 0xff}, {0xff, 0x7f, 0xfd, 0x7e},
	}
	exampleR0 = "001ef6ccd7c377f0ddfc774c00000000"
	exampleR1 = "001ef6ccd7c377f0ddfc774f00000000"
	exampleR2 = "00354fdf6d4b40b57e5c400000000000" // over L = {0, 1, 2}
)

// exampleCells returns the example's sources, made from their payloads.
func exampleCells(t *testing.T, pool *Pool) (syms [256]*Cell) {
	t.Helper()
	for j := range exampleSources {
		syms[j] = pool.Get(exampleT)
		payload := []byte("RDMA-PKT-0")
		payload[9] += byte(j)
		if err := syms[j].Set(nil, payload, exampleT); err != nil {
			t.Fatal(err)
		}
	}
	return syms
}

func TestAppendixCoefficients(t *testing.T) {
	for i, row := range exampleCoef {
		for j, want := range row {
			if got := Coef(uint8(i), uint8(j)); got != want {
				t.Errorf("C(%d, %d) = %02x, want %02x", i, j, got, want)
			}
		}
	}
}

func TestAppendixSymbols(t *testing.T) {
	syms := exampleCells(t, NewPool(1<<20))
	for j, want := range exampleSources {
		if got := hex.EncodeToString(syms[j].Symbol(exampleT)); got != want {
			t.Errorf("S%d = %s, want %s", j, got, want)
		}
	}
	out := make([]byte, 2*Stride(exampleT))
	if err := Encode(out, Stride(exampleT), Cauchy, 0, 2, exampleT, Full(4), &syms); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(out[:exampleT]); got != exampleR0 {
		t.Errorf("R0 = %s, want %s", got, exampleR0)
	}
	if got := hex.EncodeToString(out[Stride(exampleT):][:exampleT]); got != exampleR1 {
		t.Errorf("R1 = %s, want %s", got, exampleR1)
	}
	if err := Encode(out, Stride(exampleT), Cauchy, 2, 1, exampleT, Full(3), &syms); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(out[:exampleT]); got != exampleR2 {
		t.Errorf("R2[L] = %s, want %s", got, exampleR2)
	}
}

func TestAppendixDecode(t *testing.T) {
	pool := NewPool(1 << 20)
	syms := exampleCells(t, pool)
	var known, out [256]*Cell
	known[3] = syms[3]
	var rows []Row
	for i, r := range []struct {
		l   int
		hex string
	}{{4, exampleR0}, {4, exampleR1}, {3, exampleR2}} {
		c := pool.Get(exampleT)
		symbol, _ := hex.DecodeString(r.hex)
		if err := c.SetSymbol(symbol); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, Row{Index: uint8(i), L: Full(r.l), Symbol: c.Symbol(exampleT)})
	}
	for j := range 3 {
		out[j] = pool.Get(exampleT)
	}
	if err := NewDecoder().Solve(exampleT, Cauchy, Full(3), &known, rows, &out); err != nil {
		t.Fatal(err)
	}
	for j := range 3 {
		p, err := out[j].Parse(exampleT)
		if want := "RDMA-PKT-" + string(rune('0'+j)); err != nil || string(p) != want {
			t.Errorf("restored packet %d: %q, %v, want %q", j, p, err, want)
		}
	}
}

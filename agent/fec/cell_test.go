// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"unsafe"
)

func fill(rng *rand.Rand, b []byte) []byte {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestStride(t *testing.T) {
	for T := 1; T < 1<<16; T++ {
		s := Stride(T)
		if s < T || s%64 != 0 || s%4096 == 0 || s-T >= 128 {
			t.Fatalf("Stride(%d) = %d", T, s)
		}
	}
	for T, want := range map[int]int{1: 64, 64: 64, 65: 128, 1074: 1088, 4032: 4032, 4033: 4160, 4096: 4160, 4202: 4224} {
		if got := Stride(T); got != want {
			t.Errorf("Stride(%d) = %d, want %d", T, got, want)
		}
	}
}

// TestSection4_1_Symbol: S = uint16(len P) || P || zeros, also in a cell that
// held a longer packet before.
func TestSection4_1_Symbol(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	pool := NewPool(1 << 20)
	for range 2000 {
		T := 2 + rng.IntN(300)
		c := pool.Get(T)
		head, payload := fill(rng, make([]byte, rng.IntN(MaxHead+1))), fill(rng, make([]byte, rng.IntN(T-1)))
		if err := c.Set(head, payload, T); err != nil {
			t.Fatal(err)
		}
		want := append([]byte{byte(len(payload) >> 8), byte(len(payload))}, payload...)
		want = append(want, make([]byte, Stride(T)-len(want))...)
		if got := c.Symbol(T); len(got) != T || cap(got) != Stride(T) || !bytes.Equal(got[:Stride(T)], want) {
			t.Fatalf("T = %d, %d octets: symbol %x, want %x", T, len(payload), got[:Stride(T)], want)
		}
		if !bytes.Equal(c.Head(), head) || !bytes.Equal(c.Payload(), payload) || c.Len() != len(payload) {
			t.Fatalf("head or payload differ")
		}
		if got, err := c.Parse(T); err != nil || !bytes.Equal(got, payload) {
			t.Fatalf("Parse: %x, %v", got, err)
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(c.Symbol(T)))); at%64 != 0 {
			t.Fatalf("symbol at %x", at)
		}
		pool.Put(c)
		pool.Reclaim()
	}
}

// TestSection4_1_NeverTruncated: what does not fit is refused, and nothing is
// changed.
func TestSection4_1_NeverTruncated(t *testing.T) {
	pool := NewPool(1 << 20)
	c := pool.Get(100)
	if err := c.Set([]byte("head"), []byte("payload"), 100); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"payload of T-1":         c.Set(nil, make([]byte, 99), 100),
		"head of 65":             c.Set(make([]byte, MaxHead+1), nil, 100),
		"T beyond the cell":      c.Set(nil, nil, 129),
		"T of 0":                 c.Set(nil, nil, 0),
		"head alone":             c.SetHead(make([]byte, MaxHead+1)),
		"symbol beyond the cell": c.SetSymbol(make([]byte, 129)),
	} {
		if !errors.Is(err, ErrTooLong) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if string(c.Head()) != "head" || string(c.Payload()) != "payload" {
		t.Errorf("changed to %q, %q", c.Head(), c.Payload())
	}
	if err := c.Set(nil, make([]byte, 98), 100); err != nil {
		t.Errorf("payload of T-2: %v", err)
	}
	if c.Symbol(129) != nil || c.Symbol(-1) != nil {
		t.Error("a symbol that the cell has no room for")
	}
}

func TestSetHeadKeepsSymbol(t *testing.T) {
	pool := NewPool(1 << 20)
	c := pool.Get(100)
	_ = c.Set(nil, []byte("payload"), 100)
	head := bytes.Repeat([]byte{0xee}, MaxHead)
	if err := c.SetHead(head); err != nil || !bytes.Equal(c.Head(), head) {
		t.Errorf("head %x, %v", c.Head(), err)
	}
	if p, err := c.Parse(100); err != nil || string(p) != "payload" {
		t.Errorf("payload %q, %v", p, err)
	}
}

func TestSetSymbol(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	c := NewPool(1 << 20).Get(1074)
	fill(rng, c.mem)
	symbol := fill(rng, make([]byte, 1070))
	if err := c.SetSymbol(symbol); err != nil {
		t.Fatal(err)
	}
	got := c.Symbol(1070)
	if !bytes.Equal(got, symbol) || !zero(got[1070:cap(got)]) || len(c.Head()) != 0 {
		t.Error("symbol, padding or head wrong")
	}
}

// TestSection6_Rule3_Parse: the length must fit and every octet of the padding
// must be zero.
func TestSection6_Rule3_Parse(t *testing.T) {
	const T = 50
	c := NewPool(1 << 20).Get(T)
	set := func(n int) {
		_ = c.SetSymbol(append([]byte{byte(n >> 8), byte(n)}, make([]byte, T-2)...))
	}
	for n := 0; n < 1<<16; n += 1 + n/60*500 {
		set(n)
		if p, err := c.Parse(T); (err == nil) != (n <= T-2) || err == nil && len(p) != n {
			t.Errorf("length %d: %d octets, %v", n, len(p), err)
		}
		if c.Len() > c.room()-2 || len(c.Payload()) != c.Len() {
			t.Errorf("length %d: Len %d", n, c.Len())
		}
	}
	for n := range T - 1 {
		for at := 2 + n; at < T; at++ {
			set(n)
			c.Symbol(T)[at] = 1 << (at % 8)
			if _, err := c.Parse(T); !errors.Is(err, ErrSymbol) {
				t.Errorf("length %d, octet %d of the padding not zero: %v", n, at, err)
			}
		}
	}
	for _, bad := range []int{-1, 0, 1, 65} {
		if _, err := c.Parse(bad); !errors.Is(err, ErrSymbol) {
			t.Errorf("T = %d: %v", bad, err)
		}
	}
}

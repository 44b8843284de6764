// SPDX-License-Identifier: Apache-2.0

//go:build race

package fec

import "testing"

// TestReclaimOverwrites: with -race, memory used after Reclaim shows at once.
func TestReclaimOverwrites(t *testing.T) {
	p := NewPool(1 << 20)
	c, b := p.Get(100), p.Buffer(10)
	_ = c.Set([]byte("head"), []byte("payload"), 100)
	copy(b, "message")
	symbol, head := c.Symbol(100), c.Head()
	p.Put(c)
	p.Reclaim()
	for _, s := range [][]byte{symbol, head, b} {
		for _, x := range s {
			if x != 0xdb {
				t.Fatalf("still %x", s)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestPoolOperations runs random operations and checks after each that the
// bound holds, that handed-out memory is nobody else's, and that it keeps its
// octets until Reclaim.
func TestPoolOperations(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 4))
		limit := int64(10_000 + rng.IntN(400_000))
		p := NewPool(limit)
		type lease struct {
			cell *Cell
			T    int
			mem  []byte
			want []byte
			put  bool
		}
		var leases []lease
		refused := 0
		for range 3000 {
			switch op := rng.IntN(20); {
			case op < 9:
				T := []int{20, 200, 1074, 1080, 4202}[rng.IntN(5)]
				c := p.Get(T)
				if c == nil {
					refused++
					continue
				}
				if c.Len() != 0 || len(c.Head()) != 0 {
					t.Fatal("a new cell has contents")
				}
				want := fill(rng, make([]byte, T))
				_ = c.SetSymbol(want)
				leases = append(leases, lease{cell: c, T: T, want: want})
			case op < 12:
				if b := p.Buffer(rng.IntN(9000)); b != nil {
					fill(rng, b)
					leases = append(leases, lease{mem: b, want: bytes.Clone(b)})
				} else {
					refused++
				}
			case op < 18 && len(leases) > 0:
				l := &leases[rng.IntN(len(leases))]
				p.Put(l.cell) // nil for a buffer; may be the second Put of a cell
				l.put = true
			case op == 18:
				checkLeases(t, func(yield func(got, want []byte)) {
					for _, l := range leases {
						if l.cell != nil {
							yield(l.cell.Symbol(l.T), l.want)
						} else {
							yield(l.mem, l.want)
						}
					}
				})
				p.Reclaim()
				kept := leases[:0]
				for _, l := range leases {
					if l.cell != nil && !l.put {
						kept = append(kept, l)
					}
				}
				leases = kept
			case op == 19 && rng.IntN(10) == 0:
				limit = int64(rng.IntN(400_000))
				p.SetLimit(limit)
			}
			var inUse int64
			for _, l := range leases {
				if l.cell != nil {
					inUse += l.cell.size()
				} else {
					inUse += int64(len(l.mem)+63) &^ 63
				}
			}
			if p.InUse() != inUse {
				t.Fatalf("InUse %d, want %d", p.InUse(), inUse)
			}
			if p.Limit() != limit || p.held > max(limit, inUse+chunkSize*int64(len(p.chunks))) {
				t.Fatalf("holds %d of %d, %d in use", p.held, limit, inUse)
			}
		}
		if refused == 0 {
			t.Errorf("seed %d: the bound of %d was never reached", seed, limit)
		}
	}
}

func checkLeases(t *testing.T, each func(yield func(got, want []byte))) {
	t.Helper()
	each(func(got, want []byte) {
		if !bytes.Equal(got, want) {
			t.Fatal("handed-out memory changed")
		}
	})
}

func TestPoolBound(t *testing.T) {
	one := NewPool(1 << 20).Get(1074).size()
	p := NewPool(10 * one)
	var cells []*Cell
	for c := p.Get(1074); c != nil; c = p.Get(1074) {
		cells = append(cells, c)
	}
	if len(cells) != 10 || p.InUse() != 10*one {
		t.Fatalf("%d cells, %d octets in use", len(cells), p.InUse())
	}
	p.Put(cells[0])
	if p.Get(1074) != nil || p.InUse() != 10*one {
		t.Error("a cell was reused before Reclaim")
	}
	p.Reclaim()
	if p.InUse() != 9*one {
		t.Errorf("%d octets in use after Reclaim", p.InUse())
	}
	if c := p.Get(1074); c != cells[0] {
		t.Errorf("got %p, not the free cell %p", c, cells[0])
	}
}

// TestPoolClassesGiveWay: memory that one symbol length no longer needs serves
// another.
func TestPoolClassesGiveWay(t *testing.T) {
	p := NewPool(100_000)
	var small []*Cell
	for c := p.Get(20); c != nil; c = p.Get(20) {
		small = append(small, c)
	}
	for _, c := range small {
		p.Put(c)
	}
	p.Reclaim()
	big := 0
	for p.Get(4202) != nil {
		big++
	}
	if size := int64(MaxHead + Stride(4202) + cellOverhead); big != int(100_000/size) {
		t.Errorf("%d large cells after the small ones went", big)
	}
	if p.held > p.limit {
		t.Errorf("holds %d", p.held)
	}
}

// TestPoolRefusalDropsNothing: a request that can't be met costs others nothing.
func TestPoolRefusalDropsNothing(t *testing.T) {
	p := NewPool(100_000)
	for range 3 {
		p.Put(p.Get(20))
	}
	keep := p.Get(60_000)
	p.Reclaim()
	idle := p.idle
	if keep == nil || p.Get(60_000) != nil || p.idle != idle || idle == 0 {
		t.Errorf("free octets %d, before %d", p.idle, idle)
	}
}

func TestPoolPutTwiceAndForeign(t *testing.T) {
	p, q := NewPool(1<<20), NewPool(1<<20)
	c := p.Get(100)
	q.Put(c)
	p.Put(c)
	p.Put(c)
	p.Put(nil)
	p.Reclaim()
	q.Reclaim()
	p.Put(c) // free already
	p.Reclaim()
	if p.InUse() != 0 || q.InUse() != 0 {
		t.Errorf("in use: %d, %d", p.InUse(), q.InUse())
	}
	if a, b := p.Get(100), p.Get(100); a == b {
		t.Error("one cell handed out twice")
	}
}

func TestPoolSetLimit(t *testing.T) {
	p := NewPool(1 << 20)
	a, b := p.Get(1074), p.Get(1074)
	p.Buffer(3 * chunkSize)
	p.Put(a)
	p.Reclaim()
	p.SetLimit(b.size())
	if p.held != b.size() || p.Limit() != b.size() {
		t.Errorf("holds %d after the bound fell to %d", p.held, b.size())
	}
	if p.Get(1074) != nil {
		t.Error("a cell beyond the bound")
	}
	p.SetLimit(0)
	p.Put(b)
	p.Reclaim()
	if p.held != 0 || p.InUse() != 0 {
		t.Errorf("holds %d, %d in use with a bound of 0", p.held, p.InUse())
	}
}

// TestPoolBufferReserve: control messages get memory when cells have taken all.
func TestPoolBufferReserve(t *testing.T) {
	p := NewPool(50_000)
	for p.Get(1074) != nil {
	}
	for range 2 {
		n := 0
		for p.Buffer(1000) != nil {
			n++
		}
		if n != chunkSize/1024 {
			t.Errorf("%d buffers of 1000 octets", n)
		}
		p.Reclaim()
	}
	if p.Buffer(chunkSize+1) != nil || p.Buffer(-1) != nil || p.Buffer(0) == nil {
		t.Error("buffers of odd sizes")
	}
}

func TestPoolRefusesOddT(t *testing.T) {
	p := NewPool(1 << 30)
	for _, T := range []int{-1, 0, 1, 1 << 16} {
		if p.Get(T) != nil {
			t.Errorf("a cell for T = %d", T)
		}
	}
	if c := p.Get(1<<16 - 1); c == nil || len(c.Symbol(1<<16-1)) != 1<<16-1 {
		t.Error("no cell for T = 65535")
	}
}

// SPDX-License-Identifier: Apache-2.0

package fec

import "unsafe"

const (
	// maxStride bounds the symbol memory of a cell: T is a 16-bit number.
	maxStride = 1<<16 + 64
	// cellOverhead is counted for each cell beside its head and symbol: the
	// Cell itself and what alignment wastes.
	cellOverhead = 128
	// chunkSize is the unit in which memory for message buffers is taken.
	chunkSize = 1 << 16
)

// Pool hands out cells and message buffers of one worker within a bound in
// octets. Memory that was given back is kept for reuse, in one class per
// Stride; when the bound is reached, free cells of other classes give way. So
// nothing is allocated as long as the mix of symbol lengths stays the same.
type Pool struct {
	limit int64 // bound on held
	held  int64 // octets of all cells and chunks that exist
	idle  int64 // octets of free cells
	inUse int64 // octets of cells and buffers handed out, until Reclaim

	free    [maxStride/64 + 1]*Cell // free cells by Stride/64
	victim  int                     // class where the search for a cell to drop goes on
	limbo   *Cell                   // given back, intact until Reclaim
	chunks  [][]byte                // memory of message buffers; chunks[0] always exists
	chunk   int                     // the chunk in use
	used    int                     // octets used in that chunk
	buffers int64                   // octets of message buffers in inUse
}

// NewPool returns a pool that holds at most the given number of octets. Beside
// those it always has 64 KiB for message buffers, so that control messages can
// leave when cells have taken all the rest.
func NewPool(octets int64) *Pool {
	return &Pool{limit: octets, chunks: [][]byte{align(chunkSize)}}
}

// Limit returns the bound, in octets.
func (p *Pool) Limit() int64 { return p.limit }

// InUse returns the octets of cells and message buffers that are handed out or
// wait for Reclaim.
func (p *Pool) InUse() int64 { return p.inUse }

// SetLimit changes the bound. If it is below what the pool holds, free memory is
// dropped at once, and memory in use as it comes back.
func (p *Pool) SetLimit(octets int64) {
	p.limit = octets
	p.trim()
}

// Get hands out a cell for symbols of length T. It has no headers and Len 0; its
// other octets are arbitrary. It is the caller's until Put. Get returns nil if
// the bound is reached or T is not 2..65535.
func (p *Pool) Get(T int) *Cell {
	if T < prefix || T > 1<<16-1 {
		return nil
	}
	class := Stride(T) / 64
	c := p.free[class]
	if c != nil {
		p.free[class] = c.next
		p.idle -= c.size()
		c.next = nil
	} else if c = p.newCell(class); c == nil {
		return nil
	}
	c.out, c.head = true, 0
	c.mem[MaxHead], c.mem[MaxHead+1] = 0, 0
	p.inUse += c.size()
	return c
}

// Put gives a cell back. Its octets stay intact until Reclaim, for actions that
// refer to them. Put of nil, of a cell that was given back already, or of
// another pool's cell changes nothing.
func (p *Pool) Put(c *Cell) {
	if c == nil || !c.out || c.pool != p {
		return
	}
	c.out = false
	c.next, p.limbo = p.limbo, c
}

// Buffer hands out n octets for a message, with arbitrary contents. They are
// the caller's until the next Reclaim, which takes all buffers back. Buffer
// returns nil if the bound is reached.
func (p *Pool) Buffer(n int) []byte {
	if n < 0 {
		return nil
	}
	size := (n + 63) &^ 63
	for p.used+size > len(p.chunks[p.chunk]) {
		if p.chunk+1 == len(p.chunks) && !p.addChunk(size) {
			return nil
		}
		p.chunk, p.used = p.chunk+1, 0
	}
	b := p.chunks[p.chunk][p.used:][:n:n]
	p.used += size
	p.buffers += int64(size)
	p.inUse += int64(size)
	return b
}

// Reclaim takes back all cells that were Put and all message buffers. The
// engine calls it when it has flushed the actions of a batch; nothing may refer
// to that memory any more.
func (p *Pool) Reclaim() {
	for c := p.limbo; c != nil; {
		next := c.next
		poison(c.mem)
		class := c.room() / 64
		c.next, p.free[class] = p.free[class], c
		p.inUse -= c.size()
		p.idle += c.size()
		c = next
	}
	p.limbo = nil
	for _, chunk := range p.chunks[:p.chunk] {
		poison(chunk)
	}
	poison(p.chunks[p.chunk][:p.used])
	p.inUse -= p.buffers
	p.chunk, p.used, p.buffers = 0, 0, 0
	p.trim()
}

// size returns the octets that a cell counts for.
func (c *Cell) size() int64 { return int64(len(c.mem)) + cellOverhead }

// newCell makes a cell of a class, nil if there is no room.
func (p *Pool) newCell(class int) *Cell {
	n := MaxHead + 64*class
	if !p.room(int64(n) + cellOverhead) {
		return nil
	}
	c := &Cell{mem: align(n), pool: p}
	p.held += c.size()
	return c
}

// addChunk makes another chunk for message buffers of at least size octets.
func (p *Pool) addChunk(size int) bool {
	n := max(size, chunkSize)
	if !p.room(int64(n)) {
		return false
	}
	p.chunks = append(p.chunks, align(n))
	p.held += int64(n)
	return true
}

// room drops free cells until n more octets fit below the bound. If they would
// not fit even without any free cell, it drops none and returns false.
func (p *Pool) room(n int64) bool {
	if p.held-p.idle+n > p.limit {
		return false
	}
	for p.held+n > p.limit {
		p.dropCell()
	}
	return true
}

// trim drops free cells and unused chunks while the pool holds more than its
// bound.
func (p *Pool) trim() {
	for p.held > p.limit && p.idle > 0 {
		p.dropCell()
	}
	for last := len(p.chunks) - 1; p.held > p.limit && last > p.chunk; last-- {
		p.held -= int64(len(p.chunks[last]))
		p.chunks[last] = nil
		p.chunks = p.chunks[:last]
	}
}

// dropCell drops one free cell; there must be one. It goes round the classes, so
// that no class pays alone.
func (p *Pool) dropCell() {
	for p.free[p.victim] == nil {
		p.victim = (p.victim + 1) % len(p.free)
	}
	c := p.free[p.victim]
	p.free[p.victim] = c.next
	p.held -= c.size()
	p.idle -= c.size()
	p.victim = (p.victim + 1) % len(p.free)
}

// align returns n octets that start at a multiple of 64.
func align(n int) []byte {
	b := make([]byte, n+63)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[skip:][:n:n]
}

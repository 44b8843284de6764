// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"math/bits"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// cellExtra is what a cell takes beside its symbol: the head, and bookkeeping.
const cellExtra = fec.MaxHead + 128

// minHoldBytes keeps a flow able to hold a few packets whatever it is configured to.
const minHoldBytes = 1 << 16

func cellOctets(T int) int64 { return int64(fec.Stride(T) + cellExtra) }

func ones(w uint64) int { return bits.OnesCount64(w) }

// get takes a cell from the pool, nil if the pool is empty. Every cell of the flow comes from here and goes back by put.
func (f *Flow) get(T int) *fec.Cell {
	c := f.env.Pool.Get(T)
	if c != nil {
		f.cells++
		f.widest = max(f.widest, T)
		f.stats.MemoryOctets = f.memory()
	}
	return c
}

func (f *Flow) put(c *fec.Cell) {
	if c != nil {
		f.env.Pool.Put(c)
		f.cells--
		f.stats.MemoryOctets = f.memory()
	}
}

// memory is what the flow's cells take, each counted as large as the largest in use.
func (f *Flow) memory() int64 { return int64(f.cells) * cellOctets(f.widest) }

// room makes sure that one more cell fits the flow's bound: the oldest block or gap gives way first, then what is held for order
// (Section 6.1, rules 7 and 8), then the newest packets. It returns false if even that is not enough.
func (f *Flow) room(acts *[]Action) bool {
	for f.memory()+cellOctets(f.widest) > f.params.HoldBytes {
		if !f.giveWay(acts) {
			return false
		}
	}
	return true
}

// giveWay gives up what is kept for a rewind, then the oldest block or gap; without any, it releases what is held. It returns false if
// there was nothing.
func (f *Flow) giveWay(acts *[]Action) bool {
	switch {
	case f.replay.cells > 0:
		f.clearReplay()
		return true
	case len(f.blocks) > 0 && (len(f.gaps) == 0 || f.blocks[0].first < f.gaps[0].first):
		f.stats.GaveWay++
		f.giveUpBlock(f.blocks[0])
	case len(f.gaps) > 0:
		f.stats.GaveWay++
		f.giveUpGap(f.gaps[0])
	case f.hold.waiting > 0 && f.releaseWaiting(acts):
		return true
	case f.trail <= f.newest:
		f.settleAll()
		return true
	default:
		return false
	}
	f.flow(GaveUp, acts)
	return true
}

// roomFor is room for the packet at p, which has come and is not delivered yet: nothing behind it leaves meanwhile.
func (f *Flow) roomFor(p pos, acts *[]Action) bool {
	f.arriving = p
	ok := f.room(acts)
	f.arriving = nowhere
	return ok
}

// releaseWaiting lets go what waits. It returns false if that was nothing, because all of it is behind the packet that is arriving.
func (f *Flow) releaseWaiting(acts *[]Action) bool {
	before := f.hold.waiting
	f.releaseAll(OutOfMemory, acts)
	return f.hold.waiting < before
}

// copyOf copies a packet to a cell of its own, nil if the pool is empty.
func (f *Flow) copyOf(pkt *roce.Packet) *fec.Cell {
	T := max(f.lead+len(pkt.P())+2, f.widest)
	c := f.get(T)
	if c == nil || !f.fillCell(c, pkt, T) {
		return nil
	}
	return c
}

// fillCell puts a packet into a cell for symbols of T octets. It is false, and gives the cell back, if it does not fit.
func (f *Flow) fillCell(c *fec.Cell, pkt *roce.Packet, T int) bool {
	var lead [roce.MaxLead]byte
	if c.SetLed(pkt.Head(), pkt.AppendLead(lead[:0]), pkt.P(), T) != nil {
		f.put(c)
		return false
	}
	return true
}

// codes says that the copy of position p may still be used for decoding.
func (f *Flow) codes(s *segment, p pos) bool {
	return s.has(p, stored) && !s.has(p, settled) && (f.digest || !s.has(p, late))
}

// dropCell gives the cell of position p back. It must not be held.
func (f *Flow) dropCell(s *segment, p pos) {
	i := p.index()
	if s.cells[i] != nil {
		f.put(s.cells[i])
		s.cells[i] = nil
		s.inUse--
	}
	s.clear(p, stored)
}

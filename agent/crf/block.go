// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// block is an open block: known by a REPAIR, and incomplete (Section 6.1, rule 1). Its first REPAIR fixes everything but the
// symbols. The sources lie in the window.
type block struct {
	first   pos
	k, T    int // T is 0 until a REPAIR with a symbol came (the first was INFO)
	config  uint8
	scheme  fec.Scheme // its configuration's
	present fec.Bitmap
	digest  uint64 // of the first REPAIR with a symbol

	open     bool // false once it is complete or given up
	opened   time.Duration
	missedAt time.Duration // when the youngest of its missing positions was first known to be missing
	symbolAt time.Duration // of the newest REPAIR
	last     bool          // the last ordinary symbol has come
	tail     bool          // a missing position may still be on its way
	until    time.Duration // till then, with tail

	rows    []row
	copies  []row      // Source Copies, by source index
	copied  fec.Bitmap // their indices
	checked fec.Bitmap // held sources whose ICRC was found right (CRF 2)
	tried   trial      // the last decode tried with late copies that was refused

	rounds  int           // requests sent, range requests for its positions included
	asked   time.Duration // when the last one was
	sampled bool          // SRTT was sampled, or the answer is ambiguous
	counted bool          // in Incomplete

	next *block // free list
}

// row is one symbol that a REPAIR brought.
type row struct {
	index uint8
	L     fec.Bitmap
	cell  *fec.Cell
}

// trial tells the same attempt from a new one.
type trial struct{ rows, unknown int }

// end is the position after the block.
func (b *block) end() pos { return b.first + pos(b.k) }

// blockIndex returns the index of the first open block that ends after p.
func (f *Flow) blockIndex(p pos) int {
	lo, hi := 0, len(f.blocks)
	for lo < hi {
		if mid := (lo + hi) / 2; f.blocks[mid].end() > p {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// openBlock returns the open block of position p, nil if there is none.
func (f *Flow) openBlock(p pos) *block {
	if i := f.blockIndex(p); i < len(f.blocks) && f.blocks[i].first <= p {
		return f.blocks[i]
	}
	return nil
}

// wanted returns the present positions of a block for which nothing has come, and which were not given up.
func (f *Flow) wanted(first pos, k int, present fec.Bitmap) fec.Bitmap {
	have := f.win.bits(first, k, arrived).Or(f.win.bits(first, k, settled))
	w := present.AndNot(have)
	for j := w.First(); j >= 0; j = w.Next(j + 1) {
		// Positions without a segment, behind the newest, have arrived long ago.
		if p := first + pos(j); p >= f.start && p <= f.newest && f.win.at(p) == nil {
			w.Clear(j)
		}
	}
	return w
}

// meet takes the first REPAIR of a block: it says which positions are absent, and that all present ones were sent. If something is
// missing, it opens the block and returns it.
func (f *Flow) meet(now time.Duration, first pos, c *configuration, m *wire.Repair) *block {
	k := int(m.K)
	end := first + pos(k)
	if first < f.start { // its first packets were lost before anything else was seen
		for n := first.segment(); n <= f.start.segment(); n++ {
			f.win.make(n * segmentLen)
		}
		f.start = first
	}
	f.reachTo(now, first, end)
	gapped := len(f.gaps) > 0
	rounds, asked := f.gaps.cut(first, end)
	f.absent(first, fec.Full(k).AndNot(m.Present))
	want := f.wanted(first, k, m.Present)
	if gapped {
		defer f.sweep(first, end) // what was kept only because of a gap that is in the block
	}
	if want.Empty() {
		f.settleRange(first, end)
		f.wake()
		return nil
	}
	b := f.env.newBlock()
	b.first, b.k, b.config, b.scheme, b.present = first, k, c.id, c.scheme, m.Present
	b.open, b.opened, b.symbolAt = true, now, now
	b.rounds, b.asked, b.sampled = rounds, asked, rounds > 1
	f.insert(b)
	f.await(now, b, want)
	f.stats.Blocks++
	f.wake()
	return b
}

// reachTo moves top past a block that lies ahead of it, and notes what was passed over.
func (f *Flow) reachTo(now time.Duration, first, end pos) {
	if first > f.top {
		f.passOver(now, first, false)
	}
	f.top, f.claimed = max(f.top, end), max(f.claimed, end)
}

// absent ends the waiting for positions that carry no packet.
func (f *Flow) absent(first pos, b fec.Bitmap) {
	b = b.And(f.win.bits(first, 256, missing))
	for j := b.First(); j >= 0; j = b.Next(j + 1) {
		p := first + pos(j)
		s := f.win.at(p)
		s.clear(p, missing)
		f.stats.Missing--
		f.uncountLost(s, p)
	}
}

// await marks the positions that a new block waits for.
func (f *Flow) await(now time.Duration, b *block, want fec.Bitmap) {
	f.win.setBits(b.first, fec.Full(b.k), known, true)
	for j := want.First(); j >= 0; j = want.Next(j + 1) {
		p := b.first + pos(j)
		s := f.win.make(p)
		if s == nil {
			continue
		}
		if !s.has(p, missing) {
			s.set(p, missing)
			s.since[p.index()] = f.missingSince(now, p)
			f.stats.Missing++
		}
		b.missedAt = max(b.missedAt, s.since[p.index()])
	}
}

// insert puts a block into its place. If there are too many, the oldest gives way, and falls back to the transport (Section 6.1,
// rule 8).
func (f *Flow) insert(b *block) {
	for len(f.blocks) >= f.params.MaxOpenBlocks {
		f.stats.GaveWay++
		f.giveUpBlock(f.blocks[0])
	}
	i := f.blockIndex(b.first)
	f.blocks = append(f.blocks, nil)
	copy(f.blocks[i+1:], f.blocks[i:])
	f.blocks[i] = b
}

// complete closes a block of which nothing is missing any more.
func (f *Flow) complete(b *block) {
	f.stats.Completed++
	f.closeBlock(b)
	f.settleRange(b.first, b.end())
}

// giveUpBlock closes a block that could not be completed: the transport recovers (Section 7.3). Packets held behind it go on with
// the next call of flow.
func (f *Flow) giveUpBlock(b *block) {
	m := f.win.bits(b.first, b.k, missing)
	f.stats.GivenUp += uint64(m.Count())
	f.loseAll(b.first, m)
	f.countIncomplete(b)
	f.closeBlock(b)
	f.settleRange(b.first, b.end())
}

// loseAll ends the waiting for positions and counts them lost.
func (f *Flow) loseAll(first pos, m fec.Bitmap) {
	for j := m.First(); j >= 0; j = m.Next(j + 1) {
		p := first + pos(j)
		s := f.win.at(p)
		s.clear(p, missing)
		s.set(p, settled)
		f.stats.Missing--
		f.countLost(f.active, s, p)
	}
}

// giveUpGap gives up positions whose block never became known.
func (f *Flow) giveUpGap(g gap) {
	for p := g.first; p < g.end; p++ {
		if s := f.win.at(p); s != nil && s.has(p, missing) {
			f.stats.GivenUp++
			f.countLost(f.active, s, p)
			s.set(p, settled)
		}
	}
	f.forget(g.first, g.end)
}

// countIncomplete counts a block once as not complete at its first decoding attempt: that is when the symbols sent without being
// asked for have come, or should have.
func (f *Flow) countIncomplete(b *block) {
	if !b.counted {
		b.counted = true
		f.stats.Incomplete++
		f.report.incomplete++
	}
}

// closeBlock takes a block off the list and gives its symbols back. Its positions keep their marks.
func (f *Flow) closeBlock(b *block) {
	f.dropSymbols(b)
	f.setTail(b, false)
	b.open = false
	i := f.blockIndex(b.first)
	f.blocks = append(f.blocks[:i], f.blocks[i+1:]...)
	f.env.freeBlock(b)
	f.wake()
}

func (f *Flow) dropSymbols(b *block) {
	for _, r := range b.rows {
		f.put(r.cell)
	}
	for _, r := range b.copies {
		f.put(r.cell)
	}
	b.rows, b.copies, b.copied = b.rows[:0], b.copies[:0], fec.Bitmap{}
}

// startOver throws away what is known of a block whose decode was refused; its next REPAIR begins anew, so that a wrong first
// REPAIR does not poison it for ever (Section 6.1, rule 3). What is missing is a gap again and keeps its rounds, so that this ends.
func (f *Flow) startOver(now time.Duration, b *block) {
	first, end, rounds, asked := b.first, b.end(), b.rounds, b.asked
	m := f.win.bits(first, b.k, missing)
	f.countIncomplete(b)
	f.closeBlock(b)
	f.win.setBits(first, fec.Full(b.k), known, false)
	due := now
	if rounds > 0 {
		due = asked + f.rtt.retry()
	}
	for j := m.First(); j >= 0; {
		to := j + 1
		for m.Has(to) {
			to++
		}
		p := first + pos(j)
		f.gaps.add(gap{first: p, end: first + pos(to), since: f.win.at(p).since[p.index()], due: due, rounds: rounds, asked: asked})
		j = m.Next(to)
	}
	f.sweep(first, end)
}

// setTail notes whether a block waits for packets that may still be on their way.
func (f *Flow) setTail(b *block, on bool) {
	if b.tail == on {
		return
	}
	b.tail = on
	if on {
		f.waiting++
	} else {
		f.waiting--
	}
}

// newBlock returns an empty block.
func (e *Env) newBlock() *block {
	b := e.blocks
	if b == nil {
		return new(block)
	}
	e.blocks = b.next
	*b = block{rows: b.rows, copies: b.copies}
	return b
}

// freeBlock keeps a closed block for the next user; its fields stay readable until then.
func (e *Env) freeBlock(b *block) { b.next, e.blocks = e.blocks, b }

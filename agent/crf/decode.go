// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"errors"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// scratch is the memory of one call, shared by the flows of a worker.
type scratch struct {
	decoder *fec.Decoder
	digest  fec.Digest
	rows    []fec.Row
	known   [256]*fec.Cell // sources taken as known, by source index
	out     [256]*fec.Cell // solved sources
	ops     [256]roce.Opcode
	ids     [256]uint16 // Identifications of restored packets
	head    [roce.MaxHead]byte
	ranges  [4 * maxRanges]byte
}

// evaluate looks at an open block after anything changed for it: it is complete, or can be decoded, or goes on waiting
// (Section 6.1, rule 2).
func (f *Flow) evaluate(now time.Duration, b *block, acts *[]Action) {
	for b.open {
		miss := f.win.bits(b.first, b.k, missing)
		if miss.Empty() {
			f.complete(b)
			return
		}
		if f.awaitsTail(now, b, miss) {
			return
		}
		if !f.attempt(now, b, miss, acts) {
			return
		}
	}
}

// awaitsTail says that a missing position may still be on its way: it lies past the newest packet, or others may have overtaken it.
func (f *Flow) awaitsTail(now time.Duration, b *block, miss fec.Bitmap) bool {
	if b.until = b.missedAt + f.window(); b.first+pos(miss.Last()) > f.newest {
		b.until = max(b.until, b.opened+f.rtt.tail())
	}
	tail := now < b.until
	f.setTail(b, tail)
	return tail
}

// sources sorts the present positions of a block: clean ones are held and may be subtracted, doubtful ones are held but late.
// Everything else is unknown for decoding.
func (f *Flow) sources(b *block) (clean, doubtful fec.Bitmap) {
	have := f.win.bits(b.first, b.k, stored).And(b.present)
	doubtful = f.win.bits(b.first, b.k, late).And(have).AndNot(b.copied)
	return have.AndNot(doubtful), doubtful
}

// attempt decodes the block if it can. It returns true if the block should be looked at again: a held packet turned out to be
// damaged.
func (f *Flow) attempt(now time.Duration, b *block, miss fec.Bitmap, acts *[]Action) (again bool) {
	if f.model.n == 0 || b.T == 0 {
		return false // no packet to take headers from; no symbol
	}
	clean, doubtful := f.sources(b)
	unknown := b.present.AndNot(clean).AndNot(b.copied)
	// XOR has no check of its own against mixed copies: without the digest it waits for the end of a burst of duplicates (Section 4.3.3).
	// A late copy is an unknown too many for its one symbol anyway.
	if unknown.Empty() || unknown.Count() <= len(b.rows) && (b.scheme != fec.XOR || f.digest || !f.burst) {
		return f.decode(now, b, miss, unknown, fec.Bitmap{}, acts)
	}
	if !f.digest || doubtful.Empty() {
		return false
	}
	// With the digest a decode from late copies may be tried: it is certain whether it was right (Section 6.4, rule 4).
	unknown = unknown.AndNot(doubtful)
	t := trial{len(b.rows), unknown.Count()}
	if unknown.Count() > len(b.rows) || t == b.tried {
		return false
	}
	b.tried = t
	return f.decode(now, b, miss, unknown, doubtful, acts)
}

// decode solves for the unknown positions, verifies the result, and delivers the missing packets, all or nothing. doubtful are the
// late copies that it takes as known.
func (f *Flow) decode(now time.Duration, b *block, miss, unknown, doubtful fec.Bitmap, acts *[]Action) (again bool) {
	x := &f.env.scratch
	defer x.release()
	if !f.gather(now, b, unknown) {
		return true
	}
	if !f.takeOut(b, unknown) {
		f.drop(NoMemory)
		f.returnOut(unknown)
		return false
	}
	failure := f.solve(b, unknown)
	if failure == noFailure {
		failure = f.verify(b, unknown.Or(b.copied), unknown)
	}
	switch {
	case failure == noFailure:
		f.stats.Decodes++
		if !doubtful.Empty() {
			f.stats.LateDecodes++
		}
		f.deliverDecoded(now, b, miss, unknown, acts)
	case failure == rankShort:
		f.stats.RankShort++
		f.returnOut(unknown)
	case !doubtful.Empty():
		f.stats.LateDecodesRefused++
		f.returnOut(unknown)
	default:
		f.stats.RestoreVerifyFailures++
		if failure == digestFailure {
			f.stats.DigestFailures++
		}
		f.returnOut(unknown)
		f.startOver(now, b)
	}
	return false
}

// release drops what belongs to the flow.
func (x *scratch) release() {
	clear(x.known[:])
	clear(x.out[:])
	clear(x.rows)
	x.rows = x.rows[:0]
}

// gather collects the known sources, Source Copies first: they come from the frozen copy at the CSF. The invariant CRC of held
// packets is checked (CRF 2); gather returns false if one is wrong, which then counts as missing, or if one can't be used with
// this symbol length, which then counts as late.
func (f *Flow) gather(now time.Duration, b *block, unknown fec.Bitmap) bool {
	x := &f.env.scratch
	for _, r := range b.copies {
		x.known[r.index] = r.cell
	}
	use := b.present.AndNot(unknown).AndNot(b.copied)
	ok := true
	for j := use.First(); j >= 0; j = use.Next(j + 1) {
		p := b.first + pos(j)
		s := f.win.at(p)
		c := s.cells[p.index()]
		switch {
		case c.Symbol(b.T) == nil || c.Len()+2 > b.T:
			f.dropCopy(s, p)
			ok = false
		case !b.checked.Has(j) && !f.rightICRC(c):
			f.damaged(now, s, p)
			ok = false
		default:
			b.checked.Set(j)
			x.known[j] = c
		}
	}
	return ok
}

// rightICRC checks the invariant CRC of a held packet.
func (f *Flow) rightICRC(c *fec.Cell) bool {
	P := f.packetIn(c)
	return len(P) >= roce.MinPayload && roce.ICRC(c.Head(), P) == icrcOf(P)
}

// dropCopy takes a copy out of use for decoding. If it waits for delivery, it goes on waiting.
func (f *Flow) dropCopy(s *segment, p pos) {
	s.clear(p, stored)
	if !s.has(p, held) {
		f.dropCell(s, p)
	}
}

// damaged makes an arrived packet with a wrong invariant CRC count as missing (CRF 2). It has been forwarded, or will be if it is
// held, and the receiver drops it.
func (f *Flow) damaged(now time.Duration, s *segment, p pos) {
	f.drop(BadICRC)
	if s.has(p, held) {
		s.clear(p, held)
		s.clear(p, fromKernel)
		f.hold.waiting--
		f.addAgain(p, s.cells[p.index()])
		s.cells[p.index()] = nil
		s.inUse--
	}
	f.dropCopy(s, p)
	s.clear(p, arrived)
	s.set(p, missing)
	s.since[p.index()] = f.missingSince(now, p)
	f.stats.Missing++
	f.wake()
}

// takeOut takes cells for the solved sources.
func (f *Flow) takeOut(b *block, unknown fec.Bitmap) bool {
	x := &f.env.scratch
	for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
		if x.out[j] = f.get(b.T); x.out[j] == nil {
			return false
		}
	}
	return true
}

// returnOut gives them back.
func (f *Flow) returnOut(unknown fec.Bitmap) {
	x := &f.env.scratch
	for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
		f.put(x.out[j])
		x.out[j] = nil
	}
}

// solve computes the unknown sources.
func (f *Flow) solve(b *block, unknown fec.Bitmap) failure {
	if unknown.Empty() {
		return noFailure
	}
	x := &f.env.scratch
	for _, r := range b.rows {
		x.rows = append(x.rows, fec.Row{Index: r.index, L: r.L, Symbol: r.cell.Symbol(b.T)})
	}
	err := x.decoder.Solve(b.T, b.scheme, unknown, &x.known, x.rows, &x.out)
	switch {
	case err == nil:
		return noFailure
	case errors.Is(err, fec.ErrRank):
		return rankShort
	}
	return badSolution
}

// deliverDecoded delivers the restored packets of the missing positions, and completes the block.
func (f *Flow) deliverDecoded(now time.Duration, b *block, miss, unknown fec.Bitmap, acts *[]Action) {
	x := &f.env.scratch
	restored := miss.And(unknown.Or(b.copied))
	for j := unknown.First(); j >= 0; j = unknown.Next(j + 1) {
		if !restored.Has(j) { // its late copy has been delivered
			f.put(x.out[j])
		}
	}
	f.detach(b, restored)
	for j := restored.First(); j >= 0; j = restored.Next(j + 1) {
		p := b.first + pos(j)
		s := f.win.at(p)
		s.clear(p, missing)
		s.set(p, arrived)
		s.set(p, late)
		f.stats.Missing--
		f.stats.Restored++
		f.doubtLost(now, s, p)
		f.reporting(now).restored++
		P := f.packetIn(x.out[j])
		s.ops[p.index()] = roce.Opcode(P[0])
		f.consume(p, P)
		if f.buildHead(x.out[j], x.ids[j]) != nil {
			f.put(x.out[j])
			continue
		}
		f.deliverRestored(p, x.out[j], acts)
	}
	if b.open {
		f.complete(b)
	}
	f.flow(Filled, acts)
}

// detach moves the cells of Source Copies that are delivered from the block to the scratch, so that they outlive the block.
func (f *Flow) detach(b *block, restored fec.Bitmap) {
	x := &f.env.scratch
	kept := b.copies[:0]
	for _, r := range b.copies {
		if restored.Has(int(r.index)) {
			x.out[r.index] = r.cell
		} else {
			kept = append(kept, r)
		}
	}
	b.copies = kept
}

// consume notes which PSNs a restored READ request consumes: those that are waited for without a known block are absent.
func (f *Flow) consume(p pos, P []byte) {
	n := f.consumed(P)
	if n == 1 {
		return
	}
	end := p + pos(n)
	if i := f.gaps.from(p + 1); i < len(f.gaps) && f.gaps[i].first < end {
		f.forget(p+1, min(end, f.top))
	}
	if p >= f.newest {
		f.top = max(f.top, end)
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// answer is what is still to be sent for one block of a REPAIR_REQUEST.
type answer struct {
	block   *block     // nil: the block is gone
	lost    fec.Bitmap // the set L
	copies  bool       // Source Copies instead of coded symbols
	index   int        // next Repair Index, for copies the next source index
	left    int        // symbols
	session uint16
}

// HandleRequest takes a REPAIR_REQUEST for the flow's ID (Section 7).
func (f *Flow) HandleRequest(now time.Duration, from netip.AddrPort, m *wire.RepairRequest, acts *[]Action) {
	if !f.fromPeer(now, from, m.FlowID) {
		return
	}
	f.stats.Requests++
	if m.ByRanges {
		f.handleRanges(now, m, acts)
	} else {
		f.handleBlockRequest(now, m, acts)
	}
	f.pump(now, acts)
}

// handleBlockRequest answers the block form.
func (f *Flow) handleBlockRequest(now time.Duration, m *wire.RepairRequest, acts *[]Action) {
	b := f.find(m.Start)
	switch {
	case b == nil:
		f.drop(DropNotHeld)
	case b.start != m.Start || b.k != int(m.K) || b.config.id != m.ConfigID || !b.sealed:
		f.drop(DropMismatch)
	case m.Lost.Empty() || !b.present.Contains(m.Lost):
		f.drop(DropMalformed)
	default:
		f.respond(now, b, m, m.Lost, int(m.M), acts)
	}
}

// handleRanges answers the PSN-range form, with r taken as zero: block by block, each once. A range that touches the open block
// closes it first; PSNs between blocks belong to none and are not answered.
func (f *Flow) handleRanges(now time.Duration, m *wire.RepairRequest, acts *[]Action) {
	if b := f.open; b != nil && f.rangesTouch(m.Ranges, b) {
		f.closeBlock(now, ByRequest)
	}
	f.touched = f.touched[:0]
	for i := range m.Ranges.Len() {
		f.name(m.Ranges.At(i))
	}
	if len(f.touched) == 0 {
		f.drop(DropNotHeld)
	}
	for _, b := range f.touched {
		f.hurry(now, b)
		lost := b.named
		b.named = fec.Bitmap{}
		f.respond(now, b, m, lost.And(b.present), 255, acts)
	}
}

// rangesTouch reports whether a range names a position of block b that was seen.
func (f *Flow) rangesTouch(ranges wire.RangeList, b *block) bool {
	for i := range ranges.Len() {
		r := ranges.At(i)
		if from := r.Start.Sub(b.start); from < b.k && from+int(r.Count) > 0 {
			return true
		}
	}
	return false
}

// name marks the positions of retained blocks that a range names, and notes the blocks.
func (f *Flow) name(r wire.Range) {
	end := int(r.Count)
	for i := f.retained.search(r.Start); i < f.retained.len(); i++ {
		b := f.retained.at(i)
		from := b.start.Sub(r.Start) // offset of position 0 in the range
		if from >= end || from+b.k <= 0 {
			return
		}
		if b.named.Empty() {
			f.touched = append(f.touched, b)
		}
		for pos := max(-from, 0); pos < min(b.k, end-from); pos++ {
			b.named.Set(pos)
		}
	}
}

// respond answers a request for one block: Section 7, rules (a) to (e). lost is inside the Present Bitmap; if nothing is left of
// it all that was named is absent, and INFO says so.
func (f *Flow) respond(now time.Duration, b *block, m *wire.RepairRequest, lost fec.Bitmap, suggested int, acts *[]Action) {
	switch {
	case b.answeredTo(m.RequestID):
		f.drop(DropRepeated)
		return
	case b.answers > 0 && now-b.lastAnswer < f.rtt.smoothed():
		f.drop(DropTooSoon)
		return
	case lost.Empty():
		b.noteAnswer(now, m.RequestID)
		f.sendInfo(now, b, acts)
		return
	case f.breaker.open:
		f.drop(DropBreaker)
		return
	}
	a := f.plan(b, lost, suggested, m.Fallback)
	size := int64(f.repairSize(b.config, true))
	f.window.at(now, f.rtt.smoothed()).demand += int64(a.left) * size
	if fits := int(max(f.allowance(now).answers, 0) / size); fits < a.left {
		f.stats.Withheld += uint64(a.left - fits)
		f.stats.Drops[DropBudget] += uint64(a.left - fits)
		a.left = fits
	}
	if a.left == 0 {
		return // not answered: the next request is not too soon
	}
	b.noteAnswer(now, m.RequestID)
	f.stats.RequestsAnswered++
	f.waiting += int64(a.left) * size
	f.answers = append(f.answers, a)
}

// plan chooses the symbols of an answer: M = min(Suggested M, X), at least 1, with unused indices; Source Copies if the CRF asks
// for them, if the scheme has no coded retransmission, or if too few indices are left.
func (f *Flow) plan(b *block, lost fec.Bitmap, suggested int, fallback bool) answer {
	x := lost.Count()
	m := min(max(suggested, 1), x)
	unused := fec.MaxIndexSum - b.k - b.nextIndex + 1
	if fallback || b.config.scheme != fec.Cauchy || unused < m {
		return answer{block: b, lost: lost, copies: true, index: lost.First(), left: x}
	}
	if f.session++; f.session == 0 {
		f.session = 1
	}
	a := answer{block: b, lost: lost, index: b.nextIndex, left: m, session: f.session}
	b.nextIndex += m
	return a
}

// sendAnswer sends one symbol of the answer at the head of the queue, or drops what is left of it.
func (f *Flow) sendAnswer(now time.Duration, acts *[]Action) {
	a := &f.answers[0]
	if a.block != nil {
		f.trim(a)
		switch {
		case a.left == 0:
		case f.breaker.open:
			f.withhold(a, DropBreaker)
		case f.allowance(now).answers+f.waiting < int64(f.repairSize(a.block.config, true)):
			f.withhold(a, DropBudget)
		case !f.sendSymbol(now, a, acts):
			f.withhold(a, DropNoMemory)
		}
	}
	if a.left == 0 {
		f.answers = append(f.answers[:0], f.answers[1:]...)
	}
}

// trim takes positions out of an answer that were withdrawn before the block's first REPAIR.
func (f *Flow) trim(a *answer) {
	a.lost = a.lost.And(a.block.present)
	most := a.left
	if a.copies {
		rest := a.lost.AndNot(fec.Full(a.index))
		a.index, most = max(rest.First(), 0), rest.Count()
	} else if a.lost.Empty() {
		most = 0
	}
	if most < a.left {
		f.waiting -= int64(a.left-most) * int64(f.repairSize(a.block.config, true))
		a.left = most
	}
}

// sendSymbol sends the next symbol of an answer, coded over exactly the request's L, or a copy of a lost source.
func (f *Flow) sendSymbol(now time.Duration, a *answer, acts *[]Action) bool {
	b := a.block
	scheme := b.config.scheme
	if a.copies {
		scheme = fec.SourceCopy
	}
	f.seal(b)
	r := f.repair(b, scheme, a.index)
	r.Last = a.left == 1
	if !a.copies {
		r.Retx, r.Lost, r.Session = true, a.lost, a.session
	}
	msg, symbol := f.repairMessage(&r, b.config.T)
	if msg == nil {
		return false
	}
	f.env.load(b)
	if fec.Encode(symbol, 0, scheme, uint8(a.index), 1, b.config.T, a.lost, &f.env.syms) != nil {
		return false
	}
	f.waiting -= int64(f.repairSize(b.config, true))
	a.index++
	a.left--
	f.sendRepair(now, msg, true, acts)
	if a.copies {
		f.stats.Copies++
	} else {
		f.stats.Coded++
	}
	return true
}

// withhold drops what is left of an answer and counts it.
func (f *Flow) withhold(a *answer, why DropReason) {
	f.stats.Withheld += uint64(a.left)
	f.stats.Drops[why] += uint64(a.left)
	f.cut(a)
}

// cut ends an answer whose block is going away.
func (f *Flow) cut(a *answer) {
	f.waiting -= int64(a.left) * int64(f.repairSize(a.block.config, true))
	a.block, a.left = nil, 0
}

// sendInfo tells the CRF a block's boundaries and Present Bitmap. It carries no symbol and is not repair traffic: at most one per
// block and SRTT.
func (f *Flow) sendInfo(now time.Duration, b *block, acts *[]Action) {
	f.seal(b)
	r := f.repair(b, b.config.scheme, 0)
	r.Info, r.T, r.HasDigest = true, 0, false
	f.stats.RequestsAnswered++
	f.stats.Info++
	f.repairPath.sent(now, f.rtt.smoothed())
	f.send(f.peer, r.AppendHead(f.message()), acts)
}

// answeredTo reports whether the Request ID is one of the last that were answered for the block.
func (b *block) answeredTo(id uint16) bool {
	for _, a := range b.answered[:min(b.answers, len(b.answered))] {
		if a == id {
			return true
		}
	}
	return false
}

func (b *block) noteAnswer(now time.Duration, id uint16) {
	b.answered[b.answers%len(b.answered)] = id
	b.answers++
	b.lastAnswer = now
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"slices"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Packets that a node of the path says it dropped are repaired before the CRF can miss them (Section 8.2, rule 5): their blocks get
// additional ordinary symbols, with unused Repair Indices from m upward. A block gets at most one for each of its packets that was
// reported, and none where its ordinary symbols suffice. All limits on ordinary symbols hold for them (Section 10).

const (
	// maxForetold PSNs at most are kept of packets that have not been seen to leave, and foretoldReach is how far ahead of the newest they may lie.
	maxForetold   = 64
	foretoldReach = 4096
)

// foretold is PSNs that were reported dropped before the CSF saw the packets leave: the copies that it sees may take longer than a report of a near
// node does.
type foretold struct {
	psns  []roce.PSN
	until time.Duration // one SRTT after the last report
}

// handleDrops takes the PSNs of a Hop Entry that says something new. What a policy refused is not brought past it.
func (f *Flow) handleDrops(now time.Duration, h *wire.Hop) {
	if h.Cause == wire.CausePolicy {
		return
	}
	f.stats.DropsReported += uint64(h.PSNs.Len())
	if f.current == nil { // nothing is in a block yet
		f.stats.DropsUnused += uint64(h.PSNs.Len())
		return
	}
	for i := range h.PSNs.Len() {
		if psn := h.PSNs.At(i); psn.After(f.newest) {
			f.foretell(now, psn)
		} else {
			f.handleDrop(now, psn)
		}
	}
}

// foretell keeps the PSN of a dropped packet that is still to be seen.
func (f *Flow) foretell(now time.Duration, psn roce.PSN) {
	t := &f.foretold
	if now >= t.until {
		t.psns = t.psns[:0]
	}
	if len(t.psns) == maxForetold || psn.Sub(f.newest) > foretoldReach || slices.Contains(t.psns, psn) {
		f.stats.DropsUnused++
		return
	}
	t.psns = append(t.psns, psn)
	t.until = now + f.rtt.smoothed()
}

// fulfil takes the drops of packets that have been seen by now.
func (f *Flow) fulfil(now time.Duration) {
	t := &f.foretold
	later := t.psns[:0]
	for _, psn := range t.psns {
		switch {
		case now >= t.until:
			f.stats.DropsUnused++
		case psn.After(f.newest):
			later = append(later, psn)
		default:
			f.handleDrop(now, psn)
		}
	}
	t.psns = later
}

// forgetForetold gives up the drops of packets that were not seen: the flow begins anew, and what it sends from now on is another packet.
func (f *Flow) forgetForetold() {
	f.stats.DropsUnused += uint64(len(f.foretold.psns))
	f.foretold.psns = f.foretold.psns[:0]
}

// handleDrop takes the PSN of a dropped packet. One of the open block closes it, as a request does. What is not held any more, was
// reported or asked for before, or has arrived all the same, changes nothing but a counter.
func (f *Flow) handleDrop(now time.Duration, psn roce.PSN) {
	if b := f.open; b != nil && b.present.Has(psn.Sub(b.start)) {
		f.closeBlock(now, ByReport)
	}
	b := f.find(psn)
	if b == nil || !f.awaits(b, psn) {
		f.stats.DropsUnused++
		return
	}
	f.hurry(now, b)
	b.dropped.Set(psn.Sub(b.start))
	b.released = b.total // spread symbols need not wait any longer
	if b.dropped.Count() > b.total+b.early {
		f.wantEarly(now, b)
	}
}

// awaits reports whether the drop of a packet is news about a block. After a request the CRF knows itself what it lacks.
func (f *Flow) awaits(b *block, psn roce.PSN) bool {
	if b.answers > 0 || b.inconsistent || f.acked && psn.Before(f.ackedTo) {
		return false
	}
	pos := psn.Sub(b.start)
	return b.present.Has(pos) && !b.dropped.Has(pos)
}

// wantEarly adds one symbol for a block to those that wait, if the limits let it through.
func (f *Flow) wantEarly(now time.Duration, b *block) {
	if b.config.scheme != fec.Cauchy || b.nextIndex+b.earlyLeft+b.k > fec.MaxIndexSum {
		return // no further ordinary symbol exists: the CRF's request is answered otherwise
	}
	limit := f.redundancy.limit // tells of m, and of nothing else
	ok := f.allowsEarly(now, b)
	if f.redundancy.limit = limit; !ok {
		return
	}
	if b.earlyLeft == 0 {
		f.early = append(f.early, b)
	}
	b.early++
	b.earlyLeft++
}

// allowsEarly applies the limits on ordinary symbols to one more of a block, and counts it where they withhold it.
func (f *Flow) allowsEarly(now time.Duration, b *block) bool {
	switch {
	case f.breaker.open:
		f.withheldEarly(1, DropBreaker)
	case f.reduced(now, 1) == 0:
		f.withheldEarly(1, DropBudget)
	default:
		return f.affordable(now, b, 1) == 1
	}
	return false
}

// sendEarly sends the next additional symbol of the block at the head of the queue, or gives up what is left of them.
func (f *Flow) sendEarly(now time.Duration, b *block, acts *[]Action) {
	switch {
	case b.answers > 0:
		f.endEarly(b) // the answer has them
	case f.breaker.open:
		f.giveUpEarly(b, DropBreaker)
	case b.inconsistent || b.present.Empty():
		f.giveUpEarly(b, DropInconsistent)
	case f.allowance(now).ordinary < int64(f.repairSize(b.config, false)):
		f.giveUpEarly(b, DropBudget)
	case !f.sendEarlySymbol(now, b, acts):
		f.giveUpEarly(b, DropNoMemory)
	case b.earlyLeft == 0:
		f.endEarly(b)
	}
}

// sendEarlySymbol sends an ordinary symbol with the next unused index, never with LAST: that makes the CRF ask for what it still lacks, and the
// next report may name that.
func (f *Flow) sendEarlySymbol(now time.Duration, b *block, acts *[]Action) bool {
	f.seal(b)
	r := f.repair(b, b.config.scheme, b.nextIndex)
	msg, symbol := f.repairMessage(&r, b.config.T)
	if msg == nil {
		return false
	}
	f.env.load(b)
	if fec.Encode(symbol, 0, r.Scheme, r.Index, 1, b.config.T, b.present, &f.env.syms) != nil {
		return false
	}
	b.nextIndex++
	b.earlyLeft--
	f.sendRepair(now, msg, false, acts)
	f.stats.Early++
	return true
}

// giveUpEarly ends a block's additional symbols; those that were still to be sent are counted as withheld.
func (f *Flow) giveUpEarly(b *block, why DropReason) {
	f.withheldEarly(b.earlyLeft, why)
	f.endEarly(b)
}

func (f *Flow) withheldEarly(n int, why DropReason) {
	f.stats.Withheld += uint64(n)
	f.stats.Drops[why] += uint64(n)
}

// endEarly takes a block out of the queue of those with additional symbols to send.
func (f *Flow) endEarly(b *block) {
	b.earlyLeft = 0
	for i, q := range f.early {
		if q == b {
			f.early = append(f.early[:i], f.early[i+1:]...)
			return
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// HandleRepair takes a REPAIR for the flow's ID from its peer. ce says that its datagram carried a CE mark. The message is
// valid only during the call.
func (f *Flow) HandleRepair(now time.Duration, m *wire.Repair, ce bool, acts *[]Action) {
	if f.state == Closed {
		f.drop(FlowClosed)
		return
	}
	f.active = now
	f.countRepair(now, m, ce)
	c := f.config(m.ConfigID)
	if c == nil {
		f.drop(UnknownConfig)
		return
	}
	if reason, ok := f.admit(c, m); !ok {
		f.drop(reason)
		return
	}
	c.used = now
	if !m.Info {
		f.heard(now)
	}
	if !f.started {
		f.begin(m.Start)
	}
	first := near(f.top, m.Start)
	if f.unseen {
		f.passUnseen(first + pos(m.K))
	}
	b := f.openBlock(first)
	if b == nil {
		if reason, ok := f.placeable(first, int(m.K)); !ok {
			f.drop(reason)
			return
		}
		if b = f.meet(now, first, c, m); b == nil {
			f.stats.RepairsUnneeded++
		}
	} else if b.first != first {
		f.drop(Overlap)
		return
	} else if m.Info && (int(m.K) != b.k || m.Present != b.present) || !m.Info && !b.matches(m, f.digest) {
		f.drop(OtherBlock)
		return
	}
	f.noteOrdinary(now, first, m)
	if b != nil {
		f.answered(now, b, m)
		f.add(now, b, m, acts)
		if b.open {
			f.evaluate(now, b, acts)
		}
	}
	f.flow(Filled, acts)
}

func (f *Flow) countRepair(now time.Duration, m *wire.Repair, ce bool) {
	r := f.reporting(now)
	r.repairs++
	f.stats.Repairs++
	if ce {
		r.repairsCE++
		f.stats.RepairsCE++
	}
	if m.Info {
		f.stats.Infos++
	}
}

// ordinary says that a REPAIR carries an ordinary symbol: one that nobody asked for.
func ordinary(m *wire.Repair) bool { return !m.Info && !m.Retx && m.Scheme != fec.SourceCopy }

// admit checks a REPAIR against its configuration (Section 5.2, rule 5).
func (f *Flow) admit(c *configuration, m *wire.Repair) (DropReason, bool) {
	k := int(m.K)
	switch {
	case m.Scheme != c.scheme && m.Scheme != fec.SourceCopy:
		return WrongScheme, false
	case k > c.k:
		return WrongK, false
	case m.Info:
		return 0, true
	case int(m.T) != c.T:
		return WrongT, false
	case f.digest && !m.HasDigest:
		return NoDigest, false
	}
	switch m.Scheme {
	case fec.SourceCopy:
		if !m.Present.Has(int(m.Index)) || int(m.Index) >= k {
			return WrongSet, false
		}
		return 0, true
	case fec.XOR:
		if m.Index != 0 || m.Retx {
			return WrongIndex, false
		}
	default:
		if int(m.Index)+k > fec.MaxIndexSum {
			return WrongIndex, false
		}
	}
	L := symbolSet(m)
	if L.Empty() || !m.Present.Contains(L) {
		return WrongSet, false
	}
	return 0, true
}

// symbolSet is the set L that a symbol is over: what was asked for, or all present positions.
func symbolSet(m *wire.Repair) fec.Bitmap {
	if m.Retx {
		return m.Lost
	}
	return m.Present
}

// placeable says whether a new block may lie at first.
func (f *Flow) placeable(first pos, k int) (DropReason, bool) {
	end := first + pos(k)
	i := f.blockIndex(first)
	switch {
	case end <= f.start || end <= f.newest-farBehind || first < f.start && f.newest-f.start > history:
		return Stale, false
	case int64(first-f.newest) > int64(f.maxGap()):
		return TooFar, false
	case i < len(f.blocks) && f.blocks[i].first < end:
		return Overlap, false
	}
	return 0, true
}

// matches says that a REPAIR with a symbol has the parameters of the block's first ones (Section 6.1, rule 2).
func (b *block) matches(m *wire.Repair, digest bool) bool {
	return int(m.K) == b.k && m.Present == b.present && m.ConfigID == b.config &&
		(b.T == 0 || int(m.T) == b.T && (!digest || m.Digest == b.digest))
}

// noteOrdinary notes how far ordinary repairs have come.
func (f *Flow) noteOrdinary(now time.Duration, first pos, m *wire.Repair) {
	if ordinary(m) && first > f.ordinary {
		f.ordinary = first
		f.repaired = first + pos(m.K)
		f.bare = 0
		f.seeBare(now)
		f.wake()
	}
}

// seeBare notes since when packets come behind the newest block that has ordinary repairs.
func (f *Flow) seeBare(now time.Duration) {
	if f.bare == 0 && f.newest >= f.repaired {
		f.bare = now
	}
}

// answered takes the time from a request to its first answering REPAIR as a sample of SRTT (Section 5.1, rule 9), if the block
// was asked for once only.
func (f *Flow) answered(now time.Duration, b *block, m *wire.Repair) {
	if ordinary(m) || b.sampled || b.rounds != 1 {
		return
	}
	b.sampled = true
	if b.asked == f.ranges.asked { // asked for by range: only the first of the answers is undelayed
		if f.ranges.answered {
			return
		}
		f.ranges.answered = true
	}
	f.rtt.sample(now - b.asked)
	f.stats.SRTT = f.rtt.smooth
}

// add keeps the symbol of a REPAIR.
func (f *Flow) add(now time.Duration, b *block, m *wire.Repair, acts *[]Action) {
	b.symbolAt = now
	b.last = b.last || m.Last && ordinary(m)
	f.wake()
	if m.Info {
		return
	}
	if b.T == 0 {
		b.T, b.digest = int(m.T), m.Digest
	}
	if b.holds(m) {
		f.drop(DuplicateSymbol)
		return
	}
	if !f.room(acts) || !b.open {
		f.drop(NoMemory)
		return
	}
	c := f.get(b.T)
	if c == nil {
		f.drop(NoMemory)
		return
	}
	if c.SetSymbol(m.Symbol[:m.T]) != nil {
		f.put(c)
		f.drop(BadSymbol)
		return
	}
	if m.Scheme != fec.SourceCopy {
		b.rows = append(b.rows, row{m.Index, symbolSet(m), c})
		return
	}
	if _, err := c.Parse(b.T); err != nil {
		f.put(c)
		f.drop(BadSymbol)
		return
	}
	b.copies = append(b.copies, row{index: m.Index, cell: c})
	b.copied.Set(int(m.Index))
}

// holds says that a symbol of this index is held already. Source Copies have indices of their own.
func (b *block) holds(m *wire.Repair) bool {
	if m.Scheme == fec.SourceCopy {
		return b.copied.Has(int(m.Index))
	}
	for i := range b.rows {
		if b.rows[i].index == m.Index {
			return true
		}
	}
	return false
}

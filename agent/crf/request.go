// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

const (
	// codedRounds is how often a block is asked for before FALLBACK (Section 7.3).
	codedRounds = 2
	// allRounds is how often in all; then it is given up.
	allRounds = codedRounds + 1
	// maxRanges bounds the entries of a PSN-range request: about 530 octets.
	maxRanges = 128
	// rangeLen is the most positions of an entry.
	rangeLen = 255
	// deltaLoss is the loss rate above which one symbol more is asked for than needed (Section 7.1, rule 1).
	deltaLoss = 0.01
)

// rangeRound is the latest PSN-range request.
type rangeRound struct {
	asked    time.Duration
	answered bool
}

// blockDue is when a block must be looked at: to ask for it, or to give it up (Section 7.1, rule 3; Section 6.1, rule 8). What is missing
// may only be late, so nothing is asked for before the reordering tolerance is over.
func (f *Flow) blockDue(b *block) time.Duration {
	due := b.symbolAt + f.rtt.smooth/4
	switch {
	case b.tail:
		due = b.until
	case b.rounds > 0:
		due = b.asked + f.rtt.retry()
	case b.last || f.ordinary > b.first:
		due = max(b.symbolAt, b.missedAt+f.tolerance())
	}
	return min(due, b.opened+f.rtt.expiry())
}

// pollBlocks asks for the blocks that are due, and gives up those whose rounds or time are over.
func (f *Flow) pollBlocks(now time.Duration, acts *[]Action) {
	for i := 0; i < len(f.blocks); {
		b := f.blocks[i]
		if now >= f.blockDue(b) {
			f.pollBlock(now, b, acts)
		}
		if i < len(f.blocks) && f.blocks[i] == b {
			i++
		}
	}
}

func (f *Flow) pollBlock(now time.Duration, b *block, acts *[]Action) {
	f.evaluate(now, b, acts) // the tail has had its time, or a burst of duplicates is over
	switch {
	case !b.open || now < f.blockDue(b):
	case now >= b.opened+f.rtt.expiry():
		f.stats.Expired++
		f.endBlock(b, acts)
	case b.rounds >= allRounds:
		f.endBlock(b, acts)
	default:
		f.countIncomplete(b)
		f.askForBlock(now, b, acts)
	}
}

// endBlock gives up a block whose rounds or time are over.
func (f *Flow) endBlock(b *block, acts *[]Action) {
	f.endWait(b.first, b.end())
	f.giveUpBlock(b)
	f.flow(GaveUp, acts)
}

// askForBlock sends the block form (Section 7.1, rule 1). L is what is unknown for decoding: missing, late, or without a copy.
func (f *Flow) askForBlock(now time.Duration, b *block, acts *[]Action) {
	clean, _ := f.sources(b)
	L := b.present.AndNot(clean).AndNot(b.copied)
	x, r := L.Count(), len(b.rows)
	if b.scheme == fec.XOR && x > 1 && b.rounds < codedRounds {
		b.rounds = codedRounds // Section 4.3.3
	}
	fallback := b.rounds >= codedRounds
	m := x - r
	if f.stats.LossRate > deltaLoss {
		m++
	}
	if m = max(min(m, x), 1); fallback {
		m = max(x, 1)
	}
	b.rounds++
	b.asked = now
	b.sampled = b.sampled || b.rounds > 1
	f.wake()
	f.nameAll(now, b.first, f.win.bits(b.first, b.k, missing))
	f.request++
	buf := f.message(64)
	if buf == nil {
		return // the round passes without a request
	}
	msg := wire.RepairRequest{
		FlowID: f.id, RequestID: f.request, Fallback: fallback, ConfigID: b.config, Scheme: b.scheme, K: uint8(b.k),
		Held: uint8(min(r, 255)), Start: b.first.psn(), M: uint8(m), Lost: L,
	}
	f.send(msg.Append(buf), acts)
	f.stats.BlockRequests++
	if fallback {
		f.stats.FallbackRequests++
	}
}

// nameAll notes that positions were named in a request: a packet that comes for them now is late (CRF 1 c), and they are lost.
func (f *Flow) nameAll(now time.Duration, first pos, b fec.Bitmap) {
	for j := b.First(); j >= 0; j = b.Next(j + 1) {
		f.name(now, first+pos(j))
	}
}

func (f *Flow) name(now time.Duration, p pos) {
	if s := f.win.at(p); s != nil {
		s.set(p, named)
		f.countLost(now, s, p)
	}
}

// rangeWarranted says that no REPAIR is to be expected any more for a gap that is older than the tolerance, so that only a range
// request helps (Section 7.1, rule 2): the flow's blocks carry no ordinary symbols at present, or those of a later block have
// come, or the flow has gone on for longer than the repairs of a block are spread, or time has passed for a block to be closed
// (SRTTmin/2, CSF 4) and its repairs to come (SRTT/4). A slow flow has none inside its messages (Section 5.3, rule 8), which shows after a round
// trip without one.
func (f *Flow) rangeWarranted(now time.Duration, g *gap) bool {
	c := &f.configs[len(f.configs)-1]
	reach := pos(f.reach)
	switch {
	case c.m == 0, f.newest-f.repaired > 4*reach, f.ordinary > g.first, f.newest-g.first >= 2*reach+reach/2:
		return true
	case f.bare != 0 && now-f.bare > f.rtt.smooth+f.rtt.tolerance():
		return true
	}
	return now-g.since >= f.tolerance()+f.rtt.smooth*3/4
}

// pollGaps asks for the gaps that are due, as many in a message as fit, and lets those go whose rounds or time are over.
func (f *Flow) pollGaps(now time.Duration, acts *[]Action) {
	for _, fallback := range [...]bool{false, true} {
		list := wire.RangeList(f.env.scratch.ranges[:0])
		for i := 0; i < len(f.gaps); {
			g := &f.gaps[i]
			switch {
			case now < g.due:
			case f.gapOver(now, g):
				continue // it was taken out of the list
			case g.rounds == 0 && !f.rangeWarranted(now, g):
				g.due = now + f.tolerance()/2
			case fallback == (g.rounds >= codedRounds):
				if list.Len() > 0 && list.Len()+g.entries() > maxRanges {
					f.askForRanges(now, list, fallback, acts)
					list = list[:0]
				}
				list = g.name(list)
				f.asked(now, g)
			}
			i++
		}
		if list.Len() > 0 {
			f.askForRanges(now, list, fallback, acts)
		}
	}
	f.flow(GaveUp, acts)
}

// entries is how many entries of a range request the gap takes.
func (g *gap) entries() int { return int(g.end-g.first+rangeLen-1) / rangeLen }

// name adds the gap to a range request.
func (g *gap) name(list wire.RangeList) wire.RangeList {
	for p := g.first; p < g.end; p += rangeLen {
		list = list.Append(wire.Range{Start: p.psn(), Count: uint8(min(rangeLen, g.end-p))})
	}
	return list
}

// asked notes that a gap is named in the request being made.
func (f *Flow) asked(now time.Duration, g *gap) {
	for p := g.first; p < g.end; p++ {
		f.name(now, p)
	}
	g.rounds++
	g.asked = now
	g.due = now + f.rtt.retry()
	f.wake()
}

// gapOver ends the waiting for a gap when all rounds are over, when it is as old as a block may become, or when it fills the space
// between two known blocks and the coded rounds were not answered: then its positions belong to no block (Section 7.2, rule 3). One
// round proves too little: a slow flow has blocks of one packet, and its request or the answer may be lost, or denied by a budget.
func (f *Flow) gapOver(now time.Duration, g *gap) bool {
	between := g.rounds >= codedRounds && f.win.has(g.first-1, known) && f.win.has(g.end, known)
	switch {
	case between && g.rounds < allRounds:
		f.stats.LetGo += uint64(g.end - g.first)
		f.letGo(*g)
	case g.rounds >= allRounds, now-g.since >= f.rtt.expiry():
		f.endWait(g.first, g.end)
		f.giveUpGap(*g)
	default:
		return false
	}
	f.wake()
	return true
}

// letGo ends the waiting for positions that carry no packet, as far as anybody knows.
func (f *Flow) letGo(g gap) {
	for p := g.first; p < g.end; p++ {
		if s := f.win.at(p); s != nil {
			f.uncountLost(s, p)
			s.set(p, settled)
		}
	}
	f.forget(g.first, g.end)
}

// askForRanges sends the PSN-range form (Section 7.1, rule 2).
func (f *Flow) askForRanges(now time.Duration, list wire.RangeList, fallback bool, acts *[]Action) {
	f.ranges = rangeRound{asked: now}
	f.request++
	buf := f.message(12 + len(list))
	if buf == nil {
		return
	}
	msg := wire.RepairRequest{FlowID: f.id, RequestID: f.request, Fallback: fallback, ByRanges: true, Ranges: list}
	f.send(msg.Append(buf), acts)
	f.stats.RangeRequests++
	if fallback {
		f.stats.FallbackRequests++
	}
}

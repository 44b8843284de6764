// SPDX-License-Identifier: Apache-2.0

package crf

// What is kept for decoding is bounded by jitter, not by bandwidth times delay: a packet is kept while a missing position that may
// be of its block lies less than the largest k away, or while its block is known and open. All others are settled as soon as the
// newest packet is that far ahead: then nothing of their block is missing.

// history is how many positions behind the newest one their marks are kept, so that duplicates and REPAIRs that come late are
// recognised.
const history = 1024

// retire settles what fell out of reach of the newest packet and frees segments that need nothing any more.
func (f *Flow) retire() {
	for limit := f.newest - f.kept(); f.trail <= limit; {
		s := f.win.at(f.trail)
		if s == nil {
			f.trail = min(limit+1, (f.trail.segment()+1)*segmentLen)
			continue
		}
		f.settleUnlessNear(s, f.trail)
		f.trail++
	}
	if n := (f.newest - history).segment(); n > f.swept {
		f.swept = n
		f.sweepSegments()
		f.expireFar()
	}
}

// kept is how many positions behind the newest packet are kept whatever is missing. In the response space a gap may show only when
// the block's REPAIRs come, which may be spread over the next block.
func (f *Flow) kept() pos {
	if f.sparse {
		return pos(3 * f.reach)
	}
	return pos(f.reach)
}

// expireFar gives up what lies too far behind the newest packet, whatever the time (Section 6.1, rule 8). The packets that were held
// for it go on when the caller calls flow.
func (f *Flow) expireFar() {
	for len(f.blocks) > 0 && f.newest-f.blocks[0].first > farBehind {
		f.stats.Expired++
		f.giveUpBlock(f.blocks[0])
	}
	for len(f.gaps) > 0 && f.newest-f.gaps[0].first > farBehind {
		f.giveUpGap(f.gaps[0])
	}
}

// settleUnlessNear settles an arrived position of no open block, unless a gap is near.
func (f *Flow) settleUnlessNear(s *segment, p pos) {
	if s.has(p, arrived) && !s.has(p, settled) && !s.has(p, known) && !f.gaps.near(p, f.reach) {
		f.settle(s, p)
	}
}

// settle marks a position as needed no more for decoding. Its cell goes back unless it waits for delivery.
func (f *Flow) settle(s *segment, p pos) {
	s.set(p, settled)
	if !s.has(p, held) {
		f.retireCell(s, p)
	}
}

// settleRange settles the positions first..end-1, of a block that is complete or given up.
func (f *Flow) settleRange(first, end pos) {
	for n := first.segment(); n*segmentLen < end; n++ {
		s := f.win.segment(n)
		if s == nil {
			continue
		}
		w := span(n, first, end)
		s.words[settled] |= w
		s.words[known] |= w
		if s.inUse == 0 {
			continue
		}
		for p := max(first, n*segmentLen); p < min(end, (n+1)*segmentLen); p++ {
			if s.cells[p.index()] != nil && !s.has(p, held) {
				f.retireCell(s, p)
			}
		}
	}
}

// sweep settles what was kept only because of a gap at first..end-1 that is no more.
func (f *Flow) sweep(first, end pos) {
	reach := pos(f.reach)
	left := min(first+reach, end)
	f.sweepRange(first-reach, left)
	f.sweepRange(max(left, end-reach), end+reach) // the middle of a long gap was near no other packet
}

func (f *Flow) sweepRange(first, end pos) {
	for p := first; p < min(end, f.trail); p++ {
		s := f.win.at(p)
		if s == nil || s.inUse == 0 {
			p = (p.segment()+1)*segmentLen - 1
			continue
		}
		f.settleUnlessNear(s, p)
	}
}

// sweepSegments frees quiet segments behind the history, a bounded number a call: those that were not quiet when the history
// passed them get their turn again.
func (f *Flow) sweepSegments() {
	const step = 2 * segmentLen
	from := max(f.cursor, f.win.low)
	end := min(from+step, f.swept)
	for n := from; n < end; n++ {
		if s := f.win.segment(n); s != nil && s.quiet() {
			f.win.free(s)
		}
	}
	if f.cursor = end; end >= f.swept {
		f.cursor = f.win.low // the next round
	}
	for n := f.swept - 2; n < f.swept; n++ {
		if s := f.win.segment(n); s != nil && s.quiet() {
			f.win.free(s)
		}
	}
}

// settleAll gives back what is kept of packets that are in no open block: the flow has paused for so long that the CSF has
// freed their blocks too.
func (f *Flow) settleAll() {
	for n := f.win.low; n < f.win.high; n++ {
		s := f.win.segment(n)
		if s == nil || s.inUse == 0 {
			continue
		}
		for p := n * segmentLen; p < (n+1)*segmentLen; p++ {
			f.settleUnlessNear(s, p)
		}
	}
	f.trail = max(f.trail, f.newest+1)
}

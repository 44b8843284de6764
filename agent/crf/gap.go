// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// gap is a run of missing positions of which no REPAIR came, so that their block is not known (Section 6.3).
type gap struct {
	first, end pos           // the positions first..end-1
	since      time.Duration // when a higher PSN came
	due        time.Duration // when to look at it again
	asked      time.Duration // of the last request that named it
	rounds     int           // requests that named it
}

// gaps is sorted by position; gaps do not touch a known block that is open.
type gaps []gap

// from returns the index of the first gap that ends after p.
func (g gaps) from(p pos) int {
	lo, hi := 0, len(g)
	for lo < hi {
		if mid := (lo + hi) / 2; g[mid].end > p {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// near says that a gap lies less than reach positions from p.
func (g gaps) near(p pos, reach int) bool {
	i := g.from(p - pos(reach) + 1)
	return i < len(g) && g[i].first < p+pos(reach)
}

// add inserts a gap; it must not overlap another.
func (g *gaps) add(x gap) {
	i := g.from(x.first)
	*g = append(*g, gap{})
	copy((*g)[i+1:], (*g)[i:])
	(*g)[i] = x
}

// cut takes the positions first..end-1 out of all gaps. It returns the most rounds of those it touched, and when the last of
// their requests was sent.
func (g *gaps) cut(first, end pos) (rounds int, asked time.Duration) {
	i := g.from(first)
	for i < len(*g) && (*g)[i].first < end {
		x := (*g)[i]
		if x.rounds > rounds || x.rounds == rounds && x.asked > asked {
			rounds, asked = x.rounds, x.asked
		}
		switch {
		case x.first < first && x.end > end:
			(*g)[i].end = first
			x.first = end
			g.add(x)
			return rounds, asked
		case x.first < first:
			(*g)[i].end = first
			i++
		case x.end > end:
			(*g)[i].first = end
			return rounds, asked
		default:
			*g = append((*g)[:i], (*g)[i+1:]...)
		}
	}
	return rounds, asked
}

// passOver notes that the positions from the newest known one to p were passed over, as far as they count as missing. within says
// that the packet at p, if one arrived there, is an inner or the last one of its message.
func (f *Flow) passOver(now time.Duration, p pos, within bool) {
	first := f.top
	if int64(p-first) > int64(f.maxGap()) {
		f.drop(GapTooLarge)
		return
	}
	if f.sparse {
		f.passOverResponses(now, p, within)
		return
	}
	f.miss(now, first, p)
}

// maxGap is the largest number of positions passed over at once that is worth asking for: what the open blocks can hold, and one
// request can name.
func (f *Flow) maxGap() int { return min(f.params.MaxOpenBlocks*f.reach, maxRanges*rangeLen) }

// miss notes the positions first..end-1 as a gap.
func (f *Flow) miss(now time.Duration, first, end pos) {
	for n := first.segment(); n*segmentLen < end; n++ {
		s := f.win.make(n * segmentLen)
		if s == nil {
			return
		}
		w := span(n, first, end)
		for p := max(first, n*segmentLen); p < min(end, (n+1)*segmentLen); p++ {
			s.since[p.index()] = now
		}
		s.words[missing] |= w
	}
	f.stats.Missing += int(end - first)
	f.gaps.add(gap{first: first, end: end, since: now, due: now + f.tolerance()})
	f.wake()
}

// forget ends the waiting for positions that are in no open block: they are absent, or given up. Packets held behind them go
// on with the next call of flow.
func (f *Flow) forget(first, end pos) {
	f.gaps.cut(first, end)
	for n := first.segment(); n*segmentLen < end; n++ {
		if s := f.win.segment(n); s != nil {
			w := span(n, first, end) & s.words[missing]
			s.words[missing] &^= w
			f.stats.Missing -= ones(w)
		}
	}
	f.sweep(first, end)
}

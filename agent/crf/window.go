// SPDX-License-Identifier: Apache-2.0

package crf

import "crem.dev/crem/agent/fec"

const (
	// minDirectory and maxDirectory are the sizes of the segment directory. The largest spans twice farBehind.
	minDirectory = 16
	maxDirectory = 2 * farBehind / segmentLen
	// farBehind is how far behind the newest packet a position may be waited for: an eighth of the PSN space (Section 6.1,
	// rule 8).
	farBehind = psnSpan / 8
)

// window holds the segments that exist, by number. Positions without a segment, below the newest, need nothing any more.
type window struct {
	env  *Env
	dir  []*segment // by number modulo its length, which is a power of two
	low  pos        // no segment below this number exists
	high pos        // nor from this number on
	hot  *segment   // the one used last
}

// at returns the segment of position p, nil if it does not exist.
func (w *window) at(p pos) *segment { return w.segment(p.segment()) }

// segment returns segment n, nil if it does not exist.
func (w *window) segment(n pos) *segment {
	if w.hot != nil && w.hot.number == n {
		return w.hot
	}
	if n < w.low || n >= w.high {
		return nil
	}
	s := w.dir[int(n)&(len(w.dir)-1)]
	if s != nil && s.number == n {
		return s
	}
	return nil
}

// make returns the segment of position p and makes it if needed. It returns nil if p lies too far from the others.
func (w *window) make(p pos) *segment {
	n := p.segment()
	if s := w.segment(n); s != nil {
		w.hot = s
		return s
	}
	if !w.reach(n) {
		return nil
	}
	s := w.env.newSegment()
	s.number = n
	w.dir[int(n)&(len(w.dir)-1)] = s
	w.hot = s
	return s
}

// reach makes room in the directory for segment n.
func (w *window) reach(n pos) bool {
	for w.low < w.high && w.dir[int(w.low)&(len(w.dir)-1)] == nil {
		w.low++
	}
	if w.low >= w.high {
		w.low, w.high = n, n
	}
	low, high := min(w.low, n), max(w.high, n+1)
	size := max(len(w.dir), minDirectory)
	for int64(high-low) > int64(size) {
		size *= 2
	}
	if size > maxDirectory {
		return false
	}
	if size > len(w.dir) {
		w.grow(size)
	}
	w.low, w.high = low, high
	return true
}

func (w *window) grow(size int) {
	dir := make([]*segment, size)
	for _, s := range w.dir {
		if s != nil {
			dir[int(s.number)&(size-1)] = s
		}
	}
	w.dir = dir
}

// free gives a segment back. It must be quiet.
func (w *window) free(s *segment) {
	w.dir[int(s.number)&(len(w.dir)-1)] = nil
	if w.hot == s {
		w.hot = nil
	}
	w.env.freeSegment(s)
}

// has says whether a position has a mark.
func (w *window) has(p pos, m mark) bool {
	s := w.at(p)
	return s != nil && s.has(p, m)
}

// word returns the marks of segment n, zero if it does not exist.
func (w *window) word(n pos, m mark) uint64 {
	if s := w.segment(n); s != nil {
		return s.words[m]
	}
	return 0
}

// bits returns the marks of the k positions from first on.
func (w *window) bits(first pos, k int, m mark) fec.Bitmap {
	var b fec.Bitmap
	n, shift := first.segment(), uint(first.index())
	for i := range b {
		if i*segmentLen >= k {
			break
		}
		b[i] = w.word(n+pos(i), m) << shift
		if shift > 0 {
			b[i] |= w.word(n+pos(i)+1, m) >> (segmentLen - shift)
		}
	}
	return b.And(fec.Full(k))
}

// setBits sets or clears a mark of those positions first+j with j in b whose segment exists or can be made.
func (w *window) setBits(first pos, b fec.Bitmap, m mark, on bool) {
	for j := b.First(); j >= 0; j = b.Next(j + 1) {
		p := first + pos(j)
		if !on {
			if s := w.at(p); s != nil {
				s.clear(p, m)
			}
		} else if s := w.make(p); s != nil {
			s.set(p, m)
		}
	}
}

// newSegment returns an empty segment.
func (e *Env) newSegment() *segment {
	s := e.segments
	if s == nil {
		return new(segment)
	}
	e.segments, s.next = s.next, nil
	return s
}

// freeSegment keeps a quiet segment for the next user.
func (e *Env) freeSegment(s *segment) {
	s.words = [marks]uint64{}
	s.next, e.segments = e.segments, s
}

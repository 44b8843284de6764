// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// segmentLen is the number of positions of a segment: one word of marks.
const segmentLen = 64

// mark is one bit of what is known about a position.
type mark uint8

const (
	arrived    mark = iota // a packet of this PSN came, or was restored: the receiver has it or will get it
	stored                 // the cell holds the copy that came, of a length that can be coded
	late                   // rule CRF 1: that copy is unknown for decoding
	missing                // waited for: in a gap, or present in an open block
	named                  // was named in a request
	lost                   // counted as expected and not received
	doubted                // restored, and lost unless its packet comes soon
	held                   // the cell waits to be injected in order
	fromKernel             // that packet was given up by the kernel program, not restored
	known                  // belongs to a block of which a REPAIR came
	settled                // no longer needed for decoding: its block is complete or given up, or it is far from any gap
	marks
)

// segment is what is known about 64 consecutive positions. Position p is bit 63-p%64 of each word, as in fec.Bitmap. A segment
// exists while something in it is recent, missing, stored or held.
type segment struct {
	number pos // first position / segmentLen
	words  [marks]uint64
	cells  [segmentLen]*fec.Cell
	inUse  int                       // cells that are not nil
	since  [segmentLen]time.Duration // of missing positions: when it was first known that there is one
	ops    [segmentLen]roce.Opcode   // of arrived positions
	next   *segment                  // free list
}

// bit returns the bit of position p in a word.
func (p pos) bit() uint64 { return 1 << 63 >> (p & (segmentLen - 1)) }

// index returns the index of position p in the arrays of its segment.
func (p pos) index() int { return int(p & (segmentLen - 1)) }

// segment returns the number of the segment that position p lies in.
func (p pos) segment() pos { return p >> 6 }

func (s *segment) has(p pos, m mark) bool { return s.words[m]&p.bit() != 0 }
func (s *segment) set(p pos, m mark)      { s.words[m] |= p.bit() }
func (s *segment) clear(p pos, m mark)    { s.words[m] &^= p.bit() }

// quiet says that nothing in the segment is waited for or kept.
func (s *segment) quiet() bool {
	return s.inUse == 0 && s.words[missing]|s.words[held]|s.words[doubted] == 0
}

// span returns the word with the bits of the positions first..end-1 that lie in segment n.
func span(n, first, end pos) uint64 {
	w := ^uint64(0)
	if lo := n * segmentLen; first > lo {
		if first >= lo+segmentLen {
			return 0
		}
		w >>= uint(first - lo)
	}
	if hi := (n + 1) * segmentLen; end < hi {
		if end <= n*segmentLen {
			return 0
		}
		w &= ^uint64(0) << uint(hi-end)
	}
	return w
}

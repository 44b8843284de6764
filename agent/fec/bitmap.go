// SPDX-License-Identifier: Apache-2.0

package fec

import "math/bits"

// Bitmap is a set of positions 0..255 of a block. Position j is bit 63-j%64 of
// word j/64, so that the four words in big-endian order are the bitmap as
// messages carry it (section 9: position 0 is the most significant bit).
// Positions outside 0..255 are in no set: setting one changes nothing.
type Bitmap [4]uint64

// Full returns the set of the positions 0..k-1, all 256 if k is larger.
func Full(k int) Bitmap {
	var b Bitmap
	for w := range b {
		switch n := k - 64*w; {
		case n >= 64:
			b[w] = ^uint64(0)
		case n > 0:
			b[w] = ^uint64(0) << (64 - n)
		}
	}
	return b
}

// Set adds position j.
func (b *Bitmap) Set(j int) {
	if uint(j) < 256 {
		b[j>>6] |= 1 << 63 >> (j & 63)
	}
}

// Clear removes position j.
func (b *Bitmap) Clear(j int) {
	if uint(j) < 256 {
		b[j>>6] &^= 1 << 63 >> (j & 63)
	}
}

// Has reports whether position j is in the set.
func (b *Bitmap) Has(j int) bool {
	return uint(j) < 256 && b[j>>6]&(1<<63>>(j&63)) != 0
}

// Count returns the number of positions in the set.
func (b *Bitmap) Count() int {
	return bits.OnesCount64(b[0]) + bits.OnesCount64(b[1]) +
		bits.OnesCount64(b[2]) + bits.OnesCount64(b[3])
}

// Empty reports whether no position is in the set.
func (b *Bitmap) Empty() bool { return b[0]|b[1]|b[2]|b[3] == 0 }

// Contains reports whether every position of c is in the set.
func (b *Bitmap) Contains(c Bitmap) bool {
	return c[0]&^b[0]|c[1]&^b[1]|c[2]&^b[2]|c[3]&^b[3] == 0
}

// And returns the positions that are in both sets.
func (b Bitmap) And(c Bitmap) Bitmap {
	return Bitmap{b[0] & c[0], b[1] & c[1], b[2] & c[2], b[3] & c[3]}
}

// Or returns the positions that are in at least one of the sets.
func (b Bitmap) Or(c Bitmap) Bitmap {
	return Bitmap{b[0] | c[0], b[1] | c[1], b[2] | c[2], b[3] | c[3]}
}

// AndNot returns the positions of b that are not in c.
func (b Bitmap) AndNot(c Bitmap) Bitmap {
	return Bitmap{b[0] &^ c[0], b[1] &^ c[1], b[2] &^ c[2], b[3] &^ c[3]}
}

// First returns the lowest position in the set, -1 if it is empty.
func (b *Bitmap) First() int { return b.Next(0) }

// Next returns the lowest position in the set that is at least from, -1 if
// there is none. So for j := b.First(); j >= 0; j = b.Next(j + 1) visits all.
func (b *Bitmap) Next(from int) int {
	if from < 0 {
		from = 0
	}
	if from > 255 {
		return -1
	}
	w := from >> 6
	v := b[w] & (^uint64(0) >> (from & 63))
	for v == 0 {
		if w++; w == len(b) {
			return -1
		}
		v = b[w]
	}
	return w<<6 + bits.LeadingZeros64(v)
}

// Last returns the highest position in the set, -1 if it is empty.
func (b *Bitmap) Last() int {
	for w := len(b) - 1; w >= 0; w-- {
		if b[w] != 0 {
			return w<<6 + 63 - bits.TrailingZeros64(b[w])
		}
	}
	return -1
}

// appendTo appends the positions in the set to dst, in order.
func (b *Bitmap) appendTo(dst []uint8) []uint8 {
	for w, v := range b {
		if v == 0 {
			continue
		}
		for v = bits.Reverse64(v); v != 0; v &= v - 1 {
			dst = append(dst, uint8(w<<6+bits.TrailingZeros64(v)))
		}
	}
	return dst
}

// SPDX-License-Identifier: Apache-2.0

package fec

import "crem.dev/crem/agent/fec/internal/gf"

// batch is how many sources are coded at once; all, with the usual k of 32.
const batch = 32

// Encode writes the n repair symbols of Repair Indices first, first+1, ... over
// the source indices L (section 4.3). Repair symbol r goes to
// out[r*stride:][:Stride(T)], of which the first T octets are the symbol; out
// may be unaligned, and stride may leave room for message headers, but must be
// at least Stride(T) if n > 1. syms holds the cells of L; positions outside L
// are not looked at.
//
//   - Cauchy: the highest index must satisfy i + j < 255 for all j in L, else
//     ErrIndex. The caller still has to keep i + k <= 255.
//   - XOR: index 0 only, else ErrIndex.
//   - SourceCopy: the Repair Indices are source indices, all of them in L.
//
// ErrScheme, ErrSource (L is empty, or a symbol is missing or was not made for
// this T) and ErrBuffer (out or stride too small) are the other errors. After an
// error the contents of out are arbitrary.
func Encode(out []byte, stride int, scheme Scheme, first uint8, n int, T int, L Bitmap, syms *[256]*Cell) error {
	size := Stride(T)
	if T < prefix || n < 1 || n > 1 && stride < size || len(out) < (n-1)*stride+size {
		return ErrBuffer
	}
	var rows [gf.MaxOutputs][]byte
	for done := 0; done < n; {
		group := min(n-done, len(rows))
		for r := range group {
			rows[r] = out[(done+r)*stride:][:size]
		}
		if err := encode(rows[:group], scheme, int(first)+done, T, L, syms); err != nil {
			return err
		}
		done += group
	}
	return nil
}

// EncodeCells is Encode with every repair symbol in a cell of its own, for
// repair symbols that are kept until they are sent.
func EncodeCells(out []*Cell, scheme Scheme, first uint8, T int, L Bitmap, syms *[256]*Cell) error {
	size := Stride(T)
	if T < prefix || len(out) == 0 {
		return ErrBuffer
	}
	var rows [gf.MaxOutputs][]byte
	for done := 0; done < len(out); {
		group := min(len(out)-done, len(rows))
		for r := range group {
			c := out[done+r]
			if c == nil || c.room() < size {
				return ErrBuffer
			}
			c.head = 0
			rows[r] = c.mem[MaxHead:][:size]
		}
		if err := encode(rows[:group], scheme, int(first)+done, T, L, syms); err != nil {
			return err
		}
		done += group
	}
	return nil
}

// encode writes the repair symbols of indices first.. to the rows, at most
// gf.MaxOutputs of them, each of Stride(T) octets.
func encode(rows [][]byte, scheme Scheme, first, T int, L Bitmap, syms *[256]*Cell) error {
	last := first + len(rows) - 1
	switch scheme {
	case SourceCopy:
		return copySources(rows, first, T, L, syms)
	case Cauchy:
		if last+L.Last() >= MaxIndexSum {
			return ErrIndex
		}
	case XOR:
		if last != 0 {
			return ErrIndex
		}
	default:
		return ErrScheme
	}
	if L.Empty() {
		return ErrSource
	}
	// Sources are taken a batch at a time, so that pointers and factors stay in
	// small arrays on the stack.
	var list [256]uint8
	var srcs [batch][]byte
	var mats [batch * gf.MaxOutputs]gf.Matrix
	size, m, add := len(rows[0]), len(rows), false
	for left := L.appendTo(list[:0]); len(left) > 0; add = true {
		now := left[:min(len(left), batch)]
		left = left[len(now):]
		for s, j := range now {
			c := syms[j]
			if c == nil || c.room() < size {
				return ErrSource
			}
			srcs[s] = c.mem[MaxHead:]
			factors(mats[s*m:][:m], scheme, uint8(first), j)
		}
		if !gf.Dot(rows, srcs[:len(now)], size, mats[:len(now)*m], add) {
			return ErrBuffer
		}
	}
	return nil
}

// copySources is encode for SourceCopy (section 4.3.1).
func copySources(rows [][]byte, first, T int, L Bitmap, syms *[256]*Cell) error {
	for r, row := range rows {
		j := first + r
		if !L.Has(j) || syms[j] == nil || syms[j].room() < len(row) {
			return ErrSource
		}
		clear(row[copy(row, syms[j].mem[MaxHead:][:T]):])
	}
	return nil
}

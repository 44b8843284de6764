// SPDX-License-Identifier: Apache-2.0

package fec

import "crem.dev/crem/agent/fec/internal/gf"

// eliminate takes rows into use as long as they are independent of those taken
// before, and inverts their coefficients of the unknowns by Gauss-Jordan
// elimination. It reports whether the rank reaches the number of unknowns; the
// result is then in d.inverse.
//
// Each line of work is a row's coefficients of the u unknowns and beside them,
// in u more octets, the combination of rows in use that gives this line. Lines
// are kept fully reduced: a line's pivot column is zero in all others.
func (d *Decoder) eliminate() bool {
	u := len(d.unknown)
	d.used, d.spare = d.used[:0], d.spare[:0]
	var pivots [256]uint8 // pivot column of each line
	for i := range d.rows {
		rank := len(d.used)
		if rank == u {
			d.spare = append(d.spare, i)
			continue
		}
		line := d.line(rank)
		d.fill(line, i)
		line[u+rank] = 1
		for p := range rank {
			gf.MulAdd(line, d.line(p), line[pivots[p]])
		}
		pivot := firstNonzero(line[:u])
		if pivot < 0 {
			d.spare = append(d.spare, i)
			continue
		}
		scale := gf.Inv(line[pivot])
		for c, x := range line {
			line[c] = gf.Mul(x, scale)
		}
		for p := range rank {
			gf.MulAdd(d.line(p), line, d.line(p)[pivot])
		}
		pivots[rank] = uint8(pivot)
		d.used = append(d.used, i)
	}
	if len(d.used) < u {
		return false
	}
	for p := range u {
		copy(d.inverse[int(pivots[p])*u:][:u], d.line(p)[u:])
	}
	return true
}

// line returns line n of the elimination.
func (d *Decoder) line(n int) []byte {
	w := 2 * len(d.unknown)
	return d.work[n*w:][:w]
}

// fill writes the coefficients of row i to a line and clears the rest of it.
func (d *Decoder) fill(line []byte, i int) {
	clear(line)
	r := &d.rows[i]
	for c, j := range d.unknown {
		if r.L.Has(int(j)) {
			line[c] = coefficient(d.scheme, r.Index, j)
		}
	}
}

// firstNonzero returns the position of the first nonzero octet, -1 if none.
func firstNonzero(b []byte) int {
	for i, x := range b {
		if x != 0 {
			return i
		}
	}
	return -1
}

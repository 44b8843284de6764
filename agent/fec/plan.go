// SPDX-License-Identifier: Apache-2.0

package fec

import "crem.dev/crem/agent/fec/internal/gf"

// The plan of a decode. With U the unknown indices and I the rows in use, as
// many of both, and + for XOR,
//
//	S_j = sum over i in I of B[j][i] R_i  +  sum over known s of D[j][s] S_s.
//
// B inverts the coefficients of the unknowns, so it is the same whatever else
// the rows contain. A known source counts with
//
//	D[j][s] = sum over rows i with s in L_i of B[j][i] C(i, s).
//
// If all rows contain all of U, the matrix to invert is a Cauchy matrix, and B
// and, for an s that all rows contain, D are products:
//
//	alpha_i = prod_{j in U} (x_i+y_j) / prod_{i' in I, i' != i} (x_i+x_i')
//	beta_j  = prod_{i in I} (x_i+y_j) / prod_{j' in U, j' != j} (y_j+y_j')
//	gamma_s = prod_{j in U} (y_s+y_j) / prod_{i in I} (x_i+y_s)
//	B[j][i] = alpha_i beta_j / (x_i+y_j)
//	D[j][s] = beta_j gamma_s / (y_s+y_j)
//
// where x_i+y_j = 255^i^j, x_i+x_i' = i^i' and y_j+y_j' = j^j' (section 4.3.2).
// Products are sums of logarithms modulo 255.

// order is the number of nonzero field elements: logarithms count modulo it.
const order = 255

// chooseFull puts rows in use that contain every unknown and have distinct
// indices, and reports whether there are enough of them.
func (d *Decoder) chooseFull() bool {
	if d.scheme != Cauchy {
		return false
	}
	d.used, d.spare = d.used[:0], d.spare[:0]
	var indices Bitmap
	for i := range d.rows {
		r := &d.rows[i]
		if len(d.used) < len(d.unknown) && r.L.Contains(d.set) && !indices.Has(int(r.Index)) {
			indices.Set(int(r.Index))
			d.used = append(d.used, i)
		} else {
			d.spare = append(d.spare, i)
		}
	}
	return len(d.used) == len(d.unknown)
}

// invertCauchy computes B and the logarithms of beta in closed form.
func (d *Decoder) invertCauchy() {
	u := len(d.unknown)
	for a, j := range d.unknown {
		sum := 0
		for _, r := range d.used {
			sum += gf.Log(255 ^ d.rows[r].Index ^ j)
		}
		for a2, j2 := range d.unknown {
			if a2 != a {
				sum += order - gf.Log(j^j2)
			}
		}
		d.beta[a] = uint16(sum % order)
	}
	for b, r := range d.used {
		i, alpha := d.rows[r].Index, 0
		for _, j := range d.unknown {
			alpha += gf.Log(255 ^ i ^ j)
		}
		for b2, r2 := range d.used {
			if b2 != b {
				alpha += order - gf.Log(i^d.rows[r2].Index)
			}
		}
		alpha %= order
		for a, j := range d.unknown {
			d.inverse[a*u+b] = gf.Exp(alpha + int(d.beta[a]) + order - gf.Log(255^i^j))
		}
	}
}

// listInputs lists the known sources that rows in use contain, and notes which
// of them all rows contain.
func (d *Decoder) listInputs() {
	var union Bitmap
	d.common = Full(256)
	for _, r := range d.used {
		union = union.Or(d.rows[r].L)
		d.common = d.common.And(d.rows[r].L)
	}
	union = union.AndNot(d.set)
	d.inputs = union.appendTo(d.inputs[:0])
}

// plan writes the factors of the n unknowns from number a on: those of the known
// inputs first, then those of the rows in use, n outputs for each.
func (d *Decoder) plan(f []gf.Matrix, a, n int, closed bool) {
	for _, s := range d.inputs {
		if closed && d.common.Has(int(s)) {
			d.knownClosed(f[:n], a, s)
		} else {
			d.knownSum(f[:n], a, s)
		}
		f = f[n:]
	}
	u := len(d.unknown)
	for b := range d.used {
		for o := range n {
			f[o] = gf.Times(d.inverse[(a+o)*u+b])
		}
		f = f[n:]
	}
}

// knownClosed writes D[j][s] for the unknowns j from number a on, by the closed
// form.
func (d *Decoder) knownClosed(f []gf.Matrix, a int, s uint8) {
	gamma := 0
	for _, j := range d.unknown {
		gamma += gf.Log(s ^ j)
	}
	for _, r := range d.used {
		gamma += order - gf.Log(255^d.rows[r].Index^s)
	}
	gamma %= order
	for o := range f {
		f[o] = gf.Times(gf.Exp(gamma + int(d.beta[a+o]) + order - gf.Log(s^d.unknown[a+o])))
	}
}

// knownSum writes D[j][s] for the unknowns j from number a on, by its
// definition.
func (d *Decoder) knownSum(f []gf.Matrix, a int, s uint8) {
	var sum [gf.MaxOutputs]byte
	u := len(d.unknown)
	for b, r := range d.used {
		row := &d.rows[r]
		if !row.L.Has(int(s)) {
			continue
		}
		c := coefficient(d.scheme, row.Index, s)
		for o := range f {
			sum[o] ^= gf.Mul(d.inverse[(a+o)*u+b], c)
		}
	}
	for o := range f {
		f[o] = gf.Times(sum[o])
	}
}

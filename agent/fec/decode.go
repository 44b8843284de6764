// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"bytes"

	"crem.dev/crem/agent/fec/internal/gf"
)

// Row is one received repair symbol: the equation that the sum over L of
// coefficients times source symbols is Symbol.
type Row struct {
	// Index is the Repair Index.
	Index uint8
	// L is the set of source indices that the symbol was computed over.
	L Bitmap
	// Symbol is the repair symbol: at least T octets, and memory that may be
	// read up to Stride(T) (by its length or its capacity). It is not changed.
	Symbol []byte
}

// Decoder solves blocks. It holds the scratch memory of one worker; no call
// depends on an earlier one.
type Decoder struct {
	// The problem of the current call.
	size    int // Stride(T)
	scheme  Scheme
	set     Bitmap  // the unknown source indices
	unknown []uint8 // the same as a list
	rows    []Row
	known   *[256]*Cell
	out     *[256]*Cell

	// Its plan, see plan.go.
	used   []int   // the rows in use, as many as unknowns
	spare  []int   // the other rows
	inputs []uint8 // source indices that count: the known ones in the L of a row in use
	common Bitmap  // the indices that are in the L of every row in use

	inverse []byte      // [unknown][row in use]
	beta    [256]uint16 // logarithms, by unknown; closed form only
	work    []byte      // elimination
	factors []gf.Matrix // [input][output of a group]
	check   []byte      // one symbol, to verify surplus rows
	srcs    [256][]byte
	outs    [gf.MaxOutputs][]byte
}

// NewDecoder returns a decoder, about 200 KiB.
func NewDecoder() *Decoder {
	return &Decoder{
		unknown: make([]uint8, 0, 256),
		used:    make([]int, 0, 256),
		spare:   make([]int, 0, 256),
		inputs:  make([]uint8, 0, 256),
		inverse: make([]byte, 256*256),
		work:    make([]byte, 2*256*256),
		factors: make([]gf.Matrix, 256*gf.MaxOutputs),
	}
}

// Solve computes the symbols of the unknown source indices from rows and the
// known sources and writes them to out[j]. The caller provides those cells, all
// different, none of them in known or holding a row's symbol.
// Every source index in a row's L is either unknown or in known; known[j] of an
// unknown j, for instance a late copy, is not looked at.
//
// If every unknown index is in the L of enough rows of distinct indices, the
// solution has a closed form. Otherwise, which happens when a source was
// classified late after a coded retransmission was asked for (rule CRF 1),
// elimination finds out. In both cases every row that was not needed is verified
// against the result.
//
// ErrRank: there are fewer independent rows than unknowns. ErrSurplus: a row
// contradicts the others. ErrScheme: scheme is neither Cauchy nor XOR. ErrIndex:
// a row's index is not allowed for its L. ErrSource: a row's L is empty, or
// names a source that is neither known nor unknown. ErrBuffer: a row's symbol or
// a cell is too small for T. After an error the symbols in out are arbitrary.
func (d *Decoder) Solve(T int, scheme Scheme, unknown Bitmap, known *[256]*Cell, rows []Row, out *[256]*Cell) error {
	d.size, d.scheme, d.set = Stride(T), scheme, unknown
	d.rows, d.known, d.out = rows, known, out
	err := d.solve(T)
	d.rows, d.known, d.out = nil, nil, nil
	return err
}

func (d *Decoder) solve(T int) error {
	if err := d.admit(T); err != nil {
		return err
	}
	closed := d.chooseFull()
	if closed {
		d.invertCauchy()
	} else if !d.eliminate() {
		return ErrRank
	}
	if err := d.apply(closed); err != nil {
		return err
	}
	return d.verify(T)
}

// admit checks everything that memory safety and the algebra rely on, and lists
// the unknowns.
func (d *Decoder) admit(T int) error {
	if T < prefix {
		return ErrBuffer
	}
	if d.scheme != Cauchy && d.scheme != XOR {
		return ErrScheme
	}
	d.unknown = d.set.appendTo(d.unknown[:0])
	for _, j := range d.unknown {
		if !d.fits(d.out[j]) {
			return ErrBuffer
		}
	}
	var needed Bitmap
	for i := range d.rows {
		r := &d.rows[i]
		if len(r.Symbol) < T || cap(r.Symbol) < d.size {
			return ErrBuffer
		}
		if r.L.Empty() {
			return ErrSource
		}
		if d.scheme == XOR && r.Index != 0 || d.scheme == Cauchy && int(r.Index)+r.L.Last() >= MaxIndexSum {
			return ErrIndex
		}
		needed = needed.Or(r.L)
	}
	needed = needed.AndNot(d.set)
	d.inputs = needed.appendTo(d.inputs[:0])
	for _, j := range d.inputs {
		if d.known[j] == nil {
			return ErrSource
		}
		if !d.fits(d.known[j]) {
			return ErrBuffer
		}
	}
	return nil
}

// fits reports whether a cell can hold a symbol of the current length.
func (d *Decoder) fits(c *Cell) bool { return c != nil && c.room() >= d.size }

// apply computes the unknown symbols from the known ones and the rows in use,
// in groups of as many outputs as a kernel has.
func (d *Decoder) apply(closed bool) error {
	d.listInputs()
	srcs := d.srcs[:0]
	for _, j := range d.inputs {
		srcs = append(srcs, d.known[j].mem[MaxHead:])
	}
	for _, r := range d.used {
		srcs = append(srcs, d.rows[r].Symbol[:d.size])
	}
	for a := 0; a < len(d.unknown); a += gf.MaxOutputs {
		group := d.unknown[a:min(a+gf.MaxOutputs, len(d.unknown))]
		for r, j := range group {
			d.out[j].head = 0
			d.outs[r] = d.out[j].mem[MaxHead:]
		}
		f := d.factors[:len(srcs)*len(group)]
		d.plan(f, a, len(group), closed)
		if !gf.Dot(d.outs[:len(group)], srcs, d.size, f, false) {
			return ErrBuffer
		}
	}
	return nil
}

// verify recomputes every row that was not used and compares it (section 6,
// rule 3: "surplus rows, if any, verify").
func (d *Decoder) verify(T int) error {
	for _, i := range d.spare {
		if len(d.check) < d.size {
			d.check = align(d.size)
		}
		d.outs[0] = d.check
		r, srcs := &d.rows[i], d.srcs[:0]
		d.inputs = r.L.appendTo(d.inputs[:0])
		for _, j := range d.inputs {
			c := d.known[j]
			if d.set.Has(int(j)) {
				c = d.out[j]
			}
			factors(d.factors[len(srcs):][:1], d.scheme, r.Index, j)
			srcs = append(srcs, c.mem[MaxHead:])
		}
		if !gf.Dot(d.outs[:1], srcs, d.size, d.factors[:len(srcs)], false) {
			return ErrBuffer
		}
		if !bytes.Equal(d.check[:T], r.Symbol[:T]) {
			return ErrSurplus
		}
	}
	return nil
}

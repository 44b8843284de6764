// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"errors"
	"strconv"

	"crem.dev/crem/agent/fec/internal/gf"
)

// Scheme is the number of an FEC scheme as REPAIR and PARAM_UPDATE carry it
// (section 4.3). Its value is also its bit in Supported Schemes.
type Scheme uint8

// The schemes of section 4.3.
const (
	// SourceCopy sends source symbols unmodified; the Repair Index is the
	// source index (section 4.3.1).
	SourceCopy Scheme = 0
	// Cauchy is the Reed-Solomon scheme over GF(2^8) that every end supports
	// (section 4.3.2).
	Cauchy Scheme = 1
	// XOR has one repair symbol, of Repair Index 0 (section 4.3.3).
	XOR Scheme = 2
)

// String gives the scheme's name, or its number if it has none.
func (s Scheme) String() string {
	switch s {
	case SourceCopy:
		return "SourceCopy"
	case Cauchy:
		return "Cauchy"
	case XOR:
		return "XOR"
	}
	return "Scheme(" + strconv.Itoa(int(s)) + ")"
}

// MaxIndexSum is the largest allowed sum of a Repair Index and the block size
// k in scheme 1 (section 4.3.2: "only Repair Indices with i + k <= 255").
const MaxIndexSum = 255

// Errors of this package. They carry no detail, cost nothing to return, and
// each is a reason that callers count.
var (
	// ErrTooLong means that a payload or a symbol does not fit T or its cell.
	ErrTooLong = errors.New("fec: too long for the symbol length")
	// ErrSymbol means that a decoded symbol is not a source symbol: its length
	// prefix exceeds T-2, or its padding is not zero.
	ErrSymbol = errors.New("fec: not a source symbol")
	// ErrScheme means that the scheme is unknown or not usable for the call.
	ErrScheme = errors.New("fec: scheme not usable")
	// ErrIndex means that a Repair Index is not allowed for its source indices.
	ErrIndex = errors.New("fec: repair index out of range")
	// ErrSource means that a set of source indices is empty or names one whose
	// symbol is missing.
	ErrSource = errors.New("fec: source symbol missing")
	// ErrBuffer means that memory given for a result or a row is too small.
	ErrBuffer = errors.New("fec: buffer too small")
	// ErrRank means that there are fewer independent rows than unknowns.
	ErrRank = errors.New("fec: not enough independent repair symbols")
	// ErrSurplus means that a row beyond those needed contradicts the result.
	ErrSurplus = errors.New("fec: surplus repair symbol contradicts the result")
)

// Coef returns C(i, j) of section 4.3.2, the coefficient of source index j in
// the repair symbol of index i: 1 / ((255 - i) + j) in GF(2^8), where + is XOR
// and therefore 255 - i is i XOR 255. It is 0 where the inverse does not exist,
// which needs i + j >= 255.
func Coef(i, j uint8) byte { return gf.Inv(255 ^ i ^ j) }

// coefficient returns the coefficient of source index j in the repair symbol of
// index i in a scheme that combines sources.
func coefficient(s Scheme, i, j uint8) byte {
	if s == XOR {
		return 1
	}
	return Coef(i, j)
}

// cauchy[i^j] is multiplication by C(i, j), which depends on i XOR j only.
var cauchy = func() (t [256]gf.Matrix) {
	for x := range t {
		t[x] = gf.Times(Coef(uint8(x), 0))
	}
	return t
}()

// factors fills dst with multiplication by the coefficients of source index j in
// the repair symbols of indices first, first+1, ...
func factors(dst []gf.Matrix, s Scheme, first, j uint8) {
	if s == XOR {
		dst[0] = gf.Times(1) // the only symbol
		return
	}
	for r := range dst {
		dst[r] = cauchy[first+uint8(r)^j]
	}
}

// Stride returns the octets that a symbol of length T occupies in memory: the
// next multiple of 64, the width of a kernel column, and 64 more when that is a
// multiple of 4096, so that the symbols of a block do not fall into the same
// cache sets.
func Stride(T int) int {
	s := (T + 63) &^ 63
	if s&4095 == 0 {
		s += 64
	}
	return s
}

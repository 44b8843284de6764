// SPDX-License-Identifier: Apache-2.0

// Package gf is arithmetic in GF(2^8) with the polynomial 0x11D of section
// 4.3.2, and the one kernel that coding and decoding are made of: [Dot], sums of
// products over whole symbols. It knows nothing of symbols, blocks or schemes.
package gf

import "github.com/klauspost/reedsolomon"

// polynomial is x^8 + x^4 + x^3 + x^2 + 1, in which x (2) is primitive.
const polynomial = 0x11d

// tables holds the field; it is constant after the program has started.
type tables struct {
	exp    [510]byte   // 2^e for e in 0..509
	log    [256]uint8  // log[x] for x != 0
	inv    [256]byte   // inv[0] is 0
	matrix [256]Matrix // multiplication by c
}

var field = newTables()

func newTables() (t tables) {
	x := 1
	for e := range 255 {
		t.exp[e], t.exp[e+255] = byte(x), byte(x)
		t.log[x] = uint8(e)
		x <<= 1
		if x > 255 {
			x ^= polynomial
		}
	}
	for c := 1; c < 256; c++ {
		t.inv[c] = t.exp[255-int(t.log[c])]
		t.matrix[c] = t.newMatrix(c)
	}
	return t
}

// Matrix is multiplication by a constant, as VGF2P8AFFINEQB takes it: an 8x8 bit
// matrix. Bit i of a product is the parity of the factor AND octet 7-i.
type Matrix uint64

// Times returns multiplication by c.
func Times(c byte) Matrix { return field.matrix[c] }

// Constant returns the c of Times(c): its bit i is the lowest of octet 7-i. The
// multiplication gathers these eight bits in the highest octet.
func (m Matrix) Constant() byte {
	return byte(m & 0x0101010101010101 * 0x8040201008040201 >> 56)
}

// newMatrix returns multiplication by c; its column j is c times 2^j.
func (t *tables) newMatrix(c int) (m Matrix) {
	for j := range 8 {
		p := t.exp[int(t.log[c])+int(t.log[1<<j])]
		for i := range 8 {
			if p>>i&1 == 1 {
				m |= 1 << ((7-i)*8 + j)
			}
		}
	}
	return m
}

// Mul returns the product of a and b.
func Mul(a, b byte) byte {
	if a == 0 || b == 0 {
		return 0
	}
	return field.exp[int(field.log[a])+int(field.log[b])]
}

// Inv returns 1/a, and 0 for a = 0, which has no inverse.
func Inv(a byte) byte { return field.inv[a] }

// Log returns the logarithm of a to the base 2, 0..254; a must not be 0.
func Log(a byte) int { return int(field.log[a]) }

// Exp returns 2^e for any e >= 0.
func Exp(e int) byte { return field.exp[uint(e)%255] }

// MulAdd adds c times src to dst, octet by octet; both have the same length.
func MulAdd(dst, src []byte, c byte) {
	if c != 0 {
		reedsolomon.LowLevel{}.GalMulSliceXor(c, src, dst)
	}
}

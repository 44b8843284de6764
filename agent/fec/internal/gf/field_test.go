// SPDX-License-Identifier: Apache-2.0

package gf

import "testing"

// slowMul multiplies by shift and add, straight from the definition: polynomials
// over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1. It shares nothing with the
// tables.
func slowMul(a, b byte) (p byte) {
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			p ^= a
		}
		carry := a & 0x80
		a <<= 1
		if carry != 0 {
			a ^= 0x1d
		}
	}
	return p
}

// TestSection4_3_2_Field checks every product, inverse and logarithm.
func TestSection4_3_2_Field(t *testing.T) {
	for a := range 256 {
		for b := range 256 {
			if got, want := Mul(byte(a), byte(b)), slowMul(byte(a), byte(b)); got != want {
				t.Fatalf("%02x * %02x = %02x, want %02x", a, b, got, want)
			}
		}
	}
	if Inv(0) != 0 {
		t.Errorf("Inv(0) = %02x, want 0", Inv(0))
	}
	for a := 1; a < 256; a++ {
		if p := slowMul(byte(a), Inv(byte(a))); p != 1 {
			t.Errorf("%02x * 1/%02x = %02x", a, a, p)
		}
		if Exp(Log(byte(a))) != byte(a) {
			t.Errorf("2^log(%02x) = %02x", a, Exp(Log(byte(a))))
		}
	}
	power := byte(1)
	for e := range 2000 {
		if Exp(e) != power {
			t.Fatalf("2^%d = %02x, want %02x", e, Exp(e), power)
		}
		power = slowMul(power, 2)
	}
}

// TestMatrix checks the columns of every matrix: column j is c times 2^j. That
// the processor reads them so is what the tests of the kernels show.
func TestMatrix(t *testing.T) {
	for c := range 256 {
		m := Times(byte(c))
		for j := range 8 {
			var column byte
			for i := range 8 {
				column |= byte(m>>((7-i)*8+j)&1) << i
			}
			if want := slowMul(byte(c), 1<<j); column != want {
				t.Fatalf("column %d of times %02x is %02x, want %02x", j, c, column, want)
			}
		}
		if m.Constant() != byte(c) {
			t.Fatalf("Times(%02x).Constant() = %02x", c, m.Constant())
		}
	}
}

func TestMulAdd(t *testing.T) {
	for c := range 256 {
		for _, n := range []int{0, 1, 31, 32, 33, 255, 510} {
			src, dst, want := pattern(n, 1), pattern(n, 2), pattern(n, 2)
			for i := range want {
				want[i] ^= slowMul(byte(c), src[i])
			}
			MulAdd(dst, src, byte(c))
			if string(dst) != string(want) {
				t.Fatalf("c = %d, n = %d: %x, want %x", c, n, dst, want)
			}
		}
	}
}

// pattern returns n octets that depend on seed, all values among them.
func pattern(n int, seed uint64) []byte {
	b := make([]byte, n)
	x := seed*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x >> 24)
	}
	return b
}

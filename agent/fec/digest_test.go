// SPDX-License-Identifier: Apache-2.0

package fec

import (
	"bytes"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// xxh3Buffer is the test buffer of the xxHash project (fillTestBuffer of its
// sanity tests).
func xxh3Buffer(n int) []byte {
	b := make([]byte, n)
	gen := uint64(2654435761)
	for i := range b {
		b[i] = byte(gen >> 56)
		gen *= 11400714785074694797
	}
	return b
}

// xxh3Golden holds values of XXH3_64bits_withSeed of the C reference (xxHash
// commit b2e9dbb05fb7f45ad662e67969e92c48b9b32247) over that buffer. Those of
// lengths 0 and 1 with the first two seeds are also in its published test
// vectors.
var xxh3Golden = []struct {
	n         int
	seed, sum uint64
}{
	{0, 0x0000000000000000, 0x2d06800538d394c2},
	{0, 0x9e3779b185ebca8d, 0xa8a6b918b2f0364a},
	{0, 0x0123456789abcdef, 0xcc1ca35a1b089c5c},
	{1, 0x0000000000000000, 0xc44bdff4074eecdb},
	{1, 0x9e3779b185ebca8d, 0x032be332dd766ef8},
	{1, 0x0123456789abcdef, 0xd5dd68911c7f195d},
	{14, 0x0000000000000000, 0x1ac0bbda2b9fcf03},
	{14, 0x9e3779b185ebca8d, 0xa7f68521581b173f},
	{14, 0x0123456789abcdef, 0xd0e1091a88f50e24},
	{16, 0x0000000000000000, 0x981b17d36c7498c9},
	{16, 0x9e3779b185ebca8d, 0x663f29333b4db6b1},
	{16, 0x0123456789abcdef, 0x9a5cf972681f64e7},
	{240, 0x0000000000000000, 0x81c3c2b67f568ccf},
	{240, 0x9e3779b185ebca8d, 0xcc0f58c27ef3d8ee},
	{240, 0x0123456789abcdef, 0xff9a5ea1f3e336c1},
	{241, 0x0000000000000000, 0xc5a639ecd2030e5e},
	{241, 0x9e3779b185ebca8d, 0xdda9b0a161d4829a},
	{241, 0x0123456789abcdef, 0x39d4913d191d5f3d},
	{256, 0x0000000000000000, 0x55de574ad89d0ac5},
	{256, 0x9e3779b185ebca8d, 0x4d30234b7a3aa61c},
	{256, 0x0123456789abcdef, 0x1d48b7293297b67e},
	{1024, 0x0000000000000000, 0xdd85c9b5c1109c5c},
	{1024, 0x9e3779b185ebca8d, 0xef368a8a2ebabaef},
	{1024, 0x0123456789abcdef, 0x409d0f8806fd35eb},
	{1025, 0x0000000000000000, 0xd870c0fa13211c6a},
	{1025, 0x9e3779b185ebca8d, 0x96792bcf9af88519},
	{1025, 0x0123456789abcdef, 0xb09ed51fdd614f0f},
	{1074, 0x0000000000000000, 0x4c838f49ab57b711},
	{1074, 0x9e3779b185ebca8d, 0x76902be06aa3a02c},
	{1074, 0x0123456789abcdef, 0xa9dbf4672dd62d4e},
	{2148, 0x0000000000000000, 0x2793899cdb4d8987},
	{2148, 0x9e3779b185ebca8d, 0xeee157d27c8fe443},
	{2148, 0x0123456789abcdef, 0x9312383a792f4483},
	{4202, 0x0000000000000000, 0x8f5cb849a0e9815c},
	{4202, 0x9e3779b185ebca8d, 0x939fcbe0acd38bac},
	{4202, 0x0123456789abcdef, 0xa36930da58129a6c},
	{4224, 0x0000000000000000, 0xa999187671aa8012},
	{4224, 0x9e3779b185ebca8d, 0x96f3d55757e43aab},
	{4224, 0x0123456789abcdef, 0x272629cd397c8ab8},
	{34368, 0x0000000000000000, 0xe0e4526109072f7a},
	{34368, 0x9e3779b185ebca8d, 0xd3891843ec9c5ba1},
	{34368, 0x0123456789abcdef, 0x5019bd50fb0c7f6a},
	{67232, 0x0000000000000000, 0xe2ee860dd2f4a7fa},
	{67232, 0x9e3779b185ebca8d, 0xef95035f85355e7a},
	{67232, 0x0123456789abcdef, 0x94eb519e5fbc284f},
}

// TestSection6_4_DigestGolden: whole, and in pieces of every kind.
func TestSection6_4_DigestGolden(t *testing.T) {
	var d Digest
	buf := xxh3Buffer(70000)
	for _, g := range xxh3Golden {
		for _, piece := range []int{g.n, 1, 7, 64, 1074, 4202} {
			d.Reset(g.seed)
			for rest := buf[:g.n]; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
				d.Add(rest[:min(piece, len(rest))])
			}
			if got := d.Sum(); got != g.sum {
				t.Errorf("%d octets in pieces of %d, seed %016x: %016x, want %016x", g.n, piece, g.seed, got, g.sum)
			}
		}
	}
}

// TestSection6_4_DigestOfBlock: the digest is that of the symbols one after the
// other, T octets each; octets of the cell beyond T do not count, order does.
func TestSection6_4_DigestOfBlock(t *testing.T) {
	const T, k, nonce = 1074, 32, 0x0123456789abcdef
	buf := xxh3Buffer(k * T)
	pool := NewPool(1 << 20)
	var d Digest
	d.Reset(nonce)
	for j := range k {
		c := pool.Get(T)
		fill(rand.New(rand.NewPCG(1, uint64(j))), c.mem)
		_ = c.SetSymbol(buf[j*T:][:T])
		d.Add(c.Symbol(T))
	}
	const want = 0x5019bd50fb0c7f6a
	if got := d.Sum(); got != want {
		t.Errorf("%016x, want %016x", got, uint64(want))
	}
	d.Reset(nonce)
	d.Add(buf[T : 2*T])
	d.Add(buf[:T])
	d.Add(buf[2*T:])
	if d.Sum() == want {
		t.Error("two symbols changed places, and the digest is the same")
	}
}

// TestSection6_4_DigestIsNotLinear: for a linear check, as a CRC is, the
// difference of two digests would depend on the difference of the blocks only,
// which is how mixed copies pass it. Here it never did so.
func TestSection6_4_DigestIsNotLinear(t *testing.T) {
	rng := rand.New(rand.NewPCG(30, 30))
	sum := func(nonce uint64, b []byte) uint64 {
		var d Digest
		d.Reset(nonce)
		d.Add(b)
		return d.Sum()
	}
	for range 2000 {
		n, nonce := 16+rng.IntN(3000), rng.Uint64()
		a, b := fill(rng, make([]byte, n)), fill(rng, make([]byte, n))
		diff := make([]byte, n)
		diff[rng.IntN(n)] = 1 << rng.IntN(8)
		x, y := bytes.Clone(a), bytes.Clone(b)
		for o := range diff {
			x[o] ^= diff[o]
			y[o] ^= diff[o]
		}
		if crc32.ChecksumIEEE(a)^crc32.ChecksumIEEE(x) != crc32.ChecksumIEEE(b)^crc32.ChecksumIEEE(y) {
			t.Fatal("this test can't tell a linear check: a CRC passed it")
		}
		if sum(nonce, a)^sum(nonce, x) == sum(nonce, b)^sum(nonce, y) {
			t.Fatalf("%d octets: the difference of digests depends on the difference of blocks only", n)
		}
		if sum(nonce, a) == sum(nonce+1, a) {
			t.Fatalf("%d octets: the nonce does not count", n)
		}
	}
}

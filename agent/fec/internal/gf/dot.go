// SPDX-License-Identifier: Apache-2.0

package gf

const (
	// MaxOutputs is the most outputs that one call of Dot computes.
	MaxOutputs = 8
	// Batch is how many sources the assembly takes at once; Dot takes any
	// number, and callers that build their arguments in pieces may as well use
	// pieces of this size.
	Batch = 32
	// column is the unit of length of the kernels, in octets.
	column = 64
)

//go:generate go run ./gen

// Dot computes, for each output r and the first n octets,
//
//	outs[r] = sum over s of coef[s*len(outs)+r] * srcs[s]
//
// or adds that sum to outs[r] if add is set. There are 1 to MaxOutputs outputs;
// n is a multiple of 64. All slices have at least n octets, at any alignment;
// no output overlaps another or a source. A caller that breaks this has a bug:
// Dot panics before it touches memory outside a slice.
func Dot(outs, srcs [][]byte, n int, coef []byte, add bool) {
	if len(outs) < 1 || len(outs) > MaxOutputs || n < 0 || n%column != 0 || len(coef) != len(outs)*len(srcs) {
		panic("gf: Dot called with wrong dimensions")
	}
	for _, o := range outs {
		_ = o[:len(o):len(o)][:n]
	}
	for _, s := range srcs {
		_ = s[:len(s):len(s)][:n]
	}
	switch {
	case n == 0:
	case len(srcs) == 0 && !add:
		for _, o := range outs {
			clear(o[:n])
		}
	case len(srcs) == 0:
	case accelerated:
		dotAssembly(outs, srcs, n, coef, add)
	default:
		dotPortable(outs, srcs, n, coef, add)
	}
}

// dotPortable is Dot without assembly of our own, a pass for each product.
func dotPortable(outs, srcs [][]byte, n int, coef []byte, add bool) {
	for r, o := range outs {
		if !add {
			clear(o[:n])
		}
		for s, src := range srcs {
			MulAdd(o[:n], src[:n], coef[s*len(outs)+r])
		}
	}
}

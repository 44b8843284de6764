// SPDX-License-Identifier: Apache-2.0

package gf

const (
	// MaxOutputs is the most outputs that one call of Dot computes.
	MaxOutputs = 8
	// column is the unit of length of the kernels, in octets.
	column = 64
)

//go:generate go run ./gen

// Dot computes, for each output r and the first n octets,
//
//	outs[r] = sum over s of factors[s*len(outs)+r] times srcs[s]
//
// or adds that sum to outs[r] if add is set. There are 1 to MaxOutputs outputs;
// n is a multiple of 64. All slices have at least n octets, at any alignment;
// no output overlaps another or a source. Dot returns false, and touches no
// memory, if the numbers or the lengths are not so: the assembly relies on it.
func Dot(outs, srcs [][]byte, n int, factors []Matrix, add bool) bool {
	if len(outs) < 1 || len(outs) > MaxOutputs || n < 0 || n%column != 0 ||
		len(factors) != len(outs)*len(srcs) || !reach(outs, n) || !reach(srcs, n) {
		return false
	}
	if accelerated && n > 0 && len(srcs) > 0 {
		dotAssembly(outs, srcs, n, factors, add)
	} else {
		dotPortable(outs, srcs, n, factors, add)
	}
	return true
}

// reach reports whether all slices have at least n octets.
func reach(slices [][]byte, n int) bool {
	for _, s := range slices {
		if len(s) < n {
			return false
		}
	}
	return true
}

// dotPortable is Dot without assembly of our own, a pass for each product.
func dotPortable(outs, srcs [][]byte, n int, factors []Matrix, add bool) {
	for r, o := range outs {
		if !add {
			clear(o[:n])
		}
		for s, src := range srcs {
			MulAdd(o[:n], src[:n], factors[s*len(outs)+r].Constant())
		}
	}
}

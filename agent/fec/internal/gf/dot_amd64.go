// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package gf

import "github.com/klauspost/cpuid/v2"

// accelerated says whether the processor, and the operating system's saving of
// its registers, allow the assembly. Tests switch it off.
var accelerated = cpuid.CPU.Supports(cpuid.GFNI, cpuid.AVX512F)

// dotAssembly is Dot for n > 0 and at least one source. The kernels do not check
// anything: Dot has done so.
func dotAssembly(outs, srcs [][]byte, n int, coef []byte, add bool) {
	var mats [Batch * MaxOutputs]uint64
	var keep uintptr
	if add {
		keep = 1
	}
	for len(srcs) > 0 {
		batch := min(len(srcs), Batch)
		products := batch * len(outs)
		for i, c := range coef[:products] {
			mats[i] = field.matrix[c]
		}
		dot(len(outs), &outs[0], &srcs[0], uintptr(batch), uintptr(n), &mats[0], keep)
		srcs, coef, keep = srcs[batch:], coef[products:], 1
	}
}

// dot calls the kernel for m outputs. A switch, not a table of functions: the
// compiler must see that the kernels let no pointer escape.
func dot(m int, outs, srcs *[]byte, ns, n uintptr, mats *uint64, add uintptr) {
	switch m {
	case 1:
		dot1(outs, srcs, ns, n, mats, add)
	case 2:
		dot2(outs, srcs, ns, n, mats, add)
	case 3:
		dot3(outs, srcs, ns, n, mats, add)
	case 4:
		dot4(outs, srcs, ns, n, mats, add)
	case 5:
		dot5(outs, srcs, ns, n, mats, add)
	case 6:
		dot6(outs, srcs, ns, n, mats, add)
	case 7:
		dot7(outs, srcs, ns, n, mats, add)
	case 8:
		dot8(outs, srcs, ns, n, mats, add)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package gf

import "github.com/klauspost/cpuid/v2"

// accelerated says whether the processor, and the operating system's saving of
// its registers, allow the assembly. Tests switch it off.
var accelerated = cpuid.CPU.Supports(cpuid.GFNI, cpuid.AVX512F)

// dotAssembly is Dot for n > 0 and at least one source. The kernels do not check
// anything: Dot has done so. A switch, not a table of functions: the compiler
// must see that the kernels let no pointer escape.
func dotAssembly(outs, srcs [][]byte, n int, factors []Matrix, add bool) {
	var keep uintptr
	if add {
		keep = 1
	}
	o, s, ns, f := &outs[0], &srcs[0], uintptr(len(srcs)), &factors[0]
	switch len(outs) {
	case 1:
		dot1(o, s, ns, uintptr(n), f, keep)
	case 2:
		dot2(o, s, ns, uintptr(n), f, keep)
	case 3:
		dot3(o, s, ns, uintptr(n), f, keep)
	case 4:
		dot4(o, s, ns, uintptr(n), f, keep)
	case 5:
		dot5(o, s, ns, uintptr(n), f, keep)
	case 6:
		dot6(o, s, ns, uintptr(n), f, keep)
	case 7:
		dot7(o, s, ns, uintptr(n), f, keep)
	case 8:
		dot8(o, s, ns, uintptr(n), f, keep)
	}
}

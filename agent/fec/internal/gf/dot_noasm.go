// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || purego

package gf

// accelerated is false where there is no assembly.
const accelerated = false

// dotAssembly is never called here.
func dotAssembly(outs, srcs [][]byte, n int, factors []Matrix, add bool) {
	dotPortable(outs, srcs, n, factors, add)
}

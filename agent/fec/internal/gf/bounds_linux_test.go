// SPDX-License-Identifier: Apache-2.0

package gf

import (
	"math/rand/v2"
	"syscall"
	"testing"
)

// guardedSlice returns n octets that end where a page without access begins,
// so that one octet too many read or written is a fault.
func guardedSlice(t *testing.T, n int) []byte {
	t.Helper()
	page := syscall.Getpagesize()
	size := (n+page-1)/page*page + page
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(mem) })
	if err := syscall.Mprotect(mem[size-page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return mem[size-page-n : size-page : size-page]
}

// TestDotStaysInside runs every kernel on slices that end at a forbidden page.
func TestDotStaysInside(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 11))
	for _, tw := range twins(t) {
		for m := 1; m <= MaxOutputs; m++ {
			for _, n := range []int{64, 128, 192, 1088} {
				p := problem{n: n}
				for range m {
					p.outs = append(p.outs, guardedSlice(t, n))
				}
				for range 3 {
					s := guardedSlice(t, n)
					fill(rng, s)
					p.srcs = append(p.srcs, s)
				}
				for range 3 * m {
					p.factors = append(p.factors, Times(byte(rng.Uint32())))
				}
				want := make([][]byte, m)
				for r := range want {
					want[r] = make([]byte, n)
				}
				tw.dot(p.outs, p.srcs, n, p.factors, false)
				reference(want, p.srcs, n, p.factors, false)
				for r := range want {
					if string(want[r]) != string(p.outs[r]) {
						t.Fatalf("%s: m = %d, n = %d: output %d is wrong", tw.name, m, n, r)
					}
				}
			}
		}
	}
}

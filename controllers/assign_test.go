// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func names(from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	slices.Sort(list)
	return list
}

// carry applies an assignment and checks at each write that no address which was and stays wanted is missing.
func carry(t *testing.T, have []addressSlice, want []string, a assignment) []addressSlice {
	t.Helper()
	state := map[string][]string{}
	for _, s := range have {
		state[s.name] = s.addresses
	}
	all := func() map[string]int {
		n := map[string]int{}
		for _, list := range state {
			for _, one := range list {
				n[one]++
			}
		}
		return n
	}
	stay := all()
	check := func() {
		now := all()
		for _, one := range want {
			if stay[one] > 0 && now[one] == 0 {
				t.Fatalf("%s is missing in between", one)
			}
		}
	}
	for _, s := range a.write {
		if slices.Equal(state[s.name], s.addresses) {
			t.Fatalf("%s is written without a change", s.name)
		}
		state[s.name] = s.addresses
		check()
	}
	for _, name := range a.remove {
		delete(state, name)
		check()
	}
	var out []addressSlice
	for name, list := range state {
		out = append(out, addressSlice{name, list})
	}
	slices.SortFunc(out, func(x, y addressSlice) int { return slices.Compare([]string{x.name}, []string{y.name}) })
	now := all()
	for _, one := range want {
		if now[one] != 1 {
			t.Fatalf("%s is in %d slices", one, now[one])
		}
	}
	if len(now) != len(want) {
		t.Fatalf("%d addresses, not %d", len(now), len(want))
	}
	return out
}

func counter() func() string {
	n := 0
	return func() string { n++; return fmt.Sprintf("new-%d", n) }
}

func TestAssign(t *testing.T) {
	newName := counter()
	var have []addressSlice
	step := func(want []string, writes, removes int) {
		t.Helper()
		a := assign(have, want, 500, newName)
		if len(a.write) != writes || len(a.remove) != removes {
			t.Errorf("%d writes, %d removals", len(a.write), len(a.remove))
		}
		have = carry(t, have, want, a)
	}
	step(nil, 0, 0)
	step(names(0, 1200), 3, 0)
	step(names(0, 1200), 0, 0)
	step(names(0, 1201), 1, 0)
	step(names(1, 1201), 1, 0)
	step(slices.Concat(names(2, 1201), names(2000, 2001)), 1, 0) // one goes, one comes
	step(names(0, 1500), 1+1, 0)                                 // the rest fills the slice with room; the stranger's place is used again
	step(nil, 0, 3)
}

// TestAssignUnderChurn: whatever comes and goes, each address is in one slice, none is over its size, and there are not many more than needed.
func TestAssignUnderChurn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	newName := counter()
	var have []addressSlice
	for range 300 {
		n := r.IntN(60)
		picked := map[string]bool{}
		for range n {
			picked[fmt.Sprintf("10.0.0.%d", r.IntN(90))] = true
		}
		var want []string
		for one := range picked {
			want = append(want, one)
		}
		slices.Sort(want)
		have = carry(t, have, want, assign(have, want, 7, newName))
		needed := (len(want) + 6) / 7
		if len(have) > max(2*needed, 1) {
			t.Fatalf("%d slices for %d addresses", len(have), len(want))
		}
		for _, s := range have {
			if len(s.addresses) > 7 || len(s.addresses) == 0 {
				t.Fatalf("%s has %d", s.name, len(s.addresses))
			}
		}
	}
}

func TestSliceNames(t *testing.T) {
	long := ""
	for range 25 {
		long += "abcdefgh."
	}
	long += "xx"
	if got := sliceName("kv-cache", 3); got != "kv-cache-3" {
		t.Error(got)
	}
	if a, b := sliceName(long+"1234567", 0), sliceName(long+"1234568", 0); a == b || len(a) > 253 {
		t.Errorf("%s %s", a, b)
	}
}

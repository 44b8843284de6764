// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func key(n int) Key {
	return Key{Src: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Dst: netip.AddrFrom4([4]byte{10, 0, 1, byte(n / 3)}), Label: uint32(n)}
}

// Against a list in order of use.
func TestTableAgainstAList(t *testing.T) {
	for capacity := range 9 {
		table := New[int](capacity)
		bound := max(capacity, 1)
		var want []int // numbers, the most recently used last
		r := rand.New(rand.NewPCG(1, uint64(capacity)))
		for range 5000 {
			n := r.IntN(2*bound + 1)
			at := slices.Index(want, n)
			switch v := table.Get(key(n)); {
			case (v != nil) != (at >= 0):
				t.Fatalf("capacity %d: %d is there: %v", capacity, n, v != nil)
			case v != nil && *v != n:
				t.Fatalf("%d has the value of %d", n, *v)
			case v != nil && r.IntN(4) == 0:
				if !table.Delete(key(n)) || table.Delete(key(n)) {
					t.Fatal("deleted once, and only once")
				}
				want = slices.Delete(want, at, at+1)
			case v != nil:
				want = append(slices.Delete(want, at, at+1), n)
			default:
				if table.Full() {
					oldest, value := table.Oldest()
					if *value != want[0] || oldest != key(want[0]) {
						t.Fatalf("oldest is %d, not %d", *value, want[0])
					}
					want = want[1:]
					if !table.MakeRoom() {
						t.Fatal("no room was made")
					}
				}
				if table.MakeRoom() {
					t.Fatal("room was made where there is some")
				}
				*table.Add(key(n)) = n
				want = append(want, n)
			}
			check(t, table, want)
		}
	}
}

func check(t *testing.T, table *Table[int], want []int) {
	t.Helper()
	got := []int{}
	for _, v := range table.All {
		got = append(got, *v)
	}
	slices.Reverse(got)
	if table.Len() != len(want) || !slices.Equal(got, want) && len(want) > 0 {
		t.Fatalf("table has %v, not %v", got, want)
	}
}

func TestTableDoesNotAllocate(t *testing.T) {
	table := New[int](16)
	n := 0
	if got := testing.AllocsPerRun(1000, func() {
		n++
		if table.Get(key(n%64)) == nil {
			table.MakeRoom()
			table.Add(key(n % 64))
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

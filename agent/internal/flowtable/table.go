// SPDX-License-Identifier: Apache-2.0

// Package flowtable is a bounded table with eviction of the least recently used entry, for state that a node keeps about flows
// and senders it did not choose. All memory is taken at the start: nothing allocates afterwards, and nothing grows.
//
// The package is pure. The seed of its hash is random, so that nobody can aim flows at one bucket; it decides where an entry
// lies and never what a caller sees.
package flowtable

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
)

// Key is what an entry is found by. A flow is its addresses and Flow Label, as in PATH_REPORT (Section 9.7); a sender is its
// address as Src and its Node ID as Label.
type Key struct {
	Src, Dst netip.Addr
	Label    uint32
}

const none = -1

// Table holds up to a fixed number of values of type V. It is not safe for concurrent use.
type Table[V any] struct {
	seed    maphash.Seed
	buckets []int32 // first entry of each, a power of two of them
	entries []entry[V]
	free    int32 // list by next
	newest  int32 // list by newer and older
	oldest  int32
	length  int
}

type entry[V any] struct {
	key          Key
	next         int32 // in the bucket, or in the free list
	newer, older int32
	value        V
}

// New returns a table of at most capacity entries, at least one.
func New[V any](capacity int) *Table[V] {
	capacity = max(capacity, 1)
	size := 1
	for size < capacity {
		size *= 2
	}
	t := &Table[V]{seed: maphash.MakeSeed(), buckets: make([]int32, size), entries: make([]entry[V], capacity), newest: none, oldest: none}
	for i := range t.buckets {
		t.buckets[i] = none
	}
	for i := range t.entries {
		t.entries[i].next = int32(i) + 1
	}
	t.entries[capacity-1].next = none
	return t
}

// Len returns the number of entries.
func (t *Table[V]) Len() int { return t.length }

// Full reports whether another entry needs an eviction.
func (t *Table[V]) Full() bool { return t.free == none }

// Get returns the value of k and makes it the most recently used; nil if there is none. The pointer is good until the entry is
// deleted.
func (t *Table[V]) Get(k Key) *V {
	i := t.find(k)
	if i == none {
		return nil
	}
	t.unlink(i)
	t.link(i)
	return &t.entries[i].value
}

// Add makes the zero value for k, which must not be in the table, and returns it. The table must not be full.
func (t *Table[V]) Add(k Key) *V {
	i := t.free
	e := &t.entries[i]
	t.free = e.next
	bucket := t.bucket(k)
	var zero V
	e.key, e.value, e.next = k, zero, *bucket
	*bucket = i
	t.link(i)
	t.length++
	return &e.value
}

// MakeRoom removes the least recently used entry if the table is full, and reports whether it did.
func (t *Table[V]) MakeRoom() (evicted bool) {
	if !t.Full() {
		return false
	}
	return t.Delete(t.entries[t.oldest].key)
}

// Oldest returns the least recently used entry, nil if the table is empty.
func (t *Table[V]) Oldest() (Key, *V) {
	if t.oldest == none {
		return Key{}, nil
	}
	e := &t.entries[t.oldest]
	return e.key, &e.value
}

// Delete removes the entry of k and reports whether there was one.
func (t *Table[V]) Delete(k Key) bool {
	i := t.find(k)
	if i == none {
		return false
	}
	at := t.bucket(k)
	for *at != i {
		at = &t.entries[*at].next
	}
	*at = t.entries[i].next
	t.unlink(i)
	t.entries[i].next = t.free
	t.free = i
	t.length--
	return true
}

// All calls yield for every entry, the most recently used first, until it returns false. It must not add or delete.
func (t *Table[V]) All(yield func(Key, *V) bool) {
	for i := t.newest; i != none; i = t.entries[i].older {
		if !yield(t.entries[i].key, &t.entries[i].value) {
			return
		}
	}
}

func (t *Table[V]) find(k Key) int32 {
	i := *t.bucket(k)
	for i != none && t.entries[i].key != k {
		i = t.entries[i].next
	}
	return i
}

func (t *Table[V]) bucket(k Key) *int32 {
	var b [36]byte
	src, dst := k.Src.As16(), k.Dst.As16()
	copy(b[:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint32(b[32:], k.Label)
	return &t.buckets[int(maphash.Bytes(t.seed, b[:]))&(len(t.buckets)-1)]
}

func (t *Table[V]) link(i int32) {
	e := &t.entries[i]
	e.newer, e.older = none, t.newest
	if t.newest != none {
		t.entries[t.newest].newer = i
	} else {
		t.oldest = i
	}
	t.newest = i
}

func (t *Table[V]) unlink(i int32) {
	e := &t.entries[i]
	if e.newer != none {
		t.entries[e.newer].older = e.older
	} else {
		t.newest = e.older
	}
	if e.older != none {
		t.entries[e.older].newer = e.newer
	} else {
		t.oldest = e.newer
	}
}

// SPDX-License-Identifier: Apache-2.0

package wan

import "time"

// entry is one frame on its way.
type entry struct {
	due    time.Duration
	order  uint64 // of arrival: equal times leave in it
	token  uint32
	length uint32
	class  Class
}

func (a *entry) before(b *entry) bool { return a.due < b.due || a.due == b.due && a.order < b.order }

// flight is a binary heap of the frames on their way, the first one due on top. Mostly they come in order, which costs one comparison.
type flight struct {
	heap []entry
	next uint64
}

func (f *flight) push(due time.Duration, token uint32, class Class, n int) {
	f.heap = append(f.heap, entry{due: due, order: f.next, token: token, length: uint32(n), class: class})
	f.next++
	h := f.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (f *flight) pop() entry {
	h := f.heap
	top, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		first := i
		for child := 2*i + 1; child <= 2*i+2 && child < n; child++ {
			if h[child].before(&h[first]) {
				first = child
			}
		}
		if first == i {
			break
		}
		h[i], h[first] = h[first], h[i]
		i = first
	}
	f.heap = h
	return top
}

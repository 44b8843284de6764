// SPDX-License-Identifier: Apache-2.0

package world

import "time"

// arrival is a packet on its way.
type arrival[T any] struct {
	at     time.Duration
	order  uint64
	octets int32
	marks  Marks
	packet T
}

func (a *arrival[T]) before(b *arrival[T]) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// arrivals is packets by their time of arrival, and those of one time in the order in which they were sent. Most arrive after all that were
// sent before them: those queue in a ring. The others lie in a heap.
type arrivals[T any] struct {
	ring  []arrival[T] // length is a power of two
	head  int
	count int
	heap  []arrival[T]
	order uint64
}

func (q *arrivals[T]) push(a arrival[T]) {
	q.order++
	a.order = q.order
	if q.count > 0 && a.at < q.slot(q.count-1).at {
		q.pushHeap(a)
		return
	}
	if q.count == len(q.ring) {
		q.grow()
	}
	q.count++
	*q.slot(q.count - 1) = a
}

func (q *arrivals[T]) slot(i int) *arrival[T] { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *arrivals[T]) grow() {
	ring := make([]arrival[T], max(2*len(q.ring), 64))
	for i := range q.count {
		ring[i] = *q.slot(i)
	}
	q.ring, q.head = ring, 0
}

// first returns the next arrival, nil if nothing is on its way.
func (q *arrivals[T]) first() *arrival[T] {
	switch {
	case q.count == 0 && len(q.heap) == 0:
		return nil
	case q.count == 0 || len(q.heap) > 0 && q.heap[0].before(q.slot(0)):
		return &q.heap[0]
	}
	return q.slot(0)
}

// pop takes the next arrival out; there must be one.
func (q *arrivals[T]) pop() arrival[T] {
	a := q.first()
	out := *a
	if q.count > 0 && a == q.slot(0) {
		*a = arrival[T]{}
		q.head = (q.head + 1) & (len(q.ring) - 1)
		q.count--
		return out
	}
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = arrival[T]{}
	q.heap = q.heap[:last]
	q.sink()
	return out
}

func (q *arrivals[T]) pushHeap(a arrival[T]) {
	q.heap = append(q.heap, a)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(&q.heap[parent]) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// sink moves the heap's top to its place.
func (q *arrivals[T]) sink() {
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q.heap) {
			return
		}
		if child+1 < len(q.heap) && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if !q.heap[child].before(&q.heap[i]) {
			return
		}
		q.heap[i], q.heap[child] = q.heap[child], q.heap[i]
		i = child
	}
}

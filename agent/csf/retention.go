// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

const (
	// keepAtLeast is the least time that a block is kept when no acknowledgement can be seen, keepRTTs the same in SRTTs, and
	// keepAckedRTTs where acknowledgements are seen but leave the block out: the CRF has given it up by then (Section 7;
	// Section 6, rule 8).
	keepAtLeast   = 100 * time.Millisecond
	keepRTTs      = 4
	keepAckedRTTs = 8
	// maxSpan bounds how far back retained blocks reach, in PSNs, so that comparisons of PSNs stay meaningful.
	maxSpan = 1 << 22
)

// blockQueue is the retained blocks of a flow, oldest first, in order of PSN.
type blockQueue struct {
	items []*block
	head  int
}

func (q *blockQueue) len() int { return len(q.items) - q.head }

func (q *blockQueue) at(i int) *block { return q.items[q.head+i] }

func (q *blockQueue) push(b *block) {
	if len(q.items) == cap(q.items) && q.head > cap(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, b)
}

func (q *blockQueue) pop() *block {
	b := q.items[q.head]
	q.items[q.head] = nil
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return b
}

// search returns the number of the first block that ends at or after psn.
func (q *blockQueue) search(psn roce.PSN) int {
	lo, hi := 0, q.len()
	for lo < hi {
		mid := (lo + hi) / 2
		if q.at(mid).last().Before(psn) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// find returns the retained block that has a position for psn, nil if none has.
func (f *Flow) find(psn roce.PSN) *block {
	if i := f.retained.search(psn); i < f.retained.len() {
		if b := f.retained.at(i); !psn.Before(b.start) {
			return b
		}
	}
	return nil
}

// retain keeps a closed block for requests.
func (f *Flow) retain(now time.Duration, b *block) {
	for f.retained.len() > 0 && b.start.Sub(f.retained.at(0).start) > maxSpan {
		f.freeOldest(&f.stats.BlocksExpired)
	}
	f.retained.push(b)
	f.env.keep(b)
	f.expireAt = min(f.expireAt, now+f.keep())
}

// keep is how long a closed block is kept.
func (f *Flow) keep() time.Duration {
	if f.acked {
		return max(keepAckedRTTs*f.rtt.smoothed(), keepAtLeast)
	}
	return max(keepRTTs*f.rtt.smoothed(), keepAtLeast)
}

// expire frees the blocks whose time is over.
func (f *Flow) expire(now time.Duration) {
	if now < f.expireAt {
		return
	}
	f.expireAt = roce.Never
	for f.retained.len() > 0 {
		b := f.retained.at(0)
		if due := b.closedAt + f.keep(); now < due {
			f.expireAt = due
			return
		}
		f.freeOldest(&f.stats.BlocksExpired)
	}
}

// HandleAck takes the newest PSN that an RDMA acknowledgement confirms (roce.Packet.Acked), all older ones included: blocks
// that it covers are freed (Section 7), and the round trip is sampled (Section 5.1).
func (f *Flow) HandleAck(now time.Duration, psn roce.PSN) {
	if !f.seen || psn.Sub(f.newest) >= f.reach || psn.Before(f.floor) {
		f.drop(DropStaleRTT)
		return
	}
	if !f.acked {
		f.acked, f.ackedTo = true, psn.Add(1)
		f.mark, f.markAt = f.ackedTo, now
	}
	if psn.Add(1).After(f.ackedTo) {
		f.ackedTo = psn.Add(1)
	}
	if f.sample.timing && psn.Sub(f.sample.psn) >= 0 {
		f.sample.timing = false
		f.sampleAck(now, now-f.sample.sentAt)
	}
	for f.retained.len() > 0 && !f.retained.at(0).last().After(psn) {
		f.freeOldest(&f.stats.BlocksAcked)
	}
}

// sampleAck takes the round-trip time of a source packet.
func (f *Flow) sampleAck(now, sample time.Duration) {
	if sample < f.rtt.own/2 {
		f.drop(DropStaleRTT)
		return
	}
	f.stats.RTTSamples++
	f.rtt.add(now, sample, true)
}

// freeOldest frees the flow's oldest retained block and counts it.
func (f *Flow) freeOldest(counter *uint64) {
	*counter++
	b := f.retained.pop()
	f.env.forget(b)
	f.discard(b)
}

// discard takes a block out of every queue and gives its memory back.
func (f *Flow) discard(b *block) {
	f.ungather(b)
	f.unqueue(b)
	f.endEarly(b)
	for i := range f.answers {
		if f.answers[i].block == b {
			f.cut(&f.answers[i])
		}
	}
	b.config.blocks--
	f.env.recycle(b)
}

// discardAll frees every block of the flow.
func (f *Flow) discardAll() {
	if f.open != nil {
		b := f.open
		f.open = nil
		f.discard(b)
	}
	var freed uint64
	for f.retained.len() > 0 {
		f.freeOldest(&freed)
	}
	f.queue, f.answers, f.waiting = f.queue[:0], f.answers[:0], 0
	f.blockAt, f.expireAt, f.sendAt = roce.Never, roce.Never, roce.Never
}

// relieve frees the oldest block of the worker's flows when memory is nearly used up, before a new one is begun. What is
// freed becomes usable only with the pool's next Reclaim, so it has to be done ahead of need.
func (f *Flow) relieve() {
	if limit := f.env.Pool.Limit(); f.env.Pool.InUse() > limit-limit/8 {
		f.evict()
	}
}

// starve makes room after the pool had nothing left. What it frees comes back only with the pool's next Reclaim, so further
// packets of the same batch must not free more.
func (f *Flow) starve() {
	if in := f.env.Pool.InUse(); in != f.env.starvedAt {
		f.env.starvedAt = in
		f.evict()
	}
}

// evict frees the oldest retained block of all flows of the worker (Section 7: when memory runs out, oldest first). Its
// requests will not be answered: the CRF falls back to the transport.
func (f *Flow) evict() {
	if b := f.env.oldest; b != nil {
		b.flow.freeOldest(&b.flow.stats.BlocksEvicted)
	}
}

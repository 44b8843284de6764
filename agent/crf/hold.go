// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// hold is the state of delivery in order (Section 6.1, rule 7). A packet that waits lies in the cell of its position, with the
// mark held. Flow.next is the position that the receiver expects: all below it has been delivered, passed or given up.
//
// Nothing waits without a missing position before it, and every missing position has a time since when it is missing: that
// plus maxHold is the deadline of all that waits.
type hold struct {
	since   time.Duration // since when the first gap is missing, as flow saw it last
	waiting int           // cells with the mark held, restored packets included
	kernel  int           // packets among them, and among again, that the kernel gave up
	again   []again       // further copies of waiting positions, in order
	vain    int           // times in a row that packets waited in vain
	heard   time.Duration // when the newest symbol came
}

// again is one more copy of a position whose first copy waits: it leaves right after it.
type again struct {
	p    pos
	cell *fec.Cell
}

// deliver takes care that an arrived packet reaches the receiver. Its position p ends at end; c is the cell with its copy, nil
// if none was kept; first says that no copy came before. gaveUp says that the kernel left it to us.
func (f *Flow) deliver(p, end pos, pkt *roce.Packet, c *fec.Cell, first, gaveUp bool, acts *[]Action) {
	switch {
	case !gaveUp:
		f.passed(p, end, acts)
	case f.state != Protecting || f.params.Delivery == Immediate:
		f.injectNow(pkt, c, Unprotected, acts)
		f.next = max(f.next, end)
	case f.unanswered():
		f.injectNow(pkt, c, Unanswered, acts)
		f.next = max(f.next, end)
	case p < f.next:
		f.injectNow(pkt, c, Behind, acts)
	case p == f.next && first:
		f.injectNow(pkt, c, InOrderAlready, acts)
		f.next = end
		f.flow(Filled, acts)
	default:
		f.wait(p, pkt, c, first, acts)
	}
}

// passed follows a packet that the kernel program let pass. If that happens while packets wait before or behind it, the program
// has failed open (ring full, no heartbeat): what waits must go at once.
func (f *Flow) passed(p, end pos, acts *[]Action) {
	if p < f.next {
		return // a retransmission or duplicate: passes in every state
	}
	if f.hold.kernel > 0 || p != f.next && f.hold.waiting > 0 {
		f.releaseAll(FailedOpen, acts)
	}
	f.next = max(f.next, end)
	f.flow(Filled, acts)
}

// wait puts a packet into the hold buffer. c is the copy that was kept for decoding, if any.
func (f *Flow) wait(p pos, pkt *roce.Packet, c *fec.Cell, first bool, acts *[]Action) {
	if c == nil || !first {
		if c = f.copyToHold(p, pkt, acts); c == nil {
			f.passUnheld(p, pkt, first, acts)
			return
		}
	}
	f.hold.kernel++
	f.wake()
	if !first {
		f.addAgain(p, c)
		f.flow(Filled, acts) // making room may have let go all that was before it
		return
	}
	s := f.win.at(p)
	if s.cells[p.index()] == nil {
		s.cells[p.index()] = c
		s.inUse++
	}
	s.set(p, held)
	s.set(p, fromKernel)
	f.hold.waiting++
}

// copyToHold copies a packet that must wait at p. It returns nil if there is no memory for it, or if it needs to wait no longer because
// others gave way.
func (f *Flow) copyToHold(p pos, pkt *roce.Packet, acts *[]Action) *fec.Cell {
	if f.roomFor(p, acts) && p >= f.next {
		return f.copyOf(pkt)
	}
	return nil
}

// passUnheld lets a packet go that can't wait, or need not any more. If there was no memory for it, it goes in its place among those that
// wait: these go too.
func (f *Flow) passUnheld(p pos, pkt *roce.Packet, first bool, acts *[]Action) {
	if p < f.next {
		f.injectNow(pkt, nil, Behind, acts)
		return
	}
	before := p
	if !first {
		before = p + 1 // its first copy leaves before it
	}
	f.releaseBelow(before, OutOfMemory, acts)
	f.injectNow(pkt, nil, OutOfMemory, acts)
	f.releaseAll(OutOfMemory, acts)
}

// addAgain inserts a further copy behind those of the same and of lower positions.
func (f *Flow) addAgain(p pos, c *fec.Cell) {
	i := len(f.hold.again)
	for i > 0 && f.hold.again[i-1].p > p {
		i--
	}
	f.hold.again = append(f.hold.again, again{})
	copy(f.hold.again[i+1:], f.hold.again[i:])
	f.hold.again[i] = again{p, c}
}

// flow releases what waits, in order, up to the first position that is still missing.
func (f *Flow) flow(cause ReleaseCause, acts *[]Action) {
	for f.next < f.top {
		s := f.win.at(f.next)
		switch {
		case s != nil && s.has(f.next, held):
			f.release(s, f.next, cause, acts)
		case s != nil && s.has(f.next, missing):
			f.hold.since = s.since[f.next.index()]
			return
		case f.next == f.arriving:
			return
		case s == nil:
			to := min(f.top, (f.next.segment()+1)*segmentLen)
			if f.next < f.arriving {
				to = min(to, f.arriving)
			}
			f.next = to
			f.releaseAgain(cause, acts)
			continue
		}
		f.next++
		f.releaseAgain(cause, acts)
	}
}

// releaseAll lets everything go that waits, in order, and passes over the gaps before and in between: from here on the flow
// passes through until the next gap.
func (f *Flow) releaseAll(cause ReleaseCause, acts *[]Action) { f.releaseBelow(f.top, cause, acts) }

// releaseBelow lets everything go that waits below a position.
func (f *Flow) releaseBelow(end pos, cause ReleaseCause, acts *[]Action) {
	end = min(end, f.top)
	if f.arriving != nowhere {
		end = min(end, f.arriving)
	}
	for f.next < end && f.hold.waiting > 0 {
		s := f.win.at(f.next)
		if s == nil {
			f.next = min(end, (f.next.segment()+1)*segmentLen)
			f.releaseAgain(cause, acts)
			continue
		}
		if s.has(f.next, held) {
			f.release(s, f.next, cause, acts)
		}
		f.next++
		f.releaseAgain(cause, acts)
	}
	f.next = max(f.next, end)
	f.releaseAgain(cause, acts)
	f.wake()
}

// release injects the packet that waits at position p.
func (f *Flow) release(s *segment, p pos, cause ReleaseCause, acts *[]Action) {
	c := s.cells[p.index()]
	f.inject(c, acts)
	s.clear(p, held)
	f.hold.waiting--
	if s.has(p, fromKernel) {
		s.clear(p, fromKernel)
		f.hold.kernel--
		f.stats.Released[cause]++
	}
	if !f.codes(s, p) {
		f.retireCell(s, p)
	}
}

// releaseAgain injects the further copies of positions below next.
func (f *Flow) releaseAgain(cause ReleaseCause, acts *[]Action) {
	n := 0
	for n < len(f.hold.again) && f.hold.again[n].p < f.next {
		c := f.hold.again[n].cell
		f.inject(c, acts)
		f.put(c)
		f.hold.kernel--
		f.stats.Released[cause]++
		n++
	}
	if n > 0 {
		f.hold.again = append(f.hold.again[:0], f.hold.again[n:]...)
	}
}

// injectNow lets a packet go at once that the kernel gave up. Its octets must outlive the call: they are those of the copy kept,
// else a copy for this purpose, in the worst case one outside the pool: no packet is lost for want of memory.
func (f *Flow) injectNow(pkt *roce.Packet, c *fec.Cell, cause ReleaseCause, acts *[]Action) {
	f.stats.Released[cause]++
	if c != nil && !pkt.Retransmitted() { // else the copy is without the flag
		f.inject(c, acts)
		return
	}
	if c = f.copyOf(pkt); c != nil {
		f.inject(c, acts)
		f.put(c)
		return
	}
	f.stats.Copied++
	frame := append(append([]byte(nil), pkt.Head()...), pkt.P()...)
	n := len(pkt.Head())
	*acts = append(*acts, Action{Kind: Inject, Head: frame[:n:n], Payload: frame[n:]})
}

// inject appends the packet of a cell to the actions. The cell may be given back in the same call.
func (f *Flow) inject(c *fec.Cell, acts *[]Action) {
	*acts = append(*acts, Action{Kind: Inject, Head: c.Head(), Payload: f.packetIn(c)})
}

// holdDeadline is when what waits must go at the latest, roce.Never if nothing waits.
func (f *Flow) holdDeadline() time.Duration {
	if f.hold.waiting == 0 {
		return roce.Never
	}
	s := f.win.at(f.next)
	if s == nil || !s.has(f.next, missing) {
		return 0 // not reached: nothing waits without a missing position before it
	}
	return s.since[f.next.index()] + f.params.MaxHold
}

// missingSince is the time since when a position counts as missing that turns out to be missing now. If packets behind it wait
// already, for a gap before it, it is the time of that gap, even if that was filled or given up just now: their deadline must not move.
func (f *Flow) missingSince(now time.Duration, p pos) time.Duration {
	if f.hold.waiting == 0 || p <= f.next {
		return now
	}
	if s := f.win.at(f.next); s != nil && s.has(f.next, missing) {
		return min(now, s.since[f.next.index()])
	}
	return min(now, f.hold.since)
}

// HeldCount returns how many packets came with held set, ever: the count to compare with the flow's word.
func (f *Flow) HeldCount() uint64 { return f.stats.Held }

// Idle says that no held packet waits, so that the flow may be handed back to the kernel, which expects next from then on.
// It is false before the first packet.
func (f *Flow) Idle() (next roce.PSN, ok bool) {
	expect := f.next
	if f.replay.active {
		expect = f.replay.next
	}
	return expect.psn(), f.started && f.hold.waiting == 0
}

// Inside says that the PSN which Idle returns lies within a message of several packets that has begun to be delivered.
func (f *Flow) Inside() bool {
	if f.next == f.newest+1 {
		return f.inside(f.newestOp)
	}
	s := f.win.at(f.next - 1)
	return s != nil && s.has(f.next-1, arrived) && f.inside(s.ops[(f.next-1).index()])
}

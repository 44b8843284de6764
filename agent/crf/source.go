// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// A PSN further than restartJump from the newest, or restartRun packets in a row with consecutive PSNs that far behind it, mean that
// the queue pair number was used again (Section 4.2, rule 14).
const (
	restartJump = 1 << 20
	restartRun  = 64
)

// run counts packets with consecutive PSNs.
type run struct {
	next  roce.PSN
	count int
}

// extend counts a packet and returns how many there are in a row.
func (r *run) extend(psn roce.PSN) int {
	if psn != r.next {
		r.count = 0
	}
	r.count++
	r.next = psn.Add(1)
	return r.count
}

// HandleSource takes a source packet of the flow. gaveUp says that the kernel left it to us (held): it reaches the receiver only
// as an Inject of this machine, which happens exactly once. The packet is valid only during the call.
func (f *Flow) HandleSource(now time.Duration, pkt *roce.Packet, gaveUp bool, acts *[]Action) {
	f.stats.Sources++
	f.stats.SourceOctets += uint64(len(pkt.P()))
	if gaveUp {
		f.stats.Held++
	}
	if space, ok := pkt.Source(); !ok || space != f.space || pkt.Transport() != f.transport {
		f.drop(NotSource)
		f.passOn(pkt, gaveUp, acts)
		return
	}
	if f.state == Closed {
		f.drop(FlowClosed)
	} else {
		f.live(now, pkt)
	}
	if !f.started {
		f.begin(pkt.PSN())
	}
	p := near(f.top, pkt.PSN())
	end := p + pos(roce.Advance(pkt, int(f.hello.MTU)))
	if f.state != Protecting {
		f.follow(p, end, pkt, gaveUp, acts)
		return
	}
	// A wrong PSN or DMA Length would do damage beyond its own position: no packet out of order, and none that takes more
	// than one PSN, counts without a right ICRC; nor does a flagged one, whose ICRC is reckoned anew when it is kept.
	// One that the network trimmed is missing like one that was lost: its receiver gets both what is left of it and the packet itself.
	if (p != f.top || end > p+1 || pkt.Retransmitted()) && !roce.CheckICRC(pkt) || roce.CutShort(pkt, f.stats.T) {
		f.drop(BadICRC)
		f.passOn(pkt, gaveUp, acts)
		return
	}
	if f.unseen && p > f.newest {
		f.unseen = false
		f.passUnseen(p)
	}
	f.take(now, p, end, pkt, gaveUp, acts)
}

// live notes what every packet says of a flow that has not ended.
func (f *Flow) live(now time.Duration, pkt *roce.Packet) {
	f.active = now
	if pkt.ECN() == ecnCE {
		f.stats.CEMarked++
		f.reporting(now).marked++
	}
}

// passOn forwards a packet that takes no part in anything (Section 6.1, rule 6).
func (f *Flow) passOn(pkt *roce.Packet, gaveUp bool, acts *[]Action) {
	if gaveUp {
		f.injectNow(pkt, nil, Unprotected, acts)
	}
}

// follow keeps track of the positions of a flow that has no configuration yet, or none any more, so that it can be handed back.
func (f *Flow) follow(p, end pos, pkt *roce.Packet, gaveUp bool, acts *[]Action) {
	if p >= f.top {
		f.newest, f.newestOp = p, pkt.Opcode()
		f.top, f.next = end, end
	}
	f.model.take(pkt)
	f.passOn(pkt, gaveUp, acts)
}

// take sorts out what a packet is: new, the first copy of an older position, or a further copy.
func (f *Flow) take(now time.Duration, p, end pos, pkt *roce.Packet, gaveUp bool, acts *[]Action) {
	f.settleDoubts(now)
	switch {
	case p-f.top > restartJump:
		f.drop(GapTooLarge)
		f.restart(pkt.PSN(), acts)
		p, end = f.top, f.top+end-p
	case p > f.top:
		f.passOver(now, p, !pkt.Opcode().Starts())
	case p < f.top && f.came(p):
		f.duplicate(now, p, end, pkt, gaveUp, acts)
		return
	}
	s := f.win.make(p)
	if s == nil { // too far from what is still waited for
		f.restart(pkt.PSN(), acts)
		p, end = f.top, f.top+end-p
		s = f.win.make(p)
	}
	b := f.openBlock(p)
	cause := f.lateness(now, p, s, b, pkt)
	f.account(now, p, s, cause)
	f.fill(p, s, b, pkt)
	c := f.keep(p, s, pkt, cause, acts)
	if p > f.newest {
		f.advance(p, end, pkt)
		f.seeBare(now)
	}
	f.resent(p, end, pkt, false, gaveUp, acts)
	f.deliver(p, end, pkt, c, true, gaveUp, acts)
	if c != nil && s.cells[p.index()] == c && !s.has(p, held) && !f.codes(s, p) {
		f.retireCell(s, p)
	}
	f.flow(Filled, acts)
	f.arrivedIn(now, p, b, acts)
	f.retire()
	f.flow(GaveUp, acts)
}

// came says that a copy of position p, below top, has come before, or is not told apart from such.
func (f *Flow) came(p pos) bool {
	if s := f.win.at(p); s != nil && p >= f.start {
		return s.has(p, arrived)
	}
	return p <= f.newest
}

// duplicate takes a further copy: it passes, and changes nothing but that a burst of duplicates has begun (CRF 1 d).
func (f *Flow) duplicate(now time.Duration, p, end pos, pkt *roce.Packet, gaveUp bool, acts *[]Action) {
	f.stats.Duplicates++
	f.burst = pkt.Retransmitted() || !f.overtaken(now, p) || f.burst
	f.reporting(now) // there is nothing to count, but a CSF that hears nothing while its flow sends takes its peer for gone
	if f.newest-p > restartJump && f.behind.extend(p.psn()) == restartRun {
		f.restart(pkt.PSN(), acts)
		f.take(now, f.top, f.top+end-p, pkt, gaveUp, acts)
		return
	}
	f.resent(p, end, pkt, true, gaveUp, acts)
	f.deliver(p, end, pkt, nil, false, gaveUp, acts)
}

// account counts the first copy of a position for LOSS_REPORT and the statistics.
func (f *Flow) account(now time.Duration, p pos, s *segment, cause LateCause) {
	if cause != NotLate {
		f.stats.Late[cause]++
		if s.has(p, missing) { // else it was counted when it was given up, or is a READ resumed on a PSN that carried no packet before
			f.countLost(now, s, p)
		}
		return
	}
	if s.has(p, missing) {
		f.stats.Reordered++
		f.skew.take(now - s.since[p.index()])
	}
	r := f.reporting(now)
	r.received++
	r.expected++
}

// fill notes that position p has arrived; if it was waited for, that is over.
func (f *Flow) fill(p pos, s *segment, b *block, pkt *roce.Packet) {
	s.set(p, arrived)
	s.ops[p.index()] = pkt.Opcode()
	if !s.has(p, missing) {
		return
	}
	s.clear(p, missing)
	f.stats.Missing--
	if b == nil {
		f.gaps.cut(p, p+1)
		f.sweep(p, p+1)
	}
	f.wake()
}

// keep copies a packet to the cell of its position if it may be of use for decoding, and returns the cell.
func (f *Flow) keep(p pos, s *segment, pkt *roce.Packet, cause LateCause, acts *[]Action) *fec.Cell {
	if cause != NotLate {
		s.set(p, late)
	}
	if s.has(p, settled) || cause != NotLate && !f.digest || f.lead+len(pkt.P())+2 > f.widest {
		return nil
	}
	if !f.roomFor(p, acts) {
		f.drop(NoMemory)
		return nil
	}
	c := f.get(f.widest)
	if c == nil {
		f.drop(NoMemory)
		return nil
	}
	if !f.fillCell(c, pkt, f.widest) {
		return nil
	}
	pkt.Unflag(f.packetIn(c))
	s.cells[p.index()] = c
	s.inUse++
	s.set(p, stored)
	return c
}

// advance moves the newest position on. A packet on a PSN that a READ request was taken to consume sets the count right.
func (f *Flow) advance(p, end pos, pkt *roce.Packet) {
	f.model.take(pkt)
	f.ids.take(p == f.newest+1, pkt)
	f.newest, f.newestOp = p, pkt.Opcode()
	f.burst = false
	f.behind.count = 0
	if f.trail > f.newest {
		f.wake() // from now on something is kept
	}
	if p < f.top && !f.win.has(f.top-1, missing) && f.hold.waiting == 0 && f.claimed <= end {
		f.top = end
		f.next = min(f.next, f.top)
	}
	f.top = max(f.top, end)
}

// arrivedIn lets the blocks look at what a packet at p changed for them.
func (f *Flow) arrivedIn(now time.Duration, p pos, b *block, acts *[]Action) {
	if b != nil && b.open {
		f.evaluate(now, b, acts)
	}
	if f.waiting == 0 || p != f.newest {
		return
	}
	for i := 0; i < len(f.blocks); i++ {
		if b := f.blocks[i]; b.tail && b.first < f.newest {
			f.evaluate(now, b, acts)
			if !b.open {
				i--
			}
		}
	}
}

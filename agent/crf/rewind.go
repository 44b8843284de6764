// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// A go-back-N receiver that met one gap has thrown away all packets after it, and its sender goes back and sends a whole window again.
// These retransmissions are no sources: nothing protects them, and on a lossy path a window of them is seldom whole, so that NAK follows
// NAK and the flow never gets back to packets that are protected. But they all came before. So the packets that went on lately are kept, and
// when the sender has gone back, the packets that its second run loses are given to the receiver from memory (decision: Section 6.1, rule 9).
//
// A READ requester goes back in its own way: it asks again from the first response that it misses, and for all later READs, and the responder
// sends their responses a second time. They are the second run of the response space, and the requester throws away what follows a gap just so.
//
// What is given is a copy that arrived or was restored under the same PSN of the same queue pair. It is given only between retransmissions
// that are equal, octet for octet but for what may change (AckReq, congestion bits, and so the invariant CRC), to what is kept under their
// PSNs: a queue pair number that is used again is not taken for a retransmission.

const (
	rewindRun = 3  // equal retransmissions in a row that prove that the sender went back
	rewindGap = 64 // most packets that are given in one place
	minReplay = 64 // packets; with room for fewer nothing is kept
	maxReplay = 1 << 15
)

// replay is the packets that went on lately, and how far a sender that went back has come.
type replay struct {
	ring  []kept // by position modulo its length, a power of two
	cells int

	next   pos // the position after the last retransmission
	run    int // equal retransmissions in a row
	active bool
	told   bool // Expects has returned it
}

// kept is a packet that went on.
type kept struct {
	p    pos
	cell *fec.Cell
}

// replays says whether the flow keeps what went on: only a receiver in order throws packets away.
func (f *Flow) replays() bool { return f.params.ReplayBytes > 0 && f.params.Delivery == InOrder }

// retireCell gives up the cell of a position: it is kept for a rewind if there is room, else it goes back.
func (f *Flow) retireCell(s *segment, p pos) {
	c := s.cells[p.index()]
	if c == nil || !f.replays() || !f.replayRoom() {
		f.dropCell(s, p)
		return
	}
	s.cells[p.index()] = nil
	s.inUse--
	s.clear(p, stored)
	k := &f.replay.ring[int(p)&(len(f.replay.ring)-1)]
	if k.cell != nil {
		f.put(k.cell)
		f.replay.cells--
	}
	*k = kept{p, c}
	f.replay.cells++
}

// replayRoom makes the ring as large as its share of memory allows, and says whether there is one. Half of the pool stays for those who
// decode and hold.
func (f *Flow) replayRoom() bool {
	if f.env.Pool.InUse() > f.env.Pool.Limit()/2 {
		f.clearReplay()
		return false
	}
	if f.replay.ring != nil {
		return true
	}
	n := 1
	for n < maxReplay && int64(2*n)*cellOctets(f.widest) <= f.params.ReplayBytes {
		n *= 2
	}
	if n < minReplay {
		return false
	}
	f.replay.ring = make([]kept, n)
	return true
}

// clearReplay gives all cells back.
func (f *Flow) clearReplay() {
	for i := range f.replay.ring {
		if c := f.replay.ring[i].cell; c != nil {
			f.put(c)
		}
	}
	clear(f.replay.ring)
	f.replay.cells = 0
	f.endRewind()
}

// keptAt returns the packet that went on at p, nil if it is not kept.
func (f *Flow) keptAt(p pos) *fec.Cell {
	if len(f.replay.ring) == 0 {
		return nil
	}
	if k := &f.replay.ring[int(p)&(len(f.replay.ring)-1)]; k.cell != nil && k.p == p {
		return k.cell
	}
	return nil
}

// resent follows a packet at p..end-1 before it is delivered, and gives the receiver what the sender's second run lost before it. again
// says that a copy of p came before.
func (f *Flow) resent(p, end pos, pkt *roce.Packet, again, gaveUp bool, acts *[]Action) {
	r := &f.replay
	if len(r.ring) == 0 || !again && r.run == 0 {
		return
	}
	if again && !sameButMutable(f.keptAt(p), pkt.P()) {
		f.endRewind()
		return
	}
	switch {
	case p == r.next && r.run > 0:
	case r.active && p > r.next && p-r.next <= rewindGap:
		if gaveUp {
			f.giveAgain(r.next, p, acts)
		}
	default:
		f.endRewind()
	}
	if !again {
		f.endRewind() // the second run has caught up with what is new
		return
	}
	r.run++
	r.next = end
	r.active = r.active || r.run >= rewindRun
}

func (f *Flow) endRewind() {
	f.replay.run, f.replay.active, f.replay.told = 0, false, false
}

// giveAgain injects what is kept of first..end-1. At the first position that came and is not kept it ends: the receiver would throw away what
// follows.
func (f *Flow) giveAgain(first, end pos, acts *[]Action) {
	for p := first; p < end; p++ {
		c := f.keptAt(p)
		if c == nil {
			if s := f.win.at(p); s != nil && !s.has(p, arrived) && !s.has(p, missing) {
				continue // carries no packet
			}
			return
		}
		f.stats.GivenAgain++
		f.inject(c, acts)
	}
}

// Expects tells, once, that the PSNs have moved: the sender has gone back, or its PSNs began anew. The kernel should expect this PSN next, so that
// a packet lost from now on is met by a hold and not by the receiver.
func (f *Flow) Expects() (roce.PSN, bool) {
	switch {
	case f.hold.waiting > 0:
		return 0, false
	case f.replay.active && !f.replay.told:
		f.replay.told, f.moved = true, false
		return f.replay.next.psn(), true
	case f.moved:
		f.moved = false
		return f.next.psn(), true
	}
	return 0, false
}

// Octets of P that may differ between copies of one packet: BTH octet 4 holds congestion bits, octet 8 AckReq, and the AETH of a response, after
// its syndrome, the message sequence number that the responder has reached when it sends.
const (
	congestionOctet = 4
	ackReqOctet     = 8
	syndromeOctet   = 12
	dataOctet       = 16 // after an AETH
	icrcOctets      = 4
	leastP          = 16
)

// sameButMutable says whether p is a copy of the packet in c.
func sameButMutable(c *fec.Cell, p []byte) bool {
	if c == nil {
		return false
	}
	q := c.Payload()
	n := len(q)
	if n != len(p) || n < leastP ||
		!bytes.Equal(q[:congestionOctet], p[:congestionOctet]) ||
		!bytes.Equal(q[congestionOctet+1:ackReqOctet], p[congestionOctet+1:ackReqOctet]) {
		return false
	}
	op := roce.Opcode(p[0])
	if space, ok := op.Space(); ok && space == roce.Response && !op.Middle() && n >= dataOctet+icrcOctets {
		return bytes.Equal(q[ackReqOctet+1:syndromeOctet+1], p[ackReqOctet+1:syndromeOctet+1]) &&
			bytes.Equal(q[dataOctet:n-icrcOctets], p[dataOctet:n-icrcOctets])
	}
	return bytes.Equal(q[ackReqOctet+1:n-icrcOctets], p[ackReqOctet+1:n-icrcOctets])
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"bytes"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// CloseCause is why a block was closed (Section 4.2).
type CloseCause uint8

// Causes.
const (
	ByCount   CloseCause = iota // k positions are covered
	ByGap                       // no new source packet for burstGap
	ByAge                       // SRTTmin/2 after its first packet (Section 6, rule CSF 4)
	ByJump                      // the next packet's PSN lies past k positions
	ByRequest                   // a PSN-range request names one of its positions
	ByReport                    // a PATH_REPORT says that one of its packets was dropped
	closeCauses
)

var closeCauseNames = [closeCauses]string{"count", "gap", "age", "jump", "request", "report"}

// String returns the cause in a word.
func (c CloseCause) String() string { return closeCauseNames[c] }

// block is consecutive PSN positions that are coded together. At most one block of a flow is open; closed ones are retained.
type block struct {
	flow   *Flow
	config *config
	start  roce.PSN
	k      int // positions up to the last one that a packet was seen on
	room   int // positions that the block may still have, once it is closed

	present fec.Bitmap  // positions whose first copy is held
	barred  fec.Bitmap  // positions that stay absent: their first copy was seen but can't be coded, or was withdrawn
	cells   []*fec.Cell // first copies by position

	openedAt, closedAt time.Duration

	// sealed: a REPAIR is out; from here on k and the Present Bitmap are constant (Section 6, rule CSF 3).
	sealed   bool
	digest   uint64
	digested bool // digest is known
	hashing  bool // the flow's running digest has all present positions so far

	symbols               []*fec.Cell // ordinary symbols by Repair Index, once coded
	total, released, sent int         // ordinary symbols to be sent, allowed to leave, and sent
	nextIndex             int         // the next unused Repair Index from m upward, for coded retransmission and additional symbols

	dropped          fec.Bitmap // positions that a PATH_REPORT names as dropped
	early, earlyLeft int        // additional ordinary symbols: let through, and still to be sent
	inconsistent     bool       // a later copy differed after the first REPAIR: no further ordinary symbol (Section 6, rule CSF 3)

	answered   [4]uint16 // the last Request IDs that were answered
	answers    int       // how many there were
	lastAnswer time.Duration
	named      fec.Bitmap // scratch: positions that a PSN-range request names

	older, newer *block // of all flows of the Env
}

// last is the PSN of the block's last position.
func (b *block) last() roce.PSN { return b.start.Add(b.k - 1) }

// occupied reports whether position pos had a packet.
func (b *block) occupied(pos int) bool { return b.present.Has(pos) || b.barred.Has(pos) }

// put makes c the first copy of position pos.
func (b *block) put(pos int, c *fec.Cell) {
	for len(b.cells) <= pos {
		b.cells = append(b.cells, nil)
	}
	b.cells[pos] = c
	b.present.Set(pos)
	b.hash(pos)
	b.k = max(b.k, pos+1)
}

// hash takes a new position into the running digest, while its octets are in the processor's cache. A position that comes out of
// order ends that; the digest is computed as a whole then, when the block is sealed.
func (b *block) hash(pos int) {
	if b.hashing = b.hashing && pos >= b.k; b.hashing {
		b.flow.hasher.Add(b.cells[pos].Symbol(b.config.T))
	}
}

// withdraw makes position pos absent for good.
func (b *block) withdraw(pos int) {
	b.present.Clear(pos)
	b.barred.Set(pos)
	b.flow.env.Pool.Put(b.cells[pos])
	b.cells[pos] = nil
}

// handleNew takes a packet that is after the newest PSN. consumed is how many PSNs it stands for.
func (f *Flow) handleNew(now time.Duration, pkt *roce.Packet, consumed int) {
	b := f.open
	if b != nil {
		switch {
		case now-f.lastNew >= f.silence():
			f.closeBlock(now, ByGap)
		case now-b.openedAt >= f.rtt.min()/2:
			f.closeBlock(now, ByAge)
		case pkt.PSN().Sub(b.start) >= b.config.k:
			f.closeBlock(now, ByJump)
		}
		b = f.open
	}
	f.pace.next(now-f.lastNew, pkt.Opcode().Ends())
	f.lastNew = now
	f.age(now)
	if b == nil {
		b = f.openBlock(now, pkt)
	} else {
		f.fill(b, pkt.PSN().Sub(b.start), pkt)
	}
	f.spread()
	f.ripen(now)
	// A READ request covers the PSNs of its responses too; no block is formed for those alone (Section 4.2).
	if b != nil && pkt.PSN().Sub(b.start)+consumed >= b.config.k {
		f.closeBlock(now, ByCount)
		if op := pkt.Opcode(); op.Ends() && !op.Starts() {
			f.release() // the end of a message: there may be no next block over which to spread
		}
	}
}

// openBlock begins a block with a packet, if that can be coded: a block without a present position isn't formed.
func (f *Flow) openBlock(now time.Duration, pkt *roce.Packet) *block {
	f.relieve()
	c := f.cell(pkt, f.current.T)
	if c == nil {
		return nil
	}
	b := f.env.newBlock()
	b.flow, b.config, b.start, b.openedAt = f, f.current, f.first(pkt.PSN()), now
	b.nextIndex = b.config.m
	b.config.blocks++
	if b.hashing = f.digest && f.stats.M > 0; b.hashing { // otherwise no REPAIR is likely, and the digest not needed
		f.hasher.Reset(f.hello.nonce)
	}
	b.put(pkt.PSN().Sub(b.start), c)
	f.open = b
	f.armBlocks(now + min(f.silence(), f.rtt.min()/2))
	return b
}

// fill puts the first copy of a position of the open block into its place; what can't be coded makes the position absent.
func (f *Flow) fill(b *block, pos int, pkt *roce.Packet) {
	if c := f.cell(pkt, b.config.T); c != nil {
		b.put(pos, c)
	} else {
		b.barred.Set(pos)
	}
}

// cell returns a cell with the packet's symbol, nil (counted) if it can't be coded: not a valid source packet, one that the transport itself calls a
// retransmission (the flag would have to be guessed at the other end), longer than T allows (never truncated, Section 4.1), or no memory.
func (f *Flow) cell(pkt *roce.Packet, T int) *fec.Cell {
	p := pkt.P()
	switch {
	case !f.transport.ValidSource(p, f.space, pkt.PSN(), pkt.QPN(), f.pkey, 0):
		f.drop(DropInvalidSource)
		return nil
	case pkt.Retransmitted():
		f.drop(DropRetransmission)
		return nil
	case f.lead+len(p)+lengthPrefix > T:
		f.drop(DropTooLong)
		return nil
	}
	c := f.env.Pool.Get(T)
	if c == nil {
		f.drop(DropNoMemory)
		f.starve()
		return nil
	}
	var lead [roce.MaxLead]byte
	if c.SetLed(nil, pkt.AppendLead(lead[:0]), p, T) != nil {
		f.env.Pool.Put(c)
		f.drop(DropTooLong)
		return nil
	}
	return c
}

// handleOld takes a packet that is not after the newest PSN: a reordered one, or a retransmission.
func (f *Flow) handleOld(now time.Duration, pkt *roce.Packet, acts *[]Action) {
	psn := pkt.PSN()
	f.stats.Retransmitted++
	if f.sample.timing && psn.Sub(f.sample.psn) <= 0 {
		f.sample.timing = false // Karn: the acknowledgement could be of either copy
	}
	if b := f.open; b != nil {
		if pos := psn.Sub(b.start); pos >= 0 && pos < b.config.k {
			f.run = 0
			f.again(now, b, pos, pkt)
			return
		}
	}
	if b := f.gathers(psn); b != nil {
		f.run = 0
		f.again(now, b, psn.Sub(b.start), pkt)
		f.ripen(now)
		return
	}
	if b := f.find(psn); b != nil {
		f.run = 0
		if pos := psn.Sub(b.start); b.occupied(pos) {
			f.compare(b, pos, pkt)
		} else {
			f.overtaken(pkt)
		}
		return
	}
	f.overtaken(pkt)
	f.watchRestart(now, pkt, acts)
}

// again takes a packet that is not after the newest PSN into a block that is not coded yet.
func (f *Flow) again(now time.Duration, b *block, pos int, pkt *roce.Packet) {
	if b.occupied(pos) {
		f.compare(b, pos, pkt)
		return
	}
	f.overtaken(pkt)
	f.fill(b, pos, pkt)
	if b.present.Has(pos) {
		b.digested = false
		f.stats.Reordered++
		f.countSource(now, pkt)
	}
}

// compare looks at a later copy of a position (Section 6, rules CSF 1 to CSF 3). The first copy is never replaced. With the
// block digest nothing more is needed: a decode that mixes copies fails it. Without it a copy with other octets withdraws the
// position while no REPAIR of the block is out, and ends the block's ordinary symbols after that.
func (f *Flow) compare(b *block, pos int, pkt *roce.Packet) {
	if !b.present.Has(pos) || b.sealed && (f.digest || b.inconsistent) {
		return
	}
	if bytes.Equal(b.cells[pos].Payload()[f.lead:], pkt.P()) {
		return
	}
	f.stats.Differing++
	switch {
	case f.digest:
	case b.sealed:
		b.inconsistent = true
		f.giveUp(b, DropInconsistent)
	default:
		b.withdraw(pos)
		f.stats.Withdrawn++
	}
}

// closeBlock closes the open block: it is retained, and its ordinary symbols are scheduled, now or when what was overtaken has come.
func (f *Flow) closeBlock(now time.Duration, cause CloseCause) {
	b := f.open
	f.open = nil
	if b.present.Empty() {
		f.discard(b) // every position was withdrawn
		return
	}
	b.closedAt = now
	if b.hashing {
		b.digest, b.digested, b.hashing = f.hasher.Sum(), true, false
	}
	f.stats.BlocksClosed[cause]++
	f.retain(now, b)
	f.gather(now, b, cause)
}

// armBlocks makes sure that pollBlocks is called at t or earlier.
func (f *Flow) armBlocks(t time.Duration) { f.blockAt = min(f.blockAt, t) }

// pollBlocks closes the open block, and releases spread symbols, when their time has come. The deadline is armed early and
// moved here, so that a packet doesn't cost a change of deadline.
func (f *Flow) pollBlocks(now time.Duration) {
	if now < f.blockAt {
		return
	}
	f.blockAt = roce.Never
	if b := f.open; b != nil {
		silent := f.lastNew + f.silence()
		age := b.openedAt + f.rtt.min()/2
		switch {
		case now >= silent:
			f.closeBlock(now, ByGap)
		case now >= age:
			f.closeBlock(now, ByAge)
		default:
			f.armBlocks(min(silent, age))
		}
	}
	if f.ripen(now); len(f.gathering) > 0 {
		f.armBlocks(f.gathering[0].until)
	}
	if f.spreading() {
		if due := min(f.lastNew+f.burstGap(), f.flushAt); now >= due {
			f.release()
		} else {
			f.armBlocks(due)
		}
	}
}

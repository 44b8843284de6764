// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// maxQueue bounds the blocks whose ordinary symbols wait; over it the oldest block's are given up.
const maxQueue = 8

// repairSize is the octets of a REPAIR with a symbol, for the longest block of a configuration.
func (f *Flow) repairSize(c *config, retx bool) int {
	return wire.RepairOverhead(c.k, retx, f.digest) + c.T
}

// schedule decides how many ordinary symbols a block gets and when they may leave (Section 5.3, rule 6): all at once, or spread
// over the packets of the next block. There is no next block in sight when the burst has ended.
func (f *Flow) schedule(now time.Duration, b *block, cause CloseCause) {
	f.release()
	m := f.targetM(b, b.present.Count(), cause)
	n := f.affordable(now, b, f.reduced(now, m))
	if f.stats.M = n; n < m {
		f.redundancy.spare = 0 // what was withheld has used it up
	}
	if n == 0 {
		return
	}
	if len(f.queue) == maxQueue {
		f.giveUp(f.queue[0], DropBudget)
	}
	b.total, b.released = n, n
	if f.params.Spread && cause != ByGap && cause != ByRequest && cause != ByReport {
		b.released = 1
		f.sinceClose = 0
		// With CSF 4 this leaves a quarter of SRTTmin before a retransmission can pass.
		f.flushAt = now + f.rtt.min()/4
		f.armBlocks(f.flushAt)
	}
	f.queue = append(f.queue, b)
}

// affordable is how many of n ordinary symbols the budgets let through (Section 10, rule 1), beside those that wait already.
func (f *Flow) affordable(now time.Duration, b *block, n int) int {
	if n == 0 {
		return 0
	}
	left := f.allowance(now).ordinary
	for _, q := range f.queue {
		left -= int64((q.total - q.sent) * f.repairSize(q.config, false))
	}
	for _, q := range f.early {
		left -= int64(q.earlyLeft * f.repairSize(q.config, false))
	}
	m := int(max(left, 0)) / f.repairSize(b.config, false)
	if m >= n {
		return n
	}
	f.stats.Withheld += uint64(n - m)
	f.stats.Drops[DropBudget] += uint64(n - m)
	if f.redundancy.limit = WhyBudget; f.restrained(now) {
		f.redundancy.limit = WhyRestrained
	}
	return m
}

// spreading reports whether symbols of the last closed block wait for packets of the next one.
func (f *Flow) spreading() bool {
	return len(f.queue) > 0 && f.queue[len(f.queue)-1].released < f.queue[len(f.queue)-1].total
}

// spread counts a packet of the next block: symbol i may leave after i/total of the block's packets.
func (f *Flow) spread() {
	if !f.spreading() {
		return
	}
	f.sinceClose++
	b := f.queue[len(f.queue)-1]
	b.released = min(b.total, max(b.released, 1+f.sinceClose*b.total/b.config.k))
}

// release lets all symbols leave that wait for packets.
func (f *Flow) release() {
	for _, b := range f.queue {
		b.released = b.total
	}
}

// sendOrdinary sends the next ordinary symbol of the block at the head of the queue, Repair Indices 0, 1, ... (Section 5.4).
// What the budgets do not let through any more is given up.
func (f *Flow) sendOrdinary(now time.Duration, b *block, acts *[]Action) {
	size := f.repairSize(b.config, false)
	switch {
	case f.breaker.open:
		f.giveUp(b, DropBreaker)
		return
	case b.present.Empty():
		f.giveUp(b, DropInconsistent)
		return
	case f.allowance(now).ordinary < int64(size):
		f.giveUp(b, DropBudget)
		return
	case !f.code(b):
		f.giveUp(b, DropNoMemory)
		return
	}
	r := f.repair(b, b.config.scheme, b.sent)
	r.Last = b.sent+1 == b.total
	msg, symbol := f.repairMessage(&r, b.config.T)
	if msg == nil {
		f.giveUp(b, DropNoMemory)
		return
	}
	copy(symbol, b.symbols[b.sent].Symbol(b.config.T))
	f.env.Pool.Put(b.symbols[b.sent])
	b.symbols[b.sent] = nil
	f.sendRepair(now, msg, false, acts)
	f.stats.Ordinary++
	if b.sent++; b.sent == b.total {
		f.unqueue(b)
	}
}

// code seals a block and computes all its ordinary symbols in one pass, when the first of them leaves: until then a position can
// still be withdrawn (Section 6, rule CSF 2).
func (f *Flow) code(b *block) bool {
	if len(b.symbols) > 0 {
		return true
	}
	for range b.total {
		c := f.env.Pool.Get(b.config.T)
		if c == nil {
			f.dropSymbols(b)
			f.starve()
			return false
		}
		b.symbols = append(b.symbols, c)
	}
	f.seal(b)
	f.env.load(b)
	if fec.EncodeCells(b.symbols, b.config.scheme, 0, b.config.T, b.present, &f.env.syms) != nil {
		f.dropSymbols(b)
		return false
	}
	return true
}

// seal freezes a block before its first REPAIR leaves, and computes the block digest over the frozen first copies (Section 6).
func (f *Flow) seal(b *block) {
	if b.sealed {
		return
	}
	b.sealed = true
	if !f.digest || b.digested {
		return
	}
	d := &f.env.hasher
	d.Reset(f.hello.nonce)
	for j := b.present.First(); j >= 0; j = b.present.Next(j + 1) {
		d.Add(b.cells[j].Symbol(b.config.T))
	}
	b.digest = d.Sum()
}

// repair is a REPAIR of a sealed block, with what all of them have in common.
func (f *Flow) repair(b *block, scheme fec.Scheme, index int) wire.Repair {
	return wire.Repair{
		FlowID: f.id, ConfigID: b.config.id, Scheme: scheme, K: uint8(b.k), Index: uint8(index), Start: b.start,
		T: uint16(b.config.T), Present: b.present, HasDigest: f.digest, Digest: b.digest,
	}
}

// repairMessage returns a message with the head of r, and the place of its symbol: T octets, with room for Stride(T). It is nil if
// memory has run out.
func (f *Flow) repairMessage(r *wire.Repair, T int) (msg, symbol []byte) {
	head := wire.RepairOverhead(int(r.K), r.Retx, r.HasDigest)
	buf := f.env.Pool.Buffer(head + fec.Stride(T))
	if buf == nil {
		return nil, nil
	}
	r.AppendHead(buf[:0])
	return buf[:head+T], buf[head:]
}

// sendRepair sends a REPAIR with a symbol and takes it off the budgets.
func (f *Flow) sendRepair(now time.Duration, msg []byte, answer bool, acts *[]Action) {
	f.spend(now, int64(len(msg)), answer)
	f.stats.RepairOctets += uint64(len(msg))
	f.repairPath.sent(now, f.rtt.smoothed())
	f.send(f.peer, msg, acts)
}

// giveUp ends a block's ordinary symbols; those that were still to be sent are counted as withheld.
func (f *Flow) giveUp(b *block, why DropReason) {
	if left := uint64(b.total - b.sent); left > 0 {
		f.stats.Withheld += left
		f.stats.Drops[why] += left
	}
	f.unqueue(b)
}

// unqueue takes a block out of the queue of those with ordinary symbols to send.
func (f *Flow) unqueue(b *block) {
	f.dropSymbols(b)
	b.total, b.released = b.sent, b.sent
	for i, q := range f.queue {
		if q == b {
			f.queue = append(f.queue[:i], f.queue[i+1:]...)
			return
		}
	}
}

// dropSymbols gives the memory of a block's ordinary symbols back.
func (f *Flow) dropSymbols(b *block) {
	for i, c := range b.symbols {
		f.env.Pool.Put(c)
		b.symbols[i] = nil
	}
	b.symbols = b.symbols[:0]
}

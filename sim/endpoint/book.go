// SPDX-License-Identifier: Apache-2.0

package endpoint

import "time"

// transfer is what was posted. Its packets have the numbers first to first+packets-1.
type transfer struct {
	number         uint64 // of those posted before it
	first, packets uint64
	octets         int64
	posted         time.Duration
}

func (t *transfer) end() uint64 { return t.first + t.packets }

// book is the transfers that are not complete, oldest first.
type book struct {
	path  Path
	bare  bool
	op    Operation
	kind  Kind
	open  []transfer
	cur   int    // transfer of the packet asked for last
	end   uint64 // number after the last posted packet
	done  []Completion
	stats SenderStats
}

func (b *book) post(now time.Duration, octets int64) *transfer {
	n := uint64((octets + int64(b.path.MTU) - 1) / int64(b.path.MTU))
	b.open = append(b.open, transfer{number: b.stats.Posted, first: b.end, packets: n, octets: octets, posted: now})
	b.end += n
	b.stats.Posted++
	return &b.open[len(b.open)-1]
}

// of returns the open transfer of a packet; there must be one.
func (b *book) of(seq uint64) *transfer {
	if b.cur >= len(b.open) {
		b.cur = 0
	}
	for b.open[b.cur].first > seq {
		b.cur--
	}
	for b.open[b.cur].end() <= seq {
		b.cur++
	}
	return &b.open[b.cur]
}

// packet describes a data packet of an open transfer.
func (b *book) packet(seq uint64) Packet {
	t := b.of(seq)
	i := seq - t.first
	data := min(int64(b.path.MTU), t.octets-int64(i)*int64(b.path.MTU))
	message := b.messagePackets()
	p := Packet{Kind: Data, Seq: seq, Other: seq, Data: int32(data), First: i%message == 0, Last: (i+1)%message == 0 || i+1 == t.packets}
	p.Octets = b.size(&p)
	return p
}

// messagePackets is the packets of the longest RDMA message.
func (b *book) messagePackets() uint64 { return max(uint64(rdmaMessage/b.path.MTU), 1) }

// message returns the first packet of the RDMA message that a packet of an open transfer belongs to, and the number after its last.
func (b *book) message(seq uint64) (first, end uint64) {
	t, n := b.of(seq), b.messagePackets()
	first = seq - (seq-t.first)%n
	return first, min(first+n, t.end())
}

// size is the octets of the frame of a data packet.
func (b *book) size(p *Packet) int32 {
	if b.bare {
		return p.Data
	}
	size := p.Data + -p.Data&3 + headers
	switch {
	case b.kind == MRC:
		size += mrcEach
	case b.op == Write && p.First:
		size += reth
	case b.op == Read && (p.First || p.Last):
		size += aeth
	}
	return size
}

// sent counts a packet with data or parity.
func (b *book) sent(p *Packet, again bool) {
	b.stats.Sent++
	b.stats.SentOctets += uint64(p.Octets)
	switch {
	case p.Kind == Parity:
		b.stats.Parity++
	case again:
		b.stats.Retransmitted++
	default:
		b.stats.Needed++
		b.stats.NeededOctets += uint64(p.Octets)
	}
}

// complete ends the transfers whose packets are all before una.
func (b *book) complete(now time.Duration, una uint64) {
	n := 0
	for n < len(b.open) && b.open[n].end() <= una {
		t := &b.open[n]
		b.done = append(b.done, Completion{Posted: t.posted, Completed: now, Octets: t.octets})
		b.stats.Completed++
		b.stats.CompletedOctets += uint64(t.octets)
		n++
	}
	if n > 0 {
		b.open = append(b.open[:0], b.open[n:]...)
		b.cur = max(b.cur-n, 0)
	}
}

// Completed implements Sender.
func (b *book) Completed(dst []Completion) []Completion {
	dst = append(dst, b.done...)
	b.done = b.done[:0]
	return dst
}

// Stats implements Sender.
func (b *book) Stats() *SenderStats { return &b.stats }

// Ideal is how many octets the packets of one transfer have together.
func Ideal(c Config, p Path, octets int64) (packets, wire int64) {
	b := book{path: p, bare: c.Bare, op: c.Operation, kind: c.Kind}
	t := b.post(0, octets)
	packets = int64(t.packets)
	if c.Bare {
		return packets, octets
	}
	wire = octets + packets*headers + -octets&3
	messages := (octets + rdmaMessage - 1) / rdmaMessage
	switch {
	case c.Kind == MRC:
		wire += packets * mrcEach
	case c.Operation == Write:
		wire += messages * reth
	case c.Operation == Read:
		wire += 2 * messages * aeth
		if last := octets - (messages-1)*rdmaMessage; last <= int64(p.MTU) { // first and last are one packet
			wire -= aeth
		}
	}
	return packets, wire
}

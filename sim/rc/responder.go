// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"fmt"

	"crem.dev/crem/agent/roce"
)

// responder executes requests in order and answers them.
type responder struct {
	cfg   *Config
	build *builder
	pace  *Pacer
	mem   Memory
	stats *ResponderStats

	expected uint64      // sequence number of the next request packet
	nakSent  bool        // for the present gap: one NAK, then silence
	number   uint64      // of the message that is arriving or comes next
	open     bool        // inside a message
	op       roce.Opcode // of its last packet
	offset   int         // octets of it placed
	length   int         // announced by its RETH, -1 without
	broken   bool        // a protocol error ended the connection

	answers []answer // in order
	reads   []readResource
	next    int // resource to overwrite
}

// readResource remembers a READ, so that a repeated or resumed request for it can be answered.
type readResource struct {
	number  uint64
	first   uint64
	packets uint64
	size    int
	sent    uint64 // responses sent so far, from the first on
}

func newResponder(c *Config, b *builder, p *Pacer, s *ResponderStats) responder {
	return responder{cfg: c, build: b, pace: p, mem: NewMemory(c), stats: s, reads: make([]readResource, 0, c.Reads+1)}
}

// handle takes a request packet.
func (r *responder) handle(p *roce.Packet) {
	r.stats.Received++
	if r.broken {
		return
	}
	distance := p.PSN().Sub(r.psn(r.expected))
	switch {
	case distance > 0:
		r.stats.OutOfSequence++
		if !r.nakSent {
			r.nakSent = true
			r.queueAck(r.expected, nakCode|roce.NAKSequence)
		}
	case distance < 0:
		r.stats.Duplicates++
		r.duplicate(p, distance)
	default:
		r.nakSent = false
		r.execute(p)
	}
}

// psn returns the PSN of the other end's request with a sequence number.
func (r *responder) psn(seq uint64) roce.PSN { return r.cfg.Remote.PSN.Add(int(seq & 0xffffff)) }

// refuse answers a request that a correct requester never sends, and ends the connection.
func (r *responder) refuse(code uint8, why string) {
	r.stats.ProtocolErrors++
	if r.stats.Fault == "" {
		r.stats.Fault = why
	}
	r.broken = true
	r.queueAck(r.expected, nakCode|code)
}

// execute takes the expected request packet.
func (r *responder) execute(p *roce.Packet) {
	op := p.Opcode()
	if r.open != !op.Starts() || r.open && !roce.MayFollow(r.op, op) {
		r.refuse(roce.NAKInvalidRequest, fmt.Sprintf("message %d: %v after %v", r.number, op, r.op))
		return
	}
	ok := false
	switch {
	case op == roce.ReadRequest:
		ok = r.read(p)
	case op <= roce.WriteOnlyImm:
		ok = r.data(p)
	default:
		r.refuse(roce.NAKInvalidRequest, fmt.Sprintf("message %d: %v is not supported", r.number, op))
	}
	if ok {
		r.stats.Executed++
		r.op = op
		if p.AckReq() && op != roce.ReadRequest {
			r.queueAck(r.expected-1, unlimited)
		}
	}
}

// data places the payload of a WRITE or SEND packet.
func (r *responder) data(p *roce.Packet) bool {
	op, data := p.Opcode(), p.Data()
	if op.Starts() {
		r.open, r.offset, r.length = true, 0, -1
		if _, has := p.DMALength(); has {
			address, key, length := reth(p)
			if address != r.mem.Address(r.number) || key != remoteKey || int(length) > r.mem.size {
				r.refuse(roce.NAKRemoteAccess, fmt.Sprintf("message %d: WRITE of %d octets to %#x", r.number, length, address))
				return false
			}
			r.length = int(length)
		}
	}
	if r.offset+len(data) > r.mem.size || !op.Ends() && len(data) != r.cfg.MTU || len(data) > r.cfg.MTU {
		r.refuse(roce.NAKInvalidRequest, fmt.Sprintf("message %d: %v with %d octets at %d", r.number, op, len(data), r.offset))
		return false
	}
	copy(r.mem.Slot(r.number)[r.offset:], data)
	r.offset += len(data)
	if op.Ends() && r.length >= 0 && r.length != r.offset {
		r.refuse(roce.NAKInvalidRequest, fmt.Sprintf("message %d: %d octets of %d", r.number, r.offset, r.length))
		return false
	}
	r.expected++
	if op.Ends() {
		r.completed()
	}
	return true
}

// completed verifies the message in memory and goes on to the next.
func (r *responder) completed() {
	r.stats.Messages++
	r.stats.WrittenOctets += uint64(r.offset)
	if wrong := r.mem.Complete(r.number, r.offset); wrong > 0 {
		r.stats.CorruptMessages++
		r.stats.CorruptOctets += uint64(wrong)
		if r.stats.Fault == "" {
			r.stats.Fault = fmt.Sprintf("message %d: %d of %d octets wrong", r.number, wrong, r.offset)
		}
	}
	r.open = false
	r.number++
}

// read takes a READ request: its answer occupies as many PSNs as it has packets.
func (r *responder) read(p *roce.Packet) bool {
	address, key, length := reth(p)
	if address != r.mem.Address(r.number) || key != remoteKey || length == 0 || int(length) > r.mem.size {
		r.refuse(roce.NAKRemoteAccess, fmt.Sprintf("message %d: READ of %d octets at %#x", r.number, length, address))
		return false
	}
	n := uint64(roce.Advance(p, r.cfg.MTU))
	r.remember(readResource{number: r.number, first: r.expected, packets: n, size: int(length)})
	r.queueRead(r.expected, r.expected+n)
	r.expected += n
	r.stats.Messages++
	r.number++
	return true
}

func (r *responder) remember(x readResource) {
	if len(r.reads) < cap(r.reads) {
		r.reads = append(r.reads, x)
		return
	}
	r.reads[r.next] = x
	r.next = (r.next + 1) % len(r.reads)
}

// resource returns the READ that a sequence number belongs to.
func (r *responder) resource(seq uint64) *readResource {
	for i := range r.reads {
		if x := &r.reads[i]; seq >= x.first && seq < x.first+x.packets {
			return x
		}
	}
	return nil
}

// duplicate answers what was executed before, without executing it again. A repeated READ is answered from where it asks.
func (r *responder) duplicate(p *roce.Packet, distance int) {
	if uint64(-distance) > r.expected {
		return
	}
	seq := r.expected - uint64(-distance)
	if p.Opcode() != roce.ReadRequest {
		r.queueAck(r.expected-1, unlimited)
		return
	}
	x := r.resource(seq)
	if x == nil {
		return
	}
	address, key, length := reth(p)
	from := int(seq-x.first) * r.cfg.MTU
	if address != r.mem.Address(x.number)+uint64(from) || key != remoteKey || int(length) != x.size-from {
		return
	}
	r.dropAnswers(seq)
	r.queueRead(seq, x.first+x.packets)
}

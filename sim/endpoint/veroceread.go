// SPDX-License-Identifier: Apache-2.0

package endpoint

import "time"

// A READ of veRoCE uses both PSN spaces of a queue pair. A request takes one PSN, and one message number, of the request space, and is acknowledged by
// ACK, SACK and NAK; its responses take theirs of the response space, and are acknowledged by ACK_Rsp, SACK_Rsp and NAK_Rsp. Both ends have a transmitter
// and an acceptor, and a transport timer: the requester sends a request again, and the responder a response, each by what it has heard of its own space.
//
// Requests are executed in their order, as RC wants it, so the responses to them are numbered in the order in which READs were posted. A request that comes
// twice is acknowledged twice and executed once: what is missing of its responses is the responder's to repeat.

// ReadRequester is a Receiver that asks for its data by packets of a PSN space of their own.
type ReadRequester interface {
	Receiver
	Poster
	// Requests are totals of that space, and of what was posted.
	Requests() *SenderStats
}

// ReadResponder is a Sender of what it is asked for by packets of another PSN space.
type ReadResponder interface {
	Sender
	// Requests are totals of that space.
	Requests() *ReceiverStats
}

// veroceRequester asks for data, and takes it.
type veroceRequester struct {
	book                   // what was posted: its packets are the responses
	asks    transmitter    // of requests
	takes   veroceReceiver // of responses
	asked   []Packet       // requests that are needed still, to be sent again or to tell that they are answered
	oldest  uint64         // number of the first of them
	done    uint64         // all before it are answered whole
	unasked uint64         // first packet that no request has asked for
}

func newVeRoCERequester(c Config, p Path) *veroceRequester {
	r := &veroceRequester{book: book{path: p, bare: c.Bare, op: Read}, takes: veroceReceiver{cfg: c}}
	r.asks = newTransmitter(c, p, &r.stats)
	return r
}

// Post implements Poster.
func (r *veroceRequester) Post(now time.Duration, octets int64) { r.post(now, octets) }

// Err implements Poster.
func (r *veroceRequester) Err() string { return r.asks.err }

// askable says that there is more to ask for, and that the other end has room for the request.
func (r *veroceRequester) askable() bool {
	return r.unasked < r.end && r.asks.end-r.done < uint64(r.asks.cfg.Reads)
}

// NextDeadline implements Receiver.
func (r *veroceRequester) NextDeadline() time.Duration {
	d := min(r.takes.NextDeadline(), r.asks.deadline())
	if r.askable() && r.asks.err == "" {
		d = 0
	}
	return d
}

// Next implements Receiver: answers to responses first, then requests.
func (r *veroceRequester) Next(now time.Duration) (Packet, bool) {
	if p, ok := r.takes.Next(now); ok {
		return p, true
	}
	for r.askable() {
		r.ask()
	}
	seq, repeated, ok := r.asks.leave(now)
	if !ok {
		return Packet{}, false
	}
	p := r.asked[seq-r.oldest]
	p.Again = repeated
	r.sent(&p, repeated)
	return p, true
}

// ask makes the request for the next RDMA message.
func (r *veroceRequester) ask() {
	first, end := r.message(r.unasked)
	last := r.packet(end - 1)
	r.asked = append(r.asked, Packet{
		Kind: Request, AckReq: true, First: true, Last: true, Seq: r.asks.end, Other: first, Edge: end, Data: last.Data, Octets: headers + reth,
	})
	r.asks.end++
	r.unasked = end
}

// Handle implements Receiver.
func (r *veroceRequester) Handle(now time.Duration, p *Packet) {
	if p.Kind != Data {
		r.asks.handle(now, p)
	} else {
		r.takes.Handle(now, p)
		r.complete(now, r.takes.expected)
	}
	for r.done < r.asks.end && r.asked[r.done-r.oldest].Edge <= r.takes.expected {
		r.done++
	}
	needed := min(r.done, r.asks.una)
	r.asked = append(r.asked[:0], r.asked[needed-r.oldest:]...)
	r.oldest = needed
}

// Expected implements Receiver.
func (r *veroceRequester) Expected() uint64 { return r.takes.expected }

// Stats implements Receiver.
func (r *veroceRequester) Stats() *ReceiverStats { return &r.takes.stats }

// Requests implements ReadRequester.
func (r *veroceRequester) Requests() *SenderStats { return &r.stats }

// veroceResponder sends what it is asked for.
type veroceResponder struct {
	*veroceSender                // of responses
	takes         veroceReceiver // of requests
	early         []Packet       // of those that came before one that is missing, by number modulo its length
	executed      uint64         // requests
}

func newVeRoCEResponder(c Config, p Path) *veroceResponder {
	r := &veroceResponder{veroceSender: newVeRoCESender(c, p), early: make([]Packet, c.Reads)}
	c.Range = c.Reads // no requester of ours has more under way
	r.takes = veroceReceiver{cfg: c}
	return r
}

// Post implements Sender: transfers are posted at the other end.
func (r *veroceResponder) Post(time.Duration, int64) {}

// Completed implements Sender: they complete at the other end.
func (r *veroceResponder) Completed(dst []Completion) []Completion {
	r.done = r.done[:0]
	return dst
}

// Handle implements Sender.
func (r *veroceResponder) Handle(now time.Duration, p *Packet) {
	if p.Kind != Request {
		r.veroceSender.Handle(now, p)
		return
	}
	news := r.takes.stats.Accepted
	r.takes.Handle(now, p)
	if r.takes.stats.Accepted == news {
		return
	}
	r.early[p.Seq%uint64(len(r.early))] = *p
	for ; r.executed < r.takes.expected; r.executed++ {
		q := &r.early[r.executed%uint64(len(r.early))]
		r.veroceSender.Post(now, int64(q.Edge-q.Other-1)*int64(r.path.MTU)+int64(q.Data))
	}
}

// NextDeadline implements Sender.
func (r *veroceResponder) NextDeadline() time.Duration {
	return min(r.takes.NextDeadline(), r.veroceSender.NextDeadline())
}

// Next implements Sender: answers to requests first, then responses. Each has its message's first number in Other, and the request's in Edge.
func (r *veroceResponder) Next(now time.Duration) (Packet, bool) {
	if p, ok := r.takes.Next(now); ok {
		return p, true
	}
	p, ok := r.veroceSender.Next(now)
	if ok {
		t := r.of(p.Seq)
		p.Other, p.Edge = t.first, t.number
	}
	return p, ok
}

// Requests implements ReadResponder.
func (r *veroceResponder) Requests() *ReceiverStats { return &r.takes.stats }

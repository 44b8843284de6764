// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Each test names the sentence of the public description of veRoCE that it proves, of the two PSN spaces that a READ uses (docs/design/simulator.md
// lists them).

// newRead returns a duel about READs.
func newRead(t *testing.T, c Config) *duel {
	t.Helper()
	c.Kind, c.Operation = VeRoCE, Read
	return newDuel(t, c)
}

// requests are the totals of the request space at both ends.
func (d *duel) requests() (*SenderStats, *ReceiverStats) {
	return d.r.(ReadRequester).Requests(), d.s.(ReadResponder).Requests()
}

// asked returns when the copies of a request left.
func (d *duel) asked(number uint64) (at []time.Duration) {
	for _, p := range of(d.backLog, Request) {
		if p.Seq == number {
			at = append(at, p.at)
		}
	}
	return at
}

func TestVeRoCEReadEachPacketOnce(t *testing.T) {
	eachPacketOnce(t, Config{Kind: VeRoCE, Operation: Read, Retries: -1})
	eachPacketOnce(t, Config{Kind: VeRoCE, Operation: Read, Reads: 1, Window: 16, Retries: -1})
	eachPacketOnce(t, Config{Kind: VeRoCE, Operation: Read, Reads: 2, Range: 64, Distance: 1, Retries: -1})
}

// "The request path and the path of READ responses have two independent PSN and MSN spaces": a request takes one number of its own, whatever it asks for,
// and the responses to the next one go on where those to the one before ended. No more READs are under way than the other end has room for.
func TestVeRoCEReadNumbers(t *testing.T) {
	d := newRead(t, Config{Reads: 2})
	d.post(3, 1, 5, 2).run(testRTT - testTick)
	if got := len(of(d.backLog, Request)); got != 2 {
		t.Errorf("%d requests left before an answer came, 2 may be under way", got)
	}
	d.run(time.Second)
	d.complete(4)
	first := []uint64{0, 3, 4, 9, 11}
	for i, p := range of(d.backLog, Request) {
		if p.Seq != uint64(i) || p.Other != first[i] || p.Edge != first[i+1] || p.Again || !p.AckReq {
			t.Errorf("request %d: %+v", i, p.Packet)
		}
	}
	for i, p := range of(d.forthLog, Data) {
		if p.Seq != uint64(i) || p.Seq < p.Other || p.Other != first[p.Edge] || p.First != (p.Seq == p.Other) || p.Last != (p.Seq+1 == first[p.Edge+1]) || p.Again {
			t.Errorf("response %d: %+v", i, p.Packet)
		}
	}
	// Each space is acknowledged by its own end, by its own numbers.
	if acks := of(d.forthLog, Ack); len(acks) != 4 || acks[3].Seq != 4 {
		t.Errorf("acknowledgements of requests: %+v", acks)
	}
	if acks := d.answers(Ack); len(acks) != 4 || acks[3].Seq != 11 {
		t.Errorf("acknowledgements of responses: %+v", acks)
	}
}

// The spaces are independent: a loss in one holds nothing of the other up. What is missing of the responses to a READ keeps neither later requests nor the
// responses to them from coming, a request that is missing keeps no response from being taken, acknowledged and completed, and
// without any acknowledgement of requests the responses go their way.
func TestVeRoCEReadSpacesAreIndependent(t *testing.T) {
	const timeout = 40 * time.Millisecond
	t.Run("a response", func(t *testing.T) {
		d := newRead(t, Config{Timeout: timeout})
		d.lose = lost(1, 5)
		d.post(10, 100, 100).run(time.Second)
		d.complete(3)
		if asks, _ := d.requests(); asks.Sent != 3 || asks.Timeouts != 0 {
			t.Errorf("requests: %+v", asks)
		}
		if s := d.s.Stats(); s.Retransmitted != 1 || d.r.Stats().Accepted != 210 || d.now > 3*testRTT {
			t.Errorf("%v, responses: %+v", d.now, s)
		}
	})
	t.Run("a request", func(t *testing.T) {
		d := newRead(t, Config{Timeout: timeout})
		d.lose = func(p Packet, n int) bool { return p.Kind == Request && p.Seq == 1 && n == 1 }
		d.post(100, 10, 10).run(time.Second)
		d.complete(3)
		if first := d.done[0].Completed; first > testRTT+200*testTick {
			t.Errorf("the READ before the request that was lost completed at %v", first)
		}
		if s := d.s.Stats(); s.Sent != 120 || s.Timeouts != 0 {
			t.Errorf("responses: %+v", s)
		}
		for i, want := range []int{1, 2, 2} { // lazy SACK does not tell that the last one has come
			if at := d.asked(uint64(i)); len(at) != want {
				t.Errorf("request %d left at %v", i, at)
			}
		}
	})
	t.Run("acknowledgements of requests", func(t *testing.T) {
		d := newRead(t, Config{Timeout: timeout, Retries: -1})
		d.lose = func(p Packet, _ int) bool { return p.Kind == Ack && p.Seq <= 2 } // those of responses have higher numbers
		d.post(50, 50).run(timeout - testTick)
		d.complete(2)
		if asks, _ := d.requests(); asks.Acks != 0 {
			t.Errorf("requests: %+v", asks)
		}
	})
}

// "The READ responses have ACK_Rsp, SACK_Rsp and NAK_Rsp": the same bitmap, and only what is missing is sent again, with its PSN and the flag, at once.
func TestVeRoCEReadSelective(t *testing.T) {
	d := newRead(t, Config{})
	d.lose = lost(1, 10, 12, 13, 90, 400)
	d.post(200, 800).run(time.Second)
	d.complete(2)
	if s := d.s.Stats(); s.Retransmitted != 5 || s.Timeouts != 0 || len(d.answers(SACK)) == 0 {
		t.Errorf("%+v", s)
	}
	seen := map[uint64]bool{}
	for _, p := range of(d.forthLog, Data) {
		if p.Again != seen[p.Seq] {
			t.Errorf("response %d left with the flag of a retransmission %v", p.Seq, p.Again)
		}
		seen[p.Seq] = true
	}
}

// "A trimmed packet is answered by Packet Drop NAK", in either space.
func TestVeRoCEReadPacketDropNAK(t *testing.T) {
	d := newRead(t, Config{})
	d.cut = func(p Packet, n int) bool {
		return n == 1 && (p.Kind == Data && (p.Seq == 20 || p.Seq == 99) || p.Kind == Request && p.Seq == 1)
	}
	d.post(100, 10).run(time.Second)
	d.complete(2)
	for _, seq := range []uint64{20, 99} {
		if at := d.copies(seq); len(at) != 2 || at[1]-at[0] > testRTT+5*testTick {
			t.Errorf("response %d left at %v", seq, at)
		}
	}
	if at := d.asked(1); len(at) != 2 || at[1]-at[0] > testRTT+5*testTick {
		t.Errorf("request 1 left at %v", at)
	}
	if naks := of(d.forthLog, NACK); len(naks) != 1 || naks[0].Seq != 1 || len(d.answers(NACK)) != 2 {
		t.Errorf("%+v", naks)
	}
}

// "For READ responses the responder too waits for ACK_Rsp or SACK_Rsp, and sends the response again after a timeout." Over the retry limit it gives up.
func TestVeRoCEReadResponderTimer(t *testing.T) {
	const timeout = 40 * time.Millisecond
	d := newRead(t, Config{Timeout: timeout})
	d.lose = func(p Packet, n int) bool { return p.Kind == Data && p.Seq == 9 && n == 1 } // the last: no SACK tells
	d.post(10).run(time.Second)
	d.complete(1)
	if at := d.copies(9); len(at) != 2 || at[1]-at[0] < timeout || at[1]-at[0] > timeout+10*testTick {
		t.Errorf("the last response left at %v", at)
	}
	if at := d.asked(0); len(at) != 1 {
		t.Errorf("the request left at %v: its responder repeats what is missing", at)
	}
	d = newRead(t, Config{Timeout: timeout, Retries: 2})
	d.lose = func(p Packet, _ int) bool { return p.Kind == Data && p.Seq == 3 }
	d.post(10).run(10 * time.Second)
	if d.s.Err() == "" || len(d.done) > 0 || len(d.copies(3)) != 3 || d.s.NextDeadline() < 1<<62 {
		t.Errorf("error %q, %d transfers completed, response 3 left %d times", d.s.Err(), len(d.done), len(d.copies(3)))
	}
}

// The requester waits for ACK, SACK or NAK of its request, and sends it again after a timeout. Over the retry limit it gives up.
func TestVeRoCEReadRequesterTimer(t *testing.T) {
	const timeout = 40 * time.Millisecond
	d := newRead(t, Config{Timeout: timeout, Retries: 2})
	d.lose = func(p Packet, _ int) bool { return p.Kind == Request }
	d.post(10, 10).run(10 * time.Second)
	if d.poster.Err() == "" || d.r.NextDeadline() < 1<<62 || len(d.asked(0)) != 3 || len(d.done) > 0 {
		t.Errorf("error %q, request 0 left at %v", d.poster.Err(), d.asked(0))
	}
	for _, p := range of(d.backLog, Request) {
		if again := p.at > timeout/2; p.Again != again {
			t.Errorf("a request left at %v with the flag of a retransmission %v", p.at, p.Again)
		}
	}
}

// "The receiver must recognise duplicates, and not complete an action twice because of a retransmission": a request that comes again is acknowledged again and
// executed once, a response that comes again is acknowledged again and completes nothing.
func TestVeRoCEReadDuplicatesCompleteOnce(t *testing.T) {
	d := newRead(t, Config{Timeout: 2 * time.Millisecond, Retries: -1, Reads: 1}) // far below a round trip
	d.post(100, 10).run(time.Second)
	d.complete(2)
	asks, answers := d.requests()
	if r := d.r.Stats(); r.Duplicates == 0 || r.Accepted != 110 || asks.Completed != 2 {
		t.Errorf("responses: %+v", r)
	}
	if answers.Duplicates == 0 || answers.Accepted != 2 || answers.AcksSent < answers.Accepted+answers.Duplicates || d.s.Stats().Posted != 2 {
		t.Errorf("requests: %+v", answers)
	}
}

// Only what is needed of requests is kept, and a responder takes no request that it has no room for.
func TestVeRoCEReadBounds(t *testing.T) {
	c, err := Config{Kind: VeRoCE, Operation: Read, Reads: 4}.normal(Path{MTU: testMTU, RTT: testRTT, Packet: testTick})
	if err != nil {
		t.Fatal(err)
	}
	r := newVeRoCEResponder(c, Path{MTU: testMTU, RTT: testRTT, Packet: testTick})
	for _, seq := range []uint64{4, 3} {
		r.Handle(0, &Packet{Kind: Request, Seq: seq, Edge: 1, Data: 1})
	}
	if s := r.Requests(); s.OutOfWindow != 1 || s.Accepted != 1 || r.Stats().Posted != 0 {
		t.Errorf("%+v", s)
	}
	d := newRead(t, Config{Reads: 4})
	d.post(slices.Repeat([]int{1}, 1000)...).run(10 * time.Second)
	d.complete(1000)
	if kept := cap(d.r.(*veroceRequester).asked); kept > 16 {
		t.Errorf("room for %d requests was needed, 4 are under way", kept)
	}
	for _, kind := range []Kind{SelectiveRepeat, Coded, MRC} {
		if _, _, err := New(Config{Kind: kind, Operation: Read, Code: Code{K: 1, M: 1}}, Path{MTU: 1, Packet: 1}); err == nil {
			t.Errorf("%v has no READ", kind)
		}
	}
	if _, _, err := New(Config{Kind: VeRoCE, Operation: Send}, Path{MTU: 1, Packet: 1}); err == nil {
		t.Error("veRoCE has no SEND here")
	}
}

// FuzzVeRoCERead lets anything happen to the packets of both spaces, one octet each: they are taken in any order, lost, doubled, trimmed, and time passes. An
// oracle that only keeps sets says what must be so after each: a READ completes when the last of its responses has come, once and in order; requests are
// executed once and in order; nobody acknowledges what has not come. When everything is let through in the end, all is complete.
func FuzzVeRoCERead(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x40, 0x81, 0xc2, 0x10})
	f.Add([]byte{0xff, 0x80, 0x80, 0x00, 0x3f, 0x7f, 0xbf, 0x11, 0x91})
	f.Fuzz(func(t *testing.T, events []byte) {
		o := newReadOracle(t)
		for _, e := range events[:min(len(events), 300)] {
			o.event(e)
		}
		o.finish()
	})
}

// TestVeRoCEReadAgainstSets runs many long lists of events through the same oracle.
func TestVeRoCEReadAgainstSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		o := newReadOracle(t)
		for range 400 {
			o.event(byte(rng.Uint32()))
		}
		o.finish()
	}
}

// readOracle is two ends, what is on its way between them, and sets of what has come.
type readOracle struct {
	t        *testing.T
	s        *veroceResponder
	r        *veroceRequester
	now      time.Duration
	sky      [2][]Packet // to the requester, to the responder
	posted   []uint64    // number after the last response of each READ
	come     map[uint64]bool
	asked    map[uint64]bool
	complete int
}

func newReadOracle(t *testing.T) *readOracle {
	c, err := Config{Kind: VeRoCE, Operation: Read, Reads: 5, Window: 40, Range: 40, Distance: 4, Retries: -1, Timeout: 30 * time.Millisecond}.normal(Path{MTU: testMTU, RTT: testRTT, Packet: testTick})
	if err != nil {
		t.Fatal(err)
	}
	p := Path{MTU: testMTU, RTT: testRTT, Packet: testTick}
	return &readOracle{t: t, s: newVeRoCEResponder(c, p), r: newVeRoCERequester(c, p), come: map[uint64]bool{}, asked: map[uint64]bool{}}
}

// event is one octet: the upper two bits say what happens, the others to which packet.
func (o *readOracle) event(e byte) {
	which := int(e & 0x1f)
	side := int(e >> 5 & 1)
	switch e >> 6 {
	case 0:
		if side == 0 && len(o.posted) < 40 {
			o.post(1 + which)
		} else {
			o.now += time.Duration(which) * time.Millisecond
		}
	case 1, 2:
		o.take(side, which, e>>6 == 2 && which%4 == 0, which%8 == 3)
	case 3:
		if q := &o.sky[side]; len(*q) > 0 {
			*q = slices.Delete(*q, which%len(*q), which%len(*q)+1)
		}
	}
	o.send(6)
	o.check()
}

func (o *readOracle) post(packets int) {
	end := uint64(packets)
	if n := len(o.posted); n > 0 {
		end += o.posted[n-1]
	}
	o.posted = append(o.posted, end)
	o.r.Post(o.now, int64(packets)*testMTU)
}

// send lets each end send at most so many packets.
func (o *readOracle) send(most int) (sent int) {
	for range most {
		for side, end := range []interface {
			Next(time.Duration) (Packet, bool)
			NextDeadline() time.Duration
		}{o.s, o.r} {
			if end.NextDeadline() > o.now {
				continue
			}
			if p, ok := end.Next(o.now); ok {
				o.truth(side, &p)
				o.sky[side] = append(o.sky[side], p)
				sent++
			}
		}
	}
	return sent
}

// truth checks that what an end says of the packets that came to it is so.
func (o *readOracle) truth(side int, p *Packet) {
	has := o.come // what the requester acknowledges
	if side == 0 {
		has = o.asked
	}
	if p.Kind != Ack && p.Kind != SACK {
		return
	}
	for seq := range p.Seq {
		if !has[seq] {
			o.t.Fatalf("%+v acknowledges %d, which has not come", p, seq)
		}
	}
	for i := range uint64(128) {
		if p.Kind == SACK && p.Bits[i/64]>>(i%64)&1 != 0 && !has[p.Edge+i] {
			o.t.Fatalf("%+v says that %d has come", p, p.Edge+i)
		}
	}
}

// take lets a packet arrive, which may stay on its way to arrive once more, or be trimmed.
func (o *readOracle) take(side, which int, twice, cut bool) {
	q := &o.sky[side]
	if len(*q) == 0 {
		return
	}
	i := which % len(*q)
	p := (*q)[i]
	if !twice {
		*q = slices.Delete(*q, i, i+1)
	}
	p.Cut = cut && (p.Kind == Data || p.Kind == Request)
	if side == 1 {
		if p.Kind == Request && !p.Cut {
			o.asked[p.Seq] = true
		}
		o.s.Handle(o.now, &p)
		return
	}
	if p.Kind == Data && !p.Cut {
		if first := p.Edge; p.Seq >= o.posted[first] || first > 0 && p.Seq < o.posted[first-1] {
			o.t.Fatalf("%+v is no response to request %d", p, first)
		}
		o.come[p.Seq] = true
	}
	o.r.Handle(o.now, &p)
}

// check compares with the sets.
func (o *readOracle) check() {
	o.complete += len(o.r.Completed(nil))
	whole, executed := 0, uint64(0)
	for seq := uint64(0); whole < len(o.posted) && o.come[seq]; seq++ {
		for whole < len(o.posted) && seq+1 >= o.posted[whole] {
			whole++
		}
	}
	for o.asked[executed] {
		executed++
	}
	if o.complete != whole || o.s.executed != executed || o.s.Stats().Posted != executed {
		o.t.Fatalf("%d READs have completed, not %d; %d requests were executed, not %d", o.complete, whole, o.s.executed, executed)
	}
}

// finish lets everything through.
func (o *readOracle) finish() {
	for range 10_000 {
		for side := range o.sky {
			for len(o.sky[side]) > 0 {
				o.take(side, 0, false, false)
				o.check()
			}
		}
		if o.send(50) == 0 && len(o.sky[0])+len(o.sky[1]) == 0 {
			next := min(o.s.NextDeadline(), o.r.NextDeadline())
			if next >= 1<<62 {
				break
			}
			o.now = max(o.now, next)
		}
	}
	o.check()
	if o.complete != len(o.posted) || o.s.space.una != o.s.space.next || o.r.asks.una != o.r.asks.next {
		o.t.Fatalf("%d of %d READs have completed when nothing is to be done any more", o.complete, len(o.posted))
	}
}

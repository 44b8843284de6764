// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/lab/wan"
)

// config returns the A side of a connection.
func config() Config {
	return Config{
		Local:  End{Addr: netip.MustParseAddr("10.1.0.2"), MAC: [6]byte{2, 0, 0, 0, 0, 1}, QPN: 0x11, PSN: 0x123456},
		Remote: End{Addr: netip.MustParseAddr("10.2.0.2"), MAC: [6]byte{2, 0, 0, 0, 0, 2}, QPN: 0x2f, PSN: 0xabcdef},
		MTU:    1024, TOS: 0x6a, Window: 512, Timeout: 67 * time.Millisecond, Retries: 7,
		Depth: 8, Reads: 4, MaxMessage: 64 << 10, Seed: 42,
	}
}

// path is two queue pairs and the lines between them, under virtual time.
type path struct {
	t     *testing.T
	now   time.Duration
	qp    [2]*QP
	line  [2]*wan.Line // line[0]: from qp[0] to qp[1]
	store [2][][]byte  // frames on the line, by token
	free  [2][]uint32
	refs  [2][]int
	batch *Batch
	pkt   roce.Packet
	watch func(from int, p *roce.Packet) bool // sees every frame sent; false drops it
	done  []Completion
}

func newPath(t *testing.T, c Config, to, back wan.Settings) *path {
	t.Helper()
	p := &path{t: t, batch: NewBatch(64, c.FrameSize())}
	for i, cfg := range []Config{c, c.Reverse()} {
		q, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.qp[i] = q
	}
	for i, s := range []wan.Settings{to, back} {
		l, err := wan.NewLine(s)
		if err != nil {
			t.Fatal(err)
		}
		p.line[i] = l
	}
	return p
}

func (p *path) offer(i int, frame []byte) {
	var why roce.Reason
	if p.pkt, why = roce.Parse(frame); why != roce.OK {
		p.t.Fatalf("sent a frame that is no RoCEv2 packet: %v", why)
	}
	b := p.pkt.P()
	for _, pad := range b[len(b)-icrcLen-int(b[1]>>4&3) : len(b)-icrcLen] {
		if pad != 0 {
			p.t.Fatal("pad octets are not zero")
		}
	}
	if p.watch != nil && !p.watch(i, &p.pkt) {
		return
	}
	var token uint32
	if n := len(p.free[i]); n > 0 {
		token, p.free[i] = p.free[i][n-1], p.free[i][:n-1]
	} else {
		token = uint32(len(p.store[i]))
		p.store[i] = append(p.store[i], nil)
		p.refs[i] = append(p.refs[i], 0)
	}
	p.store[i][token] = append(p.store[i][token][:0], frame...)
	if p.refs[i][token] = p.line[i].Offer(p.now, token, p.store[i][token]); p.refs[i][token] == 0 {
		p.free[i] = append(p.free[i], token)
	}
}

// step lets everything happen that is due, then moves to the next event; false when there is none.
func (p *path) step() bool {
	for i, q := range p.qp {
		for {
			token, ok := p.line[1-i].Pop(p.now)
			if !ok {
				break
			}
			p.pkt, _ = roce.Parse(p.store[1-i][token])
			q.HandlePacket(p.now, &p.pkt)
			if p.refs[1-i][token]--; p.refs[1-i][token] == 0 {
				p.free[1-i] = append(p.free[1-i], token)
			}
		}
	}
	next := roce.Never
	for i, q := range p.qp {
		p.batch.Reset()
		q.Poll(p.now, p.batch)
		for _, f := range p.batch.Frames() {
			p.offer(i, f)
		}
		next = min(next, q.NextDeadline())
	}
	next = min(next, p.line[0].Next(), p.line[1].Next())
	if next == roce.Never {
		return false
	}
	p.now = max(p.now, next)
	return true
}

// transfer posts messages of the given operations in turn at queue pair 0, keeping the queue full, until count are complete or the connection fails.
func (p *path) transfer(count, size int, ops ...Op) {
	posted := 0
	for steps := 0; len(p.done) < count; steps++ {
		for posted < count && p.qp[0].Post(p.now, ops[posted%len(ops)], size) {
			posted++
		}
		p.done = p.qp[0].Completions(p.done)
		if p.qp[0].Err() != "" || len(p.done) == count {
			return
		}
		if !p.step() && len(p.qp[0].ask.done) == 0 && p.qp[0].Err() == "" {
			p.t.Fatalf("nothing will ever happen: %d of %d messages complete, %+v", len(p.done), count, *p.qp[0].Stats())
		}
		if steps > 20_000_000 {
			p.t.Fatalf("no end: %d of %d messages complete, %+v", len(p.done), count, *p.qp[0].Stats())
		}
	}
}

// verify fails on anything that no path may cause.
func (p *path) verify(count, size int) {
	p.t.Helper()
	a, b := p.qp[0].Stats(), p.qp[1].Stats()
	if a.Requester.CorruptOctets+b.Responder.CorruptOctets > 0 || p.qp[0].Audit()+p.qp[1].Audit() > 0 || b.Responder.ProtocolErrors > 0 {
		p.t.Errorf("corrupt: requester %d, responder %d, audit %d %d, protocol errors %d, %s",
			a.Requester.CorruptOctets, b.Responder.CorruptOctets, p.qp[0].Audit(), p.qp[1].Audit(), b.Responder.ProtocolErrors, b.Responder.Fault)
	}
	if a.BadICRC+b.BadICRC+a.Strangers+b.Strangers > 0 {
		p.t.Errorf("bad ICRC %d %d, strangers %d %d", a.BadICRC, b.BadICRC, a.Strangers, b.Strangers)
	}
	if len(p.done) != count || b.Responder.Messages != uint64(count) {
		p.t.Errorf("%d messages complete at the requester, %d at the responder, want %d; error %q", len(p.done), b.Responder.Messages, count, p.qp[0].Err())
	}
	if got := a.Requester; got.AckedOctets != uint64(count*size) || got.CompletedOctets != got.AckedOctets {
		p.t.Errorf("%d octets acknowledged, %d completed, want %d", got.AckedOctets, got.CompletedOctets, count*size)
	}
	for i, c := range p.done {
		if c.Number != uint64(i) || c.Size != size || c.Completed <= c.Posted {
			p.t.Fatalf("completion %d: %+v", i, c)
		}
	}
}

// reseal makes the ICRC of a changed packet right.
func reseal(k *roce.Packet) {
	p := k.P()
	binary.LittleEndian.PutUint32(p[len(p)-icrcLen:], roce.ICRC(k.Head(), p))
}

func delayed(s wan.Settings) wan.Settings {
	s.Delay = wan.Duration(5 * time.Millisecond)
	return s
}

func TestEveryOperationOverACleanPath(t *testing.T) {
	for _, size := range []int{1, 3, 1023, 1024, 1025, 10_000, 64 << 10} {
		for _, ops := range [][]Op{{Write}, {Send}, {Read}, {Write, Read, Send}} {
			t.Run(fmt.Sprintf("%v %d", ops, size), func(t *testing.T) {
				p := newPath(t, config(), delayed(wan.Settings{}), delayed(wan.Settings{}))
				p.transfer(50, size, ops...)
				p.verify(50, size)
				s := p.qp[0].Stats().Requester
				if s.Retransmitted+s.NAKs+s.Implied+s.Timeouts != 0 || s.Sent != s.Needed {
					t.Errorf("retransmission on a clean path: %+v", s)
				}
				if r := p.qp[1].Stats().Responder; r.ResponsesSent != r.ResponsesNeeded {
					t.Errorf("%d responses sent, %d needed", r.ResponsesSent, r.ResponsesNeeded)
				}
			})
		}
	}
}

func TestIPv6(t *testing.T) {
	c := config()
	c.Local.Addr, c.Remote.Addr = netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::2")
	p := newPath(t, c, delayed(wan.Settings{Loss: 0.01, Seed: 1}), delayed(wan.Settings{}))
	p.watch = func(_ int, k *roce.Packet) bool {
		if !k.IPv6() || k.TOS() != c.TOS || k.UDPChecksum() != 0 {
			t.Fatalf("IPv6 %v TOS %#x", k.IPv6(), k.TOS())
		}
		return true
	}
	p.transfer(100, 20_000, Write, Read, Send)
	p.verify(100, 20_000)
}

// The path may lose, reorder, duplicate and mark: the price changes, the octets do not.
func TestNoPathMakesAWrongOctet(t *testing.T) {
	paths := map[string]wan.Settings{
		"loss 1%":     {Loss: 0.01},
		"loss 10%":    {Loss: 0.10},
		"bursts":      {BurstLoss: 0.02, BurstLength: 5},
		"reordering":  {Reorder: 0.02, ReorderDelay: wan.Duration(300 * time.Microsecond)},
		"duplicates":  {Duplicate: 0.05},
		"tail drop":   {Rate: 50_000_000, Queue: 100_000},
		"everything":  {Loss: 0.02, BurstLoss: 0.01, BurstLength: 3, Reorder: 0.02, ReorderDelay: wan.Duration(time.Millisecond), Duplicate: 0.05, CEProbability: 0.5, Rate: 100_000_000, Queue: 300_000},
		"late copies": {Duplicate: 0.3, Reorder: 0.3, ReorderDelay: wan.Duration(12 * time.Millisecond), Loss: 0.01},
	}
	for name, s := range paths {
		for _, ops := range [][]Op{{Write}, {Send}, {Read}, {Write, Read, Read, Send}} {
			for _, coalesce := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %v coalesce %v", name, ops, coalesce), func(t *testing.T) {
					c := config()
					c.Coalesce, c.Rate, c.Retries = coalesce, 200_000_000, -1
					c.Timeout = 30 * time.Millisecond
					to, back := delayed(s), delayed(s)
					to.Seed, back.Seed = 1, 2
					p := newPath(t, c, to, back)
					p.transfer(40, 30_000, ops...)
					p.verify(40, 30_000)
				})
			}
		}
	}
}

// Go-back-N sends about a window again for every loss: with W packets in flight and loss p the ratio of sent over needed is near 1 + p W at small p.
func TestGoBackNCostsAWindowPerLoss(t *testing.T) {
	const delay, rate = 5 * time.Millisecond, 500_000_000
	ratio := func(loss float64) float64 {
		c := config()
		c.Rate, c.Window, c.Depth = rate, 4096, 64
		p := newPath(t, c, wan.Settings{Delay: wan.Duration(delay), Loss: loss, Seed: 3}, wan.Settings{Delay: wan.Duration(delay)})
		p.transfer(2000, 64<<10, Write)
		p.verify(2000, 64<<10)
		s := p.qp[0].Stats().Requester
		if s.Sent != s.Needed+s.Retransmitted {
			t.Fatalf("sent %d, needed %d, retransmitted %d", s.Sent, s.Needed, s.Retransmitted)
		}
		return float64(s.Sent) / float64(s.Needed)
	}
	frame := 14 + 20 + 8 + 12 + 1024 + 4
	inFlight := float64(rate) / 8 / float64(frame) * (2 * delay).Seconds()
	for _, loss := range []float64{0.0001, 0.001} {
		got, want := ratio(loss), 1+loss*inFlight
		if got < 1+(want-1)*0.6 || got > 1+(want-1)*1.6 {
			t.Errorf("loss %v: sent over needed %.3f, expected about %.3f (%.0f packets in flight)", loss, got, want, inFlight)
		}
	}
	if low, high := ratio(0.001), ratio(0.01); high < low*1.5 {
		t.Errorf("sent over needed %.2f at 0.1 %%, %.2f at 1 %%", low, high)
	}
}

// One gap, one NAK: packets behind it are dropped without a word.
func TestOneNAKPerGap(t *testing.T) {
	p := newPath(t, config(), delayed(wan.Settings{}), delayed(wan.Settings{}))
	n := 0
	p.watch = func(from int, k *roce.Packet) bool {
		if from == 0 {
			n++
		}
		return from != 0 || n != 10 && n != 900
	}
	p.transfer(20, 64<<10, Write)
	p.verify(20, 64<<10)
	r, s := p.qp[1].Stats().Responder, p.qp[0].Stats().Requester
	if r.NAKsSent != 2 || s.NAKs != 2 || s.Timeouts != 0 || r.OutOfSequence < 100 {
		t.Errorf("%d NAKs sent, %d received, %d timeouts, %d out of sequence", r.NAKsSent, s.NAKs, s.Timeouts, r.OutOfSequence)
	}
}

// The retransmission that a NAK asked for is lost as well: no second NAK, the timer helps.
func TestLostRetransmissionNeedsTheTimer(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	victim, copies := c.Local.PSN.Add(10), 0
	p.watch = func(from int, k *roce.Packet) bool {
		if from == 0 && k.PSN() == victim {
			copies++
			return copies > 2
		}
		return true
	}
	p.transfer(4, 64<<10, Write)
	p.verify(4, 64<<10)
	s := p.qp[0].Stats().Requester
	if s.NAKs != 1 || s.Timeouts != 1 || p.now < c.Timeout {
		t.Errorf("%d NAKs, %d timeouts, done after %v", s.NAKs, s.Timeouts, p.now)
	}
}

func TestRetryLimitEndsTheConnection(t *testing.T) {
	c := config()
	c.Retries = 3
	p := newPath(t, c, delayed(wan.Settings{Loss: 1}), delayed(wan.Settings{}))
	p.transfer(1, 5000, Write)
	if p.qp[0].Err() == "" {
		t.Fatal("the connection survived a black hole")
	}
	s := p.qp[0].Stats().Requester
	if s.Timeouts != 4 || s.Retransmitted != 3*s.Needed {
		t.Errorf("%d timeouts, %d retransmitted of %d", s.Timeouts, s.Retransmitted, s.Needed)
	}
	if p.qp[0].Post(p.now, Write, 100) || p.qp[0].NextDeadline() != roce.Never {
		t.Error("a failed connection takes messages or wants to be polled")
	}
	if want := 4 * c.Timeout; p.now != want {
		t.Errorf("failed at %v, want %v", p.now, want)
	}
}

func TestRetriesBeginAnewAfterProgress(t *testing.T) {
	c := config()
	c.Retries = 3
	p := newPath(t, c, delayed(wan.Settings{Loss: 0.001, Seed: 8}), delayed(wan.Settings{}))
	p.transfer(100, 64<<10, Write)
	p.verify(100, 64<<10)
	if p.qp[0].Stats().Requester.NAKs < 3 {
		t.Error("too few losses to say anything")
	}
}

func TestPSNWraps(t *testing.T) {
	c := config()
	c.Local.PSN, c.Remote.PSN = 0xffff80, 0xfffffe
	for _, ops := range [][]Op{{Write}, {Read}, {Send, Read, Write}} {
		p := newPath(t, c, delayed(wan.Settings{Loss: 0.02, Seed: 5}), delayed(wan.Settings{Loss: 0.02, Seed: 6}))
		wrapped := [2]bool{}
		p.watch = func(from int, k *roce.Packet) bool {
			wrapped[from] = wrapped[from] || k.PSN() < 0x1000
			return true
		}
		p.transfer(60, 50_000, ops...)
		p.verify(60, 50_000)
		if !wrapped[0] || !wrapped[1] {
			t.Errorf("%v: PSN wrapped %v", ops, wrapped)
		}
	}
}

// A READ is resumed in its middle by a request on the PSN of the missing response, and the rest begins with MIDDLE (Soft-RoCE).
func TestReadResumesWithMiddle(t *testing.T) {
	c := config()
	c.Rate = 20_000_000 // 28 ms for the READ: it is resumed while its answer is still being sent
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	lost, resumed := c.Local.PSN.Add(12), false
	dropped, next := false, roce.PSN(0)
	var after []roce.Opcode
	p.watch = func(from int, k *roce.Packet) bool {
		switch {
		case from == 1 && k.PSN() == lost && !dropped:
			dropped = true
			return false
		case from == 1 && k.PSN() == lost && len(after) == 0:
			after = append(after, k.Opcode())
			next = lost.Add(1)
		case from == 1 && len(after) > 0:
			if k.PSN() != next {
				t.Errorf("after the resumption %v follows, want %v: the first answer should have ended", k.PSN(), next)
			}
			next = next.Add(1)
		case from == 0 && dropped && !resumed:
			address, _, length := reth(k)
			if k.Opcode() != roce.ReadRequest || k.PSN() != lost || length != 64<<10-12*1024 || address != 12*1024 {
				t.Errorf("resumed by %v %v, %d octets at %#x", k.Opcode(), k.PSN(), length, address)
			}
			resumed = true
		}
		return true
	}
	p.transfer(1, 64<<10, Read)
	p.verify(1, 64<<10)
	if !resumed || len(after) != 1 || after[0] != roce.ReadResponseMiddle {
		t.Errorf("resumed %v with %v", resumed, after)
	}
	if s := p.qp[0].Stats().Requester; s.Timeouts != 0 || s.Implied == 0 {
		t.Errorf("%d timeouts, %d implied NAKs", s.Timeouts, s.Implied)
	}
}

// A READ request of n packets takes n PSNs, of which only the first is ever seen in the request direction.
func TestReadRequestConsumesPSNs(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	want := c.Local.PSN
	p.watch = func(from int, k *roce.Packet) bool {
		if from == 0 {
			if k.PSN() != want {
				t.Fatalf("PSN %v, want %v", k.PSN(), want)
			}
			want = want.Add(roce.Advance(k, c.MTU))
		}
		return true
	}
	p.transfer(30, 10_000, Read, Write)
	p.verify(30, 10_000)
}

// Soft-RoCE asks for an ACK in every LAST, ONLY and READ request, and in one of 66 packets inside a long message.
func TestAckRequests(t *testing.T) {
	c := config()
	c.MaxMessage = 200 << 10
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	var asked []int
	n := 0
	p.watch = func(from int, k *roce.Packet) bool {
		if from == 0 {
			if k.AckReq() {
				asked = append(asked, n)
			}
			n++
		}
		return true
	}
	p.transfer(1, 200<<10, Write)
	if fmt.Sprint(asked) != "[65 131 197 199]" {
		t.Errorf("asked for ACKs in packets %v", asked)
	}
	if got := p.qp[1].Stats().Responder.AcksSent; got != 4 {
		t.Errorf("%d ACKs", got)
	}
}

// Like Soft-RoCE: +1 a packet with gaps, and another value when a PSN is sent again.
func TestIdentificationVaries(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{Loss: 0.01, Seed: 1}), delayed(wan.Settings{}))
	byPSN := map[roce.PSN]uint16{}
	var ones, gaps, same, last, again = 0, 0, 0, uint16(0), 0
	p.watch = func(from int, k *roce.Packet) bool {
		if from != 0 {
			return true
		}
		switch d := k.ID() - last; {
		case d == 1:
			ones++
		case d < 32:
			gaps++
		}
		last = k.ID()
		if id, ok := byPSN[k.PSN()]; ok {
			again++
			if id == k.ID() {
				same++
			}
		}
		byPSN[k.PSN()] = k.ID()
		return true
	}
	p.transfer(50, 64<<10, Write)
	if again == 0 || same > 0 || ones < 10*gaps || gaps == 0 {
		t.Errorf("%d retransmissions, %d with the same Identification; %d steps of one, %d gaps", again, same, ones, gaps)
	}
}

func TestWrongICRCIsDroppedSilently(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	n := 0
	p.watch = func(from int, k *roce.Packet) bool {
		if n++; from == 0 && n == 7 {
			k.Data()[5] ^= 1
		}
		return true
	}
	p.transfer(4, 64<<10, Write)
	if b := p.qp[1].Stats(); b.BadICRC != 1 || b.Responder.CorruptOctets != 0 || b.Responder.Messages != 4 {
		t.Errorf("%+v", b)
	}
}

// The oracle itself: a changed octet under a right ICRC, which is what a wrong restoration looks like, must be seen.
func TestAWrongOctetIsSeen(t *testing.T) {
	for _, op := range []Op{Write, Send, Read} {
		c := config()
		p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
		n := 0
		p.watch = func(from int, k *roce.Packet) bool {
			if d := k.Data(); len(d) > 100 {
				if n++; n == 7 || n == 8 {
					d[n*10] ^= 0x80
					reseal(k)
				}
			}
			return true
		}
		p.transfer(4, 64<<10, op)
		got := p.qp[0].Stats().Requester.CorruptOctets + p.qp[1].Stats().Responder.CorruptOctets
		messages := p.qp[0].Stats().Requester.CorruptMessages + p.qp[1].Stats().Responder.CorruptMessages
		if got != 2 || messages != 1 || p.qp[0].Audit()+p.qp[1].Audit() != 2 {
			t.Errorf("%v: %d octets in %d messages, audit %d", op, got, messages, p.qp[0].Audit()+p.qp[1].Audit())
		}
	}
}

// Another packet of the same connection under an expected PSN, as a wrong decode could deliver it, is corruption too.
func TestASwappedPacketIsSeen(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	var kept []byte
	n := 0
	p.watch = func(from int, k *roce.Packet) bool {
		if n++; from == 0 && n == 5 {
			kept = append([]byte{}, k.Data()...)
		}
		if from == 0 && n == 9 {
			copy(k.Data(), kept)
			reseal(k)
		}
		return true
	}
	p.transfer(1, 64<<10, Write)
	if got := p.qp[1].Stats().Responder.CorruptOctets; got < 1000 {
		t.Errorf("%d octets", got)
	}
}

// Every packet may come twice, and much later: nothing completes twice.
func TestDuplicatesNeverCompleteTwice(t *testing.T) {
	for _, ops := range [][]Op{{Write}, {Send}, {Read}, {Send, Read, Write}} {
		s := delayed(wan.Settings{Duplicate: 1, Seed: 1})
		p := newPath(t, config(), s, s)
		p.transfer(100, 20_000, ops...)
		p.verify(100, 20_000)
		for p.line[0].Len()+p.line[1].Len() > 0 {
			p.step()
		}
		if got := p.qp[1].Stats().Responder.Messages; got != 100 {
			t.Errorf("%v: %d messages", ops, got)
		}
	}
}

func TestBothDirectionsAtOnce(t *testing.T) {
	c := config()
	c.Rate = 100_000_000
	p := newPath(t, c, delayed(wan.Settings{Loss: 0.01, Seed: 1}), delayed(wan.Settings{Loss: 0.01, Seed: 2}))
	ops := []Op{Write, Read, Send}
	var done [2][]Completion
	posted := [2]int{}
	for len(done[0])+len(done[1]) < 200 {
		for i, q := range p.qp {
			for posted[i] < 100 && q.Post(p.now, ops[posted[i]%3], 30_000) {
				posted[i]++
			}
			done[i] = q.Completions(done[i])
			if q.Err() != "" {
				t.Fatal(q.Err())
			}
		}
		p.step()
	}
	for i, q := range p.qp {
		s := q.Stats()
		if s.Requester.CorruptOctets+s.Responder.CorruptOctets > 0 || q.Audit() > 0 || s.Responder.Messages != 100 || s.Responder.ProtocolErrors > 0 {
			t.Errorf("end %d: %+v", i, s)
		}
	}
}

func TestPacing(t *testing.T) {
	for _, op := range []Op{Write, Read} {
		c := config()
		c.Rate, c.Window, c.Depth = 80_000_000, 4096, 32
		p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
		p.transfer(300, 64<<10, op)
		bits := float64(p.qp[0].Stats().Requester.SentOctets+p.qp[1].Stats().Responder.ResponseOctets) * 8
		if rate := bits / p.now.Seconds(); rate < 0.95*80e6 || rate > 1.01*80e6 {
			t.Errorf("%v: %.1f Mbit/s", op, rate/1e6)
		}
	}
}

func TestWindowIsKept(t *testing.T) {
	c := config()
	c.Window = 100
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	most := uint64(0)
	p.watch = func(int, *roce.Packet) bool {
		most = max(most, p.qp[0].ask.next-p.qp[0].ask.una)
		return true
	}
	p.transfer(20, 64<<10, Write)
	if most != 100 {
		t.Errorf("%d packets in flight", most)
	}
}

func TestRefusesWhatNoPeerSends(t *testing.T) {
	for name, change := range map[string]func(k *roce.Packet){
		"address": func(k *roce.Packet) { k.P()[bthLen+7] ^= 8 },
		"key":     func(k *roce.Packet) { k.P()[bthLen+8] ^= 8 },
		"opcode":  func(k *roce.Packet) { k.P()[0] = byte(roce.SendMiddle) },
	} {
		c := config()
		p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
		p.watch = func(from int, k *roce.Packet) bool {
			if from == 0 {
				change(k)
				reseal(k)
			}
			return true
		}
		p.transfer(1, 500, Write)
		if p.qp[0].Err() == "" || p.qp[1].Stats().Responder.ProtocolErrors != 1 {
			t.Errorf("%s: error %q, %+v", name, p.qp[0].Err(), p.qp[1].Stats().Responder)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for i, change := range []func(*Config){
		func(c *Config) { c.MTU = 1500 }, func(c *Config) { c.MTU = 8192 }, func(c *Config) { c.Window = 0 },
		func(c *Config) { c.Remote.Addr = netip.MustParseAddr("fd00::1") }, func(c *Config) { c.Local.QPN = 1 },
		func(c *Config) { c.Depth = 0 }, func(c *Config) { c.Timeout = 0 }, func(c *Config) { c.MaxMessage = 0 },
	} {
		c := config()
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("change %d accepted", i)
		}
	}
}

func TestPattern(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	whole := make([]byte, 5000)
	Fill(whole, 7, 9, 0)
	for range 200 {
		from := r.IntN(600) * 8
		n := r.IntN(len(whole) - from)
		part := make([]byte, n)
		Fill(part, 7, 9, from)
		if string(part) != string(whole[from:from+n]) {
			t.Fatalf("octets %d to %d differ", from, from+n)
		}
		cut := append([]byte{}, whole[:n]...)
		want := 0
		for range r.IntN(5) {
			if n > 0 {
				cut[r.IntN(n)] ^= byte(1 << r.IntN(8))
			}
		}
		for i := range cut {
			if cut[i] != whole[i] {
				want++
			}
		}
		if got := Differing(cut, 7, 9); got != want {
			t.Fatalf("%d octets differ, %d found", want, got)
		}
	}
	for _, other := range [][2]uint64{{7, 10}, {8, 9}, {9, 7}} {
		if d := Differing(whole, other[0], other[1]); d < 4900 {
			t.Errorf("message %v differs in %d of 5000 octets", other, d)
		}
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	c := config()
	p := newPath(t, c, delayed(wan.Settings{}), delayed(wan.Settings{}))
	done := make([]Completion, 0, 100_000)
	ops, n := []Op{Write, Read, Send}, 0
	run := func() {
		for range 2000 {
			for p.qp[0].Post(p.now, ops[n%3], 20_000) {
				n++
			}
			done = p.qp[0].Completions(done[:0])
			p.step()
		}
	}
	run()
	run()
	if a := testing.AllocsPerRun(3, run); a != 0 {
		t.Errorf("%v allocations in 2000 steps", a)
	}
}

func BenchmarkWrite4096(b *testing.B) {
	c := config()
	c.MTU = 4096
	q, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	out := NewBatch(64, c.FrameSize())
	c.Window = 1 << 20
	q.cfg.Window = 1 << 20
	b.SetBytes(4096)
	for i := 0; i < b.N; i += len(out.Frames()) {
		out.Reset()
		for q.Post(0, Write, 64<<10) {
		}
		q.Poll(0, out)
		q.ask.acknowledge(1, q.ask.next)
		q.ask.done = q.ask.done[:0]
	}
}

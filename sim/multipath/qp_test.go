// SPDX-License-Identifier: Apache-2.0

package multipath

import (
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/rc"
)

var settings = roce.Transports{
	VeRoCE: roce.VeRoCESettings{Enabled: true, Port: 4795, Retransmission: 0x40, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0x1a},
	MRC:    roce.MRCSettings{Enabled: true, Retransmission: 0x10},
}

func config(t roce.Transport, ipv6 bool) Config {
	addr := [2]string{"10.1.0.2", "10.2.0.2"}
	if ipv6 {
		addr = [2]string{"fd00:1::2", "fd00:2::2"}
	}
	return Config{
		RC: rc.Config{
			Local:  rc.End{Addr: netip.MustParseAddr(addr[0]), QPN: 0x100, PSN: 0xffffc0}, // it wraps soon
			Remote: rc.End{Addr: netip.MustParseAddr(addr[1]), QPN: 0x200, PSN: 0x400000},
			MTU:    1024, TOS: 2, Window: 200, Rate: 100_000_000, Timeout: 67 * time.Millisecond, Retries: 7, Depth: 16, Reads: 8, MaxMessage: 20_000, Seed: 1,
		},
		Transport: t, Settings: &settings, Paths: 16, RTT: 10 * time.Millisecond,
	}
}

// kinds are the queue pairs that there are, by their name.
func kinds(ipv6 bool) map[string]Config {
	read := config(roce.VeRoCE, ipv6)
	read.Operation = rc.Read
	return map[string]Config{"veRoCE": config(roce.VeRoCE, ipv6), "MRC": config(roce.MRC, ipv6), "veRoCE, READ": read}
}

// pair is the two ends of a connection on a path of some delay that loses, doubles and reorders packets.
type pair struct {
	t    *testing.T
	ends [2]*QP
	rng  *rand.Rand
	loss float64
	now  time.Duration
	sky  flights
	seen map[uint16]int // source ports of data
	flag uint8          // bits of BTH octet 8 that were set beside AckReq
	hit  func(frame []byte)
}

type flight struct {
	at    time.Duration
	to    int
	frame []byte
}

type flights []flight

func (f flights) Len() int           { return len(f) }
func (f flights) Less(i, j int) bool { return f[i].at < f[j].at }
func (f flights) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)        { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

func newPair(t *testing.T, c Config, loss float64) *pair {
	t.Helper()
	p := &pair{t: t, rng: rand.New(rand.NewPCG(1, 2)), loss: loss, seen: map[uint16]int{}, hit: func([]byte) {}}
	other := c
	other.RC = c.RC.Reverse()
	for i, c := range []Config{c, other} {
		q, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		p.ends[i] = q
	}
	return p
}

// step goes on to the next event, false if there is none.
func (p *pair) step(batch *rc.Batch) bool {
	next := roce.Never
	if len(p.sky) > 0 {
		next = p.sky[0].at
	}
	for _, q := range p.ends {
		next = min(next, q.NextDeadline())
	}
	if next == roce.Never {
		return false
	}
	p.now = max(p.now, next)
	for len(p.sky) > 0 && p.sky[0].at <= p.now {
		f := heap.Pop(&p.sky).(flight)
		pkt, reason := settings.Parse(f.frame)
		if reason != roce.OK {
			p.t.Fatalf("a frame is refused: %v", reason)
		}
		p.ends[f.to].HandlePacket(p.now, &pkt)
	}
	for i, q := range p.ends {
		batch.Reset()
		q.Poll(p.now, batch)
		for _, frame := range batch.Frames() {
			p.leave(1-i, append([]byte(nil), frame...))
		}
	}
	return true
}

func (p *pair) leave(to int, frame []byte) {
	pkt, _ := settings.Parse(frame)
	if !roce.CheckICRC(&pkt) {
		p.t.Fatal("wrong ICRC")
	}
	if _, source := pkt.Source(); source {
		p.seen[pkt.SrcPort()]++
		p.flag |= pkt.Reserved()
		p.hit(frame)
	}
	copies := 1
	if p.rng.Float64() < p.loss/4 {
		copies = 2
	}
	for range copies {
		if p.rng.Float64() < p.loss {
			continue
		}
		delay := 5*time.Millisecond + time.Duration(p.rng.IntN(300))*time.Microsecond
		heap.Push(&p.sky, flight{p.now + delay, to, frame})
	}
}

// run transfers so many messages each way.
func (p *pair) run(messages int) {
	p.t.Helper()
	batch := rc.NewBatch(8, p.ends[0].cfg.FrameSize())
	posted, completed := [2]int{}, [2]int{}
	for range 2_000_000 {
		for i, q := range p.ends {
			for posted[i] < messages && q.Post(p.now, q.cfg.Operation, 1+p.rng.IntN(20_000)) {
				posted[i]++
			}
			completed[i] += len(q.Completions(nil))
			if q.Err() != "" {
				p.t.Fatal(q.Err())
			}
		}
		if !p.step(batch) {
			break
		}
	}
	for i, q := range p.ends {
		r := q.Stats().Responder
		if completed[i] != messages || q.Outstanding() != 0 || r.Messages != uint64(messages) {
			p.t.Errorf("end %d: %d messages completed, %d outstanding, %d arrived", i, completed[i], q.Outstanding(), r.Messages)
		}
	}
}

func (p *pair) corrupt() (n uint64) {
	for _, q := range p.ends {
		r := q.Stats().Responder
		ask := q.Stats().Requester
		n += ask.CorruptMessages + ask.CorruptOctets + r.CorruptMessages + r.CorruptOctets + r.ProtocolErrors + uint64(q.Audit()) + q.Stats().Strangers + q.Stats().BadICRC
	}
	return n
}

// Every message arrives whole over a path that loses, doubles and reorders, both ways at once; PSNs wrap; every path is used; the flag marks what is sent
// again, and nothing else.
func TestTransfer(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		for name, c := range kinds(ipv6) {
			for _, loss := range []float64{0, 0.03} {
				p := newPair(t, c, loss)
				p.run(200)
				if n := p.corrupt(); n > 0 {
					t.Errorf("%s, IPv6 %v, loss %v: %d corrupt", name, ipv6, loss, n)
				}
				if len(p.seen) != 16 {
					t.Errorf("%s: %d source ports", name, len(p.seen))
				}
				s, r := p.ends[0].Stats().Requester, p.ends[0].Stats().Responder
				repeated := s.Retransmitted + r.ResponsesSent - r.ResponsesNeeded
				flag := p.ends[0].retransmission()
				if again := p.flag != 0; again != (loss > 0) || p.flag&^flag != 0 || (repeated > 0) != (loss > 0) {
					t.Errorf("%s, loss %v: flags %#x, %d retransmissions", name, loss, p.flag, repeated)
				}
				if c.Operation == rc.Read && (s.Needed != 200 || r.Executed != 200 || r.Messages != 200 || s.Responses < r.ResponsesNeeded/2) {
					t.Errorf("%s, loss %v: requester %+v, responder %+v", name, loss, s, r)
				}
			}
		}
	}
}

// A wrong octet that an ICRC does not show is found when the message completes, and the audit finds it again.
func TestCorruptionIsFound(t *testing.T) {
	for name, c := range kinds(false) {
		p := newPair(t, c, 0)
		n := 0
		p.hit = func(frame []byte) {
			pkt, _ := settings.Parse(frame)
			if pkt.Opcode() == roce.ReadRequest {
				return
			}
			if n++; n == 100 {
				b := pkt.P()
				b[len(b)-icrcLen-8] ^= 1
				binary.LittleEndian.PutUint32(b[len(b)-icrcLen:], roce.ICRC(pkt.Head(), b))
			}
		}
		p.run(20)
		if p.corrupt() == 0 {
			t.Errorf("%s: a wrong octet was not found", name)
		}
	}
}

// What a receiver answers is what the sender reads, at every point of the number space.
func TestAnswersAreReadAsTheyWereWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, f := range []format{mrc{slot: 1000}, veroce{settings: &settings.VeRoCE, mtu: 1024}} {
		_, isMRC := f.(mrc)
		for range 10_000 {
			n := numbers{roce.PSN(rng.Uint32() & 0xffffff)}
			seq := rng.Uint64N(1 << 30)
			if rng.IntN(4) == 0 {
				seq = rng.Uint64N(3)
			}
			want := endpoint.Packet{Kind: endpoint.SACK, Seq: seq, Other: seq, Edge: seq + rng.Uint64N(200)}
			switch {
			case isMRC && rng.IntN(4) == 0:
				want = endpoint.Packet{Kind: endpoint.NACK, Seq: seq, Other: seq + 1, Reason: endpoint.Trimmed}
			case isMRC:
				want.Other, want.Range, want.Bits[0] = seq+rng.Uint64N(30_000), int32(rng.IntN(256))*rangeUnit, rng.Uint64()
			case rng.IntN(3) == 0:
				want = endpoint.Packet{Kind: endpoint.NACK, Seq: seq, Other: seq + 1, Reason: endpoint.Trimmed}
			case rng.IntN(2) == 0:
				want = endpoint.Packet{Kind: endpoint.Ack, Seq: seq, Other: seq}
			default:
				want.Bits = [2]uint64{rng.Uint64(), rng.Uint64()}
			}
			c := config(roce.VeRoCE, rng.IntN(2) == 0)
			if isMRC {
				c.Transport = roce.MRC
			}
			build := newBuilder(&c)
			of := roce.Request
			if !isMRC && rng.IntN(2) == 0 {
				of = roce.Response
			}
			op, at, ext := f.appendAnswer(nil, &want, of, n)
			frame, _ := build.frame(make([]byte, 0, 200), op, 0, n.psn(at), ext, 0)
			pkt, reason := settings.Parse(build.seal(frame))
			got, ok := f.answer(&pkt, n, seq+rng.Uint64N(1<<20))
			if reason != roce.OK || !ok || got != want || f.answers(op) != of {
				t.Fatalf("%T: %+v is read as %+v (%v, %v)", f, want, got, ok, reason)
			}
			// CREM reads the same cumulative PSN from it.
			if psn, space, acked := pkt.Acked(); want.Kind != endpoint.NACK && (!acked || space != of || psn != n.psn(want.Seq-1)) || want.Kind == endpoint.NACK && acked {
				t.Fatalf("%T: %+v confirms %v (%v)", f, want, psn, acked)
			}
		}
	}
}

// Configurations that can't be are refused.
func TestRefused(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"RoCEv2":             func(c *Config) { c.Transport = roce.RoCEv2 },
		"not enabled":        func(c *Config) { c.Settings = &roce.Transports{} },
		"no opcode of SACK":  func(c *Config) { s := settings; s.VeRoCE.SACK = 0; c.Settings = &s },
		"no path":            func(c *Config) { c.Paths = 0 },
		"no message":         func(c *Config) { c.RC.MaxMessage = 0 },
		"negative RTT":       func(c *Config) { c.RTT = -1 },
		"SEND":               func(c *Config) { c.Operation = rc.Send },
		"READ of MRC":        func(c *Config) { c.Transport, c.Operation = roce.MRC, rc.Read },
		"READ, no opcodes":   func(c *Config) { s := settings; s.VeRoCE.ResponseACK = 0; c.Settings, c.Operation = &s, rc.Read },
		"no READ at a time":  func(c *Config) { c.RC.Reads, c.Operation = 0, rc.Read },
		"window of a packet": func(c *Config) { c.RC.Window = 1 },
	} {
		c := config(roce.VeRoCE, false)
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	q, err := New(config(roce.MRC, false))
	if err != nil {
		t.Fatal(err)
	}
	if q.Post(0, rc.Read, 100) || q.Post(0, rc.Write, 20_001) {
		t.Error("a READ, or a message that is too large, is taken")
	}
}

// FuzzPackets: whatever P another end sends, with a right ICRC, an end neither crashes nor writes outside of its memory.
func FuzzPackets(f *testing.F) {
	names := [...]string{"veRoCE", "MRC", "veRoCE, READ"}
	for i, name := range names {
		c := kinds(false)[name]
		build, form, n := newBuilder(&c), c.format(), numbers{c.RC.Local.PSN}
		ext := form.appendPlace(nil, &place{size: 64, first: true})
		frame, _ := build.frame(make([]byte, 0, 300), form.opcode(true, true), ackRequest, c.RC.Local.PSN, ext, 64)
		f.Add(uint8(i), frame[len(build.model):])
		for _, a := range []endpoint.Packet{{Kind: endpoint.SACK, Seq: 3, Other: 5, Edge: 3, Bits: [2]uint64{5}}, {Kind: endpoint.NACK, Seq: 2, Other: 3}, {Kind: endpoint.Ack, Seq: 1}} {
			for _, of := range []roce.Space{roce.Request, roce.Response} {
				op, seq, ext := form.appendAnswer(nil, &a, of, n)
				frame, _ := build.frame(make([]byte, 0, 300), op, 0, n.psn(seq), ext, 0)
				f.Add(uint8(i), frame[len(build.model):])
			}
		}
		if v, ok := form.(veroce); ok {
			frame, _ := build.frame(make([]byte, 0, 300), roce.ReadRequest, ackRequest, c.RC.Local.PSN, v.appendRequest(nil, 0, 5000), 0)
			f.Add(uint8(i), frame[len(build.model):])
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, p []byte) {
		c := kinds(false)[names[int(kind)%len(names)]]
		c.RC = c.RC.Reverse() // its packets have the queue pair of the other end
		to, from := c, c
		from.RC = c.RC.Reverse()
		q, err := New(to)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			q.Post(0, c.Operation, 5000)
		}
		batch := rc.NewBatch(8, c.FrameSize())
		q.Poll(0, batch)
		build := newBuilder(&from)
		p = append([]byte(nil), p[:min(len(p), 1500)]...)
		if len(p) < bthLen+icrcLen {
			return
		}
		head := roce.BuildHead(make([]byte, 0, 100), build.model, len(p), 1, 0, false, nil)
		frame := append(head, p...)
		pkt, reason := settings.Parse(build.seal(frame))
		if reason != roce.OK {
			return
		}
		for range 4 {
			q.HandlePacket(0, &pkt)
			batch.Reset()
			q.Poll(time.Second, batch)
		}
		q.Stats()
		q.Audit()
	})
}

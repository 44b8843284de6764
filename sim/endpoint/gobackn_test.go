// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
	"crem.dev/crem/sim/world"
)

// trace is every packet that left, with its time: what two implementations of one transport must have in common.
type trace []string

func (t *trace) add(now time.Duration, format string, args ...any) {
	*t = append(*t, fmt.Sprintf("%v ", now)+fmt.Sprintf(format, args...))
}

// contest is one scenario for both.
type contest struct {
	link      world.Link
	window    int
	timeout   time.Duration
	retries   int
	messages  []int // octets
	atATime   int
	mtu       int
	seed      uint64
	wantError bool
	op        Operation
}

const contestUntil = 20 * time.Second

// machines runs the transport of this package.
func (c *contest) machines(t *testing.T) (out trace, done []time.Duration, err string) {
	forth, _ := world.NewPipe[Packet](c.link, c.seed)
	back, _ := world.NewPipe[Packet](c.link, c.seed+1)
	s, r, e := New(Config{Operation: c.op, Reads: 1, Window: c.window, Timeout: c.timeout, Retries: c.retries}, Path{MTU: c.mtu, RTT: 2 * c.link.Delay, Packet: 1})
	if e != nil {
		t.Fatal(e)
	}
	posted, poster := 0, PosterOf(s, r)
	for now := time.Duration(0); now < contestUntil && len(done) < len(c.messages) && poster.Err() == ""; {
		for posted-len(done) < c.atATime && posted < len(c.messages) {
			poster.Post(now, int64(c.messages[posted]))
			posted++
		}
		p, _, came := forth.Receive(now)
		if came {
			r.Handle(now, &p)
		} else if p, _, came = back.Receive(now); came {
			s.Handle(now, &p)
		}
		for _, x := range poster.Completed(nil) {
			done = append(done, x.Completed)
		}
		if came {
			continue
		}
		if r.NextDeadline() <= now && back.Free() <= now {
			if p, ok := r.Next(now); ok {
				switch p.Kind {
				case NAK:
					out.add(now, "NAK %d", p.Seq)
				case Request:
					out.add(now, "READ %d %d", p.Seq, p.Octets)
				default:
					out.add(now, "ACK %d", p.Seq-1)
				}
				back.Send(now, p, int(p.Octets), ecn.ECT0)
			}
		} else if s.NextDeadline() <= now && forth.Free() <= now {
			if p, ok := s.Next(now); ok {
				if p.Kind == NAK {
					out.add(now, "NAK %d", p.Seq)
				} else {
					out.add(now, "DATA %d %v %d", p.Seq, p.AckReq, p.Octets)
				}
				forth.Send(now, p, int(p.Octets), ecn.ECT0)
			}
		} else {
			now = min(forth.NextDeadline(), back.NextDeadline(), max(r.NextDeadline(), back.Free()), max(s.NextDeadline(), forth.Free()))
		}
	}
	return out, done, poster.Err()
}

// queuePairs runs that of sim/rc.
func (c *contest) queuePairs(t *testing.T) (out trace, done []time.Duration, err string) {
	const psn = 0xffff00
	most := 0
	for _, n := range c.messages {
		most = max(most, n)
	}
	cfg := rc.Config{
		Local: rc.End{Addr: netip.MustParseAddr("10.0.0.1"), QPN: 0x11, PSN: psn}, Remote: rc.End{Addr: netip.MustParseAddr("10.0.0.2"), QPN: 0x22, PSN: psn},
		MTU: c.mtu, TOS: 2, Window: c.window, Timeout: c.timeout, Retries: c.retries, Depth: c.atATime, Reads: 1, MaxMessage: most, Coalesce: true,
	}
	a, e := rc.New(cfg)
	if e != nil {
		t.Fatal(e)
	}
	b, _ := rc.New(cfg.Reverse())
	forth, _ := world.NewPipe[[]byte](c.link, c.seed)
	back, _ := world.NewPipe[[]byte](c.link, c.seed+1)
	sender, receiver := a, b // of data
	if c.op == Read {
		sender, receiver = b, a
	}
	batch := rc.NewBatch(1, cfg.FrameSize())
	posted := 0
	give := func(q *rc.QP, now time.Duration, frame []byte) {
		p, reason := roce.Parse(frame)
		if reason != roce.OK {
			t.Fatal(reason)
		}
		q.HandlePacket(now, &p)
	}
	poll := func(q *rc.QP, now time.Duration, pipe *world.Pipe[[]byte]) {
		batch.Reset()
		q.Poll(now, batch)
		for _, f := range batch.Frames() {
			p, _ := roce.Parse(f)
			seq := p.PSN().Sub(roce.PSN(psn))
			if syndrome, ok := p.Syndrome(); p.Opcode() == roce.ReadRequest {
				out.add(now, "READ %d %d", seq, len(f))
			} else if !ok || p.Opcode() != roce.Acknowledge {
				out.add(now, "DATA %d %v %d", seq, p.AckReq(), len(f))
			} else if kind, _ := roce.AckOf(syndrome); kind == roce.AckNAK {
				out.add(now, "NAK %d", seq)
			} else {
				out.add(now, "ACK %d", seq)
			}
			pipe.Send(now, append([]byte(nil), f...), len(f), ecn.ECT0)
		}
	}
	for now := time.Duration(0); now < contestUntil && len(done) < len(c.messages) && a.Err() == ""; {
		for posted-len(done) < c.atATime && posted < len(c.messages) {
			if !a.Post(now, map[Operation]rc.Op{Write: rc.Write, Send: rc.Send, Read: rc.Read}[c.op], c.messages[posted]) {
				t.Fatal("the queue pair takes no message")
			}
			posted++
		}
		f, _, came := forth.Receive(now)
		if came {
			give(receiver, now, f)
		} else if f, _, came = back.Receive(now); came {
			give(sender, now, f)
		}
		for _, x := range a.Completions(nil) {
			done = append(done, x.Completed)
		}
		if came {
			continue
		}
		if receiver.NextDeadline() <= now && back.Free() <= now {
			poll(receiver, now, back)
		} else if sender.NextDeadline() <= now && forth.Free() <= now {
			poll(sender, now, forth)
		} else {
			now = min(forth.NextDeadline(), back.NextDeadline(), max(receiver.NextDeadline(), back.Free()), max(sender.NextDeadline(), forth.Free()))
		}
	}
	if wrong := b.Audit(); wrong > 0 {
		t.Errorf("%d octets are wrong", wrong)
	}
	return out, done, a.Err()
}

// The go-back-N of this package and the queue pair of the lab send the same packets at the same times, whatever is lost, for WRITE, SEND and READ.
func TestGoBackNIsThatOfTheLab(t *testing.T) {
	link := func(rate int64, delay time.Duration, loss float64) world.Link {
		return world.Link{Rate: rate, Delay: delay, Loss: world.Loss{Rate: loss}}
	}
	burst := link(1e9, 5*time.Millisecond, 0.01)
	burst.Loss.Burst = 4
	mixed := link(1e9, time.Millisecond, 0.005)
	mixed.Reorder = world.Reorder{Share: 0.01, By: time.Millisecond}
	many := []int{1, 4096, 5000, 40000, 1023, 1 << 20, 3, 300000, 64, 64, 64}
	for name, c := range map[string]contest{
		"no loss":         {link: link(1e9, 5*time.Millisecond, 0), window: 512},
		"little loss":     {link: link(1e9, 5*time.Millisecond, 1e-3), window: 512},
		"much loss":       {link: link(1e9, 5*time.Millisecond, 0.03), window: 512},
		"small window":    {link: link(1e9, 5*time.Millisecond, 0.02), window: 2},
		"window of 16":    {link: link(1e9, 5*time.Millisecond, 0.05), window: 16},
		"bursts":          {link: burst, window: 512},
		"reordering":      {link: mixed, window: 512},
		"one at a time":   {link: link(1e8, time.Millisecond, 0.02), window: 512, atATime: 1},
		"short timeout":   {link: link(1e8, 5*time.Millisecond, 0.01), window: 64, timeout: 8 * time.Millisecond, retries: -1},
		"retries run out": {link: link(1e8, 5*time.Millisecond, 0.6), window: 64, retries: 1, wantError: true},
	} {
		t.Run(name, func(t *testing.T) {
			c.messages, c.mtu = many, 1024
			if c.atATime == 0 {
				c.atATime = 4
			}
			if c.timeout == 0 {
				c.timeout = 67 * time.Millisecond
			}
			if c.retries == 0 {
				c.retries = 7
			}
			for run := range 18 {
				c.seed, c.op = uint64(1+run/3), Operation(run%3)
				a, aDone, aErr := c.machines(t)
				b, bDone, bErr := c.queuePairs(t)
				for i := range min(len(a), len(b)) {
					if a[i] != b[i] {
						t.Fatalf("%v, seed %d, packet %d: %s, the lab's: %s", c.op, c.seed, i, a[i], b[i])
					}
				}
				if len(a) != len(b) || fmt.Sprint(aDone) != fmt.Sprint(bDone) || aErr != bErr {
					t.Fatalf("%v, seed %d: %d packets, done %v, %q; the lab's: %d packets, %v, %q", c.op, c.seed, len(a), aDone, aErr, len(b), bDone, bErr)
				}
				if (aErr != "") != c.wantError || !c.wantError && len(aDone) != len(many) {
					t.Fatalf("%v, seed %d: %d of %d messages, %q", c.op, c.seed, len(aDone), len(many), aErr)
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/wan"
)

const (
	pairRTT  = 20 * time.Millisecond
	pairGap  = 4 * time.Microsecond // between two packets of a flow: 5,000 in a round trip
	pairData = 256                  // octets of a packet: what is measured counts packets
	pairQPN  = 0x1000
	cremPort = 52000
	msgLen   = 256 // packets of a message
	never    = roce.Never
)

var (
	east    = netip.MustParseAddr("10.1.0.1")
	west    = netip.MustParseAddr("10.2.0.1")
	gateway = netip.MustParseAddrPort("198.51.100.1:52000")
)

// pair is two sites, each with the real machine of its role, and the seeded path between them, under virtual time. What RDMA does is
// reduced to what the path sees of it: streams of numbered packets, and the repetition of what did not arrive.
type pair struct {
	t     testing.TB
	now   time.Duration
	there *wan.Line // data and REPAIR
	back  *wan.Line // acknowledgements and messages of the CRF
	side  *wan.Line // REPAIR alone, if it takes another path
	csfs  *csf.Env
	crfs  *crf.Env
	flows []*stream
	rival *rival
	mute  bool    // no CREM message leaves: no flow is protected
	queue float64 // share of the packets that the sender's own queue drops before its CSF sees them
	cargo []cargo // what is on the lines, by token
	spare []uint32
	rng   *rand.Rand
	calls int
}

// cargo is a frame on a line.
type cargo struct {
	flow  *stream
	frame []byte
	ack   int  // packets that an acknowledgement covers, of a frame that is one
	back  bool // from the CRF
}

// newPair makes a pair of sites with the settings of the path there; the way back is as long and loses nothing.
func newPair(t testing.TB, path wan.Settings) *pair {
	if testing.Short() {
		t.Skip("left out with -short: seconds of traffic in virtual time, which take minutes under the race detector")
	}
	p := &pair{t: t, now: 1000 * time.Second, rng: rand.New(rand.NewPCG(path.Seed, 11))}
	p.there = p.line(path)
	p.back = p.line(wan.Settings{Seed: path.Seed + 1})
	p.csfs = &csf.Env{Pool: fec.NewPool(256 << 20), Random: p.rng.Uint64}
	p.crfs = crf.NewEnv(fec.NewPool(256 << 20))
	return p
}

// line makes a direction of half a round trip.
func (p *pair) line(s wan.Settings) *wan.Line {
	p.t.Helper()
	s.Delay, s.CREMPort = wan.Duration(pairRTT/2), cremPort
	l, err := wan.NewLine(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// setPath changes the settings of the path there; what is under way stays as it is due.
func (p *pair) setPath(s wan.Settings) {
	p.t.Helper()
	s.Delay, s.CREMPort = wan.Duration(pairRTT/2), cremPort
	s.Seed = p.rng.Uint64()
	if err := p.there.Configure(s); err != nil {
		p.t.Fatal(err)
	}
}

// lose makes the path there lose packets independently.
func (p *pair) lose(rate float64) { p.setPath(wan.Settings{Loss: rate}) }

// profile is the parameters that CREMProfile has by default.
func profile() *csf.Params {
	return &csf.Params{
		K: 32, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 0.25, Spread: true, Digest: true, PathMTU: 1500,
		FixedM: -1, PeerSite: "west",
	}
}

// fixed is a code of m symbols for every block, whatever is lost.
func fixedCode(m int) *csf.Params {
	p := profile()
	p.FixedM, p.MaxRepairRatio = m, 1
	return p
}

// stream is one flow: a packet every gap, in messages of msgLen packets.
type stream struct {
	p *pair
	machines
	label    uint32
	gap      time.Duration
	next     time.Duration // of the next packet; never: the flow is silent
	sent     int           // packets
	first    time.Duration // the first one left
	pending  []bool        // packets that did not arrive yet, from base on
	base     int           // all before have arrived
	repeated time.Duration // when the packet base was last sent again
	acked    int
	finished []time.Duration // completion times of messages
	frame    []byte
	fates    []fate // of its packets, if anybody asks
}

// open adds a flow that begins to send now, a packet every gap.
func (p *pair) open(params *csf.Params, gap time.Duration) *stream {
	f := &stream{p: p, label: pairQPN + uint32(len(p.flows)), gap: gap, next: p.now, first: p.now}
	d := wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: east, Dst: west, Label: f.label}
	f.csf = csf.New(p.now, d, []netip.AddrPort{gateway}, params, p.csfs)
	f.frame = frames.RoCE{
		Headers: frames.Headers{Src: east, Dst: west, SrcPort: 50000, TOS: 0x6a, ID: 7},
		Opcode:  roce.SendMiddle, QPN: f.label, Data: make([]byte, pairData),
	}.Frame()
	p.flows = append(p.flows, f)
	return f
}

// established adds a flow and waits until it is protected, with as little traffic as that takes.
func (p *pair) established(params *csf.Params, gap time.Duration) *stream {
	p.t.Helper()
	f := p.open(params, pairRTT/4)
	for range 100 {
		if f.csf.State() == csf.Protecting {
			f.gap, f.next = gap, p.now
			return f
		}
		p.run(pairRTT)
	}
	p.t.Fatalf("not protected: %s", f.csf.Explain())
	return nil
}

// run lets time pass.
func (p *pair) run(d time.Duration) {
	p.t.Helper()
	for end := p.now + d; ; {
		at := p.due()
		if at > end {
			p.now = end
			return
		}
		p.now = max(p.now, at)
		p.step()
		if p.calls++; p.calls%256 == 0 {
			p.csfs.Pool.Reclaim()
			p.crfs.Pool.Reclaim()
		}
	}
}

// runUntil lets time pass until something holds, at most a while, and returns how long that took.
func (p *pair) runUntil(most time.Duration, holds func() bool) time.Duration {
	p.t.Helper()
	for from := p.now; ; p.run(pairRTT / 16) {
		if holds() || p.now-from > most {
			return p.now - from
		}
	}
}

// due is when the next thing happens.
func (p *pair) due() time.Duration {
	at := min(p.there.Next(), p.back.Next())
	if p.side != nil {
		at = min(at, p.side.Next())
	}
	if p.rival != nil {
		at = min(at, p.rival.next)
	}
	for _, f := range p.flows {
		at = min(at, f.next, f.csf.NextDeadline())
		if f.crf != nil {
			at = min(at, f.crf.NextDeadline())
		}
	}
	return at
}

// step does what is due now.
func (p *pair) step() {
	for _, l := range []*wan.Line{p.there, p.side, p.back} {
		if l == nil {
			continue
		}
		for {
			token, ok := l.Pop(p.now)
			if !ok {
				break
			}
			p.arrive(token)
		}
	}
	if p.rival != nil && p.rival.next <= p.now {
		p.rival.send(p)
	}
	for _, f := range p.flows {
		if f.csf.NextDeadline() <= p.now {
			f.csf.Poll(p.now, &f.acts)
			p.act(f)
		}
		if f.crf != nil && f.crf.NextDeadline() <= p.now {
			f.crf.Poll(p.now, &f.does)
			p.act(f)
		}
		if f.next <= p.now {
			f.transmit()
		}
	}
}

// offer puts a frame on a line. It is false if the frame is lost.
func (p *pair) offer(l *wan.Line, c cargo) bool {
	var token uint32
	if n := len(p.spare); n > 0 {
		token, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		token = uint32(len(p.cargo))
		p.cargo = append(p.cargo, cargo{})
	}
	kept := append(p.cargo[token].frame[:0], c.frame...)
	c.frame = kept
	p.cargo[token] = c
	if l.Offer(p.now, token, c.frame) == 0 {
		p.spare = append(p.spare, token)
		return false
	}
	return true
}

// transmit sends the flow's next packet, and the oldest that did not arrive again when it is overdue, as a transport does.
func (f *stream) transmit() {
	if len(f.pending) > 0 && f.overdue() {
		f.repeated = f.p.now
		f.put(f.base)
	}
	f.pending = append(f.pending, true)
	f.put(f.sent)
	f.sent++
	f.next = f.p.now + f.gap
}

// overdue reports whether the oldest packet that did not arrive must be sent again: the transport waits for four round trips.
func (f *stream) overdue() bool {
	const timeout = 4 * pairRTT
	return f.p.now-max(f.sentAt(f.base), f.repeated) > timeout && f.p.now-f.sentAt(f.base) > timeout
}

// sentAt is when a packet first left, at the present pace.
func (f *stream) sentAt(n int) time.Duration { return f.p.now - time.Duration(f.sent-n)*f.gap }

// put lets a packet leave.
func (f *stream) put(n int) {
	psn := roce.PSN(0).Add(n)
	binary.BigEndian.PutUint32(f.frame[42+8:], uint32(psn))
	f.frame[42] = byte(roce.SendMiddle)
	switch n % msgLen {
	case 0:
		f.frame[42] = byte(roce.SendFirst)
	case msgLen - 1:
		f.frame[42] = byte(roce.SendLast)
		f.frame[42+8] = 0x80 // it asks for an acknowledgement
	}
	P := f.frame[42:]
	binary.LittleEndian.PutUint32(P[len(P)-4:], roce.ICRC(f.frame[:42], P))
	pkt, _ := roce.Parse(f.frame)
	if f.p.rng.Float64() < f.p.queue {
		return
	}
	f.csf.HandleSource(f.p.now, &pkt, &f.acts)
	arrives := f.p.offer(f.p.there, cargo{flow: f, frame: f.frame})
	if f.fates != nil {
		f.fates = append(f.fates, fate{due: f.p.now + pairRTT/2, lost: !arrives})
	}
	f.p.act(f)
}

// act does what a flow's machines want done.
func (p *pair) act(f *stream) {
	for _, a := range f.acts {
		if p.mute {
			break
		}
		line := p.there
		if h, _ := wire.ParseHeader(a.Msg); p.side != nil && h.Type == wire.TypeRepair {
			line = p.side
		}
		p.offer(line, cargo{flow: f, frame: datagram(a.Msg, a.TOS)})
	}
	f.acts = f.acts[:0]
	for _, a := range f.does {
		if a.Kind == crf.Send {
			p.offer(p.back, cargo{flow: f, frame: datagram(a.Msg, a.TOS), back: true})
			continue
		}
		f.deliver(roce.PSN(binary.BigEndian.Uint32(a.Payload[8:]) & 0xffffff))
	}
	f.does = f.does[:0]
}

// datagram is a CREM message as a frame.
func datagram(msg []byte, tos uint8) []byte {
	return frames.Headers{Src: east, Dst: west, SrcPort: cremPort, DstPort: cremPort, TOS: tos}.Frame(msg)
}

// arrive takes a frame off a line.
func (p *pair) arrive(token uint32) {
	c := p.cargo[token]
	defer func() { p.spare = append(p.spare, token) }()
	f := c.flow
	switch {
	case f == nil: // of the rival
		p.rival.arrived++
	case c.ack > 0:
		f.csf.HandleAck(p.now, roce.PSN(0).Add(c.ack-1))
	case wan.Classify(c.frame, cremPort) == wan.RoCEData:
		pkt, _ := roce.Parse(c.frame)
		if f.crf != nil {
			f.crf.HandleSource(p.now, &pkt, false, &f.does)
		}
		f.deliver(pkt.PSN())
	default:
		f.message(p.t, p.now, c.frame[42:], c.back, c.frame[15]&3 == 3, p.accept)
	}
	if f != nil {
		p.act(f)
	}
}

// deliver gives a packet to the receiver. An acknowledgement goes back for every message that is complete with all before it.
func (f *stream) deliver(psn roce.PSN) {
	n := f.base + psn.Sub(roce.PSN(0).Add(f.base))
	if n < f.base || !f.pending[n-f.base] {
		return
	}
	f.pending[n-f.base] = false
	for len(f.pending) > 0 && !f.pending[0] {
		f.pending = f.pending[1:]
		if f.base++; f.base%msgLen == 0 {
			f.finished = append(f.finished, f.p.now-f.sentAt(f.base-msgLen))
		}
	}
	if done := f.base / msgLen * msgLen; done > f.acked {
		f.acked = done
		f.p.offer(f.p.back, cargo{flow: f, frame: datagram(nil, 0), ack: done})
	}
}

// accept makes the CRF that a HELLO asks for.
func (p *pair) accept(h *wire.Hello) *crf.Flow {
	params := crf.Params{
		Delivery: crf.Immediate, HoldBytes: 64 << 20, MaxOpenBlocks: 1024, MaxK: 255, MaxM: 255, MaxT: 9000, Schemes: 7, Digest: true,
	}
	return crf.New(p.now, p.rng.Uint32()|1, h, gateway, netip.Addr{}, &params, p.crfs)
}

// rival is traffic of others on the path there: frames of a size at a mean rate, at random times, since packets that keep step with the flow's meet a
// full queue always or never.
type rival struct {
	gap           time.Duration
	next          time.Duration
	frame         []byte
	rng           *rand.Rand
	sent, arrived int
}

func (r *rival) send(p *pair) {
	r.sent++
	r.next = p.now + time.Duration(r.rng.ExpFloat64()*float64(r.gap))
	p.offer(p.there, cargo{frame: r.frame})
}

// tally is what a flow did in a while.
type tally struct{ source, repair, blocks, ordinary, requests, incomplete, restored float64 }

func (f *stream) tally() tally {
	s := f.csf.Stats()
	var blocks uint64
	for _, n := range s.BlocksClosed {
		blocks += n
	}
	return tally{
		source: float64(s.SourceOctets), repair: float64(s.RepairOctets), blocks: float64(blocks), ordinary: float64(s.Ordinary),
		requests: float64(s.Requests), incomplete: float64(s.Incomplete), restored: float64(s.Restored),
	}
}

// during is what a flow did while time passed.
func (f *stream) during(d time.Duration) tally {
	f.p.t.Helper()
	a := f.tally()
	f.p.run(d)
	return f.tally().since(a)
}

// since is what was added to an earlier tally.
func (b tally) since(a tally) tally {
	return tally{b.source - a.source, b.repair - a.repair, b.blocks - a.blocks, b.ordinary - a.ordinary, b.requests - a.requests,
		b.incomplete - a.incomplete, b.restored - a.restored}
}

// p99 is the 99th percentile of the completion times, the message of that rank.
func p99(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(math.Ceil(0.99*float64(len(sorted)))), len(sorted))-1]
}

// SPDX-License-Identifier: Apache-2.0

package csf_test

import (
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
)

// Both real machines of a flow of a multipath transport, with a naive oracle: whatever is lost, overtaken, repeated with or without the flag, or damaged on the
// way, everything that comes out of the receiver has left the sender octet for octet.

// paths is such a flow, and the way between its ends.
type paths struct {
	machines
	t        *testing.T
	rng      *rand.Rand
	now      time.Duration
	rules    *roce.Transports
	d        wire.FlowDescriptor
	csfs     *csf.Env
	crfs     *crf.Env
	flying   []flight
	left     map[string]bool // frames that left the sender
	flag     uint8           // that retransmissions have; 0: the transport sets none, or its bit is not known
	skew     time.Duration   // how much longer than half a round trip a packet takes at most
	fabric   int             // by how many others a packet is overtaken before the CSF, at most
	loss     float64
	next     int
	sent     []int // PSNs that may come again
	restored int
}

type flight struct {
	at    time.Duration
	frame []byte // of the flow, or nil
	msg   []byte // of CREM
	back  bool
}

func newPaths(t *testing.T, kind wire.FlowKind, v6 bool, seed uint64) *paths {
	p := &paths{t: t, rng: rand.New(rand.NewPCG(seed, 5)), now: 1000 * time.Second, left: map[string]bool{}}
	p.d = wire.FlowDescriptor{Kind: kind, Src: east, Dst: west, Label: pairQPN}
	if v6 {
		p.d.Src, p.d.Dst = netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:2::1")
	}
	p.rules = &roce.Transports{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort}, MRC: roce.MRCSettings{Enabled: true}}
	p.loss, p.skew = 0.05*p.rng.Float64(), time.Duration(p.rng.IntN(2000))*time.Microsecond
	p.fabric = max(p.rng.IntN(40)-10, 0)
	if p.rng.IntN(3) > 0 {
		p.flag = 1 << p.rng.IntN(7)
		if p.rng.IntN(4) > 0 { // else the settings don't know it
			p.rules.VeRoCE.Retransmission, p.rules.MRC.Retransmission = p.flag, p.flag
		}
	}
	p.csfs = &csf.Env{Pool: fec.NewPool(64 << 20), Random: p.rng.Uint64}
	p.crfs = crf.NewEnv(fec.NewPool(64 << 20))
	params := profile()
	params.K, params.Digest = 8, false
	p.csf = csf.New(p.now, p.d, []netip.AddrPort{gateway}, params, p.csfs)
	return p
}

// frame makes a copy of a packet: on a path of its own, with the flag if it is sent again.
func (p *paths) frame(psn int, again bool) []byte {
	r := frames.RoCE{
		Headers: frames.Headers{Src: p.d.Src, Dst: p.d.Dst, SrcPort: uint16(p.rng.Uint32()) | 0x8000, FlowLabel: p.rng.Uint32() & 0xfffff,
			ID: uint16(p.rng.Uint32()), TOS: 0x6a, Checksum: true},
		QPN: pairQPN, PSN: uint32(psn) & 0xffffff, Extension: make([]byte, 20+psn%2*4),
	}
	data := rand.New(rand.NewPCG(uint64(psn), 1)) // the same in every copy
	r.Data = make([]byte, 64+data.IntN(64)*4)
	for i := range r.Data {
		r.Data[i] = byte(data.Uint32())
	}
	switch p.d.Kind {
	case wire.KindMRC:
		r.Opcode = roce.MRCWriteOnly
	case wire.KindVeRoCEResponse:
		r.Opcode = roce.ReadResponseOnly
	default:
		r.Opcode = roce.SendOnly
	}
	if p.d.Kind != wire.KindMRC {
		r.DstPort = roce.VeRoCEPort
	}
	if again {
		r.Flags = p.flag
	}
	return r.Frame()
}

// leave lets a frame leave the sender, and on the way be lost, late, or damaged.
func (p *paths) leave(frame []byte) {
	p.left[string(frame)] = true
	pkt, reason := p.rules.Parse(frame)
	if reason != roce.OK {
		p.t.Fatal(reason)
	}
	p.csf.HandleSource(p.now, &pkt, &p.acts)
	p.act()
	if p.rng.Float64() < p.loss {
		return
	}
	frame = slices.Clone(frame)
	if p.rng.IntN(500) == 0 {
		frame[len(frame)-1-p.rng.IntN(60)] ^= 1
	}
	p.flying = append(p.flying, flight{at: p.now + pairRTT/2 + time.Duration(p.rng.Int64N(int64(p.skew)+1)), frame: frame})
}

func (p *paths) act() {
	for _, a := range p.acts {
		if p.rng.Float64() >= p.loss {
			p.flying = append(p.flying, flight{at: p.now + pairRTT/2, msg: slices.Clone(a.Msg)})
		}
	}
	p.acts = p.acts[:0]
	for _, a := range p.does {
		if a.Kind == crf.Send {
			if p.rng.Float64() >= p.loss {
				p.flying = append(p.flying, flight{at: p.now + pairRTT/2, msg: slices.Clone(a.Msg), back: true})
			}
			continue
		}
		if frame := string(a.Head) + string(a.Payload); !p.left[frame] {
			p.t.Fatalf("%v came out with octets that never left: %x", p.d.Kind, frame)
		}
		p.restored++
	}
	p.does = p.does[:0]
	p.csfs.Pool.Reclaim()
	p.crfs.Pool.Reclaim()
}

// until lets time pass.
func (p *paths) until(end time.Duration) {
	for {
		due, at := -1, min(end, p.csf.NextDeadline())
		if p.crf != nil {
			at = min(at, p.crf.NextDeadline())
		}
		for i := range p.flying {
			if p.flying[i].at <= at {
				due, at = i, p.flying[i].at
			}
		}
		p.now = max(p.now, at)
		switch {
		case due >= 0:
			f := p.flying[due]
			p.flying = append(p.flying[:due], p.flying[due+1:]...)
			p.arrive(&f)
		case p.csf.NextDeadline() <= p.now:
			p.csf.Poll(p.now, &p.acts)
		case p.crf != nil && p.crf.NextDeadline() <= p.now:
			p.crf.Poll(p.now, &p.does)
		default:
			return
		}
		p.act()
	}
}

func (p *paths) arrive(f *flight) {
	if f.frame != nil {
		if pkt, reason := p.rules.Parse(f.frame); p.crf != nil && reason == roce.OK {
			p.crf.HandleSource(p.now, &pkt, false, &p.does)
		}
		return
	}
	p.message(p.t, p.now, f.msg, f.back, false, p.accept)
}

// accept makes the CRF that a HELLO asks for.
func (p *paths) accept(h *wire.Hello) *crf.Flow {
	params := crf.Params{HoldBytes: 8 << 20, MaxOpenBlocks: 64, MaxK: 255, MaxM: 255, MaxT: 9000, Schemes: 7}
	return crf.New(p.now, p.rng.Uint32()|1, h, gateway, netip.Addr{}, &params, p.crfs)
}

// burst is the next n PSNs in the order in which they come out of the fabric.
func (p *paths) burst(n int) []int {
	at, psns := map[int]int{}, make([]int, n)
	for i := range psns {
		psns[i] = p.next + i
		at[psns[i]] = i + p.rng.IntN(p.fabric+1)
	}
	p.next += n
	slices.SortStableFunc(psns, func(a, b int) int { return at[a] - at[b] })
	return psns
}

// do does one operation: a burst of new packets, packets again, an acknowledgement, or time.
func (p *paths) do(op, n int) {
	switch op % 4 {
	case 0, 1:
		for _, psn := range p.burst(1 + n%24) {
			p.leave(p.frame(psn, false))
			p.sent = append(p.sent, psn)
			p.until(p.now + 20*time.Microsecond)
		}
	case 2:
		for range 1 + n%3 {
			if len(p.sent) > 0 {
				p.leave(p.frame(p.sent[max(len(p.sent)-1-n*3, 0)], n%8 > 0)) // now and then the sender forgets the flag
			}
		}
	case 3:
		if n%16 == 0 && p.next > 100 {
			p.csf.HandleAck(p.now, roce.PSN(p.next-100))
		}
		p.until(p.now + time.Duration(n)*200*time.Microsecond)
	}
}

func (p *paths) run(ops []byte) {
	for i := 0; i+1 < len(ops); i += 2 {
		p.do(int(ops[i]), int(ops[i+1]))
	}
	p.until(p.now + 2*time.Second)
	p.csf.Close(p.now, wire.CloseUnspecified, &p.acts)
	if p.crf != nil {
		p.crf.Close(p.now, wire.CloseUnspecified, &p.does)
	}
	p.act()
	if a, b := p.csfs.Pool.InUse(), p.crfs.Pool.InUse(); a != 0 || b != 0 {
		p.t.Fatalf("%d and %d octets left", a, b)
	}
}

func runPaths(t *testing.T, seed uint64, ops []byte) *paths {
	kind := []wire.FlowKind{wire.KindVeRoCE, wire.KindVeRoCEResponse, wire.KindMRC}[seed%3]
	p := newPaths(t, kind, seed/3%2 == 1, seed)
	p.run(ops)
	return p
}

func FuzzMultipath(f *testing.F) {
	for seed := range uint64(6) {
		f.Add(seed, []byte{0, 3, 3, 120, 0, 3, 3, 120, 0, 23, 1, 23, 2, 4, 3, 200, 1, 23, 2, 9, 3, 100})
	}
	f.Fuzz(func(t *testing.T, seed uint64, ops []byte) {
		if len(ops) > 300 {
			ops = ops[:300]
		}
		runPaths(t, seed, ops)
	})
}

// Section 4.4, rule 3: the same with random lists in every test run.
func TestSection4_4_MultipathPair(t *testing.T) {
	n := 120
	if testing.Short() {
		n = 24
	}
	restored := map[wire.FlowKind]int{}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 3))
		ops := []byte{0, 3, 3, 120, 0, 3, 3, 120}
		for range 60 {
			ops = append(ops, byte(r.Uint32()), byte(r.Uint32()))
		}
		p := runPaths(t, seed, ops)
		restored[p.d.Kind] += p.restored
	}
	t.Logf("restored %v", restored)
	for _, kind := range []wire.FlowKind{wire.KindVeRoCE, wire.KindVeRoCEResponse, wire.KindMRC} {
		if restored[kind] < n {
			t.Errorf("%v: only %d packets restored: the test tests nothing", kind, restored[kind])
		}
	}
}

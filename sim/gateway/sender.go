// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/sim/endpoint"
)

// Sender is the gateway that packets leave by.
type Sender struct {
	scale Scale
	frame framer
	env   csf.Env
	flow  *csf.Flow
	acts  []csf.Action
	bufs  *Buffers
	high  uint64 // never sent so far
	stats SenderStats
}

// SenderStats are totals in octets of UDP payloads that packets stand for.
type SenderStats struct {
	SourceOctets uint64 // of packets that carried a new PSN
	RepairOctets uint64 // of all REPAIRs with a symbol
	Peak         int64  // the most memory in use
}

// NewSender returns the gateway. memory bounds the octets of symbols; 0: no bound.
func NewSender(p *csf.Params, s Scale, op endpoint.Operation, memory int64, seed uint64, bufs *Buffers) *Sender {
	const stream = 0x637366
	rng := rand.New(rand.NewPCG(seed, stream))
	g := &Sender{scale: s, frame: newFramer(s.Data, op), bufs: bufs}
	g.env.Pool = newPool(s, memory)
	g.env.Random = rng.Uint64
	g.flow = csf.New(0, descriptor, []netip.AddrPort{far}, s.send(p), &g.env)
	return g
}

const noBound = 1 << 40

func newPool(s Scale, memory int64) *fec.Pool {
	if memory <= 0 {
		return fec.NewPool(noBound)
	}
	return fec.NewPool(s.cells(memory))
}

// Leave takes a packet that leaves now. Its frame's Identification and CRC stay with it. What the gateway sends because of it is appended
// to out.
func (g *Sender) Leave(now time.Duration, p *Packet, out *[]Packet) {
	if p.Kind != endpoint.Data {
		return
	}
	frame := g.frame.build(p, g.scale.data(p), true, tos)
	pkt, reason := roce.Parse(frame)
	if reason != roce.OK {
		return // no packet of ours
	}
	if p.Seq >= g.high {
		g.high = p.Seq + 1
		g.stats.SourceOctets += uint64(len(pkt.P()) + int(p.Data) - g.scale.data(p))
	}
	g.flow.HandleSource(now, &pkt, &g.acts)
	g.act(out)
}

// Answer takes an answer of the receiver that passes the gateway.
func (g *Sender) Answer(now time.Duration, p *endpoint.Packet) {
	switch p.Kind {
	case endpoint.Ack, endpoint.NAK, endpoint.SACK, endpoint.Done:
		if p.Seq > 0 {
			g.flow.HandleAck(now, psnOf(p.Seq-1))
		}
	default:
	}
}

// Arrive takes a message of the other gateway.
func (g *Sender) Arrive(now time.Duration, p *Packet, out *[]Packet) {
	h, err := wire.ParseHeader(p.msg)
	if err != nil {
		return
	}
	switch h.Type {
	case wire.TypeHelloAck:
		if m, err := wire.ParseHelloAck(p.msg); err == nil {
			g.flow.HandleHelloAck(now, far, &m, &g.acts)
		}
	case wire.TypeParamAck:
		if m, err := wire.ParseParamAck(p.msg); err == nil {
			g.flow.HandleParamAck(now, far, &m, &g.acts)
		}
	case wire.TypeRepairRequest:
		if m, err := wire.ParseRepairRequest(p.msg); err == nil {
			g.flow.HandleRequest(now, far, &m, &g.acts)
		}
	case wire.TypeLossReport:
		if m, err := wire.ParseLossReport(p.msg); err == nil {
			g.flow.HandleLossReport(now, far, &m, &g.acts)
		}
	case wire.TypeClose:
		if m, err := wire.ParseClose(p.msg); err == nil {
			g.flow.HandleClose(now, far, &m, &g.acts)
		}
	default:
	}
	g.act(out)
}

// Poll does what is due.
func (g *Sender) Poll(now time.Duration, out *[]Packet) {
	g.flow.Poll(now, &g.acts)
	g.act(out)
}

// NextDeadline is when Poll must be called next.
func (g *Sender) NextDeadline() time.Duration { return g.flow.NextDeadline() }

// act gives out what the machine sends.
func (g *Sender) act(out *[]Packet) {
	for i := range g.acts {
		octets, symbol := g.scale.octets(g.acts[i].Msg)
		if symbol {
			g.stats.RepairOctets += uint64(octets - messageOctets)
		}
		*out = append(*out, Packet{Packet: endpoint.Packet{Octets: int32(octets)}, msg: g.bufs.hold(g.acts[i].Msg)})
	}
	g.acts = g.acts[:0]
	g.stats.Peak = max(g.stats.Peak, g.env.Pool.InUse())
	g.env.Pool.Reclaim()
}

// Stats returns the gateway's totals; memory is what the pool would need if frames were whole.
func (g *Sender) Stats() SenderStats {
	s := g.stats
	s.Peak = g.scale.whole(s.Peak)
	return s
}

// Flow returns the machine.
func (g *Sender) Flow() *csf.Flow { return g.flow }

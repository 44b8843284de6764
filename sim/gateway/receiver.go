// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"net/netip"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/sim/endpoint"
	"crem.dev/crem/sim/world"
)

// Receiver is the gateway that packets arrive at.
type Receiver struct {
	scale  Scale
	params *crf.Params
	frame  framer
	env    *crf.Env
	flow   *crf.Flow // nil: no HELLO has come
	ids    uint32
	acts   []crf.Action
	bufs   *Buffers
	hold   hold
	seen   bool   // a packet of the flow has come
	newest uint64 // number of the newest packet that has come
	stats  ReceiverStats
}

// ReceiverStats are totals.
type ReceiverStats struct {
	Wrong uint64 // injected packets that no sender has sent: must stay 0
	Peak  int64  // the most memory in use, in octets
}

// NewReceiver returns the gateway. memory bounds the octets of symbols; 0: no bound.
func NewReceiver(p *crf.Params, s Scale, op endpoint.Operation, memory int64, bufs *Buffers) *Receiver {
	return &Receiver{scale: s, params: s.receive(p), frame: newFramer(s.Data, op), env: crf.NewEnv(newPool(s, memory)), bufs: bufs}
}

// Arrive takes a packet of the flow. What its receiver gets is appended to got, messages for the other gateway to out.
func (g *Receiver) Arrive(now time.Duration, p *Packet, marks world.Marks, got *[]endpoint.Packet, out *[]Packet) {
	if p.Kind != endpoint.Data || p.Cut {
		*got = append(*got, p.Packet)
		return
	}
	g.seen = true
	g.newest = max(g.newest, p.Seq)
	held := g.hold.judge(psnOf(p.Seq))
	if !held {
		*got = append(*got, p.Packet)
	}
	if g.flow == nil {
		return
	}
	field := uint8(tos)
	if marks.ECN == ecn.CE {
		field = ce
	}
	pkt, reason := roce.Parse(g.frame.build(p, g.scale.data(p), false, field))
	if reason != roce.OK {
		return
	}
	g.flow.HandleSource(now, &pkt, held, &g.acts)
	g.act(got, out)
}

// ArriveMessage takes a message of the other gateway.
func (g *Receiver) ArriveMessage(now time.Duration, p *Packet, marks world.Marks, got *[]endpoint.Packet, out *[]Packet) {
	h, err := wire.ParseHeader(p.msg)
	switch {
	case err != nil:
		return
	case h.Type == wire.TypeHello:
		g.hello(now, p.msg)
	case g.flow == nil || g.flow.State() == crf.Closed || h.FlowID != g.flow.ID():
		return
	default:
		g.message(now, h.Type, p.msg, marks.ECN == ecn.CE)
	}
	g.act(got, out)
}

// hello answers a HELLO, only for a flow whose packets arrive here (Section 5.1).
func (g *Receiver) hello(now time.Duration, msg []byte) {
	m, err := wire.ParseHello(msg)
	if err != nil || !g.seen {
		return
	}
	if g.flow != nil && g.flow.State() != crf.Closed && g.flow.HandleHello(now, &m, &g.acts) {
		return
	}
	if g.flow != nil {
		g.flow.Close(now, wire.CloseRestarted, &g.acts)
	}
	g.ids++
	g.flow = crf.New(now, g.ids, &m, near, netip.Addr{}, g.params, g.env)
	g.hold.register(g.params.Delivery == crf.Immediate)
	g.flow.HandleHello(now, &m, &g.acts)
}

func (g *Receiver) message(now time.Duration, t wire.Type, msg []byte, marked bool) {
	switch t {
	case wire.TypeParamUpdate:
		if m, err := wire.ParseParamUpdate(msg); err == nil {
			g.flow.HandleParamUpdate(now, &m, &g.acts)
		}
	case wire.TypeRepair:
		if m, err := wire.ParseRepair(msg); err == nil {
			g.flow.HandleRepair(now, &m, marked, &g.acts)
		}
	case wire.TypeClose:
		if m, err := wire.ParseClose(msg); err == nil {
			g.flow.HandleClose(now, &m, &g.acts)
		}
	default:
	}
}

// Poll does what is due.
func (g *Receiver) Poll(now time.Duration, got *[]endpoint.Packet, out *[]Packet) {
	if g.flow != nil {
		g.flow.Poll(now, &g.acts)
		g.act(got, out)
	}
}

// NextDeadline is when Poll must be called next.
func (g *Receiver) NextDeadline() time.Duration {
	if g.flow == nil {
		return roce.Never
	}
	return g.flow.NextDeadline()
}

// act does what the machine wants done, and hands the flow back to the kernel if it can.
func (g *Receiver) act(got *[]endpoint.Packet, out *[]Packet) {
	for i := range g.acts {
		a := &g.acts[i]
		if a.Kind == crf.Inject {
			g.inject(a.Payload, got)
			continue
		}
		octets, _ := g.scale.octets(a.Msg)
		*out = append(*out, Packet{Packet: endpoint.Packet{Octets: int32(octets)}, msg: g.bufs.hold(a.Msg)})
	}
	g.acts = g.acts[:0]
	g.stats.Peak = max(g.stats.Peak, g.env.Pool.InUse())
	g.env.Pool.Reclaim()
	if g.flow.State() == crf.Closed {
		g.hold = hold{}
		return
	}
	if psn, ok := g.flow.Expects(); ok {
		g.hold.expect(psn)
	}
	if g.hold.holding {
		if next, ok := g.flow.Idle(); ok {
			g.hold.handBack(g.flow.HeldCount(), next)
		}
	}
}

// inject gives the receiver a packet that was held or restored.
func (g *Receiver) inject(payload []byte, got *[]endpoint.Packet) {
	if len(payload) < bthLen+icrcLen {
		g.stats.Wrong++
		return
	}
	for _, x := range payload[min(roce.Opcode(payload[0]).HeaderLen(), len(payload)-icrcLen) : len(payload)-icrcLen] {
		if x != 0 { // the data of all frames is zeros
			g.stats.Wrong++
			return
		}
	}
	psn := roce.PSN(binary.BigEndian.Uint32(payload[8:]) & 0xffffff)
	op := roce.Opcode(payload[0])
	p := endpoint.Packet{
		Kind: endpoint.Data, Seq: seqOf(psn, g.newest), AckReq: payload[8]&ackRequest != 0, First: op.Starts(), Last: op.Ends(),
	}
	p.Other = p.Seq
	*got = append(*got, p)
}

// Stats returns the gateway's totals; memory is what the pool would need if frames were whole.
func (g *Receiver) Stats() ReceiverStats {
	s := g.stats
	s.Peak = g.scale.whole(s.Peak)
	return s
}

// Flow returns the machine, nil before the first HELLO.
func (g *Receiver) Flow() *crf.Flow { return g.flow }

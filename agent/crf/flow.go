// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// State is where a Flow stands.
type State uint8

const (
	// Configuring says that HELLO is answered, and no configuration acknowledged yet. Packets are passed on as they come.
	Configuring State = iota
	// Protecting says that losses are restored.
	Protecting
	// Closed says that the flow has ended. The engine drops the machine; packets that it still gives are passed on.
	Closed
)

// String returns the state's name.
func (s State) String() string { return [...]string{"Configuring", "Protecting", "Closed"}[s] }

// Flow is the receiver machine of one flow.
type Flow struct {
	id     uint32
	hello  wire.Hello
	peer   netip.AddrPort
	local  netip.Addr
	env    *Env
	params Params
	limits limits
	digest bool // the block digest was negotiated
	state  State
	stats  Stats

	transport roce.Transport
	space     roce.Space
	sparse    bool // positions may carry nothing in this direction (Section 4.4, rule 2)
	lead      int  // octets that are coded in front of P

	// Handshake and configurations.
	firstAck, lastAck time.Duration // HELLO_ACKs sent
	acks              int
	rtt               rtt
	skew              skew
	configs           []configuration // acknowledged and not released, newest last
	reach             int             // the largest k of any configuration

	// Positions.
	started  bool
	start    pos         // the first position of which anything is known
	top      pos         // the next new position: all below are accounted for
	newest   pos         // the newest position that arrived
	newestOp roce.Opcode // of that packet
	trail    pos         // positions below are settled, near a gap, or in a known block
	swept    pos         // segment number: quiet segments below are freed
	cursor   pos         // segment number: where freeing goes on
	win      window
	gaps     gaps
	told     []told
	burst    bool // a burst of duplicates is in progress (CRF 1 d)
	behind   run  // packets far behind the newest: a restart of the PSNs?
	unseen   bool // packets may have passed without a copy before the next one

	// Blocks.
	blocks   []*block      // open, by position
	waiting  int           // blocks that wait for their tail
	ordinary pos           // start of the newest block of which an ordinary REPAIR came
	repaired pos           // end of that block
	bare     time.Duration // when a packet behind it was first seen, 0: none was
	claimed  pos           // end of the furthest block of which any REPAIR came
	request  uint16        // the last Request ID
	ranges   rangeRound

	// Delivery.
	next  pos  // the position that the receiver expects
	moved bool // it went elsewhere with a restart, and Expects has not told so yet
	// arriving is a packet that has come and is not delivered yet, nowhere without one: nothing behind it may leave.
	arriving pos
	hold     hold
	replay   replay

	model    model
	ids      identification
	template roce.Template

	report report
	doubts doubts

	cells  int // cells taken from the pool
	widest int // the largest T among them
	active time.Duration
	dirty  bool // due must be reckoned anew
	due    time.Duration

	// mixCopies switches rule CRF 1 off. Only tests set it, to show the fault that the rule prevents.
	mixCopies bool
}

// New makes the machine of the flow that a HELLO asks for. flowID is the ID to assign, from is where HELLO came from, local is
// the address to answer from (the zero Addr: the kernel chooses). The HELLO is not answered yet: the engine gives it to
// HandleHello next.
func New(now time.Duration, flowID uint32, h *wire.Hello, from netip.AddrPort, local netip.Addr, p *Params, env *Env) *Flow {
	f := &Flow{
		id: flowID, hello: *h, peer: from, local: local, env: env,
		rtt: newRTT(), active: now, dirty: true,
	}
	f.transport, f.space, _ = h.Flow.Kind.Space()
	f.sparse = h.Flow.Kind == wire.KindRoCEv2Response
	f.lead = roce.LeadLen(f.transport, h.Flow.Src.Is6())
	f.setParams(p)
	f.win.env = env
	f.limits = limitsOf(h, &f.params)
	f.digest = f.params.Digest && h.Extensions&wire.ExtDigest != 0
	f.stats.SRTT = f.rtt.smooth
	return f
}

// setParams takes parameters, with values out of range replaced by the nearest possible ones.
func (f *Flow) setParams(p *Params) {
	f.params = *p
	f.params.MaxHold = max(p.MaxHold, 0)
	f.params.HoldBytes = max(p.HoldBytes, minHoldBytes)
	f.params.MaxOpenBlocks = min(max(p.MaxOpenBlocks, 1), 1<<16-1)
	f.params.MaxK = min(max(p.MaxK, 1), 255)
	f.params.MaxM = min(max(p.MaxM, 0), 255)
	f.params.MaxT = min(max(p.MaxT, minT), 1<<16-1)
	f.params.Schemes |= 1<<fec.SourceCopy | 1<<fec.Cauchy
	if f.overtakes() { // its receivers take packets in any order, and none of its restored packets is certain without the digest (Section 4.4, rule 3)
		f.params.Delivery, f.params.Digest = Immediate, true
	}
}

// Succeed goes on where the machine of the same flow stands that this one replaces, which is closed: it may be handed back before a packet comes.
func (f *Flow) Succeed(old *Flow) {
	if old.started {
		f.begin(old.next.psn())
		f.newestOp = old.newestOp
	}
}

// SetParams replaces the parameters of a running flow. Limits that HELLO_ACK announced stay as announced.
func (f *Flow) SetParams(now time.Duration, p *Params, acts *[]Action) {
	f.setParams(p)
	if f.params.Delivery == Immediate {
		f.releaseAll(Unprotected, acts)
	}
	for f.memory() > f.params.HoldBytes && f.giveWay(acts) {
		continue
	}
	f.wake()
}

// begin starts the positions with a PSN.
func (f *Flow) begin(psn roce.PSN) {
	p := origin | pos(psn)
	f.started = true
	f.top, f.next, f.newest = p, p, p-1
	f.track()
}

// track begins to keep what is known about positions, from top on.
func (f *Flow) track() {
	f.start, f.trail = f.top, f.top
	f.ordinary, f.repaired, f.claimed, f.bare = f.top-1, f.top-1, f.top-1, 0
	f.swept = (f.top - history).segment()
	f.cursor = f.swept
}

// restart forgets all positions and begins anew at a PSN: the queue pair number was used again (Section 4.2, rule 14). The CSF sees
// the same and ends the flow; until then packets pass in order.
func (f *Flow) restart(psn roce.PSN, acts *[]Action) {
	f.stats.Restarts++
	f.abandon(Unprotected, acts)
	f.begin(psn)
	f.moved = true
}

// abandon lets go of everything: what is held is released, blocks and gaps are given up, all cells go back.
func (f *Flow) abandon(cause ReleaseCause, acts *[]Action) {
	if f.started {
		f.releaseAll(cause, acts)
	}
	for len(f.blocks) > 0 {
		f.giveUpBlock(f.blocks[0])
	}
	for len(f.gaps) > 0 {
		f.giveUpGap(f.gaps[0])
	}
	f.told = f.told[:0]
	for f.doubts.len() > 0 {
		f.settleDoubt(f.active)
	}
	f.clearReplay()
	for n := f.win.low; n < f.win.high; n++ {
		s := f.win.segment(n)
		if s == nil {
			continue
		}
		for p := n * segmentLen; s.inUse > 0 && p < (n+1)*segmentLen; p++ {
			f.dropCell(s, p)
		}
		f.win.free(s)
	}
	f.win.low, f.win.high = 0, 0
	f.stats.Missing = 0
	f.burst = false
	f.wake()
}

// Close ends the flow: CLOSE with this reason is sent, what is held is released, all memory goes back.
func (f *Flow) Close(now time.Duration, reason wire.CloseReason, acts *[]Action) {
	if f.state == Closed {
		return
	}
	m := wire.Close{FlowID: f.id, Reason: reason}
	if b := f.message(16); b != nil {
		f.send(m.Append(b), acts)
	}
	f.end(acts)
}

// HandleClose takes a CLOSE for the flow's ID from its peer: what is held is released, and the machine is Closed. It is not
// acknowledged (Section 5.1, rule 11).
func (f *Flow) HandleClose(now time.Duration, m *wire.Close, acts *[]Action) {
	if f.state != Closed {
		f.end(acts)
	}
}

func (f *Flow) end(acts *[]Action) {
	f.abandon(Unprotected, acts)
	f.state = Closed
	f.configs = f.configs[:0]
}

// State returns where the flow stands.
func (f *Flow) State() State { return f.state }

// ID returns the Flow ID. Together with Peer's address it keys the messages of the peer.
func (f *Flow) ID() uint32 { return f.id }

// Peer returns the address and port that HELLO came from.
func (f *Flow) Peer() netip.AddrPort { return f.peer }

// Descriptor returns the flow that is protected.
func (f *Flow) Descriptor() wire.FlowDescriptor { return f.hello.Flow }

// SRTT returns the smoothed round-trip time (Section 5.1, rule 9), an upper bound of it before there is a sample.
func (f *Flow) SRTT() time.Duration { return f.rtt.smooth }

// Stats returns the flow's counters and gauges, alive as long as the flow.
func (f *Flow) Stats() *Stats {
	f.stats.OpenBlocks = len(f.blocks)
	f.stats.Holding = f.hold.waiting + len(f.hold.again)
	return &f.stats
}

func (f *Flow) drop(r DropReason) { f.stats.Drops[r]++ }

// message returns room for a message of at most n octets, empty; nil if the pool has none.
func (f *Flow) message(n int) []byte {
	b := f.env.Pool.Buffer(n)
	if b == nil {
		f.drop(NoMemory)
		return nil
	}
	return b[:0]
}

// send appends a message to the actions.
func (f *Flow) send(msg []byte, acts *[]Action) {
	*acts = append(*acts, Action{Kind: Send, To: f.peer, From: f.local, TOS: f.model.messageTOS(), Msg: msg})
}

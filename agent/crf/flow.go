// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// State is where a Flow stands.
type State uint8

const (
	// Configuring: HELLO is answered, no configuration acknowledged yet. Packets are passed on as they come.
	Configuring State = iota
	// Protecting: losses are restored.
	Protecting
	// Closed: ended. The engine drops the machine; packets that it still gives are passed on.
	Closed
)

// String returns the state's name.
func (s State) String() string { return [...]string{"Configuring", "Protecting", "Closed"}[s] }

// Flow is the receiver machine of one flow.
type Flow struct {
	id    uint32
	hello wire.Hello
	peer  netip.AddrPort
	local netip.Addr
	env   *Env
	state State
	stats Stats
}

// New makes the machine of the flow that a HELLO asks for. flowID is the ID to assign, from is where HELLO came from, local is
// the address to answer from (the zero Addr: the kernel chooses). The HELLO is not answered yet: the engine gives it to
// HandleHello next.
func New(now time.Duration, flowID uint32, h *wire.Hello, from netip.AddrPort, local netip.Addr, p *Params, env *Env) *Flow {
	return &Flow{id: flowID, hello: *h, peer: from, local: local, env: env}
}

// HandleHello takes a HELLO for this flow's descriptor from its peer. With the flow's nonce it is answered, each time alike
// (Section 5.1, rule 3). It returns false, and does nothing, if the nonce or the descriptor is another: the CSF has begun
// anew, and the engine closes this machine and makes another with a new Flow ID.
func (f *Flow) HandleHello(now time.Duration, h *wire.Hello, acts *[]Action) bool { return false }

// HandleSource takes a source packet of the flow. held says that the kernel gave it up: it reaches the receiver only as an
// Inject of this machine, which happens exactly once. The packet is valid only during the call.
func (f *Flow) HandleSource(now time.Duration, pkt *roce.Packet, held bool, acts *[]Action) {}

// HandleParamUpdate takes a PARAM_UPDATE for the flow's ID from its peer.
func (f *Flow) HandleParamUpdate(now time.Duration, m *wire.ParamUpdate, acts *[]Action) {}

// HandleRepair takes a REPAIR for the flow's ID from its peer. ce says that its datagram carried a CE mark. The message is
// valid only during the call.
func (f *Flow) HandleRepair(now time.Duration, m *wire.Repair, ce bool, acts *[]Action) {}

// HandleClose takes a CLOSE for the flow's ID from its peer: what is held is released, and the machine is Closed.
func (f *Flow) HandleClose(now time.Duration, m *wire.Close, acts *[]Action) {}

// HandleReadRequest tells a flow of the response space that a READ or ATOMIC request was seen going the other way whose answer
// will use the n PSNs from psn on (Section 4.4, rule 2).
func (f *Flow) HandleReadRequest(now time.Duration, psn roce.PSN, n int) {}

// SetParams replaces the parameters of a running flow. Limits that HELLO_ACK announced stay as announced.
func (f *Flow) SetParams(now time.Duration, p *Params, acts *[]Action) {}

// Close ends the flow: CLOSE with this reason is sent, what is held is released, all memory goes back.
func (f *Flow) Close(now time.Duration, reason wire.CloseReason, acts *[]Action) {}

// Poll does what is due. The engine calls it when NextDeadline has come; calling it earlier does no harm.
func (f *Flow) Poll(now time.Duration, acts *[]Action) {}

// NextDeadline is when Poll must be called next, roce.Never if not at all. It is asked after every other call. It may be
// earlier than anything really due, never later, and Poll always moves it past its now.
func (f *Flow) NextDeadline() time.Duration { return roce.Never }

// State returns where the flow stands.
func (f *Flow) State() State { return f.state }

// ID returns the Flow ID. Together with Peer's address it keys the messages of the peer.
func (f *Flow) ID() uint32 { return f.id }

// Peer returns the address and port that HELLO came from.
func (f *Flow) Peer() netip.AddrPort { return f.peer }

// Descriptor returns the flow that is protected.
func (f *Flow) Descriptor() wire.FlowDescriptor { return f.hello.Flow }

// HeldCount returns how many packets came with held set, ever: the count to compare with the flow's word.
func (f *Flow) HeldCount() uint64 { return 0 }

// Idle says that no held packet waits, so that the flow may be handed back to the kernel, which expects next from then on.
// It is false before the first packet and once the flow is closed.
func (f *Flow) Idle() (next roce.PSN, ok bool) { return 0, false }

// Inside says that the PSN which Idle returns lies within a message of several packets that has begun to be delivered.
func (f *Flow) Inside() bool { return false }

// Stats returns the flow's counters and gauges, alive as long as the flow.
func (f *Flow) Stats() *Stats { return &f.stats }

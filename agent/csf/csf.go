// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Send asks the engine to send one CREM message from the CREM port, with the don't-fragment bit set.
type Send struct {
	To  netip.AddrPort
	TOS uint8  // the flow's DSCP and ECT(0)
	Msg []byte // valid until Pool.Reclaim
}

// Action is what a Flow wants done: of this machine, always a Send.
type Action = Send

// Env is what the flows of one worker share. It must not be copied after its first use.
type Env struct {
	Pool   *fec.Pool     // memory of source symbols, repair symbols and messages
	Random func() uint64 // a cryptographic source
	Node   *Budget       // this worker's share of maxRepairBandwidth; nil: no bound
}

// State is where a Flow stands.
type State uint8

// States.
const (
	Idle        State = iota // no handshake under way: no packet yet, or something forbids it (see Flow.Explain)
	Hello                    // HELLO is being sent, or its next series is due
	Configuring              // bound to a peer, no configuration acknowledged yet
	Protecting               // blocks are coded
	Suspended                // the circuit breaker is open: blocks are tracked, no symbol is sent
	Closed                   // ended; the engine drops the machine
)

var stateNames = [...]string{"Idle", "Hello", "Configuring", "Protecting", "Suspended", "Closed"}

// String returns the state's name.
func (s State) String() string { return stateNames[s] }

// Flow is the sender machine of one flow.
type Flow struct {
	descriptor wire.FlowDescriptor
	env        *Env
	params     *Params
	state      State
	stats      Stats
}

// New makes the machine of a flow. peers are the addresses that HELLO goes to: the gateways of the destination's site, or the
// flow's destination itself. Nothing is sent before the first source packet.
func New(now time.Duration, d wire.FlowDescriptor, peers []netip.AddrPort, p *Params, env *Env) *Flow {
	return &Flow{descriptor: d, env: env, params: p}
}

// HandleSource takes a packet of the flow that leaves, new or retransmitted. The packet is valid only during the call.
func (f *Flow) HandleSource(now time.Duration, pkt *roce.Packet, acts *[]Action) {}

// HandleAck takes the newest PSN that an RDMA acknowledgement confirms (roce.Packet.Acked), all older ones included.
func (f *Flow) HandleAck(now time.Duration, psn roce.PSN) {}

// HandleHelloAck takes a HELLO_ACK whose nonce is the flow's (Nonce).
func (f *Flow) HandleHelloAck(now time.Duration, from netip.AddrPort, m *wire.HelloAck, acts *[]Action) {
}

// HandleParamAck takes a PARAM_ACK for the flow's ID.
func (f *Flow) HandleParamAck(now time.Duration, from netip.AddrPort, m *wire.ParamAck, acts *[]Action) {
}

// HandleRequest takes a REPAIR_REQUEST for the flow's ID.
func (f *Flow) HandleRequest(now time.Duration, from netip.AddrPort, m *wire.RepairRequest, acts *[]Action) {
}

// HandleLossReport takes a LOSS_REPORT for the flow's ID.
func (f *Flow) HandleLossReport(now time.Duration, from netip.AddrPort, m *wire.LossReport, acts *[]Action) {
}

// HandlePathReport takes a PATH_REPORT about the flow from one of the domain's reporters, which the engine has checked.
func (f *Flow) HandlePathReport(now time.Duration, from netip.AddrPort, m *wire.PathReport, acts *[]Action) {
}

// HandleClose takes a CLOSE for the flow's ID.
func (f *Flow) HandleClose(now time.Duration, from netip.AddrPort, m *wire.Close, acts *[]Action) {}

// SetParams replaces the parameters of a running flow.
func (f *Flow) SetParams(now time.Duration, p *Params, acts *[]Action) {}

// Close ends the flow for good, telling the peer the reason, and gives all memory back.
func (f *Flow) Close(now time.Duration, reason wire.CloseReason, acts *[]Action) {}

// Poll does what is due. The engine calls it when NextDeadline has come; calling it earlier does no harm.
func (f *Flow) Poll(now time.Duration, acts *[]Action) {}

// NextDeadline is when Poll must be called next, roce.Never if not at all. It is asked after every other call. It may be
// earlier than anything really due, never later, and Poll always moves it past its now.
func (f *Flow) NextDeadline() time.Duration { return roce.Never }

// State returns where the flow stands.
func (f *Flow) State() State { return f.state }

// ID returns the Flow ID that the peer assigned, 0 while there is none. Together with Peer's address it keys the messages of
// the peer. It may change with every call that takes acts.
func (f *Flow) ID() uint32 { return 0 }

// Peer returns the address and port that HELLO_ACK came from; invalid while ID is 0.
func (f *Flow) Peer() netip.AddrPort { return netip.AddrPort{} }

// Nonce returns the Sender Nonce of the latest HELLO series, by which a HELLO_ACK finds its flow; 0 before the first. It may
// change with every call that takes acts.
func (f *Flow) Nonce() uint64 { return 0 }

// Stats returns the flow's counters and gauges, alive as long as the flow.
func (f *Flow) Stats() *Stats { return &f.stats }

// Explain says why the flow has this m, or why it is not protected.
func (f *Flow) Explain() Explanation { return Explanation{} }

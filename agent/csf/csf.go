// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

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
	transport  roce.Transport
	space      roce.Space
	lead       int // octets that are coded in front of P
	peers      []netip.AddrPort
	params     *Params
	env        *Env
	state      State
	why        Why // no protection; meaningful while there is none
	stats      Stats

	// Handshake and peer.
	hello         handshake
	helloAfter    time.Duration // no series before
	pause         time.Duration // last back-off
	failures      int           // in a row, each of which put HELLO off
	unanswered    bool          // the last one because nobody answered
	missedAt      time.Duration // when the last HELLO left that it did not answer
	lookAt        time.Duration // when to look whether a gateway is back
	served        netip.Addr    // its last peer
	peer          netip.AddrPort
	with          *presence // the peer's, if it is remembered
	id            uint32
	boundAt       time.Duration
	unheard       int           // source packets since the peer was heard
	unheardAt     time.Duration // the first of them
	limits        limits
	hold          time.Duration // the peer holds packets behind a gap for so long; 0: not told
	digest        bool          // agreed
	digestOffered bool
	closeReason   wire.CloseReason
	idleAt        time.Duration

	// Configurations.
	current      *config
	configs      []*config // all whose Config ID is in use
	proposal     proposal
	refused      refusal
	lastConfigID uint8

	// What the source packets tell.
	tos         uint8
	pkey        uint16
	seen        bool
	newest      roce.PSN
	reach       int      // most PSNs that the newest packet may have consumed
	floor       roce.PSN // nothing before it will be repeated
	ackedTo     roce.PSN // everything before it is acknowledged, if anything is
	mark        roce.PSN // ackedTo at markAt, or the newest PSN if no acknowledgement is seen
	markAt      time.Duration
	run         int // packets in a row that look like a restart
	runNext     roce.PSN
	restartedAt time.Duration
	mtu         int // RDMA MTU, 0: nothing with data was seen
	mtuExact    bool
	reading     reading
	announced   int // RDMA MTU of the latest HELLO
	maxSeen     int // longest P
	lastSource  time.Duration
	lastNew     time.Duration
	pace        pace
	rtt         rtt
	sample      ackSample
	acked       bool // RDMA acknowledgements of this flow can be seen

	// Blocks.
	open      *block
	hasher    fec.Digest // of the open block
	retained  blockQueue
	covered   roce.PSN    // the newest block that was closed has the positions before it
	gathering []gathering // closed, waiting for packets that were overtaken
	skew      skew
	blockAt   time.Duration // pollBlocks
	expireAt  time.Duration // expire

	// Repair traffic.
	queue      []*block // with ordinary symbols to send
	early      []*block // with additional ones to send, for packets reported dropped
	foretold   foretold // packets reported dropped that are still to be seen
	sinceClose int      // packets since the last block was closed
	flushAt    time.Duration
	answers    []answer
	waiting    int64 // octets of answers
	session    uint16
	touched    []*block // scratch
	sendAt     time.Duration
	window     window
	pacer      pacer
	node       share
	quietAt    time.Duration
	loss       lossEstimate
	redundancy redundancy
	repairPath repairPath
	restraint  restraint
	warning    Warning
	path       path
	delay      *delay        // of the path to the peer, nil before the first report
	tripAt     time.Duration // the round trip of it that the flow took last
	probeAfter time.Duration // no probe of this flow before
	breaker    breaker
}

// New makes the machine of a flow. peers are the addresses that HELLO goes to: the gateways of the destination's site, or the
// flow's destination itself. Nothing is sent before the first source packet.
func New(now time.Duration, d wire.FlowDescriptor, peers []netip.AddrPort, p *Params, env *Env) *Flow {
	f := &Flow{
		descriptor: d, params: p, env: env, lastSource: now, idleAt: now + idleAfter,
		hello: handshake{due: roce.Never}, proposal: proposal{due: roce.Never}, refused: refusal{again: roce.Never},
		blockAt: roce.Never, expireAt: roce.Never, sendAt: roce.Never, quietAt: roce.Never, restartedAt: now - restartPause, repairPath: newRepairPath(),
	}
	f.redundancy.limit = WhyNoBlock
	f.transport, f.space, _ = d.Kind.Space()
	f.lead = roce.LeadLen(f.transport, d.Src.Is6())
	f.ask(peers)
	return f
}

// ask makes peers the addresses that HELLO goes to.
func (f *Flow) ask(peers []netip.AddrPort) {
	f.peers = f.peers[:0]
	for _, a := range peers {
		f.peers = append(f.peers, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
}

// HandleSource takes a packet of the flow that leaves, new or retransmitted. The packet is valid only during the call.
func (f *Flow) HandleSource(now time.Duration, pkt *roce.Packet, acts *[]Action) {
	if space, ok := pkt.Source(); !ok || space != f.space || pkt.Transport() != f.transport || uint32(pkt.QPN()) != f.descriptor.Label {
		f.drop(DropNotSource)
		return
	}
	if f.state == Closed && !f.revive() {
		f.drop(DropClosed)
		return
	}
	if roce.CutShort(pkt, f.maxSeen) { // as if it had been lost on its way here: the position stays absent
		f.drop(DropTrimmed)
		return
	}
	if f.lastSource = now; !f.seen || !pkt.Retransmitted() { // what is sent again may be in another class of traffic
		f.tos = pkt.TOS()
	}
	f.idleAt = min(f.idleAt, now+idleAfter)
	switch {
	case !f.seen:
		f.beginSequence(pkt)
	case f.jumped(pkt.PSN()):
		f.restart(now, acts)
		f.beginSequence(pkt)
	}
	grown := f.learnSizes(pkt)
	if pkt.PSN().After(f.newest) {
		f.advance(now, pkt)
	} else {
		f.handleOld(now, pkt, acts)
	}
	f.watchPeer(now, acts)
	if f.id != 0 && f.misread() {
		f.restart(now, acts) // only HELLO can tell it
	}
	switch {
	case f.id == 0:
		f.tryHello(now, acts)
	case grown:
		f.reconfigure(now, acts)
	}
	f.pump(now, acts)
}

// advance takes a packet that carries a new PSN.
func (f *Flow) advance(now time.Duration, pkt *roce.Packet) {
	f.newest, f.reach = pkt.PSN(), roce.Advance(pkt, smallestMTU)
	f.run = 0
	f.reading.next(pkt)
	f.countSource(now, pkt)
	// The answer to a READ waits for all READs before it: it says nothing of the path.
	if pkt.AckReq() && !pkt.Opcode().Answered() && !f.sample.timing {
		f.sample = ackSample{psn: pkt.PSN(), sentAt: now, timing: true}
	}
	if f.current != nil {
		f.handleNew(now, pkt, roce.Advance(pkt, f.announcedMTU()))
	}
	if len(f.foretold.psns) > 0 {
		f.fulfil(now)
	}
}

// countSource counts a source packet, for statistics and for every limit that is measured by the flow's own traffic.
func (f *Flow) countSource(now time.Duration, pkt *roce.Packet) {
	octets := len(pkt.P())
	f.stats.SourcePackets++
	f.stats.SourceOctets += uint64(octets)
	s := f.window.at(now, f.rtt.smoothed())
	s.source += int64(octets)
	f.pacer.pour(now, float64(octets), float64(f.leastBudget()))
	if s.begin == now && f.env.Node != nil { // a new sixteenth, so the rate has been measured
		f.env.Node.count(&f.node, f.window.rate)
		f.quietAt = min(f.quietAt, now+quietAfter)
	}
}

// pollQuiet takes a flow that has stopped sending out of the node's source rate. The deadline is armed early and moved here.
func (f *Flow) pollQuiet(now time.Duration) {
	if now < f.quietAt {
		return
	}
	if f.quietAt = f.lastSource + quietAfter; now >= f.quietAt {
		f.quietAt = roce.Never
		f.env.Node.count(&f.node, 0)
	}
}

// sampleRTT takes the round-trip time of a CREM message.
func (f *Flow) sampleRTT(now, sample time.Duration, exact bool) {
	f.stats.RTTSamples++
	f.rtt.add(now, sample, exact)
	if exact && (f.rtt.own == 0 || sample < f.rtt.own) {
		f.rtt.own = sample
	}
}

// offersDigest says whether the flow asks for the block digest. Packets of a multipath transport differ between their copies in more than what
// the invariant CRC tells apart: only with the digest a restored one is certain (Section 4.4, rule 3).
func (f *Flow) offersDigest() bool { return f.params.Digest || f.transport.Multipath() }

// settle brings the state in line with what is agreed.
func (f *Flow) settle() {
	switch {
	case f.state == Closed:
	case f.id == 0 && f.hello.nonce != 0:
		f.state = Hello
	case f.id == 0:
		f.state = Idle
	case f.current == nil:
		f.state = Configuring
	case f.breaker.open:
		f.state = Suspended
	default:
		f.state = Protecting
	}
}

// SetParams replaces the parameters of a running flow. m acts at once; scheme, k, T and a larger bound of m need a
// PARAM_UPDATE; another setting of the digest needs a new handshake.
func (f *Flow) SetParams(now time.Duration, p *Params, acts *[]Action) {
	f.params = p
	f.redundancy.forget()
	if f.state == Closed {
		return
	}
	if f.id != 0 && f.digestOffered != f.offersDigest() {
		f.sendClose(f.peer, f.id, wire.CloseRestarted, acts)
		f.unbind(WhyRestarted)
	}
	if f.id == 0 {
		f.helloAfter = min(f.helloAfter, now)
		return
	}
	f.refused.again = roce.Never
	f.reconfigure(now, acts)
	f.pump(now, acts)
}

// SetPeers replaces the addresses that HELLO goes to. A flow whose peer is none of them any more ends there with reason 5, and asks anew.
func (f *Flow) SetPeers(now time.Duration, peers []netip.AddrPort, acts *[]Action) {
	f.ask(peers)
	if f.state == Closed || f.id != 0 && f.asked(f.peer.Addr()) {
		return
	}
	if f.id != 0 {
		f.sendClose(f.peer, f.id, wire.CloseAdministrative, acts)
		f.unbind(WhyRestarted)
	}
	f.helloAfter = min(f.helloAfter, now)
}

// Poll does what is due. The engine calls it when NextDeadline has come; calling it earlier does no harm.
func (f *Flow) Poll(now time.Duration, acts *[]Action) {
	f.pollHello(now, acts)
	f.pollProposal(now, acts)
	f.pollRefusal(now, acts)
	f.pollBreaker(now)
	f.pollBlocks(now)
	f.expire(now)
	f.pump(now, acts)
	f.pollQuiet(now)
	f.pollIdle(now, acts)
}

// NextDeadline is when Poll must be called next, roce.Never if not at all. It is asked after every other call. It may be
// earlier than anything really due, never later, and Poll always moves it past its now.
func (f *Flow) NextDeadline() time.Duration {
	return min(f.hello.due, f.proposal.due, f.refused.again, f.blockAt, f.expireAt, f.sendAt, f.quietAt, f.idleAt, f.breakerDeadline())
}

// State returns where the flow stands.
func (f *Flow) State() State { return f.state }

// Impaired reports whether the circuit breaker leaves the flow to RDMA: it is open, or has closed the flow (Section 10).
func (f *Flow) Impaired() bool {
	return f.state == Suspended || f.state != Protecting && f.state != Closed && f.why == WhyImpaired
}

// ID returns the Flow ID that the peer assigned, 0 while there is none. Together with Peer's address it keys the messages of
// the peer. It may change with every call that takes acts.
func (f *Flow) ID() uint32 { return f.id }

// Peer returns the address and port that HELLO_ACK came from; invalid while ID is 0.
func (f *Flow) Peer() netip.AddrPort { return f.peer }

// Nonce returns the Sender Nonce of the latest HELLO series, by which a HELLO_ACK finds its flow; 0 before the first. It may
// change with every call that takes acts.
func (f *Flow) Nonce() uint64 { return f.hello.nonce }

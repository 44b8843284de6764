// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	// helloAttempts transmissions of HELLO make a series, at 0, 1, 3, 7, ... 127 ms (Section 5.1).
	helloAttempts = 8
	helloFirst    = time.Millisecond
	// impairedPause is how long a flow rests that was closed for persistent impairment.
	impairedPause = time.Minute
	// idleAfter is how long a flow may be without packets before it is closed with reason 1.
	idleAfter = 30 * time.Second
	// silentAfter without any message of the peer, while the flow sends, means that the peer has lost the flow, for instance by a
	// restart: a CRF reports at least once per SRTT (Section 8.1). At least silentPackets must have been sent meanwhile, and 8 SRTT
	// must have passed.
	silentAfter   = time.Second
	silentPackets = 8
	silentRTTs    = 8

	// What HELLO says of our own limits: all that the format can carry. A profile may change within them without a new HELLO.
	offeredK       = 255
	offeredM       = maxOrdinary
	offeredSchemes = 1<<fec.SourceCopy | 1<<fec.Cauchy | 1<<fec.XOR

	// maxOrdinary is the most ordinary symbols of any block: k + m <= 255.
	maxOrdinary = 254
)

// handshake is a series of HELLOs with one nonce.
type handshake struct {
	nonce    uint64
	attempts int
	first    time.Duration // first transmission
	last     time.Duration // last transmission
	due      time.Duration // next transmission, roce.Never: none
}

// limits is what both ends allow: the minimum of the two sides (Section 5.1).
type limits struct {
	k, m, t int
	schemes uint16
}

// tryHello begins a series of HELLOs if nothing forbids it. It is called for every source packet of a flow without a peer: no
// HELLO is sent for a flow that sends nothing.
func (f *Flow) tryHello(now time.Duration, acts *[]Action) {
	if f.hello.due != roce.Never || now < f.helloAfter && !f.outOfTurn(now) {
		return
	}
	if len(f.peers) == 0 {
		f.why = WhyNoPeer
		return
	}
	if f.stats.SourcePackets == 1 && f.reading.is {
		return // the packet that follows a first READ request tells the RDMA MTU
	}
	if _, ok := f.want(); !ok {
		f.why = WhyMTUTooSmall
		f.settle()
		return
	}
	f.hello = handshake{nonce: f.newNonce(), first: now}
	f.why = WhyHandshake
	f.sendHello(now, acts)
	f.settle()
}

func (f *Flow) newNonce() uint64 {
	for {
		if n := f.env.Random(); n != 0 && n != f.hello.nonce {
			return n
		}
	}
}

// sendHello sends the series' next HELLO to every peer.
func (f *Flow) sendHello(now time.Duration, acts *[]Action) {
	m := wire.Hello{
		Flow: f.descriptor, Schemes: offeredSchemes, MaxK: offeredK, MaxM: offeredM, MaxT: maxT,
		MTU: uint16(f.announcedMTU()), Nonce: f.hello.nonce,
	}
	f.announced = int(m.MTU)
	m.Extensions = wire.ExtDetail
	if f.offersDigest() {
		m.Extensions |= wire.ExtDigest
	}
	for _, p := range f.peers {
		f.stats.Hellos++
		f.send(p, m.Append(f.message()), acts)
	}
	f.hello.attempts++
	f.hello.last = now
	f.hello.due = now + helloFirst<<(f.hello.attempts-1)
}

// pollHello repeats HELLO, or ends the series without an answer.
func (f *Flow) pollHello(now time.Duration, acts *[]Action) {
	switch {
	case now < f.hello.due:
	case f.hello.attempts < helloAttempts:
		f.sendHello(now, acts)
	default:
		f.hello.due = roce.Never // an answer to this series is still welcome
		f.why = WhyNoAnswer
		f.missed(now)
		f.backOff(now)
	}
}

// HandleHelloAck takes a HELLO_ACK. The first valid one binds the flow to its sender; others are answered by CLOSE (Section 5.1).
func (f *Flow) HandleHelloAck(now time.Duration, from netip.AddrPort, m *wire.HelloAck, acts *[]Action) {
	switch {
	case f.hello.nonce == 0 || m.Nonce != f.hello.nonce || f.state == Closed:
		f.drop(DropStaleAck)
	case !f.asked(from.Addr()):
		f.drop(DropWrongPeer)
	case m.Kind != f.descriptor.Kind || m.AF != f.descriptor.AF() || m.FlowID == 0 ||
		f.transport.Multipath() && m.Extensions&wire.ExtDigest == 0:
		f.drop(DropMalformed)
	case f.id == 0:
		f.bind(now, from, m, acts)
	case from == f.peer && m.FlowID == f.id:
		f.drop(DropDuplicate) // the answer to a repeated HELLO
	default:
		f.drop(DropAlreadyBound)
		f.sendClose(from, m.FlowID, wire.CloseUnspecified, acts)
	}
}

// asked reports whether HELLO went to this address.
func (f *Flow) asked(a netip.Addr) bool {
	for _, p := range f.peers {
		if p.Addr() == a.Unmap() {
			return true
		}
	}
	return false
}

// bind makes the sender of a HELLO_ACK the flow's peer: all later messages go to its address and port.
func (f *Flow) bind(now time.Duration, from netip.AddrPort, m *wire.HelloAck, acts *[]Action) {
	f.sampleRTT(now, now-f.hello.first, f.hello.attempts == 1)
	f.hello.due = roce.Never
	f.peer, f.id, f.boundAt = from, m.FlowID, now
	f.unheard = 0
	f.join(now)
	f.restraint.begin(&f.stats)
	f.limits = limits{k: int(m.MaxK), m: int(m.MaxM), t: int(m.MaxT), schemes: m.Schemes}
	f.digestOffered = f.offersDigest()
	f.digest = f.digestOffered && m.Extensions&wire.ExtDigest != 0
	f.session = uint16(f.env.Random())
	f.why = WhyConfiguring
	f.settle()
	f.reconfigure(now, acts)
}

// unbind forgets the peer and everything agreed with it. What is known of the flow itself and of its path stays.
func (f *Flow) unbind(why Why) {
	f.discardAll()
	f.leave(why == WhyNoAnswer)
	f.peer, f.id, f.limits, f.digest = netip.AddrPort{}, 0, limits{}, false
	f.hello = handshake{due: roce.Never}
	clear(f.configs)
	f.current, f.configs = nil, f.configs[:0]
	f.proposal = proposal{due: roce.Never}
	f.refused = refusal{again: roce.Never}
	f.breaker, f.repairPath = breaker{}, newRepairPath()
	f.endProbe()
	f.forgetForetold()
	f.redundancy.forget()
	f.hold = 0
	f.why = why
	f.settle()
}

// backOff puts off the next HELLO: 1 s after the first patientRetries failures in a row, then twice as long each time, up to 60 s. A peer that is being
// configured at the same time is seldom ready with the first series, and soon after. A pause may end early (outOfTurn).
func (f *Flow) backOff(now time.Duration) {
	if f.failures++; f.failures <= patientRetries {
		f.pause = firstRetry
	} else {
		f.pause = min(2*f.pause, lastRetry)
	}
	f.helloAfter = now + f.pause
	f.settle()
}

// watchPeer counts the source packets since the peer was heard. A peer that stays silent is asked anew: the flow is worth nothing
// to a CRF that does not know it.
func (f *Flow) watchPeer(now time.Duration, acts *[]Action) {
	if f.current == nil {
		return // HELLO and PARAM_UPDATE have their own ends
	}
	if f.unheard == 0 {
		f.unheardAt = now
	}
	f.unheard++
	if f.unheard < silentPackets || now-f.unheardAt < max(silentAfter, silentRTTs*f.rtt.smoothed()) {
		return
	}
	f.stats.PeerSilent++
	f.sendClose(f.peer, f.id, wire.CloseNoAnswer, acts)
	f.unbind(WhyNoAnswer)
	f.helloAfter = now
}

// HandleClose takes a CLOSE of the peer. A new HELLO follows with back-off while the flow goes on; at once if the peer closed it
// because it was idle.
func (f *Flow) HandleClose(now time.Duration, from netip.AddrPort, m *wire.Close, _ *[]Action) {
	if !f.fromPeer(now, from, m.FlowID) {
		return
	}
	f.stats.ClosedByPeer++
	f.unbind(WhyClosedByPeer)
	f.closeReason = m.Reason
	if m.Reason == wire.CloseIdle && now-f.boundAt >= firstRetry {
		f.helloAfter = now
		return
	}
	f.backOff(now)
}

// Close ends the flow for good, telling the peer the reason, and gives all memory back.
func (f *Flow) Close(_ time.Duration, reason wire.CloseReason, acts *[]Action) {
	if f.state == Closed {
		return
	}
	f.sendClose(f.peer, f.id, reason, acts)
	f.unbind(WhyClosed)
	f.closeReason = reason
	f.env.Node.count(&f.node, 0)
	f.idleAt, f.quietAt = roce.Never, roce.Never
	f.state = Closed
}

// pollIdle closes a flow without packets for 30 s (Section 5.1). The deadline is armed early and moved here.
func (f *Flow) pollIdle(now time.Duration, acts *[]Action) {
	if now < f.idleAt {
		return
	}
	if due := f.lastSource + idleAfter; now < due {
		f.idleAt = due
		return
	}
	f.Close(now, wire.CloseIdle, acts)
}

// revive reopens a flow that was closed for idleness and sends again. A flow that was closed for another reason stays closed.
func (f *Flow) revive() bool {
	if f.closeReason != wire.CloseIdle {
		return false
	}
	f.state, f.why, f.seen = Idle, WhyNoPacket, false
	f.helloAfter, f.failures = 0, 0
	return true
}

// fromPeer checks that a message comes from the address that the flow is bound to, and carries its Flow ID (Section 11).
func (f *Flow) fromPeer(now time.Duration, from netip.AddrPort, id uint32) bool {
	switch {
	case f.id == 0:
		f.drop(DropNotBound)
	case from.Addr() != f.peer.Addr():
		f.drop(DropWrongPeer)
	case id != f.id:
		f.drop(DropWrongFlow)
	default:
		f.unheard = 0
		if f.with != nil {
			f.with.hear(now)
		}
		return true
	}
	return false
}

// message returns an empty buffer for a control message, nil if memory has run out.
func (f *Flow) message() []byte {
	const longest = 128
	return f.env.Pool.Buffer(longest)[:0]
}

// send asks for a message to be sent, with the flow's DSCP and ECT(0).
func (f *Flow) send(to netip.AddrPort, msg []byte, acts *[]Action) {
	const ecn, ect0 = 0x03, 0x02
	*acts = append(*acts, Send{To: to, TOS: f.tos&^ecn | ect0, Msg: msg})
}

// sendClose tells a peer that a flow has ended. It is not acknowledged.
func (f *Flow) sendClose(to netip.AddrPort, id uint32, reason wire.CloseReason, acts *[]Action) {
	if id == 0 {
		return
	}
	f.stats.Closes++
	m := wire.Close{FlowID: id, Reason: reason}
	f.send(to, m.Append(f.message()), acts)
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection5_1_NoHelloBeforeASourcePacket(t *testing.T) {
	w := newWorld(t, defaults())
	w.wait(10 * time.Second)
	if len(w.log) != 0 || w.f.State() != Idle {
		t.Fatalf("%d messages, state %v", len(w.log), w.f.State())
	}
	w.give(packet(t, roce.Acknowledge, 5, 0, 0)) // an ACK is no source packet
	if len(w.log) != 0 {
		t.Fatal("an ACK was answered by HELLO")
	}
	w.write(6)
	if len(w.all(wire.TypeHello)) != 1 || w.f.State() != Hello {
		t.Fatal("no HELLO for the first source packet")
	}
}

// offsets gives the times of the HELLOs, relative to the first, with their nonces.
func offsets(log []message) (at []time.Duration, nonces []uint64) {
	for _, m := range log {
		at = append(at, m.at-log[0].at)
		nonces = append(nonces, m.hello.Nonce)
	}
	return at, nonces
}

func TestSection5_1_HelloSeries(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	w.wait(200 * time.Millisecond)
	at, nonces := offsets(w.all(wire.TypeHello))
	want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 127}
	if len(at) != len(want) {
		t.Fatalf("%d HELLOs: %v", len(at), at)
	}
	for i := range want {
		if at[i] != want[i]*time.Millisecond || nonces[i] != nonces[0] {
			t.Errorf("HELLO %d at %v with nonce %x", i, at[i], nonces[i])
		}
	}
	// Packets go on: the next series starts 1 s after the last one ended, then 2 s, ... 60 s. The gateway is there for another flow, so no series comes
	// out of turn.
	w.env.presences.at(gateway.Addr()).bound++
	var series []time.Duration
	seen := map[uint64]bool{nonces[0]: true}
	w.probe = func(m message) {
		if m.typ == wire.TypeHello && !seen[m.hello.Nonce] {
			seen[m.hello.Nonce] = true
			series = append(series, m.at-start)
		}
	}
	for i := range 4000 {
		w.write(roce.PSN(2 + i))
		w.wait(100 * time.Millisecond)
	}
	end := 255 * time.Millisecond // of a series, after its start
	pause := time.Second
	begin := time.Duration(0)
	for i, got := range series {
		due := begin + end + pause
		if got < due || got > due+200*time.Millisecond {
			t.Errorf("series %d at %v, want %v", i+2, got, due)
		}
		if begin = got; i >= patientRetries-1 {
			pause = min(2*pause, time.Minute)
		}
	}
	if len(series) < 9 {
		t.Errorf("%d series", len(series))
	}
}

func TestSection5_1_NoSeriesForASilentFlow(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	w.wait(29 * time.Second)
	if n := len(w.all(wire.TypeHello)); n != 8 {
		t.Fatalf("%d HELLOs", n)
	}
}

func TestSection5_1_HelloContents(t *testing.T) {
	p := defaults()
	w := newWorld(t, p)
	w.f = w.newFlow(wire.KindRoCEv2, gateway, gateway2)
	w.give(packet(t, roce.WriteFirst, 9, 1024, 0))
	hellos := w.all(wire.TypeHello)
	if len(hellos) != 2 || hellos[0].to != gateway || hellos[1].to != gateway2 {
		t.Fatalf("HELLO to %v", hellos)
	}
	h := hellos[0].hello
	if h.Flow != w.f.descriptor || h.Nonce == 0 || h.Nonce != hellos[1].hello.Nonce || h.MTU != 1024 || h.Extensions != wire.ExtDigest|wire.ExtDetail || h.Schemes&2 == 0 {
		t.Errorf("%+v", h)
	}
	p = defaults()
	p.Digest = false
	w = newWorld(t, p)
	w.write(1)
	if e := w.lastOf(wire.TypeHello).hello.Extensions; e != wire.ExtDetail {
		t.Errorf("extensions %x without the digest", e)
	}
}

func TestSection5_1_FirstAnswerBindsOthersAreClosed(t *testing.T) {
	w := newWorld(t, defaults())
	w.f = w.newFlow(wire.KindRoCEv2, gateway, gateway2)
	w.write(1)
	w.wait(time.Millisecond / 2)
	from := netip.AddrPortFrom(gateway2.Addr(), 40000)
	sent := w.answerHello(from, nil)
	if w.f.ID() != testID || w.f.Peer() != from || w.f.State() != Configuring {
		t.Fatalf("not bound: %v", w.f.State())
	}
	if len(sent) != 1 || sent[0].typ != wire.TypeParamUpdate || sent[0].to != from || sent[0].param.FlowID != testID {
		t.Fatalf("%v", sent)
	}
	sent = w.answerHello(gateway, func(m *wire.HelloAck) { m.FlowID = 77 })
	if len(sent) != 1 || sent[0].typ != wire.TypeClose || sent[0].to != gateway || sent[0].close.FlowID != 77 {
		t.Fatalf("second answer: %+v", sent)
	}
	if sent = w.answerHello(from, nil); len(sent) != 0 || w.f.Peer() != from {
		t.Fatal("a repeated answer of the peer changes something")
	}
}

func TestSection5_1_AnswersThatDoNotBind(t *testing.T) {
	for name, change := range map[string]func(*wire.HelloAck){
		"nonce":   func(m *wire.HelloAck) { m.Nonce++ },
		"kind":    func(m *wire.HelloAck) { m.Kind = wire.KindRoCEv2Response },
		"AF":      func(m *wire.HelloAck) { m.AF = 6 },
		"flow ID": func(m *wire.HelloAck) { m.FlowID = 0 },
	} {
		w := newWorld(t, defaults())
		w.write(1)
		if sent := w.answerHello(gateway, change); len(sent) != 0 || w.f.ID() != 0 {
			t.Errorf("%s: bound", name)
		}
	}
	w := newWorld(t, defaults())
	w.write(1)
	if w.answerHello(gateway2, nil); w.f.ID() != 0 {
		t.Error("bound to an address that was not asked")
	}
	w = newWorld(t, defaults())
	if w.answerHello(gateway, nil); w.f.ID() != 0 {
		t.Error("bound without a HELLO")
	}
}

func TestSection5_1_LateAnswerBinds(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	w.wait(800 * time.Millisecond) // the series is over; the path is that long
	if w.answerHello(gateway, nil); w.f.State() != Configuring {
		t.Fatal(w.f.State())
	}
}

func TestSection5_1_SmallerLimitsCount(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	sent := w.answerHello(gateway, func(m *wire.HelloAck) { m.MaxK, m.MaxM, m.MaxT = 16, 3, 1068 })
	if p := sent[0].param; p.K != 16 || p.M != 3 || p.T > 1068 {
		t.Errorf("%+v", p)
	}
}

func TestSection5_1_FirstSRTTIsAnUpperBound(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(1)
	w.wait(testRTT) // HELLO went out five times
	w.answerHello(gateway, nil)
	if s := w.f.Stats().SRTT; s != testRTT {
		t.Fatalf("first sample %v", s)
	}
	w.wait(4 * time.Millisecond)
	w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
	if s := w.f.Stats(); s.SRTT != 4*time.Millisecond || s.SRTTMin != 4*time.Millisecond {
		t.Fatalf("the first unambiguous sample does not replace the bound: %v", s.SRTT)
	}
}

func TestSection5_1_SRTTFromAcknowledgements(t *testing.T) {
	w := protected(t, defaults(), 100)
	asking := func(psn roce.PSN, copyNo int) *roce.Packet {
		p := packet(t, roce.WriteMiddle, psn, w.mtu, copyNo)
		p.P()[8] |= 0x80
		return p
	}
	w.give(asking(101, 0))
	w.write(102)
	w.wait(12 * time.Millisecond)
	w.f.HandleAck(w.now, 100) // does not cover it
	w.wait(12 * time.Millisecond)
	w.f.HandleAck(w.now, 102)
	if s := w.f.Stats().SRTT; s != testRTT+(24*time.Millisecond-testRTT)/8 {
		t.Errorf("SRTT %v: not RFC 6298 with weight 1/8", s)
	}
	before := w.f.Stats().RTTSamples
	w.give(asking(103, 0))
	w.wait(time.Millisecond)
	w.give(asking(103, 1)) // sent twice: no sample (Karn)
	w.wait(time.Millisecond)
	w.f.HandleAck(w.now, 103)
	if w.f.Stats().RTTSamples != before {
		t.Error("a packet that was sent twice was sampled")
	}
	w.give(asking(104, 0))
	w.wait(testRTT/2 - time.Millisecond)
	w.f.HandleAck(w.now, 104) // sooner than our own messages travel: of another queue pair
	if w.f.Stats().RTTSamples != before || w.f.Stats().SRTTMin < testRTT/2 {
		t.Error("an impossible round trip was sampled")
	}
	w.f.HandleAck(w.now, 200)
	w.f.HandleAck(w.now, 50)
	if n := w.f.Stats().Drops[DropStaleRTT]; n != 3 {
		t.Errorf("%d acknowledgements of what is not outstanding were refused", n)
	}
}

// The answer to a READ comes when all READs before it are served: that is no round trip of the path.
func TestSection5_1_NoSRTTFromREADs(t *testing.T) {
	w := protected(t, defaults(), 100)
	p := readRequest(t, 101, 1<<16)
	p.P()[8] |= 0x80
	w.give(p)
	w.wait(300 * time.Millisecond)
	w.f.HandleAck(w.now, 101)
	if s := w.f.Stats().SRTT; s != testRTT {
		t.Errorf("SRTT %v, want %v", s, testRTT)
	}
}

func TestSection5_1_SmallestRTTForgetsAnOldPath(t *testing.T) {
	var r rtt
	r.add(start, 10*time.Millisecond, true)
	r.add(start+time.Second, 30*time.Millisecond, true)
	if r.min() != 10*time.Millisecond {
		t.Fatal(r.min())
	}
	for s := time.Duration(0); s < 25*time.Second; s += time.Second / 2 {
		r.add(start+s, 30*time.Millisecond, true)
	}
	if m := r.min(); m < 29*time.Millisecond {
		t.Errorf("the smallest round trip is still %v", m)
	}
}

func TestSection5_1_IdleFlowIsClosed(t *testing.T) {
	w := protected(t, defaults(), 1)
	w.wait(15 * time.Second)
	last := w.now
	w.write(2)
	w.wait(30*time.Second - time.Millisecond)
	if len(w.all(wire.TypeClose)) != 0 {
		t.Fatal("closed too early")
	}
	w.wait(2 * time.Millisecond)
	c := w.lastOf(wire.TypeClose)
	if c.close.Reason != wire.CloseIdle || c.at != last+30*time.Second || c.close.FlowID != testID || w.f.State() != Closed || w.f.NextDeadline() != roce.Never {
		t.Fatalf("%+v, state %v, deadline %v", c, w.f.State(), w.f.NextDeadline())
	}
	if w.env.Pool.InUse() != 0 {
		t.Errorf("%d octets kept", w.env.Pool.InUse())
	}
	w.log = nil
	if w.write(3); len(w.all(wire.TypeHello)) != 1 {
		t.Error("the flow does not come back with a new packet")
	}
}

func TestSection5_1_CloseOfThePeer(t *testing.T) {
	w := protected(t, fixed(1), 1)
	w.burst(2, 40, 10*time.Microsecond)
	m := wire.Close{FlowID: testID, Reason: wire.CloseResources}
	w.f.HandleClose(w.now, gateway, &m, &w.acts)
	if w.take(); w.f.State() != Idle || w.f.ID() != 0 || w.env.Pool.InUse() != 0 {
		t.Fatalf("state %v, ID %x, %d octets", w.f.State(), w.f.ID(), w.env.Pool.InUse())
	}
	if e := w.f.Explain(); e.Why != WhyClosedByPeer || e.Reason != wire.CloseResources {
		t.Errorf("%+v", e)
	}
	w.log = nil
	closed := w.now
	for i := range 300 {
		w.write(roce.PSN(100 + i))
		w.wait(5 * time.Millisecond)
	}
	hellos := w.all(wire.TypeHello)
	if len(hellos) == 0 || hellos[0].at < closed+time.Second {
		t.Fatalf("%d HELLOs within a second of CLOSE", len(hellos))
	}
	for _, m := range w.log {
		if m.typ != wire.TypeHello {
			t.Fatalf("%v while there is no peer", m.typ)
		}
	}
}

// The back-off grows while the handshake or the peer fails, and starts small again once the peer has worked.
func TestSection5_1_BackOffForgets(t *testing.T) {
	w := protected(t, fixed(1), 1)
	psn := roce.PSN(2)
	pauses := func(report bool) (d time.Duration) {
		if report {
			w.report(100, 100, nil)
		}
		w.f.HandleClose(w.now, gateway, &wire.Close{FlowID: testID, Reason: wire.CloseResources}, &w.acts)
		w.take()
		w.log = nil
		for begin := w.now; len(w.log) == 0; psn++ {
			w.write(psn)
			w.wait(10 * time.Millisecond)
			d = w.now - begin
		}
		w.answerHello(gateway, nil)
		return d.Round(time.Second)
	}
	for i, want := range []time.Duration{1, 1, 1, 1, 2, 4} {
		if got := pauses(false); got != want*time.Second {
			t.Errorf("pause %d is %v", i, got)
		}
	}
	if got := pauses(true); got != time.Second {
		t.Errorf("%v after a report", got)
	}
}

func TestSection11_OnlyThePeerIsHeard(t *testing.T) {
	w := protected(t, fixed(2), 1)
	w.burst(2, 32, 10*time.Microsecond)
	stranger := netip.MustParseAddrPort("203.0.113.9:52000")
	r := w.lastOf(wire.TypeRepair).Repair
	before := len(w.log)
	ask := wire.RepairRequest{FlowID: testID, RequestID: 1, ConfigID: r.ConfigID, K: r.K, Start: r.Start, M: 1, Lost: set(1)}
	w.f.HandleRequest(w.now, stranger, &ask, &w.acts)
	w.f.HandleLossReport(w.now, stranger, &wire.LossReport{FlowID: testID, Interval: 2e6, Expected: 100}, &w.acts)
	w.f.HandleClose(w.now, stranger, &wire.Close{FlowID: testID}, &w.acts)
	w.f.HandleParamAck(w.now, stranger, &wire.ParamAck{FlowID: testID}, &w.acts)
	ask.FlowID++
	w.f.HandleRequest(w.now, gateway, &ask, &w.acts)
	w.take()
	if len(w.log) != before || w.f.State() != Protecting || w.f.Stats().Drops[DropWrongPeer] != 4 || w.f.Stats().Drops[DropWrongFlow] != 1 {
		t.Fatalf("state %v, %v", w.f.State(), w.f.Stats().Drops)
	}
	// Section 7.2 e: the answer goes to the bound address, whatever port the request came from.
	ask.FlowID--
	w.f.HandleRequest(w.now, netip.AddrPortFrom(gateway.Addr(), 1234), &ask, &w.acts)
	if sent := w.take(); len(sent) != 1 || sent[0].to != gateway {
		t.Fatalf("%v", sent)
	}
}

func TestCloseByTheOperator(t *testing.T) {
	w := protected(t, fixed(1), 1)
	w.burst(2, 10, 10*time.Microsecond)
	w.f.Close(w.now, wire.CloseAdministrative, &w.acts)
	sent := w.take()
	if len(sent) != 1 || sent[0].close.Reason != wire.CloseAdministrative || w.f.State() != Closed || w.env.Pool.InUse() != 0 {
		t.Fatalf("%v", sent)
	}
	w.log = nil
	w.write(20)
	w.f.Close(w.now, wire.CloseAdministrative, &w.acts)
	if w.take(); len(w.log) != 0 || w.f.Stats().Drops[DropClosed] != 1 {
		t.Error("a closed flow speaks")
	}
}

// Section 5.1, rule 5: other gateways are asked with the next HELLO. A peer that is one of them keeps the flow; one that is not is told.
func TestSection5_1_OtherGateways(t *testing.T) {
	other := netip.MustParseAddrPort("198.51.100.77:52000")
	w := protected(t, fixed(1), 1)
	w.f.SetPeers(w.now, []netip.AddrPort{other, gateway}, &w.acts)
	if sent := w.take(); len(sent) != 0 || w.f.State() != Protecting {
		t.Fatalf("the peer is still one of them: %v, %v", sent, w.f.State())
	}
	w.f.SetPeers(w.now, []netip.AddrPort{other}, &w.acts)
	sent := w.take()
	if len(sent) != 1 || sent[0].typ != wire.TypeClose || sent[0].to != gateway || w.f.ID() != 0 {
		t.Fatalf("the peer is none of them: %v", sent)
	}
	w.write(20)
	if m := w.lastOf(wire.TypeHello); m.to != other {
		t.Errorf("HELLO went to %v", m.to)
	}
	w.answerHello(other, nil)
	if w.f.Peer() != other {
		t.Errorf("bound to %v", w.f.Peer())
	}
}

// A CRF that was restarted doesn't know the flow: it sends no reports, and the flow is asked for again.
func TestSection8_1_SilentPeerIsAskedAnew(t *testing.T) {
	w := protected(t, fixed(1), 1)
	psn := roce.PSN(2)
	trickle := func(d, gap time.Duration) {
		for end := w.now + d; w.now < end; psn++ {
			w.write(psn)
			w.wait(gap)
		}
	}
	trickle(5*testRTT, 500*time.Microsecond)
	w.report(100, 100, nil)
	heard := w.now
	w.log = nil
	trickle(silentAfter-time.Millisecond, 500*time.Microsecond)
	if len(w.all(wire.TypeClose)) != 0 {
		t.Fatal("given up too early")
	}
	trickle(5*time.Millisecond, 500*time.Microsecond)
	c := w.lastOf(wire.TypeClose)
	h := w.lastOf(wire.TypeHello)
	if c.close.Reason != wire.CloseNoAnswer || h.at > heard+silentAfter+5*time.Millisecond || w.f.State() != Hello {
		t.Fatalf("%v, %v, state %v", c, h, w.f.State())
	}

	// A flow that sends little hears little: no conclusion.
	w = protected(t, fixed(1), 1)
	psn = 2
	trickle(20*time.Second, 5*time.Second)
	trickle(200*time.Millisecond, 100*time.Millisecond)
	if w.f.State() != Protecting {
		t.Fatal(w.f.State())
	}
}

func TestSection5_1_PeerClosedAnIdleFlow(t *testing.T) {
	w := protected(t, fixed(1), 1)
	w.wait(2 * time.Second)
	w.f.HandleClose(w.now, gateway, &wire.Close{FlowID: testID, Reason: wire.CloseIdle}, &w.acts)
	w.take()
	if w.write(2); len(w.all(wire.TypeHello)) != 1 {
		t.Fatal("no HELLO with the next packet")
	}
	w.answerHello(gateway, nil) // but a peer that closes at once isn't asked again at once
	w.f.HandleClose(w.now, gateway, &wire.Close{FlowID: testID, Reason: wire.CloseIdle}, &w.acts)
	w.take()
	w.log = nil
	if w.write(3); len(w.log) != 0 {
		t.Fatal("HELLO again at once")
	}
}

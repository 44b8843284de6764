// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	testRTT   = 20 * time.Millisecond
	testQPN   = 0x123456
	testID    = 0xbeef0001
	testNonce = 0x0123456789abcdef
	testMTU   = 1024
	testT     = 1074
	begin     = 1000 * time.Second // of virtual time
)

var (
	srcAddr = netip.MustParseAddr("10.1.0.1")
	dstAddr = netip.MustParseAddr("10.2.0.1")
	src6    = netip.MustParseAddr("fd00:1::1")
	dst6    = netip.MustParseAddr("fd00:2::1")
	gateway = netip.MustParseAddrPort("198.51.100.1:52000")
	local   = netip.MustParseAddr("192.0.2.9")
)

// delivered is one packet as the receiver gets it.
type delivered struct {
	psn    roce.PSN
	frame  []byte
	kernel bool // passed by the kernel, not injected
	at     time.Duration
}

// message is one message that the flow sent.
type message struct {
	at    time.Duration
	typ   wire.Type
	ack   wire.HelloAck
	param wire.ParamAck
	req   wire.RepairRequest
	loss  wire.LossReport
	close wire.Close
}

// world runs one flow under virtual time, between a kernel and a receiver.
type world struct {
	t      testing.TB
	now    time.Duration
	env    *Env
	p      Params
	hello  wire.Hello
	f      *Flow
	k      kernel
	acts   []Action
	out    []delivered
	msgs   []message
	src    source
	told   int // times that the kernel was told to expect another PSN
	rules  *roce.Transports
	noHand bool // the kernel is never handed the flow back
	sent   map[string]int
}

func testParams() Params {
	return Params{
		Delivery: InOrder, MaxHold: 100 * time.Millisecond, HoldBytes: 64 << 20, MaxOpenBlocks: 64,
		MaxK: 255, MaxM: 255, MaxT: 9000, Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy | 1<<fec.XOR, Digest: true,
	}
}

type option func(*world)

func with(change func(*Params)) option { return func(w *world) { change(&w.p) } }
func noDigest(w *world)                { w.p.Digest = false }
func immediate(w *world)               { w.p.Delivery = Immediate }
func ipv6(w *world)                    { w.hello.Flow.Src, w.hello.Flow.Dst = src6, dst6 }
func responses(w *world)               { w.hello.Flow.Kind = wire.KindRoCEv2Response }

// allTransports recognises everything that can be recognised.
var allTransports = &roce.Transports{
	VeRoCE: roce.VeRoCESettings{Enabled: true, Port: roce.VeRoCEPort, Retransmission: 0x40, SACK: 0x18, ResponseACK: 0x19, ResponseSACK: 0x1a},
	MRC:    roce.MRCSettings{Enabled: true, Retransmission: 0x20},
}

// ofKind makes the flow one of another kind. Those of multipath transports are never delivered in order.
func ofKind(k wire.FlowKind) option {
	return func(w *world) {
		w.hello.Flow.Kind, w.rules = k, allTransports
		if t, _, _ := k.Space(); t.Multipath() {
			w.p.Delivery = Immediate
		}
	}
}

// newWorld makes a flow with an answered HELLO.
func newWorld(t testing.TB, opts ...option) *world {
	w := &world{t: t, now: begin, p: testParams(), sent: map[string]int{}}
	w.hello = wire.Hello{
		Flow:    wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: srcAddr, Dst: dstAddr, Label: testQPN},
		Schemes: 7, MaxK: 255, MaxM: 255, MaxT: 9000, MTU: testMTU, Extensions: wire.ExtDigest, Nonce: testNonce,
	}
	for _, o := range opts {
		o(w)
	}
	w.env = NewEnv(fec.NewPool(256 << 20))
	w.f = New(w.now, testID, &w.hello, gateway, local, &w.p, w.env)
	w.k = kernel{learn: true, response: w.hello.Flow.Kind == wire.KindRoCEv2Response, immediate: w.p.Delivery == Immediate}
	w.src.init(w)
	if !w.f.HandleHello(w.now, &w.hello, &w.acts) {
		t.Fatal("HELLO refused")
	}
	w.take()
	return w
}

// configured makes a flow with configuration 1: this scheme, k and m, after one round trip.
func configured(t testing.TB, scheme fec.Scheme, k, m int, opts ...option) *world {
	w := newWorld(t, opts...)
	w.now += testRTT
	w.configure(1, scheme, k, m, testT)
	w.takeOnly(wire.TypeParamAck)
	return w
}

func (w *world) configure(id uint8, scheme fec.Scheme, k, m, T int) wire.Status {
	w.t.Helper()
	effective := w.src.begins
	if effective == 0 {
		effective = w.f.top.psn()
	}
	u := wire.ParamUpdate{FlowID: testID, ConfigID: id, Scheme: scheme, K: uint8(k), M: uint8(m), T: uint16(T), Effective: effective}
	w.f.HandleParamUpdate(w.now, &u, &w.acts)
	msgs := w.take()
	if len(msgs) != 1 || msgs[0].typ != wire.TypeParamAck || msgs[0].param.ConfigID != id {
		w.t.Fatalf("PARAM_UPDATE answered by %v", msgs)
	}
	w.src.scheme, w.src.T, w.src.config = scheme, T, id
	return msgs[0].param.Status
}

// take does the actions and gives the flow back to the kernel if that is possible. It returns the messages.
func (w *world) take() []message {
	w.t.Helper()
	from := len(w.msgs)
	for _, a := range w.acts {
		switch a.Kind {
		case Inject:
			frame := append(append([]byte(nil), a.Head...), a.Payload...)
			p, reason := w.rules.Parse(frame)
			if reason != roce.OK {
				w.t.Fatalf("injected a frame that is %v", reason)
			}
			w.out = append(w.out, delivered{p.PSN(), frame, false, w.now})
		case Send:
			if a.To != gateway || a.From != local {
				w.t.Fatalf("message from %v to %v", a.From, a.To)
			}
			w.msgs = append(w.msgs, w.parse(a.Msg))
		}
	}
	if len(w.acts) > 0 || w.f.State() == Closed {
		w.env.Pool.Reclaim() // what the actions refer to is overwritten in a build with -race
	}
	w.acts = w.acts[:0]
	if psn, ok := w.f.Expects(); ok {
		w.told++
		if !w.k.hold && !w.k.learn {
			w.k.expected = psn
		}
	}
	if next, ok := w.f.Idle(); ok && !w.noHand && w.k.hold && w.k.held == w.f.HeldCount() {
		w.k.hold, w.k.expected, w.k.inside = false, next, w.f.Inside()
	}
	return w.msgs[from:]
}

func (w *world) parse(b []byte) message {
	h, err := wire.ParseHeader(b)
	if err != nil || h.FlowID != testID {
		w.t.Fatalf("message %x: %v", b, err)
	}
	m := message{at: w.now, typ: h.Type}
	switch h.Type {
	case wire.TypeHelloAck:
		m.ack, err = wire.ParseHelloAck(b)
	case wire.TypeParamAck:
		m.param, err = wire.ParseParamAck(b)
	case wire.TypeRepairRequest:
		m.req, err = wire.ParseRepairRequest(b)
		m.req.Ranges = append(wire.RangeList(nil), m.req.Ranges...)
	case wire.TypeLossReport:
		m.loss, err = wire.ParseLossReport(b)
	case wire.TypeClose:
		m.close, err = wire.ParseClose(b)
	default:
		err = fmt.Errorf("a CRF sent %v", h.Type)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// takeOnly fails if the messages so far have another type, and forgets them.
func (w *world) takeOnly(types ...wire.Type) {
	w.t.Helper()
	for _, m := range w.msgs {
		ok := m.typ == wire.TypeHelloAck
		for _, t := range types {
			ok = ok || m.typ == t
		}
		if !ok {
			w.t.Fatalf("unexpected %v", m.typ)
		}
	}
	w.msgs = w.msgs[:0]
}

// requests returns the REPAIR_REQUESTs since the last call, and forgets all messages.
func (w *world) requests() []message {
	var r []message
	for _, m := range w.msgs {
		if m.typ == wire.TypeRepairRequest {
			r = append(r, m)
		}
	}
	w.msgs = nil
	return r
}

// until lets time pass up to t, polling at every deadline. Poll must always move the deadline on.
func (w *world) until(t time.Duration) {
	w.t.Helper()
	for n := 0; w.f.NextDeadline() <= t; n++ {
		w.now = max(w.now, w.f.NextDeadline())
		w.f.Poll(w.now, &w.acts)
		w.take()
		if d := w.f.NextDeadline(); d <= w.now {
			w.t.Fatalf("after Poll at %v the next deadline is %v", w.now, d)
		}
		if n > 1e6 {
			w.t.Fatal("busy loop")
		}
	}
	w.now = t
}

func (w *world) wait(d time.Duration) { w.t.Helper(); w.until(w.now + d) }

// arrive lets a frame arrive at the uplink.
func (w *world) arrive(frame []byte) {
	w.t.Helper()
	p, reason := w.rules.Parse(frame)
	if reason != roce.OK {
		w.t.Fatal(reason)
	}
	gaveUp, copied := w.k.judge(&p, int(w.hello.MTU))
	if !gaveUp {
		w.out = append(w.out, delivered{p.PSN(), append([]byte(nil), frame...), true, w.now})
	}
	if copied {
		if w.k.missed {
			w.k.missed = false
			w.f.Unseen()
		}
		w.give(frame, gaveUp)
	}
}

// give hands a frame to the flow, in memory that is overwritten after the call.
func (w *world) give(frame []byte, gaveUp bool) {
	w.t.Helper()
	b := append([]byte(nil), frame...)
	p, _ := w.rules.Parse(b)
	w.f.HandleSource(w.now, &p, gaveUp, &w.acts)
	for i := range b {
		b[i] = 0xdb
	}
	w.take()
	check(w.t, w.f)
}

// packets lets the first copies of PSNs arrive, from first on, without those that lose names.
func (w *world) packets(first, n int, lose ...int) {
	w.t.Helper()
	for i := first; i < first+n; i++ {
		if !contains(lose, i) {
			w.arrive(w.src.frame(roce.PSN(i)))
		} else {
			w.src.frame(roce.PSN(i))
		}
	}
}

func contains(list []int, x int) bool {
	for _, v := range list {
		if v == x {
			return true
		}
	}
	return false
}

// repair lets a REPAIR arrive.
func (w *world) repair(m wire.Repair) {
	w.t.Helper()
	b := m.Append(nil)
	parsed, err := wire.ParseRepair(b)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.k.missed {
		w.f.Unseen()
	}
	w.f.HandleRepair(w.now, &parsed, false, &w.acts)
	for i := range b {
		b[i] = 0xdb
	}
	w.take()
	check(w.t, w.f)
}

// psns returns the PSNs delivered since the last call to reset.
func (w *world) psns() []int {
	var l []int
	for _, d := range w.out {
		l = append(l, int(d.psn))
	}
	return l
}

func (w *world) reset() { w.out, w.msgs = nil, nil }

// wantOrder checks that exactly the PSNs first..first+n-1 were delivered, in order, each as it was sent.
func (w *world) wantOrder(first, n int) {
	w.t.Helper()
	got := w.psns()
	if len(got) != n {
		w.t.Fatalf("delivered %v, want %d packets from %d", got, n, first)
	}
	for i, p := range got {
		if p != first+i {
			w.t.Fatalf("delivered %v, want %d packets in order from %d", got, n, first)
		}
	}
	w.wantTrue()
}

// wantTrue checks that every delivered packet is octet for octet as the source sent it, up to the restored TOS.
func (w *world) wantTrue() {
	w.t.Helper()
	for _, d := range w.out {
		if !bytes.Equal(d.frame, w.src.frame(d.psn)) {
			w.t.Fatalf("PSN %v delivered with other octets:\n%x\n%x", d.psn, d.frame, w.src.frame(d.psn))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
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

// kernel is the hold program of one flow (docs/design/seams.md): it passes packets in order, holds them after a gap.
type kernel struct {
	hold, learn, inside bool
	expected            roce.PSN
	held                uint64
	failOpen            bool // ring full or stale heartbeat: everything passes
	response            bool
	immediate           bool
	from, to            roce.PSN // PSNs that responses will use
}

// judge returns whether the packet is held, and whether a copy is in the ring.
func (k *kernel) judge(p *roce.Packet, mtu int) (gaveUp, copied bool) {
	n := roce.Advance(p, mtu)
	ahead := p.PSN().Sub(k.expected)
	switch {
	case k.immediate:
		return false, true
	case k.failOpen:
		if k.learn || ahead >= 0 {
			k.expected, k.hold, k.learn = p.PSN().Add(n), false, false
		}
		return false, false
	case !k.learn && ahead < 0:
		return false, true
	case !k.learn && (k.hold || ahead > 0 && (!k.response || k.inside || !p.Opcode().Starts() || k.sure(ahead))):
		k.hold = true
		k.held++
		return true, true
	}
	k.learn = false
	k.expected = p.PSN().Add(n)
	k.inside = !p.Opcode().Ends()
	return false, true
}

// sure says that responses use one of the next n PSNs.
func (k *kernel) sure(n int) bool {
	for p := k.from; p != k.to; p = p.Add(1) {
		if d := p.Sub(k.expected); d >= 0 && d < n {
			return true
		}
	}
	return false
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
	u := wire.ParamUpdate{FlowID: testID, ConfigID: id, Scheme: scheme, K: uint8(k), M: uint8(m), T: uint16(T), Effective: 0}
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
			p, reason := roce.Parse(frame)
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
	w.acts = w.acts[:0]
	w.env.Pool.Reclaim()
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
	p, reason := roce.Parse(frame)
	if reason != roce.OK {
		w.t.Fatal(reason)
	}
	gaveUp, copied := w.k.judge(&p, int(w.hello.MTU))
	if !gaveUp {
		w.out = append(w.out, delivered{p.PSN(), append([]byte(nil), frame...), true, w.now})
	}
	if copied {
		w.give(frame, gaveUp)
	}
}

// give hands a frame to the flow, in memory that is overwritten after the call.
func (w *world) give(frame []byte, gaveUp bool) {
	w.t.Helper()
	b := append([]byte(nil), frame...)
	p, _ := roce.Parse(b)
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

// source stands in for RDMA sender and CSF: it makes packets, and codes blocks of their first copies.
type source struct {
	w      *world
	rng    *rand.Rand
	frames map[roce.PSN][]byte
	opcode func(psn roce.PSN) roce.Opcode
	data   func(psn roce.PSN) int
	id     func(psn roce.PSN) uint16
	absent map[roce.PSN]bool
	scheme fec.Scheme
	T      int
	config uint8
	pool   *fec.Pool
	csum   bool
	tos    uint8
}

func (s *source) init(w *world) {
	s.w = w
	s.rng = rand.New(rand.NewPCG(1, 2))
	s.frames = map[roce.PSN][]byte{}
	s.absent = map[roce.PSN]bool{}
	s.pool = fec.NewPool(64 << 20)
	s.tos = 0x6a // DSCP 26, ECT(0)
	s.opcode = func(roce.PSN) roce.Opcode { return roce.SendOnly }
	if w.hello.Flow.Kind == wire.KindRoCEv2Response {
		s.opcode = func(roce.PSN) roce.Opcode { return roce.ReadResponseOnly }
	}
	s.data = func(psn roce.PSN) int { return 64 + int(psn*37)%400 }
	s.id = func(psn roce.PSN) uint16 { return uint16(psn)*3 + 77 }
}

// frame returns the first copy of a PSN.
func (s *source) frame(psn roce.PSN) []byte {
	if b := s.frames[psn]; b != nil {
		return b
	}
	b := s.copy(psn, s.id(psn), false, s.data(psn))
	s.frames[psn] = b
	return b
}

// copy makes a copy of a PSN: the same packet, with this Identification and AckReq.
func (s *source) copy(psn roce.PSN, id uint16, ackReq bool, size int) []byte {
	op := s.opcode(psn)
	var data []byte
	if op.Operation() != roce.ReadRequest {
		data = make([]byte, size)
		r := rand.NewPCG(uint64(psn), 7)
		for i := range data {
			data[i] = byte(r.Uint64())
		}
	}
	return frames.RoCE{
		Headers: frames.Headers{
			SrcMAC: frames.MAC{2, 0, 0, 0, 0, 1}, DstMAC: frames.MAC{2, 0, 0, 0, 0, 2},
			Src: s.w.hello.Flow.Src, Dst: s.w.hello.Flow.Dst, SrcPort: 50000, TOS: s.tos, ID: id, Checksum: s.csum,
		},
		Opcode: op, QPN: testQPN, PSN: uint32(psn), AckReq: ackReq, DMALength: uint32(size), Data: data,
	}.Frame()
}

func payload(frame []byte) []byte {
	p, _ := roce.Parse(frame)
	return p.P()
}

// syms returns the cells of the present positions of a block.
func (s *source) syms(first, k int) (present fec.Bitmap, syms [256]*fec.Cell) {
	s.pool.Reclaim()
	for j := range k {
		psn := roce.PSN(first).Add(j)
		if s.absent[psn] {
			continue
		}
		present.Set(j)
		c := s.pool.Get(s.T)
		if err := c.Set(nil, payload(s.frame(psn)), s.T); err != nil {
			s.w.t.Fatal(err)
		}
		syms[j] = c
	}
	return present, syms
}

// repair makes the REPAIR of an ordinary symbol.
func (s *source) repair(first, k, index int) wire.Repair {
	return s.symbol(first, k, index, fec.Bitmap{})
}

// retx makes a coded retransmission over L.
func (s *source) retx(first, k, index int, L fec.Bitmap) wire.Repair {
	return s.symbol(first, k, index, L)
}

func (s *source) symbol(first, k, index int, L fec.Bitmap) wire.Repair {
	present, syms := s.syms(first, k)
	defer func() {
		for _, c := range syms {
			s.pool.Put(c)
		}
	}()
	m := wire.Repair{
		FlowID: testID, ConfigID: s.config, Scheme: s.scheme, K: uint8(k), Index: uint8(index), Start: roce.PSN(first).Add(0), T: uint16(s.T),
		Present: present,
	}
	over := present
	if !L.Empty() {
		m.Retx, m.Lost, m.Session, over = true, L, 7, L
	}
	m.Symbol = make([]byte, fec.Stride(s.T))
	if err := fec.Encode(m.Symbol, fec.Stride(s.T), s.scheme, m.Index, 1, s.T, over, &syms); err != nil {
		s.w.t.Fatal(err)
	}
	s.addDigest(&m, present, &syms)
	return m
}

func (s *source) addDigest(m *wire.Repair, present fec.Bitmap, syms *[256]*fec.Cell) {
	if !s.w.p.Digest {
		return
	}
	var d fec.Digest
	d.Reset(testNonce)
	for j := present.First(); j >= 0; j = present.Next(j + 1) {
		d.Add(syms[j].Symbol(s.T))
	}
	m.HasDigest, m.Digest = true, d.Sum()
}

// sourceCopy makes the Source Copy of source j.
func (s *source) sourceCopy(first, k, j int) wire.Repair {
	present, syms := s.syms(first, k)
	m := wire.Repair{
		FlowID: testID, ConfigID: s.config, Scheme: fec.SourceCopy, K: uint8(k), Index: uint8(j), Start: roce.PSN(first).Add(0),
		T: uint16(s.T), Present: present, Symbol: append([]byte(nil), syms[j].Symbol(s.T)...),
	}
	s.addDigest(&m, present, &syms)
	for _, c := range syms {
		s.pool.Put(c)
	}
	return m
}

// info makes the INFO of a block.
func (s *source) info(first, k int) wire.Repair {
	present, syms := s.syms(first, k)
	for _, c := range syms {
		s.pool.Put(c)
	}
	return wire.Repair{FlowID: testID, ConfigID: s.config, Scheme: s.scheme, K: uint8(k), Start: roce.PSN(first).Add(0), Info: true, Present: present}
}

func set(js ...int) (b fec.Bitmap) {
	for _, j := range js {
		b.Set(j)
	}
	return b
}

// check verifies what must hold between calls.
func check(t testing.TB, f *Flow) {
	t.Helper()
	if err := inconsistent(f); err != "" {
		t.Fatal(err)
	}
}

// inconsistent names the first invariant that does not hold.
func inconsistent(f *Flow) string {
	cells, holding, kernelHeld, missed := 0, 0, len(f.hold.again), 0
	for n := f.win.low; n < f.win.high; n++ {
		s := f.win.segment(n)
		if s == nil {
			continue
		}
		inUse := 0
		for p := n * segmentLen; p < (n+1)*segmentLen; p++ {
			c := s.cells[p.index()]
			if c != nil {
				inUse++
			}
			switch {
			case s.has(p, stored) && c == nil:
				return fmt.Sprintf("%v stored without a cell", p.psn())
			case s.has(p, held) && c == nil:
				return fmt.Sprintf("%v held without a cell", p.psn())
			case c != nil && !s.has(p, held) && !f.codes(s, p):
				return fmt.Sprintf("%v keeps a cell for nothing", p.psn())
			case s.has(p, held) && p < f.next:
				return fmt.Sprintf("%v held behind next %v", p.psn(), f.next.psn())
			case s.has(p, missing) && s.has(p, arrived):
				return fmt.Sprintf("%v missing and arrived", p.psn())
			case s.has(p, missing) && p >= f.top:
				return fmt.Sprintf("%v missing beyond top %v", p.psn(), f.top.psn())
			case s.has(p, fromKernel) && !s.has(p, held):
				return fmt.Sprintf("%v from the kernel, not held", p.psn())
			}
			if s.has(p, held) {
				holding++
			}
			if s.has(p, fromKernel) {
				kernelHeld++
			}
			if s.has(p, missing) {
				missed++
				inGap := f.gaps.near(p, 1)
				inBlock := f.openBlock(p) != nil
				if inGap == inBlock {
					return fmt.Sprintf("%v missing: in a gap %v, in an open block %v", p.psn(), inGap, inBlock)
				}
			}
		}
		if inUse != s.inUse {
			return fmt.Sprintf("segment %d uses %d cells, says %d", n, inUse, s.inUse)
		}
		cells += inUse
	}
	cells += len(f.hold.again)
	for _, k := range f.replay.ring {
		if k.cell != nil {
			cells++
		}
	}
	tails := 0
	for i, b := range f.blocks {
		cells += len(b.rows) + len(b.copies)
		if !b.open || i > 0 && f.blocks[i-1].end() > b.first {
			return "open blocks out of order"
		}
		if m := f.win.bits(b.first, b.k, missing); m.Empty() {
			return fmt.Sprintf("open block %v misses nothing", b.first.psn())
		}
		if b.tail {
			tails++
		}
	}
	gapped := 0
	for i, g := range f.gaps {
		gapped += int(g.end - g.first)
		if g.first >= g.end || i > 0 && f.gaps[i-1].end > g.first {
			return "gaps out of order"
		}
		for p := g.first; p < g.end; p++ {
			if !f.win.has(p, missing) {
				return fmt.Sprintf("%v in a gap but not missing", p.psn())
			}
		}
	}
	switch {
	case cells != f.cells:
		return fmt.Sprintf("%d cells in use, says %d", cells, f.cells)
	case holding != f.hold.waiting:
		return fmt.Sprintf("%d positions held, says %d", holding, f.hold.waiting)
	case kernelHeld != f.hold.kernel:
		return fmt.Sprintf("%d packets of the kernel held, says %d", kernelHeld, f.hold.kernel)
	case missed != f.stats.Missing:
		return fmt.Sprintf("%d positions missing, says %d", missed, f.stats.Missing)
	case tails != f.waiting:
		return fmt.Sprintf("%d blocks wait for their tail, says %d", tails, f.waiting)
	case f.hold.waiting > 0 && !f.win.has(f.next, missing):
		return fmt.Sprintf("packets wait, and %v is not missing", f.next.psn())
	case f.next > f.top:
		return "next beyond top"
	case f.state == Closed && f.cells != 0:
		return "closed flow keeps memory"
	case f.hold.waiting == 0 && f.hold.kernel != 0:
		return "further copies wait alone"
	}
	return ""
}

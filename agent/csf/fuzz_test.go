// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// oracle knows what a flow may send, by the words of the protocol and without any of its code: it keeps every packet that the
// flow was shown, and every message that left.
type oracle struct {
	w      *world
	first  map[roce.PSN][]byte // first copy of each PSN of this life
	differ map[roce.PSN]bool   // a differing copy came before any REPAIR of its block

	// Of this binding.
	blocks map[roce.PSN]*sentBlock          // by start
	owner  map[roce.PSN]roce.PSN            // PSN to the start of its block
	config map[uint8]wire.ParamUpdate       // the last PARAM_UPDATE of each acknowledged ID
	lost   map[roce.PSN]map[fec.Bitmap]bool // L that were asked for, by start
	ranges []wire.Range                     // ranges that were asked for
	drops  map[roce.PSN]bool                // PSNs that were reported dropped
	other  bool                             // a second peer may be told CLOSE now

	events []event
	lowest time.Duration // SRTT
	inUse  int64
}

// sentBlock is what the REPAIRs of a block have in common, and the indices that they used.
type sentBlock struct {
	message
	ordinary, coded map[uint8]bool
	ended           bool // CSF 3
	early           int  // ordinary symbols from m upward
}

func newOracle(w *world) *oracle {
	o := &oracle{w: w, lowest: time.Hour}
	o.newLife()
	w.probe = o.message
	return o
}

func (o *oracle) newLife() {
	o.first, o.differ = map[roce.PSN][]byte{}, map[roce.PSN]bool{}
	o.newBinding()
}

func (o *oracle) newBinding() {
	o.blocks, o.owner = map[roce.PSN]*sentBlock{}, map[roce.PSN]roce.PSN{}
	o.config, o.lost, o.ranges = map[uint8]wire.ParamUpdate{}, map[roce.PSN]map[fec.Bitmap]bool{}, nil
	o.drops = map[roce.PSN]bool{}
}

// packet notes a packet before the flow is shown it.
func (o *oracle) packet(p *roce.Packet) {
	psn := p.PSN()
	if f, ok := o.first[psn]; !ok {
		o.first[psn] = bytes.Clone(p.P())
	} else if !bytes.Equal(f, p.P()) {
		if s, ok := o.owner[psn]; ok {
			o.blocks[s].ended = o.blocks[s].ended || o.blocks[s].Present.Has(psn.Sub(s))
		} else {
			o.differ[psn] = true
		}
	}
}

func (o *oracle) message(m message) {
	t, f := o.w.t, o.w.f
	t.Helper()
	o.lowest = min(o.lowest, f.rtt.smoothed())
	switch m.typ {
	case wire.TypeHello:
		if m.to != gateway && m.to != gateway2 {
			t.Fatalf("HELLO to %v", m.to)
		}
	case wire.TypeClose:
		if m.to != gateway && !o.other {
			t.Fatalf("CLOSE to %v", m.to)
		}
		if m.to == gateway && m.close.FlowID != testID {
			t.Fatalf("CLOSE of %x", m.close.FlowID)
		}
	case wire.TypeParamUpdate:
		if m.to != gateway {
			t.Fatalf("PARAM_UPDATE to %v", m.to)
		}
		if c, ok := o.config[m.param.ConfigID]; ok {
			if c.Scheme != m.param.Scheme || c.K != m.param.K || c.M != m.param.M || c.T != m.param.T {
				t.Fatalf("Config ID %d again with other values", m.param.ConfigID)
			}
			o.config[m.param.ConfigID] = m.param
		}
		if int(m.param.K)+int(m.param.M) > 255 || m.param.Scheme == fec.XOR && m.param.M > 1 || m.param.Scheme == fec.SourceCopy && m.param.M > 0 {
			t.Fatalf("%+v", m.param)
		}
	case wire.TypeRepair:
		o.repair(m)
	}
}

func (o *oracle) repair(m message) {
	t, f := o.w.t, o.w.f
	t.Helper()
	if m.to != gateway || m.FlowID != testID {
		t.Fatalf("REPAIR to %v, flow %x", m.to, m.FlowID)
	}
	c, ok := o.config[m.ConfigID]
	if !ok || m.K > c.K || m.Start.Before(c.Effective) {
		t.Fatalf("%v under %+v", m, c)
	}
	b := o.block(m, c)
	if m.Info {
		return
	}
	if f.breaker.open {
		t.Fatalf("breaker open: %v", m)
	}
	if m.T != c.T || m.HasDigest != f.digest || m.Present.Empty() {
		t.Fatalf("%v under %+v", m, c)
	}
	switch {
	case m.Scheme == fec.SourceCopy:
		if !m.Present.Has(int(m.Index)) || m.Retx {
			t.Fatalf("%v", m)
		}
	case m.Scheme != c.Scheme:
		t.Fatalf("%v under %+v", m, c)
	case m.Retx:
		if m.Session == 0 || m.Lost.Empty() || !m.Present.Contains(m.Lost) || b.coded[m.Index] || b.ordinary[m.Index] || !o.requested(m) {
			t.Fatalf("%v", m)
		}
		b.coded[m.Index] = true
	default:
		if m.Session != 0 || b.ordinary[m.Index] || b.coded[m.Index] || !f.digest && b.ended {
			t.Fatalf("%v (ended %v)", m, b.ended)
		}
		b.ordinary[m.Index] = true
		if m.Index < c.M {
			break
		}
		if b.early++; m.Scheme != fec.Cauchy || b.early > o.dropped(b) {
			t.Fatalf("%v: %d additional symbols for %d packets reported dropped", m, b.early, o.dropped(b))
		}
	}
	if m.Scheme == fec.Cauchy && int(m.Index)+int(m.K) > 255 {
		t.Fatalf("index %d with k = %d", m.Index, m.K)
	}
	o.w.checkSymbol(m, func(psn roce.PSN) []byte { return o.first[psn] })
	o.budget(m)
}

// block checks what all REPAIRs of a block have in common.
func (o *oracle) block(m message, c wire.ParamUpdate) *sentBlock {
	t, f := o.w.t, o.w.f
	t.Helper()
	b := o.blocks[m.Start]
	if b != nil {
		if b.K != m.K || b.Present != m.Present || b.ConfigID != m.ConfigID || !m.Info && !b.Info && b.Digest != m.Digest {
			t.Fatalf("%v after %v", m, b.message)
		}
		if b.Info && !m.Info {
			b.message = m
		}
		return b
	}
	b = &sentBlock{message: m, ordinary: map[uint8]bool{}, coded: map[uint8]bool{}}
	o.blocks[m.Start] = b
	for j := range int(m.K) {
		psn := m.Start.Add(j)
		if s, ok := o.owner[psn]; ok {
			t.Fatalf("%v overlaps the block at %v", m, s)
		}
		o.owner[psn] = m.Start
		if !m.Present.Has(j) {
			continue
		}
		if o.first[psn] == nil {
			t.Fatalf("%v: position %d never had a packet", m, j)
		}
		if o.differ[psn] && !f.digest {
			t.Fatalf("%v: position %d had differing copies before the first REPAIR", m, j)
		}
	}
	if m.Present.AndNot(fec.Full(int(m.K))) != (fec.Bitmap{}) {
		t.Fatalf("%v: present past k", m)
	}
	return b
}

// dropped is how many packets of a block were reported dropped.
func (o *oracle) dropped(b *sentBlock) (n int) {
	for j := b.Present.First(); j >= 0; j = b.Present.Next(j + 1) {
		if o.drops[b.Start.Add(j)] {
			n++
		}
	}
	return n
}

// requested reports whether a coded symbol's L is what a request named, less what was withdrawn or absent.
func (o *oracle) requested(m message) bool {
	if o.lost[m.Start][m.Lost] {
		return true
	}
	var named fec.Bitmap
	for _, r := range o.ranges {
		for i := range int(r.Count) {
			named.Set(r.Start.Add(i).Sub(m.Start))
		}
	}
	return named.Contains(m.Lost)
}

func (o *oracle) budget(m message) {
	o.events = append(o.events, event{m.at, int64(m.size), false})
	f := o.w.f
	srtt := f.rtt.smoothed()
	if srtt > 2*o.lowest {
		return // the record does not reach back that far
	}
	checkLast(o.w.t, o.events, srtt, f.params.MaxRepairRatio, f.symbolSize())
}

// checkLast is checkBudget for the last event only.
func checkLast(t testing.TB, events []event, srtt time.Duration, ratio float64, symbol int64) {
	t.Helper()
	now := events[len(events)-1].at
	var source, repair int64
	for i := len(events) - 1; i >= 0 && events[i].at > now-srtt; i-- {
		if events[i].source {
			source += events[i].octets
		} else {
			repair += events[i].octets
		}
	}
	if limit := max(ratio*float64(source), float64(4*max(symbol, 1024))); float64(repair) > limit {
		t.Fatalf("at %v: %d octets of repairs for %d of sources in one SRTT, limit %.0f", now, repair, source, limit)
	}
}

// tape reads operations from fuzz input.
type tape struct{ b []byte }

func (t *tape) next() int {
	if len(t.b) == 0 {
		return 0
	}
	v := t.b[0]
	t.b = t.b[1:]
	return int(v)
}

// step does one operation.
func (o *oracle) step(in *tape) {
	w, f := o.w, o.w.f
	op := in.next()
	switch op % 21 {
	case 0, 1, 2, 3, 4, 5:
		for range 1 + in.next()%48 {
			o.give(packet(w.t, roce.WriteMiddle, f.newest.Add(1), w.mtu, 0))
			w.wait(time.Duration(op) * 100 * time.Nanosecond)
		}
	case 6:
		o.skip(in)
	case 7:
		o.give(packet(w.t, roce.WriteMiddle, f.newest.Add(-in.next()%70), w.mtu, in.next()%3))
	case 8:
		o.give(readRequest(w.t, f.newest.Add(1), in.next()*40))
	case 9:
		f.HandleAck(w.now, f.newest.Add(10-in.next()))
	case 10:
		o.blockRequest(in)
	case 11:
		o.rangeRequest(in)
	case 12:
		o.lossReport(in)
	case 13:
		w.wait(time.Duration(1+in.next()) * 100 * time.Microsecond)
	case 14:
		w.now += time.Duration(in.next()) * 20 * time.Microsecond // the engine is late
	case 15:
		o.params(in)
	case 16:
		o.answer(in)
	case 17:
		if in.next()%4 == 0 {
			f.HandleClose(w.now, gateway, &wire.Close{FlowID: testID, Reason: wire.CloseReason(in.next() % 8)}, &w.acts)
		}
	case 18:
		o.disturb(in)
	case 20:
		o.pathReport(in)
	case 19:
		o.give(packet(w.t, roce.WriteOnly, f.newest.Add(1), in.next()*2, 0))
	}
	o.settle()
}

func (o *oracle) give(p *roce.Packet) {
	restarts := o.w.f.Stats().Restarts
	before := o.w.f.Stats().SourceOctets
	if o.w.f.State() == Closed { // for idleness: it begins anew
		o.newLife()
	}
	o.packet(p)
	o.w.f.HandleSource(o.w.now, p, &o.w.acts)
	if o.w.f.Stats().Restarts != restarts {
		o.newLife()
		o.packet(p)
	}
	if n := int64(o.w.f.Stats().SourceOctets - before); n > 0 {
		// A repair that the packet set free counts after it.
		o.events = append(o.events, event{o.w.now, n, true})
	}
	o.settle()
}

// settle takes what was sent and checks what holds at any time.
func (o *oracle) settle() {
	w := o.w
	w.t.Helper()
	w.take()
	o.other = false
	if w.f.ID() == 0 {
		o.newBinding()
	}
	in, limit := w.env.Pool.InUse(), w.env.Pool.Limit()
	if in > max(limit+1<<16, o.inUse) { // the limit may have been lowered below what is in use
		w.t.Fatalf("%d octets in use, limit %d", in, limit)
	}
	o.inUse = in
	if len(w.f.queue) > maxQueue || w.f.waiting < 0 || len(w.f.answers) == 0 && w.f.waiting != 0 {
		w.t.Fatalf("%d blocks queue, %d answers wait with %d octets", len(w.f.queue), len(w.f.answers), w.f.waiting)
	}
	if len(o.events) > 20000 {
		o.events = o.events[10000:]
	}
}

func (o *oracle) blockRequest(in *tape) {
	w := o.w
	var b *sentBlock
	n := in.next()
	for back := range 300 {
		if b = o.blocks[w.f.newest.Add(-back-n)]; b != nil {
			break
		}
	}
	if b == nil {
		return
	}
	m := wire.RepairRequest{
		FlowID: testID, RequestID: uint16(in.next() % 64), ConfigID: b.ConfigID, K: b.K, Start: b.Start, M: uint8(in.next() % 12),
		Fallback: in.next()%4 == 0,
	}
	for range 1 + in.next()%6 {
		m.Lost.Set(in.next() % int(b.K))
	}
	if in.next()%3 > 0 {
		m.Lost = m.Lost.And(b.Present)
	}
	if o.lost[b.Start] == nil {
		o.lost[b.Start] = map[fec.Bitmap]bool{}
	}
	o.lost[b.Start][m.Lost] = true
	w.f.HandleRequest(w.now, gateway, &m, &w.acts)
}

func (o *oracle) rangeRequest(in *tape) {
	w := o.w
	m := wire.RepairRequest{FlowID: testID, RequestID: uint16(in.next() % 64), ByRanges: true, Fallback: in.next()%5 == 0}
	for range 1 + in.next()%3 {
		r := wire.Range{Start: w.f.newest.Add(20 - in.next()), Count: uint8(in.next() % 90)}
		o.ranges = append(o.ranges, r)
		m.Ranges = m.Ranges.Append(r)
	}
	w.f.HandleRequest(w.now, gateway, &m, &w.acts)
}

func (o *oracle) lossReport(in *tape) {
	w := o.w
	n := uint32(in.next() * 8)
	m := wire.LossReport{
		FlowID: testID, Interval: uint32(in.next()) * 5000, Expected: n, Received: n - min(n, uint32(in.next()%16)*n/64),
		CEMarked: uint32(in.next() % 64), RepairsReceived: uint32(in.next()), RepairsCEMarked: uint32(in.next() % 32),
	}
	w.f.HandleLossReport(w.now, gateway, &m, &w.acts)
}

func (o *oracle) params(in *tape) {
	w := o.w
	p := *w.p
	switch in.next() % 8 {
	case 0:
		p.K = 1 + in.next()%64
	case 1:
		p.FixedM = in.next()%10 - 1
	case 2:
		p.MaxM = in.next() % 12
	case 3:
		p.Schemes = [][]fec.Scheme{{fec.Cauchy}, {fec.XOR, fec.Cauchy}, {fec.SourceCopy}, {fec.XOR}}[in.next()%4]
	case 4:
		p.MaxRepairRatio = float64(in.next()%8) / 8
	case 5:
		p.Spread = in.next()%2 == 0
	case 6:
		p.Strategy = Strategy(in.next() % 2)
		p.LossModel = LossModel(in.next() % 2)
	case 7:
		if in.next()%8 == 0 {
			p.Digest = !p.Digest
		}
	}
	w.take()
	w.p = &p
	w.f.SetParams(w.now, &p, &w.acts)
}

// answer plays the peer: HELLO_ACK or PARAM_ACK, now and then a bad one.
func (o *oracle) answer(in *tape) {
	w := o.w
	n := in.next()
	switch {
	case w.f.ID() == 0 && w.f.Nonce() != 0:
		m := w.helloAck()
		m.MaxK, m.MaxM = uint8(8+n), uint8(n%16)
		if n%5 == 0 {
			m.Extensions = 0
		}
		w.f.HandleHelloAck(w.now, gateway, &m, &w.acts)
	case w.f.ID() != 0 && n%7 == 0:
		m := w.helloAck()
		m.FlowID++
		o.other = true
		w.f.HandleHelloAck(w.now, netip.AddrPortFrom(gateway2.Addr(), 7), &m, &w.acts)
	case w.f.proposal.due != roce.Never:
		m := wire.ParamAck{FlowID: testID, ConfigID: w.f.proposal.config.id}
		if n%6 == 0 {
			m.Status = wire.Status(n % 4)
		}
		w.take()
		if c := w.f.proposal.config; m.Status == wire.StatusAccepted {
			o.config[c.id] = wire.ParamUpdate{
				ConfigID: c.id, Scheme: c.scheme, K: uint8(c.k), M: uint8(c.m), T: uint16(c.T), Effective: w.f.proposal.config.effective,
			}
		}
		w.f.HandleParamAck(w.now, gateway, &m, &w.acts)
	}
}

// skip leaves PSNs out, and brings some of them late or asks for them.
func (o *oracle) skip(in *tape) {
	w, n := o.w, in.next()
	missing := w.f.newest.Add(1)
	o.give(packet(w.t, roce.WriteMiddle, w.f.newest.Add(1+n%80), w.mtu, 0))
	o.give(packet(w.t, roce.WriteMiddle, w.f.newest.Add(1+n%3), w.mtu, 0))
	switch how := in.next(); how % 4 {
	case 0:
		o.give(packet(w.t, roce.WriteMiddle, w.f.newest.Add(-1), w.mtu, 0))
	case 1:
		m := wire.RepairRequest{FlowID: testID, RequestID: uint16(how), ByRanges: true}
		for _, psn := range []roce.PSN{missing, w.f.newest.Add(-1)} {
			m.Ranges = m.Ranges.Append(wire.Range{Start: psn, Count: 1})
			o.ranges = append(o.ranges, wire.Range{Start: psn, Count: 1})
		}
		w.f.HandleRequest(w.now, gateway, &m, &w.acts)
	}
}

// disturb does what is rare.
func (o *oracle) disturb(in *tape) {
	w, f := o.w, o.w.f
	switch in.next() % 23 {
	case 0:
		o.give(packet(w.t, roce.WriteMiddle, f.newest.Add(1<<20+in.next()), w.mtu, 0))
	case 1:
		from := f.floor.Add(-1000 - in.next())
		for i := range 64 {
			o.give(packet(w.t, roce.WriteMiddle, from.Add(i), w.mtu, 0))
		}
	case 2:
		w.env.Pool.SetLimit(int64(1+in.next()) << 10)
	case 3:
		w.env.Pool.SetLimit(64 << 20)
	case 4:
		w.wait(time.Duration(in.next()) * 200 * time.Millisecond)
	case 5:
		f.rtt.add(w.now, time.Duration(1+in.next())*200*time.Microsecond, true)
	}
}

func (o *oracle) pathReport(in *tape) {
	w := o.w
	m := wire.PathReport{Src: srcAddr, Dst: dstAddr, Label: testQPN, HopCount: in.next() % (wire.MaxHops + 1)}
	for i := range m.Hops[:m.HopCount] {
		h := wire.Hop{
			NodeID: uint32(in.next() % 32), Period: uint32(in.next()), Lost: uint32(in.next()), DelayChange: int32(in.next()-128) * 100, Cause: wire.Cause(in.next() % 5),
		}
		for range in.next() % 8 {
			psn := w.f.newest.Add(2 - in.next()%80)
			h.PSNs = h.PSNs.Append(psn)
			o.drops[psn] = true
		}
		m.Hops[i] = h
	}
	w.f.HandlePathReport(w.now, gateway2, &m, &w.acts)
}

// run plays a whole input, then lets the flow end.
func play(t testing.TB, data []byte) *world {
	p := defaults()
	p.K, p.Spread = 16, true
	in := &tape{data}
	flags := in.next()
	p.Digest = flags&1 == 0
	p.FixedM = flags>>1%8 - 1
	w := newWorld(t, p)
	w.mtu = 64
	o := newOracle(w)
	w.f = w.newFlow(wire.KindRoCEv2, gateway, gateway2)
	o.give(packet(t, roce.WriteMiddle, roce.PSN(in.next()<<16), w.mtu, 0))
	w.wait(4 * time.Millisecond)
	o.answer(&tape{[]byte{8}})
	o.settle()
	w.wait(4 * time.Millisecond)
	o.answer(&tape{[]byte{8}})
	o.settle()
	for len(in.b) > 0 {
		o.step(in)
	}
	w.f.Close(w.now, wire.CloseAdministrative, &w.acts)
	w.take()
	if w.env.Pool.InUse() != 0 || w.f.NextDeadline() != roce.Never || w.env.oldest != nil {
		t.Fatalf("%d octets after the end, deadline %v", w.env.Pool.InUse(), w.f.NextDeadline())
	}
	return w
}

func FuzzFlow(f *testing.F) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 12 {
		b := make([]byte, 400)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) { play(t, data[:min(len(data), 600)]) })
}

// The same with long random inputs, and proof that they reach what they should.
func TestRandomOperations(t *testing.T) {
	if testing.Short() {
		randomOperations(t, 50, 21)
		return
	}
	randomOperations(t, 150, 21)
}

func TestLongRandomOperations(t *testing.T) {
	if os.Getenv("CREM_LONG") == "" {
		t.Skip("CREM_LONG is not set")
	}
	randomOperations(t, 2000, 23)
}

func randomOperations(t *testing.T, rounds int, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 22))
	var sum Stats
	for range rounds {
		b := make([]byte, 1500)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		s := play(t, b).f.Stats()
		sum.Ordinary += s.Ordinary
		sum.Coded += s.Coded
		sum.Early += s.Early
		sum.DropsUnused += s.DropsUnused
		sum.Copies += s.Copies
		sum.Info += s.Info
		sum.Withdrawn += s.Withdrawn
		sum.Withheld += s.Withheld
		sum.Restarts += s.Restarts
		sum.BreakerOpened += s.BreakerOpened
		sum.BlocksEvicted += s.BlocksEvicted
		sum.BlocksAcked += s.BlocksAcked
		sum.Reordered += s.Reordered
		sum.ParamUpdates += s.ParamUpdates
	}
	for name, n := range map[string]uint64{
		"ordinary": sum.Ordinary, "coded": sum.Coded, "early": sum.Early, "drops unused": sum.DropsUnused, "copies": sum.Copies, "info": sum.Info, "withdrawn": sum.Withdrawn, "withheld": sum.Withheld,
		"restarts": sum.Restarts, "breaker": sum.BreakerOpened, "evicted": sum.BlocksEvicted, "acked": sum.BlocksAcked, "reordered": sum.Reordered,
		"updates": sum.ParamUpdates,
	} {
		if n < 20 {
			t.Errorf("only %d %s", n, name)
		}
	}
	t.Logf("%d ordinary, %d coded, %d copies, %d info, %d withheld, %d restarts", sum.Ordinary, sum.Coded, sum.Copies, sum.Info, sum.Withheld, sum.Restarts)
}

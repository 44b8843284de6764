// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	testRTT  = 20 * time.Millisecond
	testQPN  = 0x123456
	testTOS  = 0x69 // DSCP 26, ECT(1)
	testID   = 0xbeef
	testPort = 52000
	start    = 1000 * time.Second // of virtual time
)

var (
	gateway  = netip.MustParseAddrPort("198.51.100.1:52000")
	gateway2 = netip.MustParseAddrPort("198.51.100.2:52000")
	srcAddr  = netip.MustParseAddr("10.1.0.1")
	dstAddr  = netip.MustParseAddr("10.2.0.1")
)

// message is one message that a flow sent.
type message struct {
	at    time.Duration
	to    netip.AddrPort
	typ   wire.Type
	size  int
	hello wire.Hello
	param wire.ParamUpdate
	close wire.Close
	wire.Repair
}

// String leaves the symbol out.
func (m message) String() string {
	switch m.typ {
	case wire.TypeRepair:
		return fmt.Sprintf("REPAIR at %v config %d %v k %d index %d start %v T %d retx %v last %v info %v present %x lost %x session %d",
			m.at, m.ConfigID, m.Scheme, m.K, m.Index, m.Start, m.T, m.Retx, m.Last, m.Info, m.Present, m.Lost, m.Session)
	case wire.TypeParamUpdate:
		return fmt.Sprintf("PARAM_UPDATE at %v %+v", m.at, m.param)
	case wire.TypeHello:
		return fmt.Sprintf("HELLO at %v %+v", m.at, m.hello)
	}
	return fmt.Sprintf("%v at %v %v", m.typ, m.at, m.close)
}

// world runs one flow under virtual time and keeps all that it sends.
type world struct {
	t     testing.TB
	now   time.Duration
	env   *Env
	p     *Params
	f     *Flow
	acts  []Action
	log   []message
	rng   uint64
	probe func(message) // called for each message
	mtu   int           // RDMA MTU of the packets that write makes
}

func defaults() *Params {
	return &Params{
		K: 32, MaxM: 8, Epsilon: 1e-4, Schemes: []fec.Scheme{fec.Cauchy}, MaxRepairRatio: 0.25, Digest: true, PathMTU: 1500, FixedM: -1,
	}
}

func fixed(m int) *Params {
	p := defaults()
	p.FixedM, p.MaxRepairRatio = m, 1
	return p
}

func newWorld(t testing.TB, p *Params) *world {
	w := &world{t: t, now: start, p: p, mtu: 1024, rng: 1}
	w.env = &Env{Pool: fec.NewPool(64 << 20), Random: func() uint64 {
		w.rng = w.rng*6364136223846793005 + 1442695040888963407
		return w.rng
	}}
	w.f = w.newFlow(wire.KindRoCEv2, gateway)
	return w
}

func (w *world) newFlow(kind wire.FlowKind, peers ...netip.AddrPort) *Flow {
	d := wire.FlowDescriptor{Kind: kind, Src: srcAddr, Dst: dstAddr, Label: testQPN}
	return New(w.now, d, peers, w.p, w.env)
}

// take moves what the flow sent to the log. Every message must be well-formed, fit the path, carry DSCP and ECT(0).
func (w *world) take() []message {
	w.t.Helper()
	from := len(w.log)
	for _, a := range w.acts {
		if a.TOS != testTOS&^3|2 {
			w.t.Fatalf("TOS %#x: not the flow's DSCP with ECT(0)", a.TOS)
		}
		h, err := wire.ParseHeader(a.Msg)
		if err != nil {
			w.t.Fatal(err)
		}
		m := message{at: w.now, to: a.To, typ: h.Type, size: len(a.Msg)}
		switch h.Type {
		case wire.TypeHello:
			m.hello, err = wire.ParseHello(a.Msg)
		case wire.TypeParamUpdate:
			m.param, err = wire.ParseParamUpdate(a.Msg)
		case wire.TypeClose:
			m.close, err = wire.ParseClose(a.Msg)
		case wire.TypeRepair:
			m.Repair, err = wire.ParseRepair(a.Msg)
			m.Symbol = append([]byte(nil), m.Symbol...)
			if ip := len(a.Msg) + ipv4Header + udpHeader + w.p.TunnelOverhead; ip > w.p.PathMTU {
				w.t.Fatalf("REPAIR of %d octets on a path of %d", ip, w.p.PathMTU)
			}
		default:
			w.t.Fatalf("a CSF sent %v", h.Type)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		w.log = append(w.log, m)
		if w.probe != nil {
			w.probe(m)
		}
	}
	w.acts = w.acts[:0]
	w.env.Pool.Reclaim()
	return w.log[from:]
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

// packet makes a RoCEv2 packet. Octets of data follow from the PSN and the copy number.
func packet(t testing.TB, op roce.Opcode, psn roce.PSN, data, copyNo int) *roce.Packet {
	t.Helper()
	frame := buildFrame(op, psn, data, copyNo)
	p, reason := roce.Parse(frame)
	if reason != roce.OK {
		t.Fatal(reason)
	}
	return &p
}

func buildFrame(op roce.Opcode, psn roce.PSN, data, copyNo int) []byte {
	const head = 14 + 20 + 8
	pad := -data & 3
	n := op.HeaderLen() + data + pad + 4
	b := make([]byte, head+n)
	b[12], b[13] = 0x08, 0x00
	ip := b[14:]
	ip[0], ip[1], ip[8], ip[9] = 0x45, testTOS, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(20+8+n))
	binary.BigEndian.PutUint16(ip[4:], uint16(psn)*7+uint16(copyNo))
	s, d := srcAddr.As4(), dstAddr.As4()
	copy(ip[12:], s[:])
	copy(ip[16:], d[:])
	udp := b[34:]
	binary.BigEndian.PutUint16(udp, 0xc000)
	binary.BigEndian.PutUint16(udp[2:], roce.Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(8+n))
	p := b[head:]
	p[0], p[1] = byte(op), byte(pad<<4)
	binary.BigEndian.PutUint16(p[2:], 0xffff)
	binary.BigEndian.PutUint32(p[4:], testQPN)
	binary.BigEndian.PutUint32(p[8:], uint32(psn))
	for i := op.HeaderLen(); i < n-4-pad; i++ {
		p[i] = byte(uint32(psn)*31 + uint32(i)*7)
	}
	binary.LittleEndian.PutUint32(p[n-4:], roce.ICRC(b[:head], p))
	return b
}

// readRequest makes a READ request for length octets.
func readRequest(t testing.TB, psn roce.PSN, length int) *roce.Packet {
	p := packet(t, roce.ReadRequest, psn, 0, 0)
	binary.BigEndian.PutUint32(p.P()[12+12:], uint32(length))
	return p
}

// give shows the flow a packet now.
func (w *world) give(p *roce.Packet) []message {
	w.t.Helper()
	w.f.HandleSource(w.now, p, &w.acts)
	return w.take()
}

// write gives the packet of one PSN: the inner part of a long WRITE.
func (w *world) write(psn roce.PSN) []message {
	w.t.Helper()
	return w.give(packet(w.t, roce.WriteMiddle, psn, w.mtu, 0))
}

// burst gives n packets from psn on, gap apart.
func (w *world) burst(psn roce.PSN, n int, gap time.Duration) {
	w.t.Helper()
	for i := range n {
		w.write(psn.Add(i))
		w.wait(gap)
	}
}

func (w *world) helloAck() wire.HelloAck {
	return wire.HelloAck{
		FlowID: testID, Kind: w.f.descriptor.Kind, AF: 4, Schemes: 7, MaxK: 255, MaxM: 255, MaxT: 9000, Extensions: wire.ExtDigest,
		Nonce: w.f.Nonce(), MaxOpenBlocks: 1024,
	}
}

func (w *world) answerHello(from netip.AddrPort, change func(*wire.HelloAck)) []message {
	w.t.Helper()
	m := w.helloAck()
	if change != nil {
		change(&m)
	}
	w.f.HandleHelloAck(w.now, from, &m, &w.acts)
	return w.take()
}

func (w *world) paramAck(id uint8, status wire.Status) []message {
	w.t.Helper()
	m := wire.ParamAck{FlowID: testID, ConfigID: id, Status: status}
	w.f.HandleParamAck(w.now, gateway, &m, &w.acts)
	return w.take()
}

// acceptNow acknowledges a configuration without giving an RTT sample.
func (w *world) acceptNow(id uint8) []message {
	w.t.Helper()
	w.f.proposal.attempts++
	return w.paramAck(id, wire.StatusAccepted)
}

// lastOf returns the last message of a type.
func (w *world) lastOf(typ wire.Type) message {
	w.t.Helper()
	for i := len(w.log) - 1; i >= 0; i-- {
		if w.log[i].typ == typ {
			return w.log[i]
		}
	}
	w.t.Fatalf("no %v was sent", typ)
	return message{}
}

func (w *world) all(typ wire.Type) (out []message) {
	for _, m := range w.log {
		if m.typ == typ {
			out = append(out, m)
		}
	}
	return out
}

// protect brings the flow to Protecting, with an SRTT of testRTT that is exact. PSN first is used up.
func (w *world) protect(first roce.PSN) {
	w.t.Helper()
	w.write(first)
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	w.wait(testRTT)
	w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
	if w.f.State() != Protecting {
		w.t.Fatalf("state %v", w.f.State())
	}
	if s := w.f.Stats().SRTT; s != testRTT {
		w.t.Fatalf("SRTT %v", s)
	}
	w.log = nil
}

func protected(t testing.TB, p *Params, first roce.PSN) *world {
	t.Helper()
	w := newWorld(t, p)
	w.protect(first)
	return w
}

func (w *world) report(expected, received uint32, change func(*wire.LossReport)) []message {
	w.t.Helper()
	m := wire.LossReport{FlowID: testID, Interval: uint32(testRTT / time.Microsecond), Expected: expected, Received: received}
	if change != nil {
		change(&m)
	}
	w.f.HandleLossReport(w.now, gateway, &m, &w.acts)
	return w.take()
}

// request asks for positions of a block as REPAIRs describe it.
func (w *world) request(id uint16, r *wire.Repair, suggested int, lost ...int) []message {
	w.t.Helper()
	m := wire.RepairRequest{
		FlowID: testID, RequestID: id, ConfigID: r.ConfigID, Scheme: r.Scheme, K: r.K, Start: r.Start, M: uint8(suggested), Lost: set(lost...),
	}
	w.f.HandleRequest(w.now, gateway, &m, &w.acts)
	return w.take()
}

func (w *world) requestRanges(id uint16, ranges ...wire.Range) []message {
	w.t.Helper()
	m := wire.RepairRequest{FlowID: testID, RequestID: id, ByRanges: true}
	for _, r := range ranges {
		m.Ranges = m.Ranges.Append(r)
	}
	w.f.HandleRequest(w.now, gateway, &m, &w.acts)
	return w.take()
}

func set(positions ...int) (b fec.Bitmap) {
	for _, j := range positions {
		b.Set(j)
	}
	return b
}

func full(k int) fec.Bitmap { return fec.Full(k) }

// gfMul multiplies in GF(2^8) by the definition of Section 4.3.2, without tables.
func gfMul(a, b byte) (p byte) {
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			p ^= a
		}
		carry := a >> 7
		a = a<<1 ^ carry*0x1d
	}
	return p
}

func gfInv(a byte) byte {
	for x := 1; x < 256; x++ {
		if gfMul(a, byte(x)) == 1 {
			return byte(x)
		}
	}
	return 0
}

// The same as tables, so that fuzzing gets anywhere.
var invTable, mulTable = func() (inv [256]byte, mul [256][256]byte) {
	for i := range inv {
		inv[i] = gfInv(byte(i))
		for j := range mul[i] {
			mul[i][j] = gfMul(byte(i), byte(j))
		}
	}
	return inv, mul
}()

// naiveSymbol computes a repair symbol from the sources' payloads by the words of the draft.
func naiveSymbol(scheme fec.Scheme, index, T int, over fec.Bitmap, payload func(j int) []byte) []byte {
	out := make([]byte, T)
	for j := over.First(); j >= 0; j = over.Next(j + 1) {
		p := payload(j)
		s := make([]byte, T)
		binary.BigEndian.PutUint16(s, uint16(len(p)))
		copy(s[2:], p)
		c := byte(1)
		if scheme == fec.Cauchy {
			c = invTable[byte(255-index)^byte(j)]
		}
		if scheme == fec.SourceCopy && j != index {
			continue
		}
		row := &mulTable[c]
		for i, v := range s {
			out[i] ^= row[v]
		}
	}
	return out
}

func mustAddrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/internal/agentapi"
)

// silent is a tap that nothing comes by.
type silent struct{ packet.Tap }

func (silent) Close() error               { return nil }
func (silent) LookIntoTunnels(bool) error { return nil }
func (silent) Gone() bool                 { return false }
func (silent) FD() int                    { return 0 }
func (silent) Stats() packet.TapStats     { return packet.TapStats{} }

// outbox is a socket that keeps what is sent.
type outbox struct {
	packet.Socket
	sent []posted
}

func (o *outbox) FDs() []int                { return nil }
func (o *outbox) Stats() packet.SocketStats { return packet.SocketStats{} }
func (o *outbox) Send(to netip.AddrPort, from packet.Source, tos uint8, msg []byte) {
	o.sent = append(o.sent, posted{to, from, tos, append([]byte(nil), msg...)})
}

// deaf is an injector and a ring that nothing goes through.
type deaf struct {
	packet.Injector
	packet.Ring
}

func (deaf) Stats() packet.InjectStats { return packet.InjectStats{} }
func (deaf) Missed() uint64            { return 0 }
func (deaf) Close() error              { return nil }

// posted is a message that was sent.
type posted struct {
	to   netip.AddrPort
	from packet.Source
	tos  uint8
	msg  []byte
}

// bench is a Backend and the one worker of an engine on it.
type bench struct {
	kernel
	box outbox
	w   *worker
}

func (b *bench) OpenSockets(uint16, int) ([]packet.Socket, error) {
	return []packet.Socket{&b.box}, nil
}
func (b *bench) OpenTaps(uplink.Uplink) ([]packet.Tap, error) { return []packet.Tap{silent{}}, nil }
func (b *bench) OpenInjector() (packet.Injector, error)       { return deaf{}, nil }
func (b *bench) Ring(int) packet.Ring                         { return deaf{} }

var (
	leaving  = flow("10.1.0.5", "10.2.0.5")
	arriving = flow("10.2.0.5", "10.1.0.5")
	peer     = netip.MustParseAddrPort("198.51.100.1:52000")
)

func reporting(on bool) *Config {
	c := required()
	d := &c.Domains[0]
	d.RequireIPsec, d.ReportDrops, d.Reporters = false, on, prefixes("10.255.0.0/24")
	d.Rules[0].Profile = &Profile{Name: "any", CSF: csf.Params{K: 32, MaxM: 8, Epsilon: 1e-4, MaxRepairRatio: 0.25, FixedM: -1}}
	return c
}

// benchStart is when the time of a bench begins. The clock of the machine, which may have been up for minutes only, has no part in it.
const benchStart = time.Hour

// newBench has a flow that leaves and one that arrives by wan0, whose index is 7.
func newBench(t *testing.T, c *Config) *bench {
	t.Helper()
	b := &bench{}
	e := New(Options{Backend: b, Workers: 1, Node: "gw1"})
	e.loaded = true
	if _, err := e.Apply(c); err != nil {
		t.Fatal(err)
	}
	var err error
	if b.w, err = e.newWorker(0); err != nil {
		t.Fatal(err)
	}
	e.workers = append(e.workers, b.w)
	b.w.now = benchStart
	b.w.obey()
	b.w.newSendFlow(b.w.snap.uplinkOf(7), leaving)
	hello := wire.Hello{Flow: wire.FlowDescriptor{Kind: wire.KindRoCEv2, Src: arriving.Src, Dst: arriving.Dst, Label: uint32(arriving.QPN)}, Schemes: 1 << fec.Cauchy}
	r := &recvFlow{w: b.w, key: arriving, moving: newMoving(arriving), peer: peer, port: 52000, ifindex: 7, domain: "backbone", reportDrops: c.Domains[0].ReportDrops}
	r.machine = crf.New(b.w.now, 1, &hello, peer, netip.Addr{}, &crf.Params{}, b.w.crfEnv)
	r.timed = timed{place: -1, poll: r}
	b.w.recvByKey[arriving] = r
	return b
}

// counters lets so many packets of each flow pass, and the uplink's counters be read.
func (b *bench) counters(packets int, c uplink.Counters) {
	for range packets {
		b.w.left(b.w.sending[leaving], 7, 0x69)
		b.w.came(b.w.recvByKey[arriving], 7, 0x69)
	}
	b.w.snap.uplinkOf(7).port.read.Store(&c)
	b.w.takeCounters()
	b.w.now += time.Millisecond
	b.w.pollTimers()
}

func (b *bench) csf() *csf.Stats { return b.w.sending[leaving].machine.Stats() }

// What an uplink dropped of what leaves is told to the CSF here; of what arrives, to the address of its CSF (Section 8.2, rule 2).
func TestSection8_2_DropsOfAnUplinkAreReported(t *testing.T) {
	b := newBench(t, reporting(true))
	b.counters(100, uplink.Counters{Sent: 1000, SendDropped: 5, Received: 1000, Missed: 7})
	b.counters(100, uplink.Counters{Sent: 1100, SendDropped: 5, Received: 1100, Missed: 7})
	if len(b.box.sent) != 0 || b.csf().PathReports != 0 {
		t.Fatalf("reports without a drop: %v", b.box.sent)
	}
	b.counters(100, uplink.Counters{Sent: 1200, SendDropped: 25, Received: 1300, Missed: 27})
	if b.csf().PathReports != 1 || len(b.box.sent) != 1 {
		t.Fatalf("%d reports to the CSF here, %d sent", b.csf().PathReports, len(b.box.sent))
	}
	m := b.box.sent[0]
	x, err := wire.ParsePathReport(m.msg)
	if err != nil || m.to != peer || m.from != (packet.Source{Addr: netip.MustParseAddr("192.0.2.1")}) || m.tos != 0x69&^3|2 {
		t.Fatalf("%v to %v from %v, TOS %#x", err, m.to, m.from, m.tos)
	}
	if h := x.Hops[0]; x.Src != arriving.Src || x.Dst != arriving.Dst || x.HopCount != 1 || h.Lost != 10 || h.Cause != wire.CauseCongestion || h.NodeID != nodeID("gw1") {
		t.Errorf("%+v", x)
	}
	r := b.w.report(false)
	if r.counters["reporter_reports"] != 2 || r.counters["reporter_attributed"] != 30 {
		t.Errorf("%v", r.counters)
	}
	if s := b.w.e.Overview().Domains[0]; s.Reporter != agentapi.ReporterOwnDrops || !strings.Contains(s.ReporterProblem, "does not measure loss between sites: write spec.wan") {
		t.Errorf("%+v", s)
	}
	text := errors.New("operation not permitted").Error()
	b.w.snap.uplinkOf(7).port.problem.Store(&text)
	if s := b.w.e.Overview().Domains[0]; !strings.Contains(s.ReporterProblem, "reports nothing: operation not permitted") {
		t.Errorf("%+v", s)
	}

	// Off again: nothing is left of it but what was counted.
	if _, err := b.w.e.Apply(reporting(false)); err != nil {
		t.Fatal(err)
	}
	b.w.snap.uplinkOf(7).port.problem.Store(nil)
	delete(b.w.recvByKey, arriving)
	b.w.obey()
	if len(b.w.ports) != 0 || b.w.e.Overview().Domains[0].Reporter != agentapi.ReporterOff {
		t.Error("still on")
	}
	if n := b.w.report(false).counters["reporter_attributed"]; n != 30 {
		t.Errorf("a counter went back to %d", n)
	}
}

// downstream is a PATH_REPORT of another node about a flow.
func downstream(f roce.FlowKey, node, number uint32, lost ...roce.PSN) *wire.PathReport {
	x := wire.PathReport{Method: wire.MethodNodeDrops, Src: f.Src, Dst: f.Dst, Label: uint32(f.QPN), HopCount: 1}
	x.Hops[0] = wire.Hop{NodeID: node, Period: number, Lost: uint32(len(lost)), Cause: wire.CauseCorruption}
	for _, p := range lost {
		x.Hops[0].PSNs = x.Hops[0].PSNs.Append(p)
	}
	return &x
}

// hear gives the worker a message that came by the socket, and what comes of it within the aggregation interval.
func (b *bench) hear(from netip.Addr, x *wire.PathReport) {
	b.w.message(52000, &packet.Message{Data: x.Append(nil), From: netip.AddrPortFrom(from, 52000), To: netip.MustParseAddr("192.0.2.1")})
}

// sent takes the reports that left, all of which must go to the peer of the flow that arrives.
func (b *bench) sent(t *testing.T) (out []wire.PathReport) {
	t.Helper()
	b.w.now += time.Millisecond
	b.w.pollTimers()
	for _, m := range b.box.sent {
		x, err := wire.ParsePathReport(m.msg)
		if err != nil || m.to != peer {
			t.Fatalf("%v to %v", err, m.to)
		}
		out = append(out, x)
	}
	b.box.sent = nil
	return out
}

// What reporters further down the path say of a flow that arrives here goes on to its CSF, with what this node has to say (Section 8.2, rule 3): only
// what reporters of the domain say, only from a node that is a reporter itself, never in circles, and within the limits.
func TestSection8_2_DownstreamReportsGoOn(t *testing.T) {
	b := newBench(t, reporting(true))
	b.counters(100, uplink.Counters{Received: 1000, Missed: 7})
	b.counters(100, uplink.Counters{Received: 1100, Missed: 7})
	for range 100 {
		b.w.came(b.w.recvByKey[arriving], 7, 0x69)
	}
	b.w.snap.uplinkOf(7).port.read.Store(&uplink.Counters{Received: 1200, Missed: 8})
	b.w.takeCounters()
	b.hear(reporterAddr, downstream(arriving, 3, 1, 5, 6))
	got := b.sent(t)
	if len(got) != 1 || got[0].HopCount != 2 || got[0].Hops[0].NodeID != nodeID("gw1") || got[0].Hops[1].NodeID != 3 || got[0].Hops[1].PSNs.Len() != 2 {
		t.Fatalf("%+v", got)
	}
	b.hear(reporterAddr, downstream(arriving, nodeID("gw1"), 1, 5))
	b.hear(peer.Addr(), downstream(arriving, 3, 2, 5))
	if got := b.sent(t); len(got) != 0 || b.w.drops[dropReporter] != 1 || b.w.drops[dropUnknownFlow] != 0 {
		t.Fatalf("what came from here, or from no reporter, goes on: %+v", got)
	}

	// Each fits by itself, and not beside the others: what cannot be merged goes on at most once in the gap of drops.
	many := make([]roce.PSN, wire.MaxPSNs)
	for i := range uint32(50) {
		b.hear(reporterAddr, downstream(arriving, 100+i, i, many...))
	}
	got = b.sent(t)
	for range 100 {
		got = append(got, b.sent(t)...)
	}
	r := b.w.report(false)
	if len(got) != 2 || r.counters["reporter_merged"] != 2 || r.counters["reporter_forwarded"] != 1 || r.drops["reporter_paced"] != 48 {
		t.Errorf("%d reports left; %v %v", len(got), r.counters, r.drops)
	}

	b = newBench(t, reporting(false))
	b.hear(reporterAddr, downstream(arriving, 3, 1, 5))
	if got := b.sent(t); len(got) != 0 || b.w.drops[dropUnknownFlow] != 1 {
		t.Errorf("a node that is no reporter passed %+v", got)
	}
}

// By default nobody reports, and packets cost nothing for it.
func TestSection8_2_ReporterIsOffByDefault(t *testing.T) {
	b := newBench(t, reporting(false))
	b.counters(100, uplink.Counters{})
	b.counters(100, uplink.Counters{SendDropped: 50, Missed: 50})
	if len(b.w.ports) != 0 || len(b.box.sent) != 0 || b.csf().PathReports != 0 || len(b.w.sending) != 1 {
		t.Errorf("%d ports, %v", len(b.w.ports), b.box.sent)
	}
}

// A report from outside the reporters, a malformed one and one about no flow change nothing but a counter; one of a reporter reaches the CSF,
// and again it is outdated.
func TestSection11_WhoseReportsAreBelieved(t *testing.T) {
	b := newBench(t, reporting(true))
	x := wire.PathReport{Method: wire.MethodNodeDrops, Src: leaving.Src, Dst: leaving.Dst, Label: uint32(leaving.QPN), HopCount: 1}
	x.Hops[0] = wire.Hop{NodeID: 3, Period: 1, Lost: 2, PSNs: wire.PSNList{}.Append(roce.PSN(1)).Append(roce.PSN(2))}
	of := func(change func(*wire.PathReport)) []byte { y := x; change(&y); return y.Append(nil) }
	same := func(*wire.PathReport) {}
	for _, c := range []struct {
		name string
		from netip.Addr
		msg  []byte
		why  drop
	}{
		{"a peer that is no reporter", peer.Addr(), of(same), dropReporter},
		{"an endpoint", leaving.Dst, of(same), dropReporter},
		{"the flow's own source", leaving.Src, of(same), dropReporter},
		{"outside the domain", netip.MustParseAddr("203.0.113.9"), of(same), dropOutside},
		{"cut", reporterAddr, of(same)[:30], dropMessage},
		{"another queue pair", reporterAddr, of(func(y *wire.PathReport) { y.Label++ }), dropUnknownFlow},
		{"the other direction", reporterAddr, of(func(y *wire.PathReport) { y.Src, y.Dst, y.Label = y.Dst, y.Src, y.Label+1 }), dropUnknownFlow},
	} {
		before := b.w.drops[c.why]
		b.w.message(52000, &packet.Message{Data: c.msg, From: netip.AddrPortFrom(c.from, 52000), To: netip.MustParseAddr("192.0.2.1")})
		if b.w.drops[c.why] != before+1 || b.csf().PathReports != 0 || len(b.box.sent) != 0 {
			t.Errorf("%s: counted %d times, %d reports at the CSF, %v", c.name, b.w.drops[c.why]-before, b.csf().PathReports, b.box.sent)
		}
	}
	for range 3 {
		b.w.message(52000, &packet.Message{Data: of(same), From: netip.AddrPortFrom(reporterAddr, 52000), To: netip.MustParseAddr("192.0.2.1")})
	}
	if s := b.csf(); s.PathReports != 3 || s.PathOutdated != 2 || s.DropsReported != 2 || s.Early != 0 {
		t.Errorf("%d reports, %d outdated, %d PSNs, %d repairs of a flow without a block", s.PathReports, s.PathOutdated, s.DropsReported, s.Early)
	}
}

// report is a PATH_REPORT of corrupted packets that a node on the path dropped: for those lost by congestion a CSF sends no more than before.
func (s *stream) report(number uint32, psns ...roce.PSN) []byte {
	x := wire.PathReport{Method: wire.MethodNodeDrops, Src: s.key.Src, Dst: s.key.Dst, Label: uint32(s.key.QPN), HopCount: 1}
	x.Hops[0] = wire.Hop{NodeID: 3, Period: number, Lost: uint32(len(psns)), Cause: wire.CauseCorruption}
	for _, p := range psns {
		x.Hops[0].PSNs = x.Hops[0].PSNs.Append(p)
	}
	return x.Append(nil)
}

// Between two agents: what a reporter of the domain says it dropped is restored without a request of the receiver; what others say changes nothing.
func TestSection8_2_ReportsBetweenTwoAgents(t *testing.T) {
	const rounds = 20
	for name, c := range map[string]struct {
		from     netip.Addr
		believed bool
	}{
		"a reporter":              {reporterAddr, true},
		"outside of the domain":   {strangerAddr, false},
		"the peer, no reporter":   {gateways[west], false},
		"an endpoint of the peer": {netip.MustParseAddr("10.2.0.1"), false},
	} {
		workers(t, func(t *testing.T, sh shape) {
			w := newWorld(t, sh, setting{reporters: true, k: 8})
			s := w.connect(1000).requests[east]
			s.protect()
			s.trickle(20)
			csf := func() *csf.Stats { return s.sender().machine.Stats() }
			asked := func() uint64 { x := s.receiver().machine.Stats(); return x.BlockRequests + x.RangeRequests }
			before := asked()
			for i := range uint32(rounds) {
				w.nodes[east].lose.sources = 1
				lost := s.next
				s.send(1)
				w.pass(100 * time.Microsecond)
				for range 3 { // the second and third are replays
					w.message(netip.AddrPortFrom(c.from, cremPort), gateways[east], cremPort, s.report(i, lost))
				}
				s.trickle(12)
			}
			w.pass(time.Second)
			s.all()
			if got := csf(); c.believed && (got.Early != rounds || got.PathReports != 3*rounds || got.PathOutdated != 2*rounds || asked() != before) {
				t.Errorf("%s: %d early repairs, %d reports, %d outdated; the receiver asked %d times", name, got.Early, got.PathReports, got.PathOutdated, asked()-before)
			} else if !c.believed && (got.Early != 0 || got.PathReports != 0 || asked() == before) {
				t.Errorf("%s: %d early repairs, %d reports; the receiver asked %d times", name, got.Early, got.PathReports, asked()-before)
			}
			w.check()
			w.finish()
		})
	}
}

// Whatever a reporter of the domain says, what it makes the sender send stays within maxRepairRatio, and the flow stays whole.
func TestSection10_AReporterThatLies(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{reporters: true, k: 8})
		s := w.connect(1000).requests[east]
		s.protect()
		before := *s.sender().machine.Stats()
		for i := range uint32(2000) {
			var all []roce.PSN
			for n := range wire.MaxPSNs {
				all = append(all, s.next.Add(-n))
			}
			s.send(4)
			w.message(netip.AddrPortFrom(reporterAddr, cremPort), gateways[east], cremPort, s.report(i, all...))
			w.pass(500 * time.Microsecond)
		}
		w.pass(time.Second)
		s.all()
		now := s.sender().machine.Stats()
		sources, repairs := now.SourceOctets-before.SourceOctets, now.RepairOctets-before.RepairOctets
		if now.Early == 0 || repairs > sources || !s.protected() || now.BreakerOpened > 0 {
			t.Errorf("%d early repairs, %d octets of repairs for %d of sources, protected %v", now.Early, repairs, sources, s.protected())
		}
		w.check()
		w.finish()
	})
}

// Flows come and go while the uplink's counters cannot be read: what waits for them is bounded.
func TestSection8_2_BoundedWithoutCounters(t *testing.T) {
	var r portReporter
	flows := make([]moving, 3*reportFlows)
	for i := range flows {
		r.pass(&flows[i], 0)
		r.pass(&flows[i], 0)
	}
	if len(r.moved) != reportFlows {
		t.Errorf("%d flows wait for counters", len(r.moved))
	}
	if flows[0].packets != 2 || flows[len(flows)-1].packets != 0 {
		t.Errorf("%d packets of the first flow, %d of one that was left out", flows[0].packets, flows[len(flows)-1].packets)
	}
}

// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// inTunnels is what a domain says to have its flows in tunnels.
const inTunnels = "  wan: {mode: Normal, l4s: Absent}\n"

// overIPv6 are the gateways of the lab for outer headers of IPv6.
var overIPv6 = [2]string{`"` + topology.GwA6.String() + `"`, `"` + topology.GwB6.String() + `"`}

// awaitTunnels waits until flows travel in tunnels both ways.
func (w *world) awaitTunnels() {
	w.t.Helper()
	for _, g := range []*gateway{w.a, w.b} {
		w.eventually("tunnel of "+g.ns.Name, func() bool {
			s, ok := g.ask()
			return ok && len(s.Tunnels) == 1 && s.Tunnels[0].Up
		})
	}
}

// arrivalPrograms are the programs on the uplink's ingress, in their order.
func (g *gateway) arrivalPrograms() (names []string) {
	g.w.t.Helper()
	g.w.do(g.ns, func() error {
		uplink, err := interfaceIndex(topology.Uplink)
		if err == nil {
			names, err = programNames(uplink, ebpf.AttachTCXIngress)
		}
		return err
	})
	return names
}

// passes lets the stream go on for a time.
func (s *stream) passes(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.moves(1000)
	}
}

// edges is what every interface on the way took, gave and dropped, and what the machine's processors dropped between them: where packets are lost that
// no program of ours counts.
func (w *world) edges() string {
	w.t.Helper()
	var all strings.Builder
	for _, n := range []*topology.Namespace{w.lab.HostA, w.lab.GwA, w.lab.GwB, w.lab.HostB} {
		w.do(n, func() error {
			for _, name := range []string{"dev", "softnet_stat"} { // of the thread's own namespace
				text, err := os.ReadFile("/proc/thread-self/net/" + name)
				if err != nil {
					return err
				}
				fmt.Fprintf(&all, "%s, %s:\n%s", n.Name, name, text)
			}
			return nil
		})
	}
	return all.String()
}

// leaseEnds is longer than a lease lasts that nobody renews.
const leaseEnds = 4 * time.Second

// TestWANECN_AgentsDieUnderTraffic: flows in tunnels are protected as they are outside. kill -9 of either agent, its silence until all leases have ended, its
// return, and the end of the tunnels by a change of the configuration lose no packet and overtake none.
func TestWANECN_AgentsDieUnderTraffic(t *testing.T) {
	for name, gateways := range map[string][2]string{"outer IPv4": {}, "outer IPv6": overIPv6} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, options{wire: true, profile: proactive, domain: inTunnels, gateways: gateways})
			w.discard(w.lab.HostB)
			w.awaitTunnels()
			if names := w.a.arrivalPrograms(); !slices.Equal(names, []string{"crem_wan_in", "crem_ingress"}) {
				t.Errorf("programs on ingress: %v", names)
			}
			s := w.stream(streamOptions{rate: 5000})
			w.awaitProtecting(1)
			s.moves(5000)
			if n := w.a.status().Counters["tunnel_encapsulated"]; n < 5000 {
				t.Errorf("%d packets went into the tunnel", n)
			}
			if n := w.b.status().Counters["tunnel_decapsulated"]; n < 5000 {
				t.Errorf("%d packets came through the tunnel", n)
			}
			for _, g := range []*gateway{w.b, w.a} {
				g.kill()
				s.passes(leaseEnds)
				g.start()
				g.awaitAttached()
				w.awaitTunnels()
				w.awaitProtecting(1)
				s.moves(5000)
			}
			w.o.domain = ""
			for _, g := range []*gateway{w.a, w.b} {
				g.writeDomain(true)
			}
			for _, g := range []*gateway{w.a, w.b} {
				w.eventually("no tunnel in "+g.ns.Name, func() bool { s, ok := g.ask(); return ok && len(s.Tunnels) == 0 })
			}
			s.passes(leaseEnds)
			for _, g := range []*gateway{w.a, w.b} {
				w.eventually("no programs of tunnels in "+g.ns.Name, func() bool { return slices.Equal(g.arrivalPrograms(), []string{"crem_ingress"}) })
				g.wantPrograms(1, "without tunnels")
			}
			s.moves(5000)
			sent, got := s.end()
			t.Logf("%d sent, %d arrived, %d out of order", sent, got.distinct, got.order)
			if got.distinct != sent || got.order > 0 {
				t.Errorf("%d packets lost (%v), %d out of order\n%s", sent-got.distinct, got.missing(sent), got.order, w.edges())
			}
		})
	}
}

// TestWANECN_Uninstall: after the death of both agents nothing is left of the tunnels.
func TestWANECN_Uninstall(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: proactive, domain: inTunnels})
	w.awaitTunnels()
	for _, g := range []*gateway{w.a, w.b} {
		g.kill()
	}
	for _, g := range []*gateway{w.a, w.b} {
		g.uninstall()
		g.wantPrograms(0, "after uninstall")
	}
}

// TestWANECN_NothingWithoutTheOtherEnd: a site whose agent does not take tunnels gets none, and the status says what to do.
func TestWANECN_NothingWithoutTheOtherEnd(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: proactive, domain: inTunnels, each: func(g *gateway) {
		if g.site == "west" {
			g.w.o.domain = ""
			g.writeDomain(true)
		}
	}})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 5000})
	w.awaitProtecting(1)
	s.passes(3 * time.Second)
	st := w.a.status()
	if n := st.Counters["tunnel_encapsulated"]; n != 0 || len(st.Tunnels) != 1 || st.Tunnels[0].Up || st.Tunnels[0].Problem == "" {
		t.Errorf("%d packets encapsulated, %+v", n, st.Tunnels)
	}
	if sent, got := s.end(); got.distinct != sent {
		t.Errorf("%d packets lost", sent-got.distinct)
	}
}

// TestWANECN_CongestionIsAnswered: the WAN marks outer headers CE. The endpoints see the marks, the gateway where the packets entered the tunnel is told,
// believes it and holds the flow to less.
func TestWANECN_CongestionIsAnswered(t *testing.T) {
	w := newWorld(t, options{
		path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond), CEProbability: 0.2, Seed: 3}, profile: proactive, domain: inTunnels,
	})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: 2000, data: 1000})
	w.awaitProtecting(1)
	w.eventually("notifications are sent, believed and answered", func() bool {
		a, b := w.a.status(), w.b.status()
		return b.Counters["cnp_sent_severe"] > 0 && a.Counters["cnp_received_severe"] > 0 && a.Counters["tunnel_over_rate"] > 0 &&
			b.Counters["crf_ce_marked"] > 0
	})
	s.end()
}

// TestWANECN_TwoThresholds: a node of the WAN marks outer headers by two thresholds. While its queue is over the first one only, gateways tell each other and
// shrink repair, and no endpoint sees a mark. Over the second one they do.
func TestWANECN_TwoThresholds(t *testing.T) {
	const packets, octets = 2000, 1000 + 100 // a second, with headers
	w := newWorld(t, options{
		path: wan.Settings{
			Rate: packets * octets * 8 * 3 / 2, Queue: 1 << 20, Delay: wan.Duration(5 * time.Millisecond), EarlyThreshold: 1000, CEThreshold: 300_000, Seed: 3,
		}, profile: proactive, domain: inTunnels,
	})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: packets, data: 1000})
	w.awaitProtecting(1)
	w.eventually("early warnings are sent and believed", func() bool {
		a, b := w.a.status(), w.b.status()
		return b.Counters["tunnel_light"] > 100 && b.Counters["cnp_sent_early"] > 0 && a.Counters["cnp_received_early"] > 0
	})
	if got := s.received(); got.ecn[ecn.ECT1] > 0 || got.ecn[ecn.NotECT] > 0 {
		t.Errorf("packets by their ECN field: %v; an early warning must stay inside the domain", got.ecn)
	}
	var settings map[string]wan.Settings
	w.askWAN(http.MethodPatch, "/v1/settings", fmt.Sprintf(`{"a_to_b":{"rate_bps":%d}}`, packets*octets*8*9/10), &settings)
	w.eventually("severe congestion is told, and seen by the endpoint", func() bool {
		a, b := w.a.status(), w.b.status()
		return b.Counters["cnp_sent_severe"] > 0 && a.Counters["cnp_received_severe"] > 0 && a.Counters["tunnel_over_rate"] > 0 && s.received().ecn[ecn.CE] > 0
	})
	if _, got := s.end(); got.ecn[ecn.ECT1] > 0 {
		t.Errorf("packets by their ECN field: %v", got.ecn)
	}
}

// shape gives the uplink a queue: a bucket of so many octets a second, before which at most limit octets wait.
func (g *gateway) shape(rate uint64, limit uint32) {
	g.w.t.Helper()
	g.w.do(g.ns, func() error {
		index, err := interfaceIndex(topology.Uplink)
		if err != nil {
			return err
		}
		const burst = 10_000 // more than the largest packet
		return netlink.QdiscReplace(&netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       rate, Limit: limit, Buffer: netlink.Xmittime(rate, burst),
		})
	})
}

// TestWANECN_OwnQueue: the bottleneck is the uplink of the gateway itself. Below the first threshold of its queue nothing is marked. Between them outer
// headers carry the early warning and repair shrinks, while no endpoint sees a mark. Above the second one the endpoint sees CE, and the flow is held to
// less. That the other end tells of the same marks changes nothing.
func TestWANECN_OwnQueue(t *testing.T) {
	const packets, octets = 2000, 1000 + 100 // a second, with headers
	domain := func(minRate string) string {
		return "  wan: {mode: Normal, l4s: Absent, minRate: " + minRate + ", queue: {early: 20Ki, severe: 200Ki}}\n"
	}
	w := newWorld(t, options{wire: true, profile: proactive, domain: domain("1G")}) // so that nothing but the queue marks CE
	w.discard(w.lab.HostB)
	w.a.shape(1<<30, 60_000)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: packets, data: 1000})
	w.awaitProtecting(1)
	s.moves(5000)
	if c := w.a.status().Counters; c["tunnel_queue_early"]+c["tunnel_queue_severe"]+c["cnp_own_early"]+c["cnp_own_severe"] > 0 || c["tunnel_encapsulated"] == 0 {
		t.Errorf("without a queue: %v", c)
	}

	w.a.shape(packets*octets*9/10, 60_000)
	w.eventually("early warnings are given and acted upon, and what the other end tells of them is known", func() bool {
		a, b := w.a.status(), w.b.status()
		return a.Counters["tunnel_queue_early"] > 100 && a.Counters["cnp_own_early"] > 0 && a.Drops["cnp_echo"]+a.Drops["cnp_flow_limit"] > 0 &&
			b.Counters["tunnel_light"] > 100 && b.Counters["cnp_sent_early"] > 0
	})
	if got := s.received(); got.ecn[ecn.ECT1]+got.ecn[ecn.NotECT]+got.ecn[ecn.CE] > 0 {
		t.Errorf("packets by their ECN field: %v; an early warning must stay inside the domain", got.ecn)
	}
	if q := w.a.status().Tunnels[0].Queue; q == nil || q.Average < 20<<10 || q.Problem != "" {
		t.Errorf("queue %+v", q)
	}

	w.o.domain = domain("1M")
	w.a.writeDomain(true)
	w.a.shape(packets*octets*9/10, 500_000)
	w.eventually("severe congestion is seen by the endpoint, and the flow is held to less", func() bool {
		c := w.a.status().Counters
		return c["tunnel_queue_severe"] > 0 && c["cnp_own_severe"] > 0 && c["tunnel_over_rate"] > 0 && s.received().ecn[ecn.CE] > 0
	})
	if _, got := s.end(); got.ecn[ecn.ECT1] > 0 {
		t.Errorf("packets by their ECN field: %v", got.ecn)
	}
}

// TestWANECN_VeRoCE: flows of veRoCE travel in tunnels where the domain names it, protected as outside. None of their packets is lost.
func TestWANECN_VeRoCE(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: proactive, domain: inTunnels + "  transports: {veroce: {}}\n"})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: 5000, transport: roce.VeRoCE})
	w.awaitProtecting(1)
	s.moves(5000)
	if out, in := w.a.status().Counters["tunnel_encapsulated"], w.b.status().Counters["tunnel_decapsulated"]; out < 5000 || in < 5000 {
		t.Errorf("%d packets went into the tunnel, %d came through it", out, in)
	}
	if sent, got := s.end(); got.distinct != sent {
		t.Errorf("%d packets lost (%v)", sent-got.distinct, got.missing(sent))
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/netns"
)

const secondWestGateway = "198.51.100.2"

// twoGateways is a configuration with two gateways of the other site.
func twoGateways() *Config {
	c := tunnelled(true)
	west := &c.Domains[0].Sites[1]
	west.Gateways = append(west.Gateways, netip.MustParseAddr(secondWestGateway))
	return c
}

// use applies a configuration and gives what was said because of it.
func (b *tunnelBench) use(t *testing.T, c *Config) []ecn.Lease {
	t.Helper()
	if _, err := b.w.e.Apply(c); err != nil {
		t.Fatal(err)
	}
	b.w.now = b.clock
	b.w.obey()
	return b.said()
}

// ask is one round of requests; it gives their nonces by who was asked.
func (b *tunnelBench) ask() map[string]uint64 {
	b.w.e.tendTunnels()
	b.said()
	asked := map[string]uint64{}
	for _, m := range b.box.sent {
		if x, err := ecn.ParseLease(m.msg); err == nil && !x.Answer {
			asked[m.to.Addr().String()] = x.Nonce
		}
	}
	return asked
}

// open opens the tunnel to the first gateway for three seconds.
func (b *tunnelBench) open(t *testing.T) {
	t.Helper()
	b.hears(ecn.Lease{Answer: true, Nonce: b.ask()[westGateway], For: 3 * time.Second}, westGateway)
	if !b.status().Up {
		t.Fatalf("the tunnel is not open: %+v", b.status())
	}
}

// Fail open: an answer to no request opens nothing, nor does one to a request that did not go into the tunnel, or into one that was another.
func TestWANECN_AnswersToNoRequest(t *testing.T) {
	b := newTunnelBench(t, false)
	b.hears(ecn.Lease{Answer: true, For: time.Second}, westGateway)
	if b.status().Up || len(b.kernel.leases) > 0 {
		t.Error("an answer before the first request opens the tunnel")
	}
	b.kernel.beside = true
	if b.hears(ecn.Lease{Answer: true, Nonce: b.ask()[westGateway], For: time.Second}, westGateway); b.status().Up {
		t.Error("the answer to a request that left beside the tunnel opens it")
	}
	b.kernel.beside = false
	b.open(t)
	if b.use(t, tunnelled(true)); !b.status().Up || b.kernel.plan.Sites[0].Use != 0 {
		t.Errorf("the same configuration again: %+v, want that the lease stays", b.status())
	}
	nonce := b.ask()[westGateway]
	c := tunnelled(true)
	c.Domains[0].WAN.PathMTU = 1500
	b.use(t, c)
	if x := b.kernel.plan.Sites[0]; x.Use != -1 || x.Tunnels[0].MTU != 1500 || b.status().Up {
		t.Errorf("with packets of another size: %+v, want that the tunnel waits for an answer", x)
	}
	b.hears(ecn.Lease{Answer: true, Nonce: nonce, For: time.Second}, westGateway)
	if b.status().Up {
		t.Error("the answer to a shorter packet opens the tunnel")
	}
}

// Fail open: a lease ends when it says. The tunnel is up only while a request has shown an uplink.
func TestWANECN_UpWhileLeased(t *testing.T) {
	b := newTunnelBench(t, false)
	b.open(t)
	b.kernel.noWay = true
	if b.status().Up {
		t.Error("up, and no request has left by any uplink")
	}
	b.kernel.noWay = false
	b.clock += 3*time.Second - 1
	if b.w.e.tendTunnels(); !b.status().Up {
		t.Error("closed within its lease")
	}
	b.clock++
	if b.w.e.tendTunnels(); b.status().Up || b.kernel.plan.Sites[0].Use != -1 {
		t.Error("open when its lease is over")
	}
}

// Fail open: while others may still send into tunnels that are not wanted any more, those are taken; flows leave outside, nothing is asked, and
// nothing is promised anew, so that it ends.
func TestWANECN_LeavingEnds(t *testing.T) {
	b := newTunnelBench(t, false)
	b.use(t, twoGateways())
	b.open(t)
	b.hears(ecn.Lease{Nonce: 99}, secondWestGateway)
	promised := b.kernel.promised
	last := b.use(t, tunnelled(true))
	if len(last) != 1 || !last[0].Answer || last[0].Nonce != 99 || last[0].For != 0 {
		t.Errorf("said %+v to the gateway that is none any more", last)
	}
	if x := b.kernel.plan.Sites[0]; x.Use != -1 || len(x.Tunnels) != 2 {
		t.Errorf("within the promise: %+v, want both tunnels, and no flow in one", x)
	}
	b.clock += time.Second
	b.hears(ecn.Lease{Nonce: 7}, westGateway)
	if asked := b.ask(); len(b.box.sent) > 0 || b.kernel.promised != promised {
		t.Errorf("within the promise: asked %v, promised until %v", asked, b.kernel.promised)
	}
	b.clock = promised
	if asked := b.ask(); len(b.kernel.plan.Sites[0].Tunnels) != 1 || len(asked) != 1 {
		t.Errorf("after the promise: asked %v, plan %+v", asked, b.kernel.plan)
	}
	b.hears(ecn.Lease{Nonce: 8}, westGateway)
	if b.kernel.promised != promised+leaseFor {
		t.Errorf("promised until %v, want new promises", b.kernel.promised)
	}
	if last := b.use(t, twoGateways()); len(last) > 0 {
		t.Errorf("said %+v, and no tunnel ends", last)
	}
	b.clock = b.kernel.promised
	if last := b.use(t, tunnelled(true)); len(last) > 0 {
		t.Errorf("said %+v to a gateway that asked nothing", last)
	}
}

// Fail open: of several gateways the first in the order with a lease is used, and each node has an order of its own.
func TestWANECN_FirstGatewayThatAnswers(t *testing.T) {
	b := newTunnelBench(t, false)
	b.use(t, twoGateways())
	order := b.kernel.plan.Sites[0].Tunnels
	asked := b.ask()
	for i := len(order) - 1; i >= 0; i-- {
		from := order[i].Remote.String()
		b.hears(ecn.Lease{Answer: true, Nonce: asked[from], For: time.Second}, from)
		if got := b.kernel.plan.Sites[0].Use; got != i {
			t.Errorf("flows take tunnel %d, want %d, which has answered and comes first", got, i)
		}
	}
	first := map[netip.Addr]int{}
	s := &snapshot{uplinks: []uplinkState{{mtu: 9000}}}
	for i := range 64 {
		ways := s.ways(&twoGateways().Domains[0], []netip.Addr{netip.MustParseAddr("192.0.2.1")}, fmt.Sprintf("gw-%d", i*4))
		first[ways[0].tunnels[0].Remote]++
	}
	if a, b := first[netip.MustParseAddr(westGateway)], first[netip.MustParseAddr(secondWestGateway)]; a < 20 || b < 20 {
		t.Errorf("first gateways of 64 nodes: %v, want about as many each", first)
	}
}

// A tunnel's packets fit the smallest uplink and what the path is said to carry; it leads only to sites that the domain names.
func TestWANECN_TunnelsOfADomain(t *testing.T) {
	s := &snapshot{uplinks: []uplinkState{{mtu: 4000}, {mtu: 1500}, {mtu: 9000}}}
	d := &tunnelled(true).Domains[0]
	local := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for path, want := range map[int]int{0: 1500, 1400: 1400, 8000: 1500} {
		d.WAN.PathMTU = path
		if got := s.ways(d, local, "node")[0].tunnels[0].MTU; got != want {
			t.Errorf("pathMTU %d: %d octets, want %d", path, got, want)
		}
	}
	for _, enabled := range []bool{false, true} {
		d.Transports.VeRoCE = roce.VeRoCESettings{Enabled: enabled, Port: 4800}
		if got := s.ways(d, local, "node")[0].veroce; got != 0 != enabled || enabled && got != 4800 {
			t.Errorf("veRoCE protected %v: packets to port %d travel too", enabled, got)
		}
	}
	d.WAN.Sites = []string{"north"}
	if ways := s.ways(d, local, "node"); len(ways) > 0 {
		t.Errorf("tunnels to %s, which is not named", ways[0].site)
	}
}

// While the configuration is provisional what an earlier agent left stays: the whole one may want it.
func TestWANECN_ProvisionalLeavesAll(t *testing.T) {
	b := &tunnelBench{bench: newBench(t, tunnelled(false)), clock: time.Hour, kernel: &passages{attached: []int{7, 8}}}
	b.w.e.backend = b
	b.w.e.now = func() time.Duration { return b.clock }
	provisional := func(on bool) *Config {
		c := tunnelled(on)
		c.Provisional = true
		return c
	}
	b.use(t, provisional(false))
	if b.w.e.tendTunnels(); b.dropped > 0 {
		t.Error("the programs are taken away")
	}
	b.kernel.leases = map[bpf.Tunnel]time.Duration{}
	b.use(t, provisional(true))
	if b.w.e.tendTunnels(); !slices.Contains(b.kernel.attached, 8) {
		t.Error("the programs are taken off an interface")
	}
	b.use(t, tunnelled(true))
	if b.w.e.tendTunnels(); slices.Contains(b.kernel.attached, 8) {
		t.Error("the programs stay on what is no uplink")
	}
}

// Order of programs: taps look into tunnels before a flow can go into one, else not at all; and no longer than there are programs.
func TestWANECN_TapsLookFirst(t *testing.T) {
	b := newTunnelBench(t, false)
	two := tunnelled(true)
	two.Domains[0].Uplinks = []string{"wan0", "wan1"}
	b.blind = errors.New("blind")
	b.use(t, two)
	if x := b.status(); slices.Contains(b.kernel.attached, 8) || !strings.Contains(x.Problem, "look into tunnels on wan1: blind") {
		t.Errorf("attached to %v, %+v", b.kernel.attached, x)
	}
	b.blind = nil
	if b.use(t, two); !slices.Contains(b.kernel.attached, 8) || !b.looks[8] || b.late {
		t.Errorf("attached to %v, taps look %v, after the programs %v", b.kernel.attached, b.looks, b.late)
	}
	two.Domains[0].WAN = nil
	b.use(t, two)
	if b.w.e.tendTunnels(); b.dropped != 1 || b.looks[8] {
		t.Errorf("dropped %d times, taps look %v", b.dropped, b.looks)
	}
}

// A tap shows flows in tunnels of ours, in both directions; those in tunnels of others are not ours.
func TestWANECN_ForeignTunnelsAreNotLookedInto(t *testing.T) {
	b := newTunnelBench(t, false)
	here, there, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr(westGateway), netip.MustParseAddr(secondWestGateway)
	for _, x := range []struct {
		outer packet.Ends
		drops uint64
	}{{packet.Ends{Src: here, Dst: there}, 0}, {packet.Ends{Src: there, Dst: here}, 0}, {packet.Ends{Src: here, Dst: stranger}, 1}} {
		before := b.w.drops[dropTunnel]
		b.w.tapped(b.w.snap.uplinkOf(7), &packet.Frame{Flags: packet.Tunnelled, Outer: x.outer})
		if got := b.w.drops[dropTunnel] - before; got != x.drops {
			t.Errorf("outer %v: %d dropped, want %d", x.outer, got, x.drops)
		}
	}
}

// WAN ECN, egress at the boundary: a mark is told, with its level, to the gateway where its packet entered the tunnel, if that tunnel is wanted.
func TestWANECN_MarksAreToldToTheirGateway(t *testing.T) {
	b := newTunnelBench(t, false)
	for _, severe := range []bool{false, true} {
		b.said()
		mark := bpf.Mark{Flow: tunnelFlow(arriving), Severe: severe, Local: netip.MustParseAddr("192.0.2.1"), Remote: netip.MustParseAddr(secondWestGateway)}
		b.w.e.tellMark(mark)
		if b.said(); len(b.box.sent) > 0 {
			t.Errorf("told %v, which is no end of a tunnel", b.box.sent[0].to)
		}
		mark.Remote = netip.MustParseAddr(westGateway)
		b.w.e.tellMark(mark)
		if b.said(); len(b.box.sent) != 1 || b.box.sent[0].to != peer {
			t.Fatalf("told %+v", b.box.sent)
		}
		want := map[bool]ecn.Level{false: ecn.LevelEarly, true: ecn.LevelSevere}[severe]
		if x, err := ecn.ParseCNP(b.box.sent[0].msg); err != nil || x.Level != want || x.Flow.Src != arriving.Src || x.Flow.Dst != arriving.Dst || x.Flow.Label != uint32(arriving.QPN) {
			t.Errorf("%+v, %v", x, err)
		}
	}
}

// WAN ECN, CNP: gateways and reporters of domains with tunnels are believed, nobody else; only flows that go into tunnels have a reaction.
func TestWANECN_WhoIsBelieved(t *testing.T) {
	with, without := tunnelled(true), tunnelled(false)
	for addr, want := range map[string]bool{westGateway: true, "192.0.2.1": true, "10.255.0.9": true, "10.2.0.9": false, "203.0.113.1": false} {
		if a := netip.MustParseAddr(addr); with.marks(a) != want || without.marks(a) {
			t.Errorf("%s is believed with tunnels: %v, without: %v", addr, with.marks(a), without.marks(a))
		}
	}
	b := newTunnelBench(t, false)
	s := b.w.sending[leaving]
	for name, c := range map[string]struct {
		transport roce.Transport
		veroce    bool // is the domain's
		sites     []string
		want      bool
	}{
		"RoCEv2": {roce.RoCEv2, false, []string{"west"}, true}, "MRC": {roce.MRC, false, []string{"west"}, true}, "veRoCE": {roce.VeRoCE, true, []string{"west"}, true},
		"veRoCE of no domain":     {roce.VeRoCE, false, []string{"west"}, false},
		"a site without a tunnel": {roce.RoCEv2, false, []string{"north"}, false},
	} {
		s.key.Transport, s.verdict.domain.WAN.Sites, s.verdict.domain.Transports.VeRoCE.Enabled = c.transport, c.sites, c.veroce
		if b.w.setReaction(s); (s.reaction != nil) != c.want {
			t.Errorf("%s: has a reaction %v", name, s.reaction != nil)
		}
	}
}

// RFC 6040, 4.2: odd pairs of ECN fields are told with the number since it was last told, not with what an earlier agent counted.
func TestWANECN_OddPairsSinceTheLastNotice(t *testing.T) {
	b := &tunnelBench{bench: newBench(t, tunnelled(false)), clock: time.Hour, looks: map[int]bool{}, kernel: &passages{leases: map[bpf.Tunnel]time.Duration{}}}
	b.w.e.backend = b
	b.w.e.now = func() time.Duration { return b.clock }
	var told []string
	b.w.e.opts.Notice = func(s string) { told = append(told, s) }
	odd := &b.kernel.cells[ecn.NotECT][ecn.ECT0]
	*odd = 5
	b.use(t, tunnelled(true))
	for _, more := range []uint64{0, 3, 2, 0} {
		*odd += more
		b.w.e.tendTunnels()
		b.clock += noticeEvery
	}
	if len(told) != 2 || !strings.HasPrefix(told[0], "3 packets") || !strings.HasPrefix(told[1], "2 packets") {
		t.Errorf("told %q", told)
	}
}

// congest has the kernel hold a flow to a rate.
func (b *tunnelBench) congest(t *testing.T, s *sendFlow) {
	t.Helper()
	for end := b.clock + 50*time.Millisecond; b.clock < end; b.clock += 100 * time.Microsecond {
		s.reaction.Observe(b.clock, 10_000)
	}
	b.w.now = b.clock
	s.reaction.Handle(b.clock, ecn.LevelSevere)
	if b.w.react(s); len(b.kernel.limits) != 1 || !s.limited {
		t.Fatalf("limits %v", b.kernel.limits)
	}
}

// WAN ECN, ingress action: what congestion leaves every flow is that of the configuration in force, also for a flow that is held to less already.
func TestWANECN_LeastRateOfRunningLimits(t *testing.T) {
	b := newTunnelBench(t, false)
	s := b.w.sending[leaving]
	b.congest(t, s)
	if rate := b.kernel.limits[tunnelFlow(leaving)]; rate > 80e6 {
		t.Fatalf("limited to %d octets a second, want less than 80 MB", rate)
	}
	c := tunnelled(true)
	c.Domains[0].WAN.LeastRate = 90e6
	b.use(t, c)
	b.w.react(s)
	if rate := b.kernel.limits[tunnelFlow(leaving)]; rate != 90e6 {
		t.Errorf("limited to %d octets a second, want the 90 MB of the new configuration", rate)
	}
}

// WAN ECN, ingress action: a flow that leaves no more in a tunnel is free at once, in the kernel too.
func TestWANECN_LimitsEndWithTheTunnel(t *testing.T) {
	b := newTunnelBench(t, false)
	s := b.w.sending[leaving]
	b.congest(t, s)
	b.w.endReaction(s)
	if len(b.kernel.limits) > 0 || s.limited {
		t.Errorf("limits %v", b.kernel.limits)
	}
}

// Fail open: the programs and their maps stay until the last promise is over, whether this agent gave it or one before.
func TestWANECN_ProgramsStayAsPromised(t *testing.T) {
	netns.NeedRoot(t)
	l := &Linux{PinDir: filepath.Join(netns.MountBPF(t), "crem")}
	kernel, err := l.Tunnels()
	if err != nil {
		t.Fatal(err)
	}
	kernel.Promise(packet.Now() + time.Hour)
	if done, err := l.DropTunnels(); done || err != nil {
		t.Errorf("dropped %v, %v within an own promise", done, err)
	}
	if err := l.tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	next := &Linux{PinDir: l.PinDir}
	if done, err := next.DropTunnels(); done || err != nil {
		t.Errorf("dropped %v, %v within the promise of an agent before", done, err)
	}
	if until, err := bpf.PromisedTo(l.PinDir); err != nil || until < packet.Now() {
		t.Errorf("promised until %v, %v", until, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/internal/agentapi"
)

// passages is the kernel's programs of tunnels in memory.
type passages struct {
	unkept     bool
	plan       bpf.TunnelPlan
	leases     map[bpf.Tunnel]time.Duration
	promised   time.Duration
	limits     map[bpf.TunnelFlow]int64
	attached   []int
	detached   []int
	refuses    int  // the uplink that does not get the programs
	noWay      bool // no request has left
	beside     bool // requests leave beside the tunnel
	cells      [4][4]uint64
	busy       func()        // the kernel takes its time
	amiss      []string      // what somebody changed
	broken     error         // why it can not be repaired
	marksUntil time.Duration // the last chances hold so long
	chances    map[bpf.Tunnel][2]float64
	counted
}

func (p *passages) Kept() bool { return !p.unkept }
func (p *passages) wait() {
	if p.busy != nil {
		p.busy()
	}
}
func (p *passages) Set(x bpf.TunnelPlan) error { p.wait(); p.plan = x; return nil }
func (p *passages) Repair() ([]string, error)  { return p.amiss, p.broken }
func (p *passages) Lease(t bpf.Tunnel, until time.Duration) {
	p.leases[t] = until
}
func (p *passages) Leased(t bpf.Tunnel) (until time.Duration, ifindex int) {
	if p.noWay {
		return p.leases[t], 0
	}
	return p.leases[t], 7
}
func (p *passages) Asked(bpf.Tunnel) time.Duration {
	if p.beside {
		return 0
	}
	return 1<<63 - 1
}
func (p *passages) Attach(ifindex int) (bpf.Attachment, error) {
	p.wait()
	if p.refuses == ifindex {
		return bpf.Attachment{}, errors.New("no")
	}
	p.attached = append(p.attached, ifindex)
	return bpf.Attachment{}, nil
}
func (p *passages) Detach(ifindex int) error {
	p.detached = append(p.detached, ifindex)
	p.attached = slices.DeleteFunc(p.attached, func(x int) bool { return x == ifindex })
	return nil
}
func (p *passages) Mark(t bpf.Tunnel, marked, severe float64, until time.Duration) {
	p.marksUntil = until
	p.chances[t] = [2]float64{marked, severe}
}
func (p *passages) Attached() []int             { return p.attached }
func (p *passages) Promise(until time.Duration) { p.promised = max(p.promised, until) }
func (p *passages) Promised() time.Duration     { return p.promised }
func (p *passages) Limit(f bpf.TunnelFlow, rate int64, _, _ time.Duration) error {
	p.limits[f] = rate
	return nil
}
func (p *passages) Unlimit(f bpf.TunnelFlow) error  { delete(p.limits, f); return nil }
func (p *passages) ReadMark() (bpf.Mark, error)     { return bpf.Mark{}, errors.New("no mark") }
func (p *passages) Stats() (bpf.TunnelStats, error) { return bpf.TunnelStats{Cells: p.cells}, nil }

// tunnelBench is a bench with tunnels and a clock of its own.
type tunnelBench struct {
	*bench
	kernel  *passages
	clock   time.Duration
	loaded  int
	dropped int
	bare    bool // the uplinks have no Ethernet headers
	blind   error
	looks   map[int]bool // the taps that look into tunnels, by their uplink
	late    bool         // one did so after the programs were there
	opened  int          // taps
	gone    int          // the first ones, whose interfaces were taken away
	closed  []int
	queue   int64  // octets before every uplink; below 0: can not be measured
	asked   []int  // the uplinks whose queues were measured
	asking  func() // what happens meanwhile
}

// looking is a tap of a tunnelBench.
type looking struct {
	silent
	b       *tunnelBench
	ifindex int
	number  int
}

func (l looking) Gone() bool   { return l.number <= l.b.gone }
func (l looking) Close() error { l.b.closed = append(l.b.closed, l.number); return nil }

func (l looking) LookIntoTunnels(on bool) error {
	if l.b.blind != nil {
		return l.b.blind
	}
	l.b.looks[l.ifindex] = on
	l.b.late = l.b.late || on && slices.Contains(l.b.kernel.attached, l.ifindex)
	return nil
}

func (b *tunnelBench) OpenTaps(u uplink.Uplink) ([]packet.Tap, error) {
	b.opened++
	return []packet.Tap{looking{b: b, ifindex: u.Index, number: b.opened}}, nil
}

func (b *tunnelBench) FindUplinks(names []string, remote []netip.Prefix) (uplink.Facts, error) {
	f, err := b.bench.FindUplinks(names, remote)
	for i := range f.Uplinks {
		f.Uplinks[i].Bare = b.bare
	}
	return f, err
}

func (b *tunnelBench) Queued(ifindex int) (int64, error) {
	b.asked = append(b.asked, ifindex)
	if b.asking != nil {
		b.asking()
	}
	if b.queue < 0 {
		return 0, errors.New("no queue")
	}
	return b.queue, nil
}

func (b *tunnelBench) Tunnels() (Tunnels, error) { b.loaded++; return b.kernel, nil }
func (b *tunnelBench) DropTunnels() (bool, error) {
	if b.clock < b.kernel.promised {
		return false, nil
	}
	b.dropped++
	return true, nil
}

func tunnelled(on bool) *Config {
	c := reporting(false)
	if on {
		c.Domains[0].WAN = &WAN{Sites: []string{"west"}, LeastRate: 1e6}
	}
	return c
}

func newTunnelBench(t *testing.T, unkept bool) *tunnelBench {
	t.Helper()
	b := &tunnelBench{
		bench: newBench(t, tunnelled(false)), clock: benchStart, looks: map[int]bool{},
		kernel: &passages{unkept: unkept, leases: map[bpf.Tunnel]time.Duration{}, limits: map[bpf.TunnelFlow]int64{}, chances: map[bpf.Tunnel][2]float64{},
			counted: counted{arrived: map[bpf.TunnelFlow]*bpf.FlowCounts{}, entered: map[bpf.TunnelFlow]reporter.Counts{}},
		},
	}
	b.w.e.backend = b
	b.w.e.now = func() time.Duration { return b.clock }
	b.apply(t, true)
	return b
}

func (b *tunnelBench) apply(t *testing.T, on bool) {
	t.Helper()
	if _, err := b.w.e.Apply(tunnelled(on)); err != nil {
		t.Fatal(err)
	}
	b.w.now = b.clock
	b.w.obey()
	b.said()
}

// said is what the worker was given to say meanwhile.
func (b *tunnelBench) said() (all []ecn.Lease) {
	b.box.sent = nil
	b.w.speak()
	for _, m := range b.box.sent {
		if x, err := ecn.ParseLease(m.msg); err == nil {
			all = append(all, x)
		}
	}
	return all
}

func (b *tunnelBench) hears(m ecn.Lease, from string) { b.hearsBy(7, m, from) }

func (b *tunnelBench) hearsBy(ifindex int, m ecn.Lease, from string) {
	b.w.now = b.clock
	b.w.wanMessage(52000, &packet.Message{
		Data: m.Append(nil, 0), From: netip.AddrPortFrom(netip.MustParseAddr(from), 52000), To: netip.MustParseAddr("192.0.2.1"), Ifindex: ifindex,
	})
	for len(b.w.e.tunnels.heard) > 0 {
		b.w.e.takeLease(<-b.w.e.tunnels.heard)
	}
	b.w.speak()
}

func (b *tunnelBench) status() agentapi.Tunnel {
	s := b.w.e.Overview()
	if len(s.Tunnels) != 1 {
		return agentapi.Tunnel{}
	}
	return s.Tunnels[0]
}

const westGateway = "198.51.100.1"

// Only a gateway has tunnels, and only it is to blame for one that is not up; of another site's addresses those of the same IP version are its ends.
func TestWANECN_OnlyGatewaysHaveTunnels(t *testing.T) {
	d := &tunnelled(true).Domains[0]
	s := &snapshot{uplinks: []uplinkState{{mtu: 1500}}}
	for _, x := range []struct {
		local   string
		gateway bool
		problem string
	}{
		{"192.0.2.1", true, "no gateway of site west has answered"},
		{"10.1.0.7", false, "this node has no gateway address of the own site"},
	} {
		ways := s.ways(d, []netip.Addr{netip.MustParseAddr(x.local)}, "node")
		if len(ways) != 1 || ways[0].gateway != x.gateway || len(ways[0].tunnels) > 0 != x.gateway {
			t.Fatalf("%s: %+v", x.local, ways)
		}
		e := tunnels{ways: ways}
		e.ways[0].use = -1
		var status agentapi.Status
		e.describe(&status, 0, s)
		if got := status.Tunnels[0]; got.Gateway != x.gateway || got.Up || !strings.Contains(got.Problem, x.problem) {
			t.Errorf("%s: %+v", x.local, got)
		}
	}
}

// A tunnel opens with the answer to its own last request, for as long as that says from when it was asked, and closes when no more come. The other end
// is answered only by programs that outlive the agent; what was promised is kept after the tunnel is not wanted any more.
func TestWANECN_Leases(t *testing.T) {
	b := newTunnelBench(t, false)
	if x := b.status(); x.Up || !strings.Contains(x.Problem, "no gateway of site west has answered a packet of 9000 octets") {
		t.Errorf("before a request: %+v", x)
	}
	b.w.e.tendTunnels()
	asked := b.said()
	if len(asked) != 1 || asked[0].Answer || len(b.box.sent[0].msg) != 9000-20-20-8 {
		t.Fatalf("%+v", asked)
	}
	b.clock += 40 * time.Millisecond
	for name, m := range map[string]ecn.Lease{"of another nonce": {Answer: true, Nonce: asked[0].Nonce + 2, For: time.Second}, "to none": {Answer: true, For: time.Second}} {
		b.hears(m, westGateway)
		if b.status().Up {
			t.Errorf("an answer %s opens the tunnel", name)
		}
	}
	b.hears(ecn.Lease{Answer: true, Nonce: asked[0].Nonce, For: time.Second}, "10.2.0.9")
	if b.status().Up {
		t.Error("an answer of another address opens the tunnel")
	}
	b.hears(ecn.Lease{Answer: true, Nonce: asked[0].Nonce, For: time.Second}, westGateway)
	x := b.kernel.plan.Sites[0]
	if !b.status().Up || x.Use != 0 || b.kernel.leases[x.Tunnels[0]] != time.Hour+time.Second {
		t.Errorf("%+v, plan %+v, leases %v", b.status(), b.kernel.plan, b.kernel.leases)
	}

	b.hears(ecn.Lease{Nonce: 99}, westGateway)
	if n := len(b.box.sent); n != 2 {
		t.Fatalf("%d messages", n)
	}
	if x, err := ecn.ParseLease(b.box.sent[1].msg); err != nil || !x.Answer || x.Nonce != 99 || x.For != leaseFor || b.kernel.promised != b.clock+leaseFor {
		t.Errorf("%+v, %v, promised until %v", x, err, b.kernel.promised)
	}

	b.clock += 2 * time.Second
	b.w.e.tendTunnels()
	if b.status().Up || b.kernel.plan.Sites[0].Use != -1 {
		t.Errorf("after the lease: %+v, %+v", b.status(), b.kernel.plan)
	}
	b.said()
	if _, err := b.w.e.Apply(tunnelled(false)); err != nil {
		t.Fatal(err)
	}
	b.w.obey()
	if last := b.said(); len(last) != 1 || !last[0].Answer || last[0].Nonce != 99 || last[0].For != 0 {
		t.Errorf("said %+v, want that no more is taken", last)
	}
	b.w.e.tendTunnels()
	if b.dropped != 0 || len(b.kernel.plan.Sites) != 1 || b.kernel.plan.Sites[0].Use != -1 {
		t.Errorf("within the promise: dropped %d times, plan %+v", b.dropped, b.kernel.plan)
	}
	b.clock = b.kernel.promised
	b.w.e.tendTunnels()
	b.w.e.tendTunnels()
	if b.dropped != 1 || len(b.kernel.plan.Sites) != 0 {
		t.Errorf("after the promise: dropped %d times, plan %+v", b.dropped, b.kernel.plan)
	}

	mortal := newTunnelBench(t, true)
	mortal.hears(ecn.Lease{Nonce: 99}, westGateway)
	if len(mortal.box.sent) != 0 || mortal.kernel.promised != 0 {
		t.Errorf("programs that end with the agent promise %v", mortal.kernel.promised)
	}
}

// Without spec.wan nothing of tunnels is loaded, attached or sent, no flow has a reaction, and no message about tunnels is answered.
func TestWANECN_OffByDefault(t *testing.T) {
	b := &tunnelBench{bench: newBench(t, tunnelled(false)), clock: benchStart, kernel: &passages{}}
	b.w.e.backend = b
	b.apply(t, false)
	for range 3 {
		b.w.e.tendTunnels()
		b.clock += time.Second
	}
	b.hears(ecn.Lease{Nonce: 1}, westGateway)
	said := b.said()
	if s := b.w.e.Overview(); b.loaded > 0 || len(b.kernel.attached) > 0 || len(said) > 0 || len(s.Tunnels) > 0 || b.w.sending[leaving].reaction != nil {
		t.Errorf("loaded %d times, attached to %v, said %v, tunnels %v, reaction %v", b.loaded, b.kernel.attached, said, s.Tunnels, b.w.sending[leaving].reaction)
	}
	if b.dropped != 1 {
		t.Errorf("what an earlier agent left was removed %d times", b.dropped)
	}
}

// The programs go on every uplink that can have them, and where they are not the status says why. An interface that is no uplink any more keeps them
// for the promises that were made, and makes no new ones.
func TestWANECN_Uplinks(t *testing.T) {
	b := newTunnelBench(t, false)
	if !slices.Equal(b.kernel.attached, []int{7}) {
		t.Fatalf("attached to %v", b.kernel.attached)
	}
	b.hears(ecn.Lease{Nonce: 1}, westGateway)
	promised := b.kernel.promised
	if promised == 0 {
		t.Fatal("no promise")
	}
	use := func(names ...string) {
		c := tunnelled(true)
		c.Domains[0].Uplinks = names
		if _, err := b.w.e.Apply(c); err != nil {
			t.Fatal(err)
		}
		b.w.obey()
	}
	b.kernel.refuses = 8
	use("wan0", "wan1")
	if x := b.status(); !slices.Equal(b.kernel.attached, []int{7}) || !strings.Contains(x.Problem, "attach the programs of tunnels to wan1: no") {
		t.Errorf("attached to %v, %+v", b.kernel.attached, x)
	}
	b.kernel.refuses = 0
	use("wan0", "wan1")
	if x := b.status(); !slices.Equal(b.kernel.attached, []int{7, 8}) || !strings.Contains(x.Problem, "has answered") {
		t.Errorf("attached to %v, %+v", b.kernel.attached, x)
	}
	use("wan0")
	b.hearsBy(8, ecn.Lease{Nonce: 2}, westGateway)
	b.clock = promised - 1
	b.w.e.tendTunnels()
	if !slices.Equal(b.kernel.attached, []int{7, 8}) || b.kernel.promised != promised {
		t.Errorf("attached to %v, promised until %v, want the promise of before alone to be kept", b.kernel.attached, b.kernel.promised)
	}
	b.clock = promised
	b.w.e.tendTunnels()
	if !slices.Equal(b.kernel.attached, []int{7}) {
		t.Errorf("attached to %v after the promise", b.kernel.attached)
	}

	b.bare = true
	use("wan0", "wan1")
	if x := b.status(); slices.Contains(b.kernel.attached, 8) || !strings.Contains(x.Problem, "of uplink wan0 have no Ethernet header") {
		t.Errorf("attached to %v, %+v", b.kernel.attached, x)
	}
}

// CNPs for a leaving flow take repair away, and rate; from strangers they change nothing; when no more come everything comes back.
func TestWANECN_CNPsAreActedUpon(t *testing.T) {
	b := newTunnelBench(t, false)
	s := b.w.sending[leaving]
	if s.reaction == nil {
		t.Fatal("a flow that goes into a tunnel has no reaction")
	}
	sequence := uint64(time.Now().UnixMicro())
	hear := func(from string, level ecn.Level) {
		sequence++
		x := ecn.CNP{Level: level, Flow: ecn.Flow{Src: leaving.Src, Dst: leaving.Dst, Label: uint32(leaving.QPN)}, Node: 1, Sequence: sequence, Time: uint64(time.Now().UnixMicro())}
		b.w.now = b.clock
		b.w.wanMessage(52000, &packet.Message{Data: x.Append(nil), From: netip.AddrPortFrom(netip.MustParseAddr(from), 52000), To: netip.MustParseAddr("192.0.2.1")})
	}
	send := func(d time.Duration) { // 100 MB/s
		for end := b.clock + d; b.clock < end; b.clock += 100 * time.Microsecond {
			s.reaction.Observe(b.clock, 10_000)
		}
	}
	send(50 * time.Millisecond)
	hear("10.2.0.9", ecn.LevelSevere) // an endpoint
	if s.warned || len(b.kernel.limits) != 0 {
		t.Error("a stranger is believed")
	}
	hear(westGateway, ecn.LevelEarly)
	if got := s.machine.Warning(); !got.Early || got.Congested || got.Withheld != 0.5 || len(b.kernel.limits) != 0 {
		t.Errorf("early: %+v, limits %v", got, b.kernel.limits)
	}
	send(20 * time.Millisecond)
	hear(westGateway, ecn.LevelSevere)
	if got := s.machine.Warning(); !got.Early || !got.Congested || got.Withheld != 7.0/8 {
		t.Errorf("severe: %+v", got)
	}
	if rate := b.kernel.limits[tunnelFlow(leaving)]; rate < 70e6 || rate > 80e6 {
		t.Errorf("limited to %d octets a second, want 3/4 of 100 MB", rate)
	}
	for range 200 {
		b.clock += 10 * time.Millisecond
		b.w.now = b.clock
		b.w.pollTimers()
	}
	if got := s.machine.Warning(); got != (csf.Warning{}) || len(b.kernel.limits) != 0 || s.warned {
		t.Errorf("two seconds later: %+v, limits %v", got, b.kernel.limits)
	}
	hear(westGateway, ecn.LevelSevere)
	b.apply(t, false)
	if s.reaction != nil || s.warned || s.machine.Warning() != (csf.Warning{}) {
		t.Error("a reaction without tunnels")
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ipsec"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/uplink"
	"crem.dev/crem/internal/agentapi"
)

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func flow(src, dst string) roce.FlowKey {
	return roce.FlowKey{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), QPN: 17}
}

func nameOf(p *Profile) string {
	if p == nil {
		return ""
	}
	return p.Name
}

// Rules with pods: a leaving flow's source must be one, an arriving flow's destination; and the lookup costs no memory.
func TestRulesWithPods(t *testing.T) {
	cache, rest := &Profile{Name: "kv-cache"}, &Profile{Name: "rest"}
	pods := NewPods([]netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.6"), netip.MustParseAddr("fd00:1::5")})
	d := Domain{
		Name: "backbone", Port: 52000, Site: "east",
		Sites: []Site{{Name: "east", Prefixes: prefixes("10.1.0.0/16", "fd00:1::/32")}, {Name: "west", Prefixes: prefixes("10.2.0.0/16", "fd00:2::/32")}},
		Rules: []Rule{{Profile: cache, Pods: pods, Sources: prefixes("10.1.0.0/29", "fd00:1::/64", "10.2.0.0/24")}, {Profile: rest}},
	}
	only := d
	only.Rules = d.Rules[:1]
	for _, tc := range []struct {
		name        string
		domain      *Domain
		src, dst    string
		sent, taken string
	}{
		{"a pod", &d, "10.1.0.5", "10.2.0.9", "kv-cache", ""},
		{"a pod over IPv6", &d, "fd00:1::5", "fd00:2::9", "kv-cache", ""},
		{"no pod", &d, "10.1.0.7", "10.2.0.9", "rest", ""},
		{"from far to a pod", &d, "10.2.0.9", "10.1.0.6", "", "kv-cache"},
		{"from outside the rule's prefixes to a pod", &d, "10.2.7.9", "10.1.0.6", "", "rest"},
		{"from far to no pod", &d, "10.2.0.9", "10.1.0.7", "", "rest"},
		{"from far to no pod, and only pods have a rule", &only, "10.2.0.9", "10.1.0.7", "", "kv-cache"},
		{"no pod, and only pods have a rule", &only, "10.1.0.7", "10.2.0.9", "", ""},
	} {
		c := &Config{Domains: []Domain{*tc.domain}}
		key := flow(tc.src, tc.dst)
		if got := nameOf(c.judge("wan0", key).profile); got != tc.sent {
			t.Errorf("%s: sent with %q, want %q", tc.name, got, tc.sent)
		}
		if got := nameOf(c.receivingProfile(&c.Domains[0], key)); got != tc.taken {
			t.Errorf("%s: received with %q, want %q", tc.name, got, tc.taken)
		}
	}
	c, key := &Config{Domains: []Domain{d}}, flow("10.1.0.5", "10.2.0.9")
	if n := testing.AllocsPerRun(100, func() { c.judge("wan0", key) }); n > 0 {
		t.Errorf("%v allocations for each flow", n)
	}
}

// kernel is a Backend of which only IPsec and interfaces matter here.
type kernel struct {
	Backend
	list     []ipsec.Policy
	err      error
	attached []int
	detached []int
	ifIDs    []uint32               // of the uplinks; none: all 0
	leads    map[string]uplink.Lead // by prefix
}

func (k *kernel) Leads(to netip.Prefix) ([]uplink.Lead, error) {
	if l, ok := k.leads[to.String()]; ok {
		return []uplink.Lead{l}, nil
	}
	return nil, nil
}

func (k *kernel) ListPolicies() ([]ipsec.Policy, error)               { return k.list, k.err }
func (k *kernel) WatchPolicies(context.Context, func()) error         { return nil }
func (k *kernel) SetDomains([]bpf.Domain, []netip.Addr) error         { return nil }
func (k *kernel) SetTransports(packet.Recognised, []packet.Tap) error { return nil }
func (k *kernel) OpenSockets(uint16, int) ([]packet.Socket, error)    { return nil, nil }
func (k *kernel) OpenTaps(uplink.Uplink) ([]packet.Tap, error)        { return nil, nil }
func (k *kernel) Attach(u uplink.Uplink) (string, error) {
	k.attached = append(k.attached, u.Index)
	return "tcx", nil
}
func (k *kernel) Detach(i int) error                   { k.detached = append(k.detached, i); return nil }
func (k *kernel) Attached() []int                      { return k.attached }
func (k *kernel) Repair() ([]string, error)            { return nil, nil }
func (k *kernel) Counters() (map[string]uint64, error) { return nil, nil }
func (k *kernel) FindUplinks(names []string, _ []netip.Prefix) (uplink.Facts, error) {
	f := uplink.Facts{Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for i, n := range names {
		u := uplink.Uplink{Name: n, Index: 7 + i, MTU: 9000}
		if k.ifIDs != nil {
			u.IfID = k.ifIDs[i]
		}
		f.Uplinks = append(f.Uplinks, u)
	}
	return f, nil
}

func required() *Config {
	return &Config{Generation: 1, Domains: []Domain{{
		Name: "backbone", Port: 52000, Site: "east", RequireIPsec: true, Uplinks: []string{"wan0"}, Rules: []Rule{{Profile: &Profile{Name: "any"}}},
		Sites: []Site{
			{Name: "east", Prefixes: prefixes("10.1.0.0/16"), Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			{Name: "west", Prefixes: prefixes("10.2.0.0/16"), Gateways: []netip.Addr{netip.MustParseAddr("198.51.100.1")}},
		},
	}}}
}

func covering() []ipsec.Policy {
	all := netip.MustParsePrefix("0.0.0.0/0")
	return []ipsec.Policy{{Dir: ipsec.In, Src: all, Dst: all, ESP: true}, {Dir: ipsec.Out, Src: all, Dst: all, ESP: true}, {Dir: ipsec.Forward, Src: all, Dst: all, ESP: true}}
}

// Section 11, rule 6: without policies nothing is protected, heard or said; with them all is; when they go that ends with the next look.
func TestSection11_RequiredIPsec(t *testing.T) {
	k := &kernel{list: covering()}
	e := New(Options{Backend: k, Workers: 1})
	e.loaded = true
	if _, err := e.Apply(required()); err != nil {
		t.Fatal(err)
	}
	state := func() (c *Config, d *Domain, status agentapi.Domain) {
		s, _ := e.Status(false)
		c = e.snap.Load().cfg
		return c, &c.Domains[0], s.Domains[0]
	}
	peer, gateway := netip.MustParseAddrPort("198.51.100.1:52000"), netip.MustParseAddr("192.0.2.1")
	good := packet.Message{From: peer, To: gateway}
	c, d, status := state()
	if c.judge("wan0", flow("10.1.0.5", "10.2.0.5")).profile == nil || c.receivingProfile(d, flow("10.2.0.5", "10.1.0.5")) == nil || !d.admits(&good) || status.Security != "Secured" {
		t.Fatalf("the policies cover everything, and it is not protected: %+v", status)
	}
	for what, m := range map[string]packet.Message{
		"an endpoint":              {From: netip.MustParseAddrPort("10.2.0.5:52000"), To: gateway},
		"another port":             {From: netip.MustParseAddrPort("198.51.100.1:5000"), To: gateway},
		"another address of ours":  {From: peer, To: netip.MustParseAddr("192.0.2.77")},
		"an endpoint of this site": {From: peer, To: netip.MustParseAddr("10.1.0.5")},
	} {
		if d.admits(&m) {
			t.Errorf("a message that no policy is known to cover is listened to: %s", what)
		}
	}
	if from, ok := e.snap.Load().ports[0].security.source(peer.Addr()); !ok || from != (packet.Source{Addr: gateway}) {
		t.Errorf("messages leave from %v", from)
	}
	if _, ok := e.snap.Load().ports[0].security.source(netip.MustParseAddr("2001:db8::1")); ok {
		t.Error("a message leaves over a family that no policy covers")
	}

	k.list = k.list[:2] // what comes is forwarded in clear
	if wait, needed := e.judgeSecurity(); !needed || wait != lookAgain {
		t.Errorf("next look in %v", wait)
	}
	c, d, status = state()
	v := c.judge("wan0", flow("10.1.0.5", "10.2.0.5"))
	if v.profile != nil || c.receivingProfile(d, flow("10.2.0.5", "10.1.0.5")) != nil || d.admits(&good) {
		t.Error("protected without policies")
	}
	if !strings.Contains(v.why, "dir fwd, UDP from 10.2.0.0/16 to 10.1.0.0/16 port 4791") || status.Applied || status.Reason != "PolicyMissing" || !strings.Contains(status.SecurityProblem, "dir fwd") {
		t.Errorf("why %q, status %+v", v.why, status)
	}
	if _, ok := e.snap.Load().ports[0].security.source(peer.Addr()); !ok {
		t.Error("CLOSE, which is covered, can not be said")
	}
	k.list = nil
	e.judgeSecurity()
	if _, ok := e.snap.Load().ports[0].security.source(peer.Addr()); ok {
		t.Error("messages leave in clear")
	}

	k.list = covering()
	if wait, _ := e.judgeSecurity(); wait > ipsec.HoldDown {
		t.Errorf("the next look is in %v, after the hold-down", wait)
	}
	if _, d, status = state(); !d.barred() || !strings.Contains(status.SecurityProblem, "again") {
		t.Errorf("no hold-down: %+v", status)
	}
	k.err = errors.New("dump interrupted")
	e.xfrm.guards["backbone"].Judge(packet.Now()+2*ipsec.HoldDown, ipsec.Verdict{})
	e.judgeSecurity()
	if _, d, _ = state(); d.barred() {
		t.Error("a dump that failed was read as policies that are gone")
	}
	e.xfrm.at -= trustOld
	e.judgeSecurity()
	if _, d, _ = state(); !d.barred() {
		t.Error("protected for ever on policies that nobody can read")
	}
}

// Section 11, rule 6: the flows of every transport that the domain protects must be covered, whatever port theirs is.
func TestSection11_EveryTransportIsCovered(t *testing.T) {
	all := netip.MustParsePrefix("0.0.0.0/0")
	k := &kernel{}
	for _, port := range []uint16{52000, roce.Port} {
		for _, dir := range []ipsec.Direction{ipsec.In, ipsec.Out, ipsec.Forward} {
			k.list = append(k.list, ipsec.Policy{Dir: dir, Src: all, Dst: all, ESP: true, Protocol: 17, DstPorts: ipsec.Exactly(port)})
		}
	}
	e := New(Options{Backend: k, Workers: 1})
	e.loaded = true
	for _, tc := range []struct {
		transports roce.Transports
		barred     bool
	}{
		{roce.Transports{MRC: roce.MRCSettings{Enabled: true}}, false},
		{roce.Transports{VeRoCE: roce.VeRoCESettings{Enabled: true, Port: 4795}}, true},
	} {
		cfg := required()
		cfg.Domains[0].Transports = tc.transports
		if _, err := e.Apply(cfg); err != nil {
			t.Fatal(err)
		}
		d := &e.snap.Load().cfg.Domains[0]
		if d.barred() != tc.barred || strings.Contains(d.security.missing, "UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4795") != tc.barred {
			t.Errorf("%+v: barred %v, %q", tc.transports, d.barred(), d.security.missing)
		}
	}
}

// Section 11, rule 6, with route-based IPsec: the policies of the XFRM interface by which packets go decide, messages are held to it, and what comes
// by another one is not listened to; a second uplink in clear needs policies of its own.
func TestSection11_RouteBasedIPsec(t *testing.T) {
	peer, gateway := netip.MustParseAddrPort("198.51.100.1:52000"), netip.MustParseAddr("192.0.2.1")
	tunnel, wan := uplink.Lead{Index: 7, Name: "ipsec0", IfID: 42}, uplink.Lead{Index: 8, Name: "wan0"}
	byTunnel := map[string]uplink.Lead{"10.2.0.0/16": tunnel, "198.51.100.1/32": tunnel}
	of := func(id uint32) []ipsec.Policy {
		list := covering()
		for i := range list {
			list[i].IfID = id
		}
		return list
	}
	for _, tc := range []struct {
		name    string
		uplinks []uint32 // their if_ids
		list    []ipsec.Policy
		leads   map[string]uplink.Lead
		secured bool
		via     int // the interface of messages
		says    string
	}{
		{"all by the tunnel", []uint32{42}, of(42), byTunnel, true, 7, ""},
		{"policies of another tunnel", []uint32{42}, of(43), byTunnel, false, 7, "if_id 0x2a"},
		{"policies of no tunnel", []uint32{42}, of(0), byTunnel, false, 7, "if_id 0x2a"},
		{"messages beside the tunnel, in clear", []uint32{42}, of(42), map[string]uplink.Lead{"10.2.0.0/16": tunnel, "198.51.100.1/32": wan}, false, 0,
			"dir out, UDP from 192.0.2.1/32 port 52000 to 198.51.100.1/32 port 52000;"},
		{"messages beside the tunnel, with policies", []uint32{42}, append(of(42), of(0)...),
			map[string]uplink.Lead{"10.2.0.0/16": tunnel, "198.51.100.1/32": wan}, true, 0, ""},
		{"flows beside the tunnel", []uint32{42}, of(42), map[string]uplink.Lead{"10.2.0.0/16": wan, "198.51.100.1/32": tunnel}, false, 7,
			"dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4791;"},
		{"no route for flows yet", []uint32{42}, of(42), map[string]uplink.Lead{"198.51.100.1/32": tunnel}, true, 7, ""},
		{"no route, and a tunnel without policies", []uint32{42, 43}, of(42), map[string]uplink.Lead{"198.51.100.1/32": tunnel}, false, 7, "if_id 0x2b"},
		{"an uplink in clear besides", []uint32{42, 0}, of(42), byTunnel, false, 7, "dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4791;"},
		{"an uplink in clear besides, with policies", []uint32{42, 0}, append(of(42), of(0)...), byTunnel, true, 7, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := &kernel{list: tc.list, ifIDs: tc.uplinks, leads: tc.leads}
			e := New(Options{Backend: k, Workers: 1})
			e.loaded = true
			cfg := required()
			cfg.Domains[0].Uplinks = []string{"ipsec0", "wan0"}[:len(tc.uplinks)]
			if _, err := e.Apply(cfg); err != nil {
				t.Fatal(err)
			}
			d := &e.snap.Load().cfg.Domains[0]
			if d.barred() == tc.secured || !strings.Contains(d.security.missing+";", tc.says) {
				t.Errorf("secured %v: %s", !d.barred(), d.security.missing)
			}
			if !tc.secured {
				return
			}
			if from, ok := e.snap.Load().ports[0].security.source(peer.Addr()); !ok || from != (packet.Source{Addr: gateway, Ifindex: tc.via}) {
				t.Errorf("messages leave from %+v, %v", from, ok)
			}
			for _, by := range []int{7, 8} {
				m := packet.Message{From: peer, To: gateway, Ifindex: by}
				if want := tc.via == 0 || tc.via == by; d.admits(&m) != want {
					t.Errorf("a message by interface %d is listened to: %v", by, !want)
				}
			}
		})
	}
}

// G06: what an earlier agent left attached is taken off by a configuration that is known to be all, never by one that may be old.
func TestG06_OnlyTheWholeTruthDetaches(t *testing.T) {
	k := &kernel{attached: []int{3, 7}}
	e := New(Options{Backend: k, Workers: 1})
	e.loaded = true
	cfg := required()
	cfg.Domains[0].RequireIPsec = false
	cfg.Provisional = true
	if _, err := e.Apply(cfg); err != nil || len(k.detached) > 0 {
		t.Fatalf("%v, detached %v", err, k.detached)
	}
	whole := *cfg
	whole.Provisional = false
	if _, err := e.Apply(&whole); err != nil || len(k.detached) != 1 || k.detached[0] != 3 {
		t.Fatalf("%v, detached %v", err, k.detached)
	}
}

// G03: interfaces come and go beside the uplink, and configurations are applied again. Programs are attached once and left alone: a driver may reset its
// rings for each change.
func TestG03_OtherInterfacesTouchNothing(t *testing.T) {
	k := &kernel{}
	e := New(Options{Backend: k, Workers: 1})
	e.loaded = true
	cfg := required()
	cfg.Domains[0].RequireIPsec = false
	for range 100 {
		if _, err := e.Apply(cfg); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.attached) != 1 || len(k.detached) != 0 {
		t.Fatalf("attached %v, detached %v", k.attached, k.detached)
	}
	cfg.Domains[0].Uplinks = append(cfg.Domains[0].Uplinks, "wan1")
	if _, err := e.Apply(cfg); err != nil || len(k.attached) != 2 || len(k.detached) != 0 {
		t.Fatalf("a second uplink: %v, attached %v, detached %v", err, k.attached, k.detached)
	}
}

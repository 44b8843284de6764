// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/test/netns"
)

// apiServer is what a hall reaches by its interface mgmt0.
var apiServer = netip.MustParseAddr("203.0.113.10")

// hall is a node with interfaces of every kind, the real agent's engine on it, and the whole process in its namespace. Every interface has an own route to
// a part of the other site, in a table of its own that no rule names; that of br0 is in the main table.
type hall struct {
	*testing.T
	engine  *Engine
	changed chan struct{}
	tables  int
	numbers int64
}

func newHall(t *testing.T) *hall {
	h := &hall{T: t, changed: make(chan struct{}, 1)}
	for _, name := range []string{"accept_dad", "router_solicitations"} { // events that come late would hide that others are missed
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/"+name, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	far := netns.New(t)
	veth := func(name string) {
		h.ip("link add " + name + " type veth peer name far netns " + far.Path())
		far.Do(func() { h.ip("link set far name far-" + name + " up") })
	}
	for _, name := range []string{"nic0", "slave0", "slave1", "port0", "pod0", "idle0"} {
		veth(name)
	}
	h.ip("link property add dev pod0 altname a-name-that-is-longer-than-others")
	h.ip("link add br0 type bridge")
	h.ip("link set port0 master br0")
	h.ip("link add link nic0 name mgmt0 type macvlan")
	h.ip("link add link nic0 name mv0 type macvlan")
	if h.has("bond0", "type bond") {
		h.ip("link set slave0 master bond0")
		h.ip("link set slave1 master bond0")
		h.has("bond0.100", "link bond0 type vlan id 100")
	}
	h.has("wg0", "type wireguard")
	h.has("vxlan0", "type vxlan id 7 dstport 4789 dev nic0")
	h.has("rdma0", "type dummy") // stands for an RDMA netdev
	for _, name := range h.all() {
		h.ip("link set " + name + " up")
		if name != "idle0" && name != "nic0" && name != "br0" {
			h.routed(name)
		}
	}
	h.ip("addr add 203.0.113.1/24 dev mgmt0")
	h.ip("route add default via 203.0.113.254 dev mgmt0")
	h.ip("route add 10.2.0.0/16 dev br0")
	h.engine = New(Options{Node: "gw1", Workers: 1, Memory: 16 << 20, Backend: &Linux{Management: func() []netip.Addr { return []netip.Addr{apiServer} }}, Changed: func() {
		select {
		case h.changed <- struct{}{}:
		default:
		}
	}})
	return h
}

func (h *hall) ip(args string) {
	h.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		h.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// has makes an interface of a kind that not every kernel has.
func (h *hall) has(name, kind string) bool {
	h.Helper()
	out, err := exec.Command("ip", append([]string{"link", "add", "name", name}, strings.Fields(kind)...)...).CombinedOutput()
	if err != nil {
		h.Logf("without %s (%s): %s", name, kind, out)
	}
	return err == nil
}

// routed routes a part of the other site over an interface, in a table of its own.
func (h *hall) routed(name string) {
	h.Helper()
	h.tables++
	table := 100 + h.tables
	h.ip("route add " + netip.AddrFrom4([4]byte{10, 2, byte(table), 0}).String() + "/24 dev " + name + " table " + fmt.Sprint(table))
}

func (h *hall) all() (names []string) {
	h.Helper()
	list, err := net.Interfaces()
	if err != nil {
		h.Fatal(err)
	}
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

// apply has the agent take these interfaces as uplinks; none: those that it finds by routes.
func (h *hall) apply(names ...string) {
	h.Helper()
	h.numbers++
	c := setting{}.config(east, h.numbers)
	c.Domains[0].Uplinks = names
	if _, err := h.engine.Apply(c); err != nil {
		h.Fatal(err)
	}
}

// choice is what became of the interfaces.
type choice struct {
	Attached []string
	Failed   map[string]string // named, and why not
	Excluded map[string]string // not named, and why not
}

func (h *hall) choice() choice {
	c := choice{Failed: map[string]string{}, Excluded: map[string]string{}}
	s := h.engine.Overview()
	for _, u := range s.Uplinks {
		if u.Attached {
			c.Attached = append(c.Attached, u.Name)
		} else {
			c.Failed[u.Name] = u.Problem
		}
	}
	for _, x := range s.Excluded {
		c.Excluded[x.Name] = x.Why
	}
	slices.Sort(c.Attached)
	return c
}

// here leaves out what this kernel has no interface for.
func (h *hall) here(c choice) choice {
	h.Helper()
	all := h.all()
	gone := func(name string) bool { return !slices.Contains(all, name) }
	c.Attached = slices.DeleteFunc(slices.Clone(c.Attached), gone)
	m := map[string]string{}
	for name, why := range c.Excluded {
		if !gone(name) {
			m[name] = why
		}
	}
	c.Excluded = m
	if c.Failed == nil {
		c.Failed = map[string]string{}
	}
	return c
}

// inKernel are the interfaces with a program of ours on each hook; one with another number of them is told with it.
func (h *hall) inKernel() (names []string) {
	h.Helper()
	list, err := net.Interfaces()
	if err != nil {
		h.Fatal(err)
	}
	for _, i := range list {
		in, out := h.ours(i.Index, ebpf.AttachTCXIngress), h.ours(i.Index, ebpf.AttachTCXEgress)
		switch {
		case in == 1 && out == 1:
			names = append(names, i.Name)
		case in+out > 0:
			names = append(names, fmt.Sprintf("%s (%d, %d)", i.Name, in, out))
		}
	}
	slices.Sort(names)
	return names
}

func (h *hall) ours(index int, hook ebpf.AttachType) (n int) {
	h.Helper()
	on, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
	if err != nil {
		h.Fatal(err)
	}
	for _, x := range on.Programs {
		p, err := ebpf.NewProgramFromID(x.ID)
		if err != nil {
			h.Fatal(err)
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			h.Fatal(err)
		}
		if strings.HasPrefix(info.Name, "crem_") {
			n++
		}
	}
	return n
}

// G13: with real interfaces and real routes, exactly the right ones get programs, and each that leads to the other site and gets none is told with its
// reason. Loopback and members of a bond are never taken; ports of bridges, pods' interfaces, tunnels and the way to the API server only by name.
func TestG13_ChosenAmongRealInterfaces(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHall(t)
	const byName = "; name it in the domain's uplinks to take it."
	notNamed := map[string]string{"br0": "It routes to 10.2.0.0/16. It is not named in the domain's uplinks."}
	for _, c := range []struct {
		says  string
		names []string
		want  choice
	}{
		{"by routes, in whatever table", nil, choice{
			Attached: []string{"bond0", "bond0.100", "br0", "mv0"},
			Excluded: map[string]string{
				"lo":     "It is a loopback interface.",
				"slave0": h.slave(), "slave1": h.slave(),
				"port0":  "It is a port of the bridge br0" + byName,
				"pod0":   "It is a virtual interface (veth)" + byName,
				"rdma0":  "It is a virtual interface (dummy)" + byName,
				"wg0":    "It is a tunnel (wireguard)" + byName,
				"vxlan0": "It is a tunnel (vxlan)" + byName,
				"mgmt0":  "It leads to 203.0.113.10, which this node itself needs" + byName,
			},
		}},
		{"one by name", []string{"br0"}, choice{Attached: []string{"br0"}}},
		{"one without a route", []string{"idle0"}, choice{Attached: []string{"idle0"}, Excluded: notNamed}},
		{"by alternative name", []string{"a-name-that-is-longer-than-others"}, choice{Attached: []string{"pod0"}, Excluded: notNamed}},
		{"the unlikely, by exact name", []string{"port0", "pod0", "rdma0", "wg0", "vxlan0", "br0"}, choice{Attached: []string{"br0", "pod0", "port0", "rdma0", "vxlan0", "wg0"}}},
		{"the way to the API server, by exact name", []string{"mgmt0"}, choice{Attached: []string{"mgmt0"}, Excluded: notNamed}},
		{"loopback, and a name that is not there", []string{"lo", "wan7", "br0"}, choice{
			Attached: []string{"br0"}, Failed: map[string]string{"lo": "It is a loopback interface.", "wan7": "There is no interface of this name."},
		}},
		{"a part of a name", []string{"br"}, choice{Failed: map[string]string{"br": "There is no interface of this name."}, Excluded: notNamed}},
	} {
		h.apply(slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { // what this kernel lacks
			return slices.Contains([]string{"wg0", "rdma0", "vxlan0"}, name) && !slices.Contains(h.all(), name)
		})...)
		want := h.here(c.want)
		if d := cmp.Diff(want, h.choice()); d != "" {
			t.Errorf("%s: %s", c.says, d)
		}
		if d := cmp.Diff(want.Attached, h.inKernel()); d != "" {
			t.Errorf("%s, in the kernel: %s", c.says, d)
		}
	}
	if slices.Contains(h.all(), "bond0") {
		h.apply("slave0", "bond0")
		if c := h.choice(); !slices.Equal(c.Attached, []string{"bond0"}) || c.Failed["slave0"] != "It is a member of bond0; name bond0 instead." || !slices.Equal(h.inKernel(), c.Attached) {
			t.Errorf("a member of a bond by name: %+v", c)
		}
	}
	if err := h.engine.closeKernel(); err != nil {
		t.Error(err)
	}
}

// slave says why the members of the bond are none, or without a bond what they are.
func (h *hall) slave() string {
	if slices.Contains(h.all(), "bond0") {
		return "It is a member of bond0; name bond0 instead."
	}
	return "It is a virtual interface (veth); name it in the domain's uplinks to take it."
}

// G13: interfaces are renamed, unplugged, plugged in, made ports, and routes and rules change, while the agent runs: each time the right ones have programs
// afterwards.
func TestG13_InterfacesChangeWhileTheAgentRuns(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHall(t)
	h.apply("wan7")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.engine.Run(ctx) }()
	// The agent sees changes from a moment after its start on: change something until it is seen.
	for seen := false; !seen; {
		h.ip("link set idle0 alias x")
		h.ip("link set idle0 alias y")
		seen = h.notices(100 * time.Millisecond)
	}
	const none = "There is no interface of this name."
	for _, step := range []struct {
		says     string
		do       []string
		attached []string
		failed   string // of wan7
	}{
		{"not there yet", nil, nil, none},
		{"renamed to the name", []string{"link set idle0 down", "link set idle0 name wan7", "link set wan7 up"}, []string{"wan7"}, ""},
		{"renamed away", []string{"link set wan7 down", "link set wan7 name wan8", "link set wan8 up"}, nil, none},
		{"another one of the name is plugged in", []string{"link add link nic0 name wan7 type macvlan"}, []string{"wan7"}, ""},
		{"unplugged", []string{"link del wan7"}, nil, none},
		{"plugged in again", []string{"link add link nic0 name wan7 index 4711 type macvlan", "link set wan7 up"}, []string{"wan7"}, ""},
		{"another one is there at once, under the same index", []string{
			"link del wan7", "link add link nic0 name wan7 index 4711 type macvlan", "link set wan7 up",
		}, []string{"wan7"}, ""},
		{"the two change their names", []string{
			"link set wan7 down", "link set wan8 down", "link set wan7 name wan9", "link set wan8 name wan7", "link set wan9 name wan8", "link set wan7 up", "link set wan8 up",
		}, []string{"wan7"}, ""},
	} {
		for _, args := range step.do {
			h.ip(args)
		}
		h.becomes(step.says, func(c choice) bool { return slices.Equal(c.Attached, step.attached) && c.Failed["wan7"] == step.failed }, step.attached)
	}
	h.apply()
	base := h.here(choice{Attached: []string{"bond0", "bond0.100", "br0", "mv0"}}).Attached
	with := func(names ...string) []string { return slices.Sorted(slices.Values(slices.Concat(base, names))) }
	without := func(name string) []string {
		return slices.DeleteFunc(slices.Clone(base), func(x string) bool { return x == name })
	}
	for _, step := range []struct {
		says      string
		do        []string
		attached  []string
		name, why string // of one that is told
	}{
		{"chosen by routes", nil, base, "mgmt0", "203.0.113.10"},
		{"plugged in with a route", []string{"link add link nic0 name mv9 type macvlan", "link set mv9 up", "route add default dev mv9 table 99", "route add 10.2.9.0/24 dev mv9"}, with("mv9"), "mgmt0", "203.0.113.10"},
		{"its route goes", []string{"route del 10.2.9.0/24 dev mv9"}, base, "", ""},
		{"a rule leads there", []string{"rule add to 10.2.0.0/16 lookup 99"}, with("mv9"), "", ""},
		{"the rule goes", []string{"rule del to 10.2.0.0/16 lookup 99"}, base, "", ""},
		{"the API server is reached another way", []string{"route add 203.0.113.10/32 dev mv0"}, slices.Sorted(slices.Values(append(without("mv0"), "mgmt0"))), "mv0", "203.0.113.10"},
		{"and that way again", []string{"route del 203.0.113.10/32 dev mv0"}, base, "mgmt0", "203.0.113.10"},
		{"an uplink becomes a port of a bridge", []string{"link set mv0 master br0"}, without("mv0"), "mv0", "port of the bridge br0"},
	} {
		for _, args := range step.do {
			h.ip(args)
		}
		h.becomes(step.says, func(c choice) bool {
			return slices.Equal(c.Attached, step.attached) && (step.name == "" || strings.Contains(c.Excluded[step.name], step.why))
		}, step.attached)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// blind reports whether an uplink's tap sees nothing.
func (h *hall) blind() bool {
	return slices.ContainsFunc(h.engine.snap.Load().uplinks, func(u uplinkState) bool { return u.gone() })
}

// notices waits until the engine has changed something.
func (h *hall) notices(patience time.Duration) bool {
	select {
	case <-h.changed:
		return true
	case <-time.After(patience):
		return false
	}
}

// becomes waits until the agent says so, and the kernel too.
func (h *hall) becomes(says string, is func(choice) bool, attached []string) {
	h.Helper()
	for !is(h.choice()) || !slices.Equal(h.inKernel(), attached) || h.blind() {
		if !h.notices(10 * time.Second) {
			h.Fatalf("%s: still %+v, programs on %v", says, h.choice(), h.inKernel())
		}
	}
}

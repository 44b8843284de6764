// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(s ...string) (p []netip.Prefix) {
	for _, s := range s {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

// hall is a node with one interface of every kind; most of them lead to the other site.
func hall() *world {
	west := netip.MustParsePrefix("10.2.0.0/16")
	w := &world{
		ifaces: []iface{
			{index: 1, name: "lo", loopback: true, kind: ""},
			{index: 2, name: "mgmt0", ethernet: true, mtu: 1500},
			{index: 3, name: "wan0", names: []string{"enp3s0f0np0"}, ethernet: true, mtu: 9000},
			{index: 4, name: "eth4", ethernet: true, master: "bond0", masterKind: "bond"},
			{index: 5, name: "bond0", ethernet: true, kind: "bond", mtu: 9000},
			{index: 6, name: "port6", ethernet: true, master: "br0", masterKind: "bridge"},
			{index: 7, name: "br0", ethernet: true, kind: "bridge", mtu: 1500},
			{index: 8, name: "wg0", kind: "wireguard", bare: true},
			{index: 9, name: "vxlan9", ethernet: true, kind: "vxlan"},
			{index: 10, name: "vethpod", ethernet: true, kind: "veth"},
			{index: 11, name: "vlan11", ethernet: true, kind: "vlan", mtu: 4200},
			{index: 12, name: "idle0", ethernet: true},
			{index: 13, name: "ipsec0", bare: true, kind: "xfrm", ifID: 42, mtu: 1500, under: "mgmt0", underMTU: 1500},
			{index: 14, name: "ib0", kind: "ipoib", mtu: 2044},
		},
		routes: map[netip.Prefix][]int{west: {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14}},
		manage: map[int]netip.Addr{2: netip.MustParseAddr("203.0.113.10")},
	}
	return w
}

func names(f Facts) (taken, excluded []string) {
	for _, u := range f.Uplinks {
		taken = append(taken, u.Name)
	}
	for _, e := range f.Excluded {
		excluded = append(excluded, e.Name)
	}
	return taken, excluded
}

// G13: without names, only interfaces are taken that route to another site and are no loopback, member of a bond, port of a
// bridge, tunnel, pod's or management interface; each of those is told with its reason.
func TestG13_ChosenByRoute(t *testing.T) {
	f := hall().choose(Config{Remote: prefixes("10.2.0.0/16", "10.3.0.0/16")})
	taken, excluded := names(f)
	if d := cmp.Diff([]string{"bond0", "br0", "ipsec0", "vlan11", "wan0"}, taken); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"eth4", "ib0", "lo", "mgmt0", "port6", "vethpod", "vxlan9", "wg0"}, excluded); d != "" {
		t.Error(d)
	}
	want := map[string]string{
		"eth4": "name bond0 instead", "lo": "loopback", "mgmt0": "203.0.113.10", "port6": "bridge br0", "vethpod": "virtual",
		"vxlan9": "tunnel", "wg0": "tunnel", "ib0": "neither with an Ethernet header",
	}
	for _, e := range f.Excluded {
		if !strings.Contains(e.Why, want[e.Name]) || !strings.HasSuffix(e.Why, ".") {
			t.Errorf("%s: %q", e.Name, e.Why)
		}
	}
	if u := f.Uplinks[4]; u.Why != "It routes to 10.2.0.0/16." || u.MTU != 9000 || u.Index != 3 || u.Bare || u.IfID != 0 {
		t.Errorf("%+v", u)
	}
	if len(f.Unrouted) != 1 || f.Unrouted[0].String() != "10.3.0.0/16" {
		t.Errorf("unrouted: %v", f.Unrouted)
	}
}

// By name also unlikely interfaces are taken, the impossible ones never; a missing one is told, and those that lead to another site without a name.
func TestG13_ChosenByName(t *testing.T) {
	f := hall().choose(Config{
		Names:  []string{"vethpod", "enp3s0f0np0", "wan0", "mgmt0", "eth4", "wg0", "ib0", "lo", "wan9", "port6", "idle0"},
		Remote: prefixes("10.2.0.0/16"),
	})
	taken, excluded := names(f)
	if d := cmp.Diff([]string{"idle0", "mgmt0", "port6", "vethpod", "wan0", "wg0"}, taken); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"bond0", "br0", "eth4", "ib0", "ipsec0", "lo", "vlan11", "vxlan9", "wan9"}, excluded); d != "" {
		t.Error(d)
	}
	if why := f.Excluded[0].Why; why != "It routes to 10.2.0.0/16. It is not named in the domain's uplinks." {
		t.Error(why)
	}
}

// An uplink of route-based IPsec is bare, tells its if_id, and has the MTU that ESP leaves of the interface under it,
// whatever its own says.
func TestXFRMInterface(t *testing.T) {
	for _, c := range []struct{ own, under, want int }{
		{1500, 1500, 1446}, {1400, 1500, 1400}, {4400, 9000, 4400}, {9000, 9000, 8946}, {1500, 0, 1500}, {1447, 1501, 1446}, {1451, 1504, 1450},
	} {
		i := iface{name: "ipsec0", bare: true, kind: "xfrm", ifID: 42, mtu: c.own, under: "wan0", underMTU: c.under}
		u := i.uplink("It is named.")
		if u.MTU != c.want || !u.Bare || u.IfID != 42 || strings.Contains(u.Why, "wan0") != (c.want < c.own) {
			t.Errorf("own %d, under %d: %+v", c.own, c.under, u)
		}
		// Nothing larger fits: the sum of header, SPI, sequence number, IV, padded payload and tag.
		esp := func(n int) int { return 20 + 8 + 8 + (n+2+3)/4*4 + 16 }
		if c.under > 0 && (esp(u.MTU) > c.under || u.MTU < c.own && esp(u.MTU+1) <= c.under) {
			t.Errorf("own %d, under %d: %d octets make %d", c.own, c.under, u.MTU, esp(u.MTU))
		}
	}
}

// The choice doesn't depend on the order in which the kernel lists things.
func TestChoiceIsStable(t *testing.T) {
	w := hall()
	c := Config{Remote: prefixes("10.2.0.0/16")}
	want := w.choose(c)
	for range 20 {
		first := w.ifaces[0]
		w.ifaces = append(w.ifaces[1:], first)
		if d := cmp.Diff(want, w.choose(c), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Fatal(d)
		}
	}
}

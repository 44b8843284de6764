// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"crem.dev/crem/test/netns"
)

// node makes a namespace with two links to another one.
func node(t *testing.T) (n, far *netns.NS) {
	t.Helper()
	n, far = netns.New(t), netns.New(t)
	netns.Link(t, 9000, netns.End{NS: n, Name: "wan0", Addrs: []string{"192.0.2.1/24", "fd09::1/64"}}, netns.End{NS: far, Name: "far0", Addrs: []string{"192.0.2.254/24", "fd09::fe/64"}})
	netns.Link(t, 1500, netns.End{NS: n, Name: "wan1", Addrs: []string{"198.51.100.1/24"}}, netns.End{NS: far, Name: "far1", Addrs: []string{"198.51.100.254/24"}})
	return n, far
}

func ip(t *testing.T, n *netns.NS, args ...string) {
	t.Helper()
	var out []byte
	var err error
	n.Do(func() { out, err = exec.Command("ip", args...).CombinedOutput() })
	if err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func find(t *testing.T, n *netns.NS, c Config) (f Facts) {
	t.Helper()
	n.Do(func() {
		var err error
		if f, err = Find(c); err != nil {
			t.Fatal(err)
		}
	})
	return f
}

// leads tells which interfaces were seen to lead to the remote prefixes; veth is excluded without a name, and says so.
func leads(f Facts) (l []string) {
	for _, e := range f.Excluded {
		l = append(l, e.Name)
	}
	return l
}

// Find follows routes of all kinds: to the prefix, to a part of it, over several next hops, in other tables by rules.
func TestFindFollowsRoutes(t *testing.T) {
	n, _ := node(t)
	west := prefixes("10.2.0.0/16")
	if f := find(t, n, Config{Remote: west}); len(f.Uplinks)+len(f.Excluded) != 0 || len(f.Unrouted) != 1 {
		t.Errorf("without a route: %+v", f)
	}
	ip(t, n, "route", "add", "10.2.0.0/16", "via", "192.0.2.254")
	if f := find(t, n, Config{Remote: west}); !cmp.Equal(leads(f), []string{"wan0"}) || len(f.Unrouted) != 0 {
		t.Errorf("one route: %+v", f)
	}
	ip(t, n, "route", "add", "10.2.77.0/24", "via", "198.51.100.254")
	if f := find(t, n, Config{Remote: west}); !cmp.Equal(leads(f), []string{"wan0", "wan1"}) {
		t.Errorf("part of the prefix elsewhere: %+v", f)
	}
	ip(t, n, "route", "del", "10.2.77.0/24")
	ip(t, n, "route", "replace", "10.2.0.0/16", "nexthop", "via", "192.0.2.254", "nexthop", "via", "198.51.100.254")
	if f := find(t, n, Config{Remote: west}); !cmp.Equal(leads(f), []string{"wan0", "wan1"}) {
		t.Errorf("two next hops: %+v", f)
	}
	ip(t, n, "route", "del", "10.2.0.0/16")
	ip(t, n, "route", "add", "default", "via", "192.0.2.254")
	if f := find(t, n, Config{Remote: west}); !cmp.Equal(leads(f), []string{"wan0"}) {
		t.Errorf("default route: %+v", f)
	}
	ip(t, n, "route", "add", "10.2.0.0/16", "via", "198.51.100.254", "table", "77")
	ip(t, n, "rule", "add", "to", "10.2.0.0/16", "lookup", "77")
	if f := find(t, n, Config{Remote: west}); !cmp.Equal(leads(f), []string{"wan1"}) {
		t.Errorf("by rule: %+v", f)
	}
	ip(t, n, "route", "add", "unreachable", "10.3.0.0/16")
	ip(t, n, "route", "add", "blackhole", "10.4.0.0/16")
	ip(t, n, "-6", "route", "add", "fd00:2::/32", "via", "fd09::fe")
	f := find(t, n, Config{Remote: prefixes("10.3.0.0/16", "10.4.0.0/16", "fd00:2::/32", "fd00:3::/32", "10.2.0.9/32")})
	if !cmp.Equal(leads(f), []string{"wan0", "wan1"}) || !slices.Equal(f.Unrouted, prefixes("10.3.0.0/16", "10.4.0.0/16", "fd00:3::/32")) {
		t.Errorf("unreachable, IPv6, host: %+v", f)
	}
}

// Named interfaces come with their facts; the addresses of the node are all told.
func TestFindNamed(t *testing.T) {
	n, _ := node(t)
	ip(t, n, "link", "set", "wan0", "address", "02:00:00:00:00:77")
	ip(t, n, "link", "property", "add", "dev", "wan1", "altname", "a-rather-long-name-of-wan1")
	f := find(t, n, Config{Names: []string{"wan0", "a-rather-long-name-of-wan1", "wan2"}, Remote: prefixes("10.2.0.0/16")})
	taken, excluded := names(f)
	if !cmp.Equal(taken, []string{"wan0", "wan1"}) || !cmp.Equal(excluded, []string{"wan2"}) {
		t.Fatalf("%+v", f)
	}
	if u := f.Uplinks[0]; u.MTU != 9000 || u.MAC.String() != "02:00:00:00:00:77" || u.Index == 0 {
		t.Errorf("%+v", u)
	}
	for _, a := range []string{"127.0.0.1", "::1", "192.0.2.1", "198.51.100.1", "fd09::1"} {
		if !slices.Contains(f.Local, netip.MustParseAddr(a)) {
			t.Errorf("%s is not among %v", a, f.Local)
		}
	}
	if len(f.Unrouted) != 1 {
		t.Errorf("unrouted: %v", f.Unrouted)
	}
}

func TestFindManagement(t *testing.T) {
	n, _ := node(t)
	ip(t, n, "route", "add", "default", "via", "192.0.2.254")
	f := find(t, n, Config{Remote: prefixes("10.2.0.0/16"), Management: []netip.Addr{netip.MustParseAddr("203.0.113.10")}})
	if len(f.Uplinks) != 0 || !cmp.Equal(leads(f), []string{"wan0"}) {
		t.Errorf("%+v", f)
	}
}

// A list that changed while it was read is asked for again, and never used.
func TestInterruptedDump(t *testing.T) {
	calls := 0
	got, err := complete("things", func() ([]int, error) {
		calls++
		if calls < 4 {
			return []int{calls}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2, 3}, nil
	})
	if err != nil || len(got) != 3 || calls != 4 {
		t.Errorf("%v, %v after %d calls", got, err, calls)
	}
	if got, err := complete("things", func() ([]int, error) { return []int{1}, netlink.ErrDumpInterrupted }); err == nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	failure := errors.New("no")
	if _, err := complete("things", func() ([]int, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Error(err)
	}
}

func TestPathMTU(t *testing.T) {
	n, _ := node(t)
	ip(t, n, "route", "add", "10.2.0.0/16", "via", "192.0.2.254")
	ip(t, n, "route", "add", "10.3.0.0/16", "via", "192.0.2.254", "mtu", "4000")
	for to, want := range map[string]int{"10.2.0.9": 9000, "10.3.0.9": 4000, "198.51.100.9": 1500} {
		n.Do(func() {
			if got, err := PathMTU(netip.MustParseAddr(to)); err != nil || got != want {
				t.Errorf("%s: %d, %v; want %d", to, got, err, want)
			}
		})
	}
	n.Do(func() {
		if _, err := PathMTU(netip.MustParseAddr("203.0.113.1")); err == nil {
			t.Error("a path without a route")
		}
	})
}

// Watch tells of links, addresses and routes, once for a burst, and ends with its context.
func TestWatch(t *testing.T) {
	n, _ := node(t)
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan struct{}, 100)
	ended := make(chan error)
	started := make(chan struct{})
	go n.Do(func() {
		close(started)
		ended <- Watch(ctx, func() { told <- struct{}{} })
	})
	<-started
	// The subscription begins somewhat later: change things until the first change is told.
	for i := 0; ; i++ {
		ip(t, n, "link", "set", "wan0", "alias", fmt.Sprint(i))
		select {
		case <-told:
		case <-time.After(50 * time.Millisecond):
			continue
		}
		break
	}
	for _, change := range []string{
		"route add 10.9.0.0/16 via 192.0.2.254", "addr add 192.0.2.7/24 dev wan0", "link set wan1 mtu 1400", "-6 addr add fd09::7/64 dev wan0 nodad",
	} {
		ip(t, n, strings.Fields(change)...)
		select {
		case <-told:
		case <-time.After(5 * time.Second):
			t.Errorf("%s was not told", change)
		}
		drain(told)
	}
	const burst = 200
	n.Do(func() {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		for i := range burst {
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 16, 0, byte(i+1)), Mask: net.CIDRMask(32, 32)}}
			if err := netlink.AddrAdd(lo, addr); err != nil {
				t.Fatal(err)
			}
		}
	})
	select {
	case <-told:
	case <-time.After(5 * time.Second):
		t.Error("a burst was not told")
	}
	if k := 1 + drain(told); k > burst/2 {
		t.Errorf("a burst of %d was told %d times", burst, k)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("Watch goes on")
	}
}

func drain(c chan struct{}) (n int) {
	for {
		select {
		case <-c:
			n++
		case <-time.After(2 * quietTime):
			return n
		}
	}
}

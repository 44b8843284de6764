// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"crem.dev/crem/test/netns"
)

func ipnet(t *testing.T, s string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestPrivilegedKernelPolicies: what is set is read, both families, with ports; every change is told; the verdict follows.
func TestPrivilegedKernelPolicies(t *testing.T) {
	ns := netns.New(t)
	ns.Do(func() {
		if _, err := List(); errors.Is(err, ErrUnsupported) {
			t.Skip("this kernel has no XFRM (CONFIG_XFRM_USER): nothing to read policies from")
		} else if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		changes, ended := make(chan struct{}, 1000), make(chan error, 1)
		go ns.Do(func() { // a thread of its own in the namespace
			ended <- Watch(ctx, func() { changes <- struct{}{} })
		})
		told := func(what string) {
			t.Helper()
			select {
			case <-changes:
			case <-time.After(10 * time.Second):
				t.Fatalf("nothing was told: %s", what)
			}
		}
		told("the watch has begun")
		tmpl := func(src, dst string) []netlink.XfrmPolicyTmpl {
			return []netlink.XfrmPolicyTmpl{{Src: net.ParseIP(src), Dst: net.ParseIP(dst), Proto: netlink.XFRM_PROTO_ESP, Mode: netlink.XFRM_MODE_TUNNEL, Reqid: 1}}
		}
		pair := func(a, b string, port int) (list []*netlink.XfrmPolicy) {
			for _, x := range []struct {
				dir  netlink.Dir
				s, d string
			}{{netlink.XFRM_DIR_OUT, a, b}, {netlink.XFRM_DIR_IN, b, a}, {netlink.XFRM_DIR_FWD, b, a}} {
				p := &netlink.XfrmPolicy{Src: ipnet(t, x.s), Dst: ipnet(t, x.d), Dir: x.dir, Priority: 10, Tmpls: tmpl("192.0.2.1", "198.51.100.1")}
				if port > 0 {
					p.Proto, p.SrcPort, p.DstPort = unix.IPPROTO_UDP, port, port
				}
				list = append(list, p)
			}
			return list
		}
		var all []*netlink.XfrmPolicy
		all = append(all, pair("10.1.0.0/16", "10.2.0.0/16", 0)...)
		all = append(all, pair("fd00:1::/32", "fd00:2::/32", 0)...)
		all = append(all, pair("192.0.2.1/32", "198.51.100.1/32", 52000)...)
		check := func() Verdict {
			t.Helper()
			list, err := List()
			if err != nil {
				t.Fatal(err)
			}
			return Check(list, facts())
		}
		if v := check(); v.OK() {
			t.Fatal("covered without any policy")
		}
		for _, p := range all {
			if err := netlink.XfrmPolicyAdd(p); err != nil {
				t.Fatal(err)
			}
			told("a policy was added")
		}
		if v := check(); !v.OK() {
			t.Fatalf("not covered: %s", v.String())
		}
		for _, p := range all {
			if p.Dir == netlink.XFRM_DIR_IN && p.DstPort == 0 || p.Dir == netlink.XFRM_DIR_FWD && p.DstPort > 0 {
				continue // of no use: the gateway is no endpoint of flows, and forwards no messages
			}
			if err := netlink.XfrmPolicyDel(p); err != nil {
				t.Fatal(err)
			}
			told("a policy was removed")
			if v := check(); v.OK() || !strings.Contains(v.String(), p.Src.String()) {
				t.Errorf("without %v: %q", p, v.String())
			}
			if p.Dir != netlink.XFRM_DIR_OUT { // the kernel refuses optional tunnels there
				p.Tmpls[0].Optional = 1
			}
			if err := netlink.XfrmPolicyAdd(p); err != nil {
				t.Fatal(err)
			}
			told("one was added that may be optional")
			if v := check(); v.OK() != (p.Dir == netlink.XFRM_DIR_OUT) {
				t.Errorf("a template that is optional was taken for protection: %v", p)
			}
			p.Tmpls[0].Optional = 0
			if err := netlink.XfrmPolicyUpdate(p); err != nil {
				t.Fatal(err)
			}
			told("it was replaced")
			if v := check(); !v.OK() {
				t.Fatalf("not covered any more: %s", v.String())
			}
		}
		if err := netlink.XfrmPolicyFlush(); err != nil {
			t.Fatal(err)
		}
		told("all were removed")
		one := pair("10.1.0.0/16", "10.2.0.0/16", 0)[0]
		one.Ifid = 42
		if err := netlink.XfrmPolicyAdd(one); err != nil {
			t.Fatal(err)
		}
		told("one of an XFRM interface was added")
		if list, err := List(); err != nil || len(list) != 1 || list[0].IfID != 42 || !list[0].ESP {
			t.Errorf("%+v, %v", list, err)
		}
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the watch does not end")
		}
	})
}

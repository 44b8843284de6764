// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func prefixOf(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func esps(dir Direction, src, dst string) Policy {
	return Policy{Dir: dir, Src: prefixOf(src), Dst: prefixOf(dst), ESP: true, Priority: 100}
}

// facts of a gateway between two sites with one prefix of each family and IPv4 gateways.
func facts() Facts {
	return Facts{
		Port:   52000,
		Own:    Site{Name: "east", Prefixes: []netip.Prefix{prefixOf("10.1.0.0/16"), prefixOf("fd00:1::/32")}, Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")}},
		Others: []Site{{Name: "west", Prefixes: []netip.Prefix{prefixOf("10.2.0.0/16"), prefixOf("fd00:2::/32")}, Gateways: []netip.Addr{netip.MustParseAddr("198.51.100.1")}}},
		Local:  []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")},
	}
}

// whole are the policies that a tunnel between the sites has.
func whole() []Policy {
	return []Policy{
		esps(Out, "10.1.0.0/16", "10.2.0.0/16"), esps(Forward, "10.2.0.0/16", "10.1.0.0/16"), esps(In, "10.2.0.0/16", "10.1.0.0/16"),
		esps(Out, "fd00:1::/32", "fd00:2::/32"), esps(Forward, "fd00:2::/32", "fd00:1::/32"), esps(In, "fd00:2::/32", "fd00:1::/32"),
		esps(Out, "192.0.2.1/32", "198.51.100.1/32"), esps(In, "198.51.100.1/32", "192.0.2.1/32"),
	}
}

// routed gives all policies one if_id, and sends everything by an XFRM interface of the other.
func routed(p *[]Policy, f *Facts, theirs, its uint32) {
	for i := range *p {
		(*p)[i].IfID = theirs
	}
	f.IfIDs = map[netip.Prefix][]uint32{prefixOf("10.2.0.0/16"): {its}, prefixOf("fd00:2::/32"): {its}, prefixOf("198.51.100.1/32"): {its}}
}

func TestSection11_PoliciesThatCover(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(p *[]Policy, f *Facts)
		says   []string // parts of the sentence; none: covered
		silent bool     // CREM messages that leave are not covered
	}{
		{"all of them", func(*[]Policy, *Facts) {}, nil, false},
		{"none", func(p *[]Policy, _ *Facts) { *p = nil }, []string{
			"no ESP policy covers dir out, UDP from 192.0.2.1/32 port 52000 to 198.51.100.1/32 port 52000",
			"no ESP policy covers dir in, UDP from 198.51.100.1/32 port 52000 to 192.0.2.1/32 port 52000",
			"no ESP policy covers dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4791", "and 3 more"}, true},
		{"no policy forwards what comes", func(p *[]Policy, _ *Facts) { *p = append((*p)[:1:1], (*p)[2:]...) }, []string{"dir fwd, UDP from 10.2.0.0/16 to 10.1.0.0/16 port 4791"}, false},
		{"no policy for leaving flows", func(p *[]Policy, _ *Facts) { *p = (*p)[1:] }, []string{"dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4791"}, false},
		{"no policy for leaving messages", func(p *[]Policy, _ *Facts) { *p = append((*p)[:6:6], (*p)[7:]...) }, []string{"dir out, UDP from 192.0.2.1/32 port 52000"}, true},
		{"no policy for arriving messages", func(p *[]Policy, _ *Facts) { *p = (*p)[:7] }, []string{"dir in, UDP from 198.51.100.1/32 port 52000"}, false},
		{"one family lacks", func(p *[]Policy, _ *Facts) { *p = append((*p)[:3:3], (*p)[4:]...) }, []string{"dir out, UDP from fd00:1::/32 to fd00:2::/32 port 4791"}, false},
		{"a family that one end lacks is not needed", func(p *[]Policy, f *Facts) {
			*p = append((*p)[:3:3], (*p)[6:]...)
			f.Others[0].Prefixes = f.Others[0].Prefixes[:1]
		}, nil, false},
		{"veRoCE beside RoCEv2, under policies for all of UDP", func(_ *[]Policy, f *Facts) { f.VeRoCE = 4794 }, nil, false},
		{"veRoCE, under policies for RoCEv2 alone", func(p *[]Policy, f *Facts) {
			f.VeRoCE = 4794
			for i := range (*p)[:6] {
				(*p)[i].Protocol, (*p)[i].DstPorts = 17, Exactly(4791)
			}
		}, []string{"no ESP policy covers dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4794"}, false},
		{"a block before them leaks nothing and passes nothing", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.0.0/16"), Dst: prefixOf("10.2.0.0/16"), Blocks: true, Priority: 1})
		}, []string{"dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16"}, false},
		{"a block behind them, as a backstop", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("0.0.0.0/0"), Dst: prefixOf("0.0.0.0/0"), Blocks: true, Priority: 1000})
		}, nil, false},
		{"a hole before them", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.7.0/24"), Dst: prefixOf("0.0.0.0/0"), Priority: 1})
		}, []string{"dir out, UDP from 10.1.7.0/24 to 10.2.0.0/16 port 4791"}, false},
		{"a hole of the same priority", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.7.0/24"), Dst: prefixOf("0.0.0.0/0"), Priority: 100})
		}, []string{"dir out, UDP from 10.1.7.0/24"}, false},
		{"a hole behind them", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.7.0/24"), Dst: prefixOf("0.0.0.0/0"), Priority: 101})
		}, nil, false},
		{"a hole for another protocol", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.0.0/16"), Dst: prefixOf("0.0.0.0/0"), Protocol: 6, Priority: 1})
		}, nil, false},
		{"a hole for another port", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.0.0/16"), Dst: prefixOf("0.0.0.0/0"), Protocol: 17, DstPorts: Exactly(53), Priority: 1})
		}, nil, false},
		{"a hole for some source ports", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("10.1.0.0/16"), Dst: prefixOf("0.0.0.0/0"), Protocol: 17, SrcPorts: Ports{0xc000, 0xc000}, Priority: 1})
		}, []string{"dir out, UDP from 10.1.0.0/16"}, false},
		{"a hole for a mark", func(p *[]Policy, _ *Facts) {
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("0.0.0.0/0"), Dst: prefixOf("0.0.0.0/0"), Marked: true, Priority: 1})
		}, []string{"dir out"}, true},
		{"an optional template or AH is none", func(p *[]Policy, _ *Facts) { (*p)[0].ESP = false }, []string{"dir out, UDP from 10.1.0.0/16"}, false},
		{"only for marked packets", func(p *[]Policy, _ *Facts) { (*p)[0].Marked = true }, []string{"dir out, UDP from 10.1.0.0/16"}, false},
		{"only for one interface", func(p *[]Policy, _ *Facts) { (*p)[0].OneIface = true }, []string{"dir out, UDP from 10.1.0.0/16"}, false},
		{"only for the right ports", func(p *[]Policy, _ *Facts) {
			for _, i := range []int{0, 1, 3, 4} {
				(*p)[i].Protocol, (*p)[i].DstPorts = 17, Exactly(4791)
			}
			for _, i := range []int{6, 7} {
				(*p)[i].Protocol, (*p)[i].DstPorts, (*p)[i].SrcPorts = 17, Exactly(52000), Exactly(52000)
			}
		}, nil, false},
		{"for another port", func(p *[]Policy, _ *Facts) { (*p)[6].Protocol, (*p)[6].DstPorts = 17, Exactly(52001) }, []string{"dir out, UDP from 192.0.2.1/32"}, true},
		{"for TCP", func(p *[]Policy, _ *Facts) { (*p)[0].Protocol = 6 }, []string{"dir out, UDP from 10.1.0.0/16"}, false},
		{"in two halves", func(p *[]Policy, _ *Facts) {
			(*p)[0] = esps(Out, "10.1.0.0/17", "10.2.0.0/16")
			*p = append(*p, esps(Out, "10.1.128.0/17", "10.2.0.0/17"), esps(Out, "10.1.128.0/17", "10.2.128.0/17"))
		}, nil, false},
		{"in quarters but one", func(p *[]Policy, _ *Facts) {
			(*p)[0] = esps(Out, "10.1.0.0/17", "10.2.0.0/16")
			*p = append(*p, esps(Out, "10.1.128.0/17", "10.2.128.0/17"))
		}, []string{"no ESP policy covers dir out, UDP from 10.1.128.0/17 to 10.2.0.0/17 port 4791"}, false},
		{"one host of many", func(p *[]Policy, _ *Facts) { (*p)[0] = esps(Out, "10.1.0.7/32", "10.2.0.0/16") }, []string{"dir out, UDP from 10.1.0.0/30", "and 13 more"}, false},
		{"for everything", func(p *[]Policy, _ *Facts) {
			*p = []Policy{}
			for _, all := range []string{"0.0.0.0/0", "::/0"} {
				*p = append(*p, esps(In, all, all), esps(Out, all, all), esps(Forward, all, all))
			}
		}, nil, false},
		{"the node is an endpoint itself", func(p *[]Policy, f *Facts) {
			f.Local = append(f.Local, netip.MustParseAddr("10.1.0.5"))
			*p = append((*p)[:2:2], (*p)[3:]...)
		}, []string{"dir in, UDP from 10.2.0.0/16 to 10.1.0.5/32 port 4791"}, false},
		{"the node is no gateway", func(_ *[]Policy, f *Facts) { f.Local = f.Local[:1] }, []string{"none of this node's addresses is among the gateways of site east"}, true},
		{"the other site names none", func(_ *[]Policy, f *Facts) { f.Others[0].Gateways = nil }, []string{"site west names no gateways"}, true},
		{"gateways of different families", func(_ *[]Policy, f *Facts) { f.Others[0].Gateways[0] = netip.MustParseAddr("2001:db8::1") }, []string{"no address family in common"}, true},
		{"of an XFRM interface, by which everything goes", func(p *[]Policy, f *Facts) { routed(p, f, 42, 42) }, nil, false},
		{"of another XFRM interface", func(p *[]Policy, f *Facts) { routed(p, f, 43, 42) }, []string{
			"dir out, UDP from 192.0.2.1/32 port 52000 to 198.51.100.1/32 port 52000 if_id 0x2a"}, true},
		{"of no XFRM interface, and everything goes by one", func(p *[]Policy, f *Facts) { routed(p, f, 0, 42) }, []string{"if_id 0x2a"}, true},
		{"of an XFRM interface by which nothing goes", func(p *[]Policy, _ *Facts) {
			for i := range *p {
				(*p)[i].IfID = 42
			}
		}, []string{"dir out, UDP from 192.0.2.1/32 port 52000 to 198.51.100.1/32 port 52000;"}, true},
		{"of one XFRM interface, and flows go by two", func(p *[]Policy, f *Facts) {
			routed(p, f, 42, 42)
			f.IfIDs[prefixOf("10.2.0.0/16")] = []uint32{42, 7}
		}, []string{"dir out, UDP from 10.1.0.0/16 to 10.2.0.0/16 port 4791 if_id 0x7"}, false},
		{"of both XFRM interfaces by which flows go", func(p *[]Policy, f *Facts) {
			routed(p, f, 42, 42)
			for _, one := range (*p)[:3] {
				one.IfID = 7
				*p = append(*p, one)
			}
			f.IfIDs[prefixOf("10.2.0.0/16")] = []uint32{42, 7}
		}, nil, false},
		{"a hole that is another XFRM interface's", func(p *[]Policy, f *Facts) {
			routed(p, f, 42, 42)
			*p = append(*p, Policy{Dir: Out, Src: prefixOf("0.0.0.0/0"), Dst: prefixOf("0.0.0.0/0"), Priority: 1, IfID: 7})
		}, nil, false},
		{"nothing to protect", func(_ *[]Policy, f *Facts) {
			f.Own.Prefixes, f.Others[0].Prefixes = f.Own.Prefixes[:1], f.Others[0].Prefixes[1:]
		}, []string{"there is no flow to protect"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			policies, f := whole(), facts()
			tc.change(&policies, &f)
			v := Check(policies, f)
			if v.OK() != (len(tc.says) == 0) || v.Messages == tc.silent {
				t.Errorf("covered %v, messages %v: %s", v.OK(), v.Messages, v.String())
			}
			for _, part := range tc.says {
				if !strings.Contains(v.String(), part) {
					t.Errorf("%q does not say %q", v.String(), part)
				}
			}
		})
	}
}

// TestCoverAgainstEveryPacket: the answer for small prefixes equals that of asking the policies for each packet, as the kernel does.
func TestCoverAgainstEveryPacket(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	base := [4]byte{10, 0, 0, 0}
	random := func(short int) netip.Prefix {
		a := base
		a[3] = byte(r.IntN(8))
		return netip.PrefixFrom(netip.AddrFrom4(a), short+r.IntN(33-short)).Masked()
	}
	covered := 0
	for range 20000 {
		var policies []Policy
		for range r.IntN(7) {
			policies = append(policies, Policy{Dir: Out, Src: random(27), Dst: random(27), Priority: uint32(r.IntN(3)), ESP: r.IntN(4) > 0, Blocks: r.IntN(9) == 0})
		}
		n := need{dir: Out, src: netip.PrefixFrom(netip.AddrFrom4(base), 29), dst: netip.PrefixFrom(netip.AddrFrom4(base), 30)}
		want := true
		for i := range byte(8) {
			for j := range byte(4) {
				a, b := base, base
				a[3], b[3] = i, j
				want = want && meets(policies, netip.AddrFrom4(a), netip.AddrFrom4(b))
			}
		}
		missing := uncovered(n, policies)
		if (len(missing) == 0) != want {
			t.Fatalf("covered %v, want %v\nmissing %v\npolicies %+v", len(missing) == 0, want, missing, policies)
		}
		for _, m := range missing {
			if meets(policies, m.src.Addr(), m.dst.Addr()) {
				t.Fatalf("%v is said to be missing and is covered by %+v", m, policies)
			}
		}
		if want {
			covered++
		}
	}
	if covered < 100 {
		t.Fatalf("only %d cases were covered: the test proves little", covered)
	}
}

// meets asks for one packet: the first policy decides, the worst of those of one priority.
func meets(policies []Policy, src, dst netip.Addr) bool {
	var best *Policy
	for i := range policies {
		p := &policies[i]
		if p.Src.Contains(src) && p.Dst.Contains(dst) && (best == nil || p.Priority < best.Priority || p.Priority == best.Priority && p.rank() < best.rank()) {
			best = p
		}
	}
	return best != nil && best.ESP && !best.Blocks
}

// TestCoverIsBounded: a thousand policies for single hosts are judged in time, and not taken for more than they are.
func TestCoverIsBounded(t *testing.T) {
	var policies []Policy
	for i := range 1000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		policies = append(policies, Policy{Dir: Out, Src: host(a), Dst: host(netip.AddrFrom4([4]byte{10, 2, byte(i), byte(i >> 8)})), ESP: true})
	}
	start := time.Now()
	if missing := uncovered(need{dir: Out, src: prefixOf("10.1.0.0/16"), dst: prefixOf("10.2.0.0/16")}, policies); len(missing) == 0 {
		t.Error("pairs of hosts were taken for two prefixes")
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestG16_GuardHoldsDown(t *testing.T) {
	good, bad := Verdict{Messages: true}, Verdict{Missing: []string{"no ESP policy covers x"}}
	var g Guard
	if !g.Judge(0, good) || g.Problem() != "" || g.Wait(0) != 0 {
		t.Error("policies that are there at the start count at once")
	}
	if g.Judge(time.Second, bad) || !strings.Contains(g.Problem(), "covers x") || g.Messages() {
		t.Error("protection did not end at once")
	}
	opens := 0
	for i := range 100 { // policies come and go once a second for a minute and a half
		now := 2*time.Second + time.Duration(i)*time.Second
		v := good
		if i%2 == 1 {
			v = bad
		}
		if g.Judge(now, v) {
			opens++
		}
	}
	if opens > 0 {
		t.Errorf("opened %d times while policies flapped", opens)
	}
	now := 200 * time.Second
	if g.Judge(now, good) || g.Wait(now) != HoldDown || !strings.Contains(g.Problem(), "again") {
		t.Errorf("opened at once: wait %v, problem %q", g.Wait(now), g.Problem())
	}
	if g.Judge(now+HoldDown-1, good) || !g.Judge(now+HoldDown, good) || g.Problem() != "" {
		t.Error("it does not open when the policies have stayed")
	}
	var late Guard
	if late.Judge(0, bad) || late.Judge(time.Second, good) || !late.Judge(time.Second+HoldDown, good) {
		t.Error("policies that come after the start are held down, too")
	}
}

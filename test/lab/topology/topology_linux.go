// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the hosts and of the gateways' uplinks.
var (
	HostA4 = netip.MustParseAddr("10.1.0.2")
	HostA6 = netip.MustParseAddr("fd00:1::2")
	HostB4 = netip.MustParseAddr("10.2.0.2")
	HostB6 = netip.MustParseAddr("fd00:2::2")
	GwA4   = netip.MustParseAddr("192.0.2.1")
	GwA6   = netip.MustParseAddr("2001:db8:a::1")
	GwB4   = netip.MustParseAddr("198.51.100.1")
	GwB6   = netip.MustParseAddr("2001:db8:b::1")
	// Reporter is the WAN's own address, which the gateways have a route to.
	Reporter = netip.MustParseAddr("192.0.2.129")
)

// Uplink is the gateways' interface to the WAN and Access the one to their host; WANA and WANB are the two interfaces of the namespace wan; Device is the
// hosts' interface.
const (
	Uplink = "wan0"
	Access = "lan0"
	WANA   = "a0"
	WANB   = "b0"
	Device = "eth0"
)

// Link addresses of the hosts: the gateways know their neighbours and do not ask.
var (
	MACA = mac(1, 2)
	MACB = mac(2, 2)
)

// Options of the lab.
type Options struct {
	LANMTU int  // largest IP packet between hosts and gateways
	WANMTU int  // largest IP packet on the uplinks: room for repair symbols
	TAP    bool // virtual machines stand for the hosts: lan0 is a TAP, and there are no namespaces HostA and HostB
}

// Lab is a built lab.
type Lab struct {
	HostA, GwA, WAN, GwB, HostB *Namespace
	TAPA, TAPB                  *os.File // with Options.TAP: the hosts' ends of the cables, for a virtual machine monitor; closed with the lab

	mu          sync.Mutex
	processes   []*Process
	interrupted bool
}

// site is one side of the lab.
type site struct {
	host, gateway      *Namespace // host is nil with Options.TAP
	tap                **os.File
	hostMAC, lanMAC    net.HardwareAddr
	uplinkMAC          net.HardwareAddr
	hostAddr, lanAddr  []string // with prefix length, IPv4 and IPv6
	uplinkAddr         []netip.Addr
	lanGateway, subnet []string
	wanPort            string
}

// New makes the lab. On an error nothing is left.
func New(o Options) (*Lab, error) {
	l := &Lab{}
	type named struct {
		to   **Namespace
		name string
	}
	all := []named{{&l.GwA, "gwA"}, {&l.WAN, "wan"}, {&l.GwB, "gwB"}}
	if !o.TAP {
		all = append(all, named{&l.HostA, "hostA"}, named{&l.HostB, "hostB"})
	}
	for _, n := range all {
		ns, err := newNamespace(n.name)
		if err != nil {
			l.Close()
			return nil, err
		}
		*n.to = ns
	}
	if err := l.build(o); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Interrupt kills every program of the lab, so that whoever waits for one goes on. It may be called from any goroutine; Close is still needed.
func (l *Lab) Interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupted = true
	for _, p := range l.processes {
		p.Kill()
	}
}

// Close stops every program of the lab and removes it.
func (l *Lab) Close() {
	l.Interrupt()
	for _, n := range []*Namespace{l.HostA, l.GwA, l.WAN, l.GwB, l.HostB} {
		if n != nil {
			n.close()
		}
	}
	for _, f := range []*os.File{l.TAPA, l.TAPB} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func mac(site, port byte) net.HardwareAddr { return net.HardwareAddr{0x02, 0xc0, 0, 0, site, port} }

func (l *Lab) build(o Options) error {
	a := &site{
		host: l.HostA, tap: &l.TAPA, gateway: l.GwA, hostMAC: MACA, lanMAC: mac(1, 1), uplinkMAC: mac(1, 9),
		hostAddr: []string{"10.1.0.2/24", "fd00:1::2/64"}, lanAddr: []string{"10.1.0.1/24", "fd00:1::1/64"},
		uplinkAddr: []netip.Addr{GwA4, GwA6}, lanGateway: []string{"10.1.0.1", "fd00:1::1"}, subnet: []string{"10.1.0.0/24", "fd00:1::/64"}, wanPort: WANA,
	}
	b := &site{
		host: l.HostB, tap: &l.TAPB, gateway: l.GwB, hostMAC: MACB, lanMAC: mac(2, 1), uplinkMAC: mac(2, 9),
		hostAddr: []string{"10.2.0.2/24", "fd00:2::2/64"}, lanAddr: []string{"10.2.0.1/24", "fd00:2::1/64"},
		uplinkAddr: []netip.Addr{GwB4, GwB6}, lanGateway: []string{"10.2.0.1", "fd00:2::1"}, subnet: []string{"10.2.0.0/24", "fd00:2::/64"}, wanPort: WANB,
	}
	for _, s := range []*site{a, b} {
		if err := s.links(l.WAN, o); err != nil {
			return fmt.Errorf("site of %s: %w", s.gateway.Name, err)
		}
	}
	return errors.Join(a.routes(b), b.routes(a))
}

// links makes the site's two cables.
func (s *site) links(wan *Namespace, o Options) error {
	if err := s.access(o); err != nil {
		return err
	}
	if err := veth(s.gateway, Uplink, s.uplinkMAC, wan, s.wanPort, nil, o.WANMTU); err != nil {
		return err
	}
	uplink := []string{}
	for _, addr := range s.uplinkAddr {
		uplink = append(uplink, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	forward := func() error {
		return errors.Join(sysctl("net/ipv4/ip_forward", "1"), sysctl("net/ipv6/conf/all/forwarding", "1"))
	}
	return errors.Join(
		s.gateway.Do(forward),
		s.gateway.Do(func() error { return errors.Join(up(Access, s.lanAddr), up(Uplink, uplink)) }),
		wan.Do(func() error { return up(s.wanPort, nil) }),
	)
}

// access makes the cable between host and gateway, and the host's end of it ready.
func (s *site) access(o Options) error {
	if o.TAP {
		return s.gateway.Do(func() (err error) {
			*s.tap, err = newTAP(Access, s.lanMAC, o.LANMTU)
			return err
		})
	}
	if err := veth(s.host, Device, s.hostMAC, s.gateway, Access, s.lanMAC, o.LANMTU); err != nil {
		return err
	}
	return s.host.Do(func() error { return up(Device, s.hostAddr) })
}

// routes gives the site's host and gateway their routes and neighbours towards the other site.
func (s *site) routes(other *site) error {
	host := func() error {
		var errs []error
		for i, via := range s.lanGateway {
			errs = append(errs, neighbour(Device, via, s.lanMAC), route(Device, other.subnet[i], via))
			errs = append(errs, route(Device, netip.PrefixFrom(other.uplinkAddr[i], other.uplinkAddr[i].BitLen()).String(), via))
		}
		return errors.Join(errs...)
	}
	gateway := func() error {
		var errs []error
		for i, via := range other.uplinkAddr {
			errs = append(errs, neighbour(Access, host4or6(s.hostAddr[i]), s.hostMAC))
			errs = append(errs, neighbour(Uplink, via.String(), other.uplinkMAC))
			errs = append(errs, route(Uplink, netip.PrefixFrom(via, via.BitLen()).String(), ""))
			errs = append(errs, route(Uplink, other.subnet[i], via.String()))
		}
		errs = append(errs, route(Uplink, netip.PrefixFrom(Reporter, Reporter.BitLen()).String(), ""))
		return errors.Join(errs...)
	}
	if s.host == nil {
		return s.gateway.Do(gateway)
	}
	return errors.Join(s.host.Do(host), s.gateway.Do(gateway))
}

func host4or6(prefix string) string { return netip.MustParsePrefix(prefix).Addr().String() }

// veth joins two namespaces.
func veth(a *Namespace, nameA string, macA net.HardwareAddr, b *Namespace, nameB string, macB net.HardwareAddr, mtu int) error {
	return a.Do(func() error {
		pair := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: nameA, MTU: mtu, HardwareAddr: macA},
			PeerName:  nameB, PeerMTU: uint32(mtu), PeerHardwareAddr: macB, PeerNamespace: netlink.NsPid(b.tid),
		}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("veth %s to %s: %w", nameA, nameB, err)
		}
		return nil
	})
}

// up brings an interface up with addresses, or without IP at all.
func up(name string, addrs []string) error {
	conf := "net/ipv6/conf/" + name + "/"
	if len(addrs) == 0 {
		if err := sysctl(conf+"disable_ipv6", "1"); err != nil {
			return err
		}
	}
	for key, value := range map[string]string{"accept_dad": "0", "accept_ra": "0", "router_solicitations": "0", "addr_gen_mode": "1"} {
		if err := sysctl(conf+key, value); err != nil {
			return err
		}
	}
	if err := offloadsOff(name); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("address %s on %s: %w", a, name, err)
		}
	}
	return nil
}

func route(device, prefix, via string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	_, to, err := net.ParseCIDR(prefix)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: to}
	if via != "" {
		r.Gw = net.ParseIP(via)
		r.SetFlag(netlink.FLAG_ONLINK)
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %s: %w", prefix, err)
	}
	return nil
}

func neighbour(device, addr string, mac net.HardwareAddr) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(addr), HardwareAddr: mac}
	if err := netlink.NeighSet(n); err != nil {
		return fmt.Errorf("neighbour %s: %w", addr, err)
	}
	return nil
}

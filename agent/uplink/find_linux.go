// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// dumpTries bounds how often an interrupted dump is asked for again. A partial list is never used: it would look as if
// interfaces or addresses had gone.
const dumpTries = 10

func complete[T any](what string, dump func() ([]T, error)) ([]T, error) {
	for range dumpTries {
		list, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			if err != nil {
				return nil, fmt.Errorf("uplink: list %s: %w", what, err)
			}
			return list, nil
		}
	}
	return nil, fmt.Errorf("uplink: list %s: changed %d times while it was read", what, dumpTries)
}

// Find looks at interfaces, addresses and routes. The error says what the kernel refused to tell; there are no facts then.
func Find(c Config) (Facts, error) {
	links, err := complete("interfaces", netlink.LinkList)
	if err != nil {
		return Facts{}, err
	}
	addrs, err := complete("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return Facts{}, err
	}
	w := world{ifaces: newIfaces(links), routes: map[netip.Prefix][]int{}, manage: map[int]netip.Addr{}}
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			w.local = append(w.local, addr.Unmap())
		}
	}
	if err := w.addRoutes(c); err != nil {
		return Facts{}, err
	}
	for _, to := range c.Management {
		on, err := leadTo(to)
		if err != nil {
			return Facts{}, err
		}
		for _, index := range on {
			w.manage[index] = to
		}
	}
	return w.choose(c), nil
}

func newIfaces(links []netlink.Link) []iface {
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	ifaces := make([]iface, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		i := iface{
			index: a.Index, mtu: a.MTU, name: a.Name, names: a.AltNames, mac: a.HardwareAddr,
			loopback: a.Flags&net.FlagLoopback != 0, ethernet: a.EncapType == "ether", bare: bareTypes[a.EncapType], kind: l.Type(),
		}
		if x, ok := l.(*netlink.Xfrmi); ok {
			i.ifID = x.Ifid
			if under, ok := byIndex[a.ParentIndex]; ok {
				i.under, i.underMTU = under.Attrs().Name, under.Attrs().MTU
			}
		}
		if i.kind == "device" {
			i.kind = ""
		}
		if m, ok := byIndex[a.MasterIndex]; ok {
			i.master, i.masterKind = m.Attrs().Name, m.Type()
		}
		ifaces = append(ifaces, i)
	}
	return ifaces
}

// bareTypes are the link types (ARPHRD of if_arp.h) whose packets begin with the IP header: NONE, TUNNEL, TUNNEL6.
var bareTypes = map[string]bool{"none": true, "ipip": true, "tunnel6": true}

// addRoutes finds which interfaces lead to each remote prefix: the one to which the kernel would send a packet for it
// now, by its rules; the other next hops of that route; and the routes to parts of the prefix, in every table.
func (w *world) addRoutes(c Config) error {
	if len(c.Remote) == 0 {
		return nil
	}
	for _, p := range c.Remote {
		on, err := leadTo(hostOf(p))
		if err != nil {
			return err
		}
		w.routes[p] = on
	}
	if len(c.Names) > 0 {
		return nil // enough to know which prefixes have no route
	}
	routes, err := complete("routes", func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return err
	}
	for i := range routes {
		r := &routes[i]
		to, ok := prefixOf(r.Dst)
		if !ok || r.Type != unix.RTN_UNICAST {
			continue
		}
		for _, p := range c.Remote {
			if p.Bits() <= to.Bits() && p.Contains(to.Addr()) {
				w.routes[p] = appendHops(w.routes[p], r)
			}
		}
	}
	return nil
}

// hostOf is an address of a prefix that a host may have: the first is the subnet's own.
func hostOf(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr()
	if p.Bits() < a.BitLen() {
		a = a.Next()
	}
	return a
}

// Lead is an interface by which packets may leave.
type Lead struct {
	Index int
	Name  string
	IfID  uint32 // of an XFRM interface, else 0
}

// Leads returns the interfaces to which the kernel's rules send packets for a prefix; none if there is no route.
func Leads(to netip.Prefix) ([]Lead, error) {
	on, err := leadTo(hostOf(to))
	if err != nil {
		return nil, err
	}
	leads := make([]Lead, 0, len(on))
	for _, index := range on {
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return nil, fmt.Errorf("uplink: interface towards %v: %w", to, err)
		}
		lead := Lead{Index: index, Name: link.Attrs().Name}
		if x, ok := link.(*netlink.Xfrmi); ok {
			lead.IfID = x.Ifid
		}
		leads = append(leads, lead)
	}
	return leads, nil
}

// leadTo returns the interfaces by which packets to an address may leave; none if there is no route.
func leadTo(to netip.Addr) ([]int, error) {
	var on []int
	for _, match := range []bool{false, true} { // the next hop in use, and all of the route
		routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{FIBMatch: match})
		if err != nil {
			if noRoute(err) {
				return on, nil
			}
			return nil, fmt.Errorf("uplink: route to %v: %w", to, err)
		}
		for i := range routes {
			on = appendHops(on, &routes[i])
		}
	}
	return on, nil
}

func appendHops(on []int, r *netlink.Route) []int {
	hops := []int{r.LinkIndex}
	for _, h := range r.MultiPath {
		hops = append(hops, h.LinkIndex)
	}
	for _, index := range hops {
		if index != 0 && !slices.Contains(on, index) {
			on = append(on, index)
		}
	}
	return on
}

// noRoute tells the answers of the kernel for no, unreachable, blackhole and prohibit routes.
func noRoute(err error) bool {
	return errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.ESRCH)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}, false
	}
	if size == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, bits), true
}

// PathMTU is the largest IP packet that this node may send towards an address without fragmenting it, as far as the
// kernel knows: the route's MTU, one learned from the path, else that of the interface.
func PathMTU(to netip.Addr) (int, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return 0, fmt.Errorf("uplink: route to %v: %w", to, err)
	}
	if len(routes) == 0 {
		return 0, fmt.Errorf("uplink: route to %v: %w", to, unix.ENETUNREACH)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0, fmt.Errorf("uplink: interface towards %v: %w", to, err)
	}
	mtu := link.Attrs().MTU
	if routes[0].MTU > 0 {
		mtu = min(mtu, routes[0].MTU)
	}
	return mtu, nil
}

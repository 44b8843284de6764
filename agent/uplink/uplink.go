// SPDX-License-Identifier: Apache-2.0

// Package uplink finds the interfaces that lead to the other sites, with a sentence for each why it was taken or not.
// It only looks: nothing is ever set, moved up or down. Functions look at the network namespace of the calling thread.
package uplink

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Config says what to look for.
type Config struct {
	// Names are the uplinks by name or alternative name. Empty: the interfaces that route to Remote.
	Names []string
	// Remote are the prefixes of the other sites.
	Remote []netip.Prefix
	// Management are addresses that the node itself needs (the API server): the interfaces that route to them are
	// taken only by name.
	Management []netip.Addr
}

// Uplink is an interface that was taken.
type Uplink struct {
	Name  string
	Index int
	MTU   int    // largest IP packet in octets; a frame has 14 octets more
	Bare  bool   // its packets have no Ethernet header
	IfID  uint32 // of an XFRM interface, by which its policies are chosen; else 0
	MAC   net.HardwareAddr
	Why   string // one sentence, or two
}

// NoInterface is why a name was not taken that no interface has; it may appear later.
const NoInterface = "There is no interface of this name."

// Exclusion is an interface that was named, or routes to another site, and was not taken.
type Exclusion struct {
	Name string
	Why  string // one sentence, or two
}

// Facts are what Find found.
type Facts struct {
	Uplinks  []Uplink       // by name
	Excluded []Exclusion    // by name
	Local    []netip.Addr   // all addresses of this node
	Unrouted []netip.Prefix // remote prefixes without a route
}

// iface is what matters of an interface.
type iface struct {
	index, mtu int
	name       string
	names      []string // alternative ones
	mac        net.HardwareAddr
	loopback   bool
	ethernet   bool   // its packets have an Ethernet header
	bare       bool   // they begin with the IP header
	ifID       uint32 // of an XFRM interface
	under      string // name of the device by which its packets leave, where that is fixed
	underMTU   int
	kind       string // of the driver, as in ip link: "veth", "bond", "" for hardware
	master     string // name of the bond or bridge that it is a port of
	masterKind string
}

// world is what the kernel says.
type world struct {
	ifaces []iface
	local  []netip.Addr
	routes map[netip.Prefix][]int // interfaces that lead to a remote prefix or a part of it
	manage map[int]netip.Addr     // interfaces that lead to management addresses
}

// choose is the whole decision.
func (w *world) choose(c Config) Facts {
	f := Facts{Local: w.local}
	if len(c.Names) > 0 {
		w.chooseNamed(c, &f)
	} else {
		w.chooseRouted(c, &f)
	}
	for _, p := range c.Remote {
		if len(w.routes[p]) == 0 {
			f.Unrouted = append(f.Unrouted, p)
		}
	}
	slices.SortFunc(f.Uplinks, func(a, b Uplink) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(f.Excluded, func(a, b Exclusion) int { return strings.Compare(a.Name, b.Name) })
	return f
}

func (w *world) chooseNamed(c Config, f *Facts) {
	named := map[int]bool{} // by place
	for _, name := range c.Names {
		i := slices.IndexFunc(w.ifaces, func(i iface) bool { return i.name == name || slices.Contains(i.names, name) })
		if i < 0 {
			f.Excluded = append(f.Excluded, Exclusion{name, NoInterface})
			continue
		}
		known := named[i]
		named[i] = true
		if why := w.ifaces[i].impossible(); why != "" {
			f.Excluded = append(f.Excluded, Exclusion{name, why})
		} else if !known {
			f.Uplinks = append(f.Uplinks, w.ifaces[i].uplink("It is named in the domain's uplinks."))
		}
	}
	for i := range w.ifaces {
		if leads := w.leads(c, w.ifaces[i].index); len(leads) > 0 && !named[i] {
			f.Excluded = append(f.Excluded, Exclusion{w.ifaces[i].name, routesTo(leads) + " It is not named in the domain's uplinks."})
		}
	}
}

// leads are the remote prefixes that an interface leads to.
func (w *world) leads(c Config, index int) (leads []netip.Prefix) {
	for _, p := range c.Remote {
		if slices.Contains(w.routes[p], index) {
			leads = append(leads, p)
		}
	}
	return leads
}

func (w *world) chooseRouted(c Config, f *Facts) {
	for _, i := range w.ifaces {
		leads := w.leads(c, i.index)
		if len(leads) == 0 {
			continue
		}
		why := i.impossible()
		if why == "" {
			why = i.unlikely()
		}
		if to, ok := w.manage[i.index]; ok && why == "" {
			why = fmt.Sprintf("It leads to %v, which this node itself needs; name it in the domain's uplinks to take it.", to)
		}
		if why != "" {
			f.Excluded = append(f.Excluded, Exclusion{i.name, why})
			continue
		}
		f.Uplinks = append(f.Uplinks, i.uplink(routesTo(leads)))
	}
}

func routesTo(leads []netip.Prefix) string {
	if len(leads) == 1 {
		return fmt.Sprintf("It routes to %v.", leads[0])
	}
	return fmt.Sprintf("It routes to %v and %d more prefixes of other sites.", leads[0], len(leads)-1)
}

func (i *iface) uplink(why string) Uplink {
	u := Uplink{Name: i.name, Index: i.index, MTU: i.mtu, Bare: i.bare, IfID: i.ifID, MAC: i.mac, Why: why}
	if room := espRoom(i.underMTU); i.kind == xfrm && i.underMTU > 0 && room < i.mtu {
		u.MTU = room
		u.Why += fmt.Sprintf(" Its MTU of %d leaves no room for ESP on %s, which has %d: set it to %d or less; that is reckoned with.", i.mtu, i.under, i.underMTU, room)
	}
	return u
}

// xfrm is the kind of the interfaces of route-based IPsec.
const xfrm = "xfrm"

// espRoom is the largest IP packet that ESP can carry in tunnel mode over an interface of this MTU: with an IPv4 header
// outside (20), SPI and sequence number (8), IV (8) and tag (16) of AES-GCM, and padding to 4 octets with its 2 of trailer
// (RFC 4303, RFC 4106). Other algorithms and IPv6 outside take more.
func espRoom(mtu int) int { return (mtu-20-8-8-16)&^3 - 2 }

// impossible says why an interface can never be an uplink, if so.
func (i *iface) impossible() string {
	switch {
	case i.loopback:
		return "It is a loopback interface."
	case !i.ethernet && !i.bare:
		return "Its packets begin neither with an Ethernet header nor with an IP header."
	case i.masterKind == "bond" || i.masterKind == "team":
		return fmt.Sprintf("It is a member of %s; name %s instead.", i.master, i.master)
	}
	return ""
}

// unlikely says why an interface is taken only by name, if so.
func (i *iface) unlikely() string {
	const byName = "; name it in the domain's uplinks to take it."
	switch {
	case i.masterKind == "bridge" || i.masterKind == "openvswitch" || i.kind == "bridge_slave":
		return fmt.Sprintf("It is a port of the bridge %s%s", i.master, byName)
	case i.kind == "veth" || i.kind == "netkit" || i.kind == "tun" || i.kind == "dummy" || i.kind == "ifb":
		return fmt.Sprintf("It is a virtual interface (%s)%s", i.kind, byName)
	case tunnels[i.kind]:
		return fmt.Sprintf("It is a tunnel (%s)%s", i.kind, byName)
	}
	return ""
}

// tunnels are taken by name only. Those that encrypt a wire, and are as good as it, are not among them: macsec and xfrm.
var tunnels = map[string]bool{
	"vxlan": true, "geneve": true, "gretap": true, "ip6gretap": true, "erspan": true, "bareudp": true,
	"wireguard": true, "vti": true, "vti6": true, "ipip": true, "ip6tnl": true,
}

// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"fmt"
	"net/netip"
)

// Direction is where the kernel applies a policy.
type Direction uint8

// Directions, with the numbers of the kernel.
const (
	In      Direction = 0 // to this node
	Out     Direction = 1 // from this node, or forwarded by it
	Forward Direction = 2 // received to be forwarded
)

// String is the word of ip xfrm policy.
func (d Direction) String() string {
	switch d {
	case In:
		return "in"
	case Out:
		return "out"
	case Forward:
		return "fwd"
	}
	return fmt.Sprintf("dir %d", uint8(d))
}

// Ports is a set of ports as selectors write it: those equal to Port in the bits of Mask. The zero value is any port.
type Ports struct{ Port, Mask uint16 }

// Exactly is the set of one port.
func Exactly(port uint16) Ports { return Ports{Port: port, Mask: 0xffff} }

func (p Ports) overlaps(q Ports) bool { return (p.Port^q.Port)&p.Mask&q.Mask == 0 }
func (p Ports) contains(q Ports) bool { return p.Mask&^q.Mask == 0 && p.overlaps(q) }

// Policy is what matters of one XFRM policy.
type Policy struct {
	Dir              Direction
	Src, Dst         netip.Prefix
	Protocol         uint8 // 0: any
	SrcPorts         Ports
	DstPorts         Ports
	Priority         uint32 // the smallest number is asked first
	Blocks           bool   // drops what it matches
	ESP              bool   // allows only what ESP protects: a template of it that is not optional
	Marked, OneIface bool   // asked only for packets with a mark, or of one interface
	IfID             uint32 // asked only for packets of the XFRM interfaces with this if_id; 0: of all other devices
}

// udp is the protocol of everything that must be covered.
const udp = 17

// need is a set of UDP packets that policies must cover.
type need struct {
	dir                Direction
	src, dst           netip.Prefix
	srcPorts, dstPorts Ports
	message            bool   // CREM messages, not flows
	ifID               uint32 // of the XFRM interface by which they go; 0: another device
}

// String is the selector in words.
func (n need) String() string {
	port := func(p Ports) string {
		if p.Mask == 0 {
			return ""
		}
		return fmt.Sprintf(" port %d", p.Port)
	}
	s := fmt.Sprintf("dir %v, UDP from %v%s to %v%s", n.dir, n.src, port(n.srcPorts), n.dst, port(n.dstPorts))
	if n.ifID != 0 {
		s += fmt.Sprintf(" if_id %#x", n.ifID)
	}
	return s
}

// concerns reports whether some packet of n meets p.
func (p *Policy) concerns(n need) bool {
	return p.Dir == n.dir && p.IfID == n.ifID && (p.Protocol == 0 || p.Protocol == udp) && p.Src.Overlaps(n.src) && p.Dst.Overlaps(n.dst) &&
		p.SrcPorts.overlaps(n.srcPorts) && p.DstPorts.overlaps(n.dstPorts)
}

// certain reports whether every packet of n between addresses of p meets p: nothing but addresses can make a difference.
func (p *Policy) certain(n need) bool {
	return !p.Marked && !p.OneIface && p.SrcPorts.contains(n.srcPorts) && p.DstPorts.contains(n.dstPorts)
}

// safe reports whether nothing that meets p passes in clear.
func (p *Policy) safe() bool { return p.Blocks || p.ESP }

func within(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// TunnelConfig is one end of a tunnel.
type TunnelConfig struct {
	Local, Remote netip.Addr // of one IP version
	Mode          Mode
	HopLimit      uint8 // TTL or hop limit of outer headers; 0: the inner packet's
	MTU           int   // of the path, octets of an outer packet; 0: not known, only the limit of the length field holds
}

// Tunnel is an IP-in-IP tunnel (RFC 2003, RFC 4213, RFC 2473) with the ECN fields of a WAN domain.
type Tunnel struct {
	config         TunnelConfig
	identification uint16
	stats          TunnelStats
}

// NewTunnel returns a tunnel. It returns an error if the addresses are not two unicast ones of one IP version, or the MTU leaves nothing.
func NewTunnel(c TunnelConfig) (*Tunnel, error) {
	switch {
	case !c.Local.IsValid() || !c.Remote.IsValid():
		return nil, errors.New("wan: a tunnel needs a local and a remote address")
	case c.Local.Is4() != c.Remote.Is4():
		return nil, errors.New("wan: local and remote address of a tunnel are of different IP versions")
	case c.Local.Is4In6() || c.Remote.Is4In6() || c.Local.IsMulticast() || c.Remote.IsMulticast() || c.Local.IsUnspecified() || c.Remote.IsUnspecified():
		return nil, errors.New("wan: addresses of a tunnel must be unicast, IPv4 ones not mapped to IPv6")
	case c.Local.Zone() != "" || c.Remote.Zone() != "":
		return nil, errors.New("wan: addresses of a tunnel have no zone")
	case c.Mode > Compatibility:
		return nil, errors.New("wan: unknown mode of a tunnel")
	case c.MTU != 0 && InnerMTU(c.MTU, c.Remote, 0) < ipv6Len:
		return nil, errors.New("wan: the path MTU of a tunnel leaves no room for an inner packet")
	}
	return &Tunnel{config: c}, nil
}

// Stats returns the counters, alive as long as the tunnel.
func (t *Tunnel) Stats() *TunnelStats { return &t.stats }

// InnerMTU returns the octets of the largest inner packet, header included; 0 if the path MTU is not known.
func (t *Tunnel) InnerMTU() int {
	if t.config.MTU == 0 {
		return 0
	}
	return InnerMTU(t.config.MTU, t.config.Remote, 0)
}

// AppendOuter appends the outer header for inner, a whole IPv4 or IPv6 packet, which is not changed. It returns the reason if inner is
// no such packet or too big for the tunnel; dst then stays as it was.
func (t *Tunnel) AppendOuter(dst, inner []byte) ([]byte, DropReason) {
	if n := length(inner); n == 0 || n != len(inner) {
		return dst, t.drop(DropMalformed)
	}
	total := NeededMTU(len(inner), t.config.Remote, 0)
	if total > t.largest() {
		return dst, t.drop(DropTooBig)
	}
	outer := Outer(t.config.Mode, CodepointOf(inner))
	class := trafficClass(inner)&^codepointMask | uint8(outer)
	t.stats.Encapsulated++
	if t.config.Remote.Is4() {
		return t.appendIPv4(dst, inner, class, total), DropNone
	}
	return t.appendIPv6(dst, inner, class), DropNone
}

// Encapsulate appends the outer header and inner.
func (t *Tunnel) Encapsulate(dst, inner []byte) ([]byte, DropReason) {
	dst, why := t.AppendOuter(dst, inner)
	if why != DropNone {
		return dst, why
	}
	return append(dst, inner...), DropNone
}

// largest is the octets of the largest outer packet.
func (t *Tunnel) largest() int {
	limit := 1<<16 - 1 // Total Length
	if t.config.Remote.Is6() {
		limit += ipv6Len // Payload Length
	}
	if t.config.MTU != 0 {
		limit = min(limit, t.config.MTU)
	}
	return limit
}

func protocolOf(inner []byte) uint8 {
	if version(inner) == 4 {
		return protocolIPv4
	}
	return protocolIPv6
}

func (t *Tunnel) hopLimit(inner []byte) uint8 {
	if t.config.HopLimit != 0 {
		return t.config.HopLimit
	}
	return hops(inner)
}

// appendIPv4 always sets Don't Fragment: a fragment would hide the inner packet from marking nodes, and what does not fit was refused.
func (t *Tunnel) appendIPv4(dst, inner []byte, class uint8, total int) []byte {
	t.identification++
	at := len(dst)
	dst = append(dst, 0x45, class)
	dst = binary.BigEndian.AppendUint16(dst, uint16(total))
	dst = binary.BigEndian.AppendUint16(dst, t.identification)
	dst = binary.BigEndian.AppendUint16(dst, dontFragment)
	dst = append(dst, t.hopLimit(inner), protocolOf(inner), 0, 0)
	src, to := t.config.Local.As4(), t.config.Remote.As4()
	dst = append(append(dst, src[:]...), to[:]...)
	binary.BigEndian.PutUint16(dst[at+10:], ^sum4(dst[at:at+ipv4Len]))
	return dst
}

func (t *Tunnel) appendIPv6(dst, inner []byte, class uint8) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 6<<28|uint32(class)<<20|flowLabel(inner))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(inner)))
	dst = append(dst, protocolOf(inner), t.hopLimit(inner))
	src, to := t.config.Local.As16(), t.config.Remote.As16()
	return append(append(dst, src[:]...), to[:]...)
}

// flowLabel spreads inner flows over equal paths (RFC 6438): the label of the inner packet if it has one, else a hash of its addresses
// and of the first four octets after its header, the ports of UDP.
func flowLabel(inner []byte) uint32 {
	const mask = 1<<20 - 1
	var addresses, rest []byte
	if version(inner) == 6 {
		if label := binary.BigEndian.Uint32(inner) & mask; label != 0 {
			return label
		}
		addresses, rest = inner[8:ipv6Len], inner[ipv6Len:]
	} else {
		addresses, rest = inner[12:ipv4Len], inner[headerLen4(inner):]
		if binary.BigEndian.Uint16(inner[6:])&fragmentMask != 0 {
			rest = nil // only the first fragment has ports; all must go one way
		}
	}
	const offset, prime = 2166136261, 16777619 // FNV-1a
	hash := uint32(offset)
	for _, b := range addresses {
		hash = (hash ^ uint32(b)) * prime
	}
	for _, b := range rest[:min(len(rest), 4)] {
		hash = (hash ^ uint32(b)) * prime
	}
	return max((hash^hash>>20)&mask, 1)
}

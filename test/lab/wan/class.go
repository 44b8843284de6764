// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"encoding/binary"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
)

// Class is what a frame carries, as far as the counters tell it apart.
type Class uint8

// The classes, those of RoCE also of veRoCE and MRC. RoCEData are the packets that carry a new place in a PSN space (requests, READ and ATOMIC responses), RoCEOther are ACK, NAK, CNP
// and datagrams, CREM the messages of the repair channel.
const (
	RoCEData Class = iota
	RoCEOther
	CREM
	Other
	classes
)

var classNames = [classes]string{"roce_data", "roce_other", "crem", "other"}

// String returns the name of the class in the JSON counters.
func (c Class) String() string {
	if c < classes {
		return classNames[c]
	}
	return "unknown"
}

const (
	ethernetLen = roce.EthernetLen
	udpLen      = 8
)

// network is where the headers of a frame lie.
type network struct {
	ip  int  // offset of the IP header
	v6  bool // else IPv4
	udp int  // offset of the UDP header, 0 if there is none
}

func parseNetwork(f []byte) (n network, ok bool) {
	if len(f) < ethernetLen+20 {
		return n, false
	}
	n.ip = ethernetLen
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		return n.parseIPv4(f)
	case 0x86dd:
		return n.parseIPv6(f)
	}
	return n, false
}

// inTunnel returns the network of the packet in an IP-in-IP tunnel; of another it returns the packet's own.
func (n network) inTunnel(f []byte) network {
	inner := network{ip: n.ip + 20}
	protocol := f[n.ip+9]
	if n.v6 {
		inner.ip, protocol = n.ip+40, f[n.ip+6]
	}
	ok := false
	switch {
	case len(f) < inner.ip+20:
	case protocol == 4:
		inner, ok = inner.parseIPv4(f)
	case protocol == 41:
		inner, ok = inner.parseIPv6(f)
	}
	if !ok {
		return n
	}
	return inner
}

func (n network) parseIPv4(f []byte) (network, bool) {
	ip := f[n.ip:]
	ihl := int(ip[0]&15) * 4
	fragment := binary.BigEndian.Uint16(ip[6:])&0x1fff != 0
	if ip[0]>>4 != 4 || ihl < 20 {
		return n, false
	}
	if ip[9] == 17 && !fragment && len(ip) >= ihl+udpLen {
		n.udp = n.ip + ihl
	}
	return n, true
}

func (n network) parseIPv6(f []byte) (network, bool) {
	ip := f[n.ip:]
	if len(ip) < 40 || ip[0]>>4 != 6 {
		return n, false
	}
	n.v6 = true
	if ip[6] == 17 && len(ip) >= 40+udpLen {
		n.udp = n.ip + 40
	}
	return n, true
}

// Classify returns the class of an Ethernet frame, in a tunnel that of what it carries; cremPort 0 knows no CREM.
func Classify(f []byte, cremPort uint16) Class {
	n, ok := parseNetwork(f)
	if !ok {
		return Other
	}
	if n.udp == 0 {
		n = n.inTunnel(f)
	}
	if n.udp == 0 {
		return Other
	}
	src, dst := binary.BigEndian.Uint16(f[n.udp:]), binary.BigEndian.Uint16(f[n.udp+2:])
	switch {
	case (dst == roce.Port || dst == roce.VeRoCEPort) && len(f) > n.udp+udpLen:
		return classOf(roce.Opcode(f[n.udp+udpLen]))
	case cremPort != 0 && (dst == cremPort || src == cremPort):
		return CREM
	}
	return Other
}

// classOf is the class of an opcode of any transport: those that carry data mean the same in all.
func classOf(op roce.Opcode) Class {
	for _, t := range roce.AllTransports() {
		if _, source := t.Space(op); source {
			return RoCEData
		}
	}
	return RoCEOther
}

// MarkCE sets Congestion Experienced in place, in the outer header of what is in a tunnel, if the packet is ECN-capable, and says whether the frame now carries it newly.
func MarkCE(f []byte) bool {
	n, ok := parseNetwork(f)
	if !ok {
		return false
	}
	if c := n.codepoint(f); c == ecn.NotECT || c == ecn.CE {
		return false
	}
	n.setCodepoint(f, ecn.CE)
	return true
}

// codepoint is the ECN field of the outermost IP header.
func (n network) codepoint(f []byte) ecn.Codepoint {
	if n.v6 {
		return ecn.Codepoint(f[n.ip+1] >> 4 & 3)
	}
	return ecn.Codepoint(f[n.ip+1] & 3)
}

func (n network) setCodepoint(f []byte, c ecn.Codepoint) {
	ip := f[n.ip:]
	if n.v6 {
		ip[1] = ip[1]&^0x30 | uint8(c)<<4
		return
	}
	old := binary.BigEndian.Uint16(ip)
	ip[1] = ip[1]&^3 | uint8(c)
	fixChecksum(ip[10:12], old, binary.BigEndian.Uint16(ip))
}

// fixChecksum updates an Internet checksum for one changed 16-bit word (RFC 1624, equation 3).
func fixChecksum(sum []byte, from, to uint16) {
	s := uint32(^binary.BigEndian.Uint16(sum)) + uint32(^from) + uint32(to)
	s = s&0xffff + s>>16
	s = s&0xffff + s>>16
	binary.BigEndian.PutUint16(sum, ^uint16(s))
}

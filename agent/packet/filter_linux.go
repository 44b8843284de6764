// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	rocePort      = 4791

	pktTypeOutgoing = 4       // PACKET_OUTGOING of if_packet.h
	wholeFrame      = 1 << 18 // more than any frame
	cutOctets       = 128     // of an incoming packet: all headers, and the whole of an ACK

	// skfNetOff makes a load relative to the IP header, wherever the frame begins (SKF_NET_OFF of filter.h).
	skfNetOff = 0xfff00000
)

// answerable are the opcodes that an incoming packet is copied for: ACK and NAK, and the requests whose responses take
// PSNs of the other direction (READ, ATOMIC, FLUSH, ATOMIC WRITE), of the classes RC and XRC.
var answerable = []uint8{
	0x11, 0x0c, 0x13, 0x14, 0x1c, 0x1d,
	0xb1, 0xac, 0xb3, 0xb4,
}

// program is a classic BPF program with named targets.
type program struct {
	code   []bpf.Instruction
	labels map[string]int
	jumps  []jump
}

type jump struct {
	at                int
	cond              bpf.JumpTest
	value             uint32
	ifTrue, otherwise string // "" goes on
}

func (p *program) add(i ...bpf.Instruction) { p.code = append(p.code, i...) }

func (p *program) label(name string) {
	if p.labels == nil {
		p.labels = map[string]int{}
	}
	p.labels[name] = len(p.code)
}

func (p *program) jump(cond bpf.JumpTest, value uint32, ifTrue, otherwise string) {
	p.jumps = append(p.jumps, jump{len(p.code), cond, value, ifTrue, otherwise})
	p.add(nil)
}

// assemble resolves the labels.
func (p *program) assemble() ([]bpf.RawInstruction, error) {
	for _, j := range p.jumps {
		p.code[j.at] = bpf.JumpIf{
			Cond: j.cond, Val: j.value, SkipTrue: p.skip(j.at, j.ifTrue), SkipFalse: p.skip(j.at, j.otherwise),
		}
	}
	raw, err := bpf.Assemble(p.code)
	if err != nil {
		return nil, fmt.Errorf("packet: assemble filter: %w", err)
	}
	return raw, nil
}

func (p *program) skip(at int, label string) uint8 {
	if label == "" {
		return 0
	}
	return uint8(p.labels[label] - at - 1)
}

// mrcSACK is the opcode of MRC that acknowledges packets.
const mrcSACK = 0xdc

// pairs are the ways in which a packet can stand in a tunnel: the lengths of outer header and inner header, of IPv4 without options.
var pairs = []struct {
	name         string
	outer, inner uint32
	protocol     uint32 // of the outer header
}{
	{"IPv4 in IPv4", ipv4Len, ipv4Len, protocolIPv4}, {"IPv6 in IPv4", ipv4Len, ipv6Len, protocolIPv6},
	{"IPv4 in IPv6", ipv6Len, ipv4Len, protocolIPv4}, {"IPv6 in IPv6", ipv6Len, ipv6Len, protocolIPv6},
}

// tapFilter copies outgoing frames of the transports whole and incoming answerable ones cut, if wanted also those in tunnels: what the kernel sends and
// receives there has its outer header where taps see it. Injected frames carry the mark while the taps see them arrive; they arrived before.
// The IP header is behind so many octets of the link's header.
func tapFilter(mark, link uint32, tunnels bool, r Recognised) ([]bpf.RawInstruction, error) {
	var p program
	p.add(bpf.LoadExtension{Num: bpf.ExtMark})
	p.jump(bpf.JumpEqual, mark, "drop", "")
	p.add(bpf.LoadExtension{Num: bpf.ExtProto})
	p.jump(bpf.JumpEqual, etherTypeIPv4, "", "not IPv4")
	p.add(bpf.LoadAbsolute{Off: link + 9, Size: 1})
	p.jump(bpf.JumpEqual, protocolUDP, "", "no UDP in IPv4")
	p.findUDP4(link, 0)
	p.label("no UDP in IPv4")
	if tunnels {
		p.add(bpf.TAX{}, bpf.LoadAbsolute{Off: link, Size: 1})
		p.jump(bpf.JumpEqual, 0x45, "", "drop")
		p.add(bpf.TXA{})
		p.findTunnels(link, ipv4Len)
	} else {
		p.always("drop")
	}
	p.label("not IPv4")
	p.jump(bpf.JumpEqual, etherTypeIPv6, "", "drop")
	p.add(bpf.LoadAbsolute{Off: link + 6, Size: 1})
	p.jump(bpf.JumpEqual, protocolUDP, "", "no UDP in IPv6")
	p.findUDP6(0)
	p.label("no UDP in IPv6")
	if tunnels {
		p.findTunnels(link, ipv6Len)
	} else {
		p.always("drop")
	}
	p.label("UDP") // X is the length of what stands before it, but for the link's header
	p.add(bpf.LoadIndirect{Off: link + 2, Size: 2})
	p.jump(bpf.JumpEqual, rocePort, "", "other port")
	p.incoming(link, answerable)
	if r.MRC {
		p.jump(bpf.JumpEqual, mrcSACK, "cut", "")
	}
	p.always("drop")
	p.label("other port")
	if r.VeRoCEPort != 0 {
		p.jump(bpf.JumpEqual, uint32(r.VeRoCEPort), "", "drop")
		p.incoming(link, r.VeRoCEAnswers[:])
	}
	p.label("drop")
	p.add(bpf.RetConstant{})
	p.label("whole")
	p.add(bpf.RetConstant{Val: wholeFrame})
	p.label("cut")
	p.add(bpf.TXA{})
	p.jump(bpf.JumpGreaterThan, ipv6Len, "cut in a tunnel", "")
	p.add(bpf.RetConstant{Val: cutOctets})
	p.label("cut in a tunnel")
	p.add(bpf.RetConstant{Val: cutOctets + ipv6Len})
	return p.assemble()
}

// incoming lets outgoing frames through whole, and incoming ones cut that have one of the opcodes, of which 0 stands for none. Others go on.
func (p *program) incoming(link uint32, opcodes []uint8) {
	p.add(bpf.LoadExtension{Num: bpf.ExtType})
	p.jump(bpf.JumpEqual, pktTypeOutgoing, "whole", "")
	p.add(bpf.LoadIndirect{Off: link + udpLen, Size: 1})
	for _, opcode := range opcodes {
		if opcode != 0 {
			p.jump(bpf.JumpEqual, uint32(opcode), "cut", "")
		}
	}
}

// always goes to a label.
func (p *program) always(label string) { p.jump(bpf.JumpEqual, 0, label, label) }

// findTunnels looks into the tunnels with an outer header of a length, whose protocol is in A.
func (p *program) findTunnels(link, outer uint32) {
	for _, pair := range pairs {
		if pair.outer == outer {
			p.jump(bpf.JumpEqual, pair.protocol, pair.name, "")
		}
	}
	p.always("drop")
	for _, pair := range pairs {
		if pair.outer != outer {
			continue
		}
		p.label(pair.name)
		if pair.inner == ipv4Len {
			p.add(bpf.LoadAbsolute{Off: link + outer + 9, Size: 1})
			p.jump(bpf.JumpEqual, protocolUDP, "", "drop")
			p.findUDP4(link, outer)
		} else {
			p.add(bpf.LoadAbsolute{Off: link + outer + 6, Size: 1})
			p.jump(bpf.JumpEqual, protocolUDP, "", "drop")
			p.findUDP6(outer)
		}
	}
}

// findUDP4 goes on behind the IPv4 header that stands behind so many octets of an outer one.
func (p *program) findUDP4(link, outer uint32) {
	p.add(bpf.LoadAbsolute{Off: link + outer + 6, Size: 2})
	p.jump(bpf.JumpBitsSet, 0x1fff, "drop", "") // not the first fragment
	p.add(bpf.LoadMemShift{Off: link + outer})
	if outer > 0 {
		p.add(bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: outer}, bpf.TAX{})
	}
	p.always("UDP")
}

// findUDP6 goes on behind the IPv6 header that stands behind so many octets of an outer one.
func (p *program) findUDP6(outer uint32) {
	p.add(bpf.LoadConstant{Dst: bpf.RegX, Val: outer + ipv6Len})
	p.always("UDP")
}

// pairFilter returns the pair hash of a packet, of the inner one in a tunnel, of which the kernel takes the remainder by the number of workers.
func pairFilter() ([]bpf.RawInstruction, error) {
	var p program
	p.add(bpf.LoadAbsolute{Off: skfNetOff, Size: 1})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0})
	p.jump(bpf.JumpEqual, 0x60, "IPv6", "")
	p.add(bpf.LoadAbsolute{Off: skfNetOff + 9, Size: 1})
	p.hashOf(ipv4Len)
	p.xorWords(12, 2)
	p.label("IPv6")
	p.add(bpf.LoadAbsolute{Off: skfNetOff + 6, Size: 1})
	p.hashOf(ipv6Len)
	p.xorWords(8, 8)
	for _, pair := range pairs {
		p.label(pair.name)
		if pair.inner == ipv4Len {
			p.xorWords(int(pair.outer)+12, 2)
		} else {
			p.xorWords(int(pair.outer)+8, 8)
		}
	}
	return p.assemble()
}

// hashOf goes to the hash of an inner packet if the protocol in A, of an outer header of a length, tells of one.
func (p *program) hashOf(outer uint32) {
	for _, pair := range pairs {
		if pair.outer == outer {
			p.jump(bpf.JumpEqual, pair.protocol, pair.name, "")
		}
	}
}

// xorWords ends the program with the XOR of n 32-bit words of the IP header.
func (p *program) xorWords(off, n int) {
	p.add(bpf.LoadAbsolute{Off: uint32(skfNetOff + off), Size: 4})
	for i := 1; i < n; i++ {
		p.add(bpf.TAX{}, bpf.LoadAbsolute{Off: uint32(skfNetOff + off + 4*i), Size: 4}, bpf.ALUOpX{Op: bpf.ALUOpXor})
	}
	p.add(bpf.RetA{})
}

// socketFilter chooses the socket of a group: REPAIR by Flow ID, every other message the first.
//
//	|Version| Type |     Flags     |            Length             |
//	|                           Flow ID                            |
func socketFilter(workers int) ([]bpf.RawInstruction, error) {
	const typeRepair = 1
	var p program
	p.add(bpf.LoadAbsolute{Off: 0, Size: 1})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x0f})
	p.jump(bpf.JumpEqual, typeRepair, "", "other")
	p.add(bpf.LoadAbsolute{Off: 4, Size: 4})
	p.add(bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(workers)})
	p.add(bpf.RetA{})
	p.label("other")
	p.add(bpf.RetConstant{})
	return p.assemble()
}

// dropFilter lets nothing through.
func dropFilter() ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{bpf.RetConstant{}})
}

// setFilter gives a program to a socket option.
func setFilter(fd, level, option int, code []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(code))
	for i, c := range code {
		filter[i] = unix.SockFilter{Code: c.Op, Jt: c.Jt, Jf: c.Jf, K: c.K}
	}
	return unix.SetsockoptSockFprog(fd, level, option,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)})
}

// PairWorker is the worker of all flows between two hosts, in both directions: source XOR destination address, folded
// to 32 bits by XOR, modulo workers. The taps choose by the same rule.
func PairWorker(a, b netip.Addr, workers int) int {
	var hash uint32
	for _, addr := range [2]netip.Addr{a, b} {
		if addr.Is4() {
			hash ^= word(addr.As4())
			continue
		}
		b := addr.As16()
		for i := 0; i < len(b); i += 4 {
			hash ^= word([4]byte(b[i:]))
		}
	}
	return int(hash % uint32(workers))
}

func word(b [4]byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

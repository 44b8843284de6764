// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	// lengthPrefix is the octets in front of what is coded of a packet (Section 4.1).
	lengthPrefix = 2
	// leastGuess and mostGuess bound the guess of the RDMA MTU.
	leastGuess = 512
	mostGuess  = 4096

	maxT       = 0xffff &^ 3
	ipv4Header = 20
	ipv6Header = 40
	udpHeader  = 8
)

// learnSizes takes what a packet tells about the RDMA MTU and about the largest packet of the flow. It reports whether a larger
// symbol is needed than before.
func (f *Flow) learnSizes(pkt *roce.Packet) bool {
	p := pkt.P()
	grown := len(p) > f.maxSeen
	f.maxSeen = max(f.maxSeen, len(p))
	if f.mtuExact {
		return grown
	}
	data := len(pkt.Data())
	if f.transport.Multipath() {
		data = roce.LargestMTU(len(p))
	}
	op := pkt.Opcode()
	switch {
	case data == 0:
	case op.Middle() || op.Starts() && !op.Ends(): // FIRST and MIDDLE are as long as the MTU
		grown = grown || data != f.mtu
		f.mtu, f.mtuExact = data, true
	case data > f.mtu:
		f.mtu = max(f.mtu, leastGuess)
		for f.mtu < data && f.mtu < mostGuess {
			f.mtu *= 2
		}
		grown = true
	}
	return grown
}

// announcedMTU is the RDMA MTU in HELLO: known, or the best guess.
func (f *Flow) announcedMTU() int {
	if f.reading.mtu != 0 && !f.mtuExact {
		return f.reading.mtu
	}
	return max(f.mtu, leastGuess)
}

// misread reports whether the peer was told another RDMA MTU than READ requests show.
func (f *Flow) misread() bool {
	return f.reading.known() && f.announced != f.announcedMTU()
}

// expectedT is the symbol length for the largest packet that the flow's RDMA MTU allows, and seenT that for the largest packet
// seen, both multiples of 4. A flow that has only sent packets without data (READ requests, ATOMICs) expects none.
func (f *Flow) expectedT() int {
	if f.mtu == 0 {
		return f.seenT()
	}
	return max(roundUp(f.mtu+f.transport.Overhead()+f.lead+lengthPrefix), f.seenT())
}

func (f *Flow) seenT() int { return roundUp(f.maxSeen + f.lead + lengthPrefix) }

func roundUp(n int) int { return min((n+3)&^3, maxT) }

// fitT is the largest T for which every REPAIR of blocks of k positions, with Lost Source Bitmap and digest, fits the path MTU
// with the don't-fragment bit set (Section 4.1). It is a multiple of 4, and may be negative.
func (f *Flow) fitT(k int) int { return (f.params.PathMTU - f.overhead(k)) &^ 3 }

// overhead is the octets that a REPAIR datagram needs beside its symbol.
func (f *Flow) overhead(k int) int {
	header := ipv4Header
	for _, p := range f.peers {
		if !p.Addr().Is4() {
			header = ipv6Header
		}
	}
	return header + udpHeader + f.params.TunnelOverhead + wire.RepairOverhead(k, true, f.offersDigest())
}

// chooseT is the symbol length for blocks of k positions: what the RDMA MTU lets expect; if that does not fit the path, what has
// been seen. It is false, and Stats names both sizes, if even that does not fit: then the flow is not protected.
func (f *Flow) chooseT(k int) (int, bool) {
	fit := min(f.fitT(k), maxT)
	f.stats.MTUNeed, f.stats.MTUHave = 0, f.params.PathMTU
	switch {
	case f.expectedT() <= fit:
		return f.expectedT(), true
	case f.seenT() <= fit:
		return fit, true
	}
	f.stats.MTUNeed = f.expectedT() + f.overhead(k)
	return 0, false
}

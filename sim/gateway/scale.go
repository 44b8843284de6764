// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/wire"
)

// Octets of data of thin frames. With usualThin a symbol is never below the 1,024 octets at which the CSF's floor reckons it (Section 10, rule 1), so
// that thin frames change no decision. Where so many packets wait to be acknowledged that even these need too much memory, leastThin is taken: the
// floor then stands for more than four symbols.
const (
	usualThin  = 960
	leastThin  = 64
	usualBound = 512 << 20 // octets of symbols in flight
)

// Scale says how much of a packet's data is really there.
type Scale struct {
	MTU  int // octets of data that a packet stands for
	Data int // octets that its frame has
}

// NewScale chooses for packets of an MTU of which so many may be in flight. thin overrides the choice, if it is not 0.
func NewScale(mtu, inFlight, thin int) Scale {
	s := Scale{MTU: mtu, Data: usualThin}
	if int64(inFlight)*int64(symbol(usualThin)) > usualBound {
		s.Data = leastThin
	}
	if thin != 0 {
		s.Data = max(thin, leastThin)
	}
	s.Data = min(s.Data, mtu)
	return s
}

// symbol is the symbol length T that a CSF takes for an RDMA MTU: BTH, RETH, immediate data, CRC and length prefix beside the data, a multiple
// of 4.
func symbol(mtu int) int { return (mtu + 38 + 3) &^ 3 }

// saved is how much shorter frames and symbols are than what they stand for.
func (s Scale) saved() int { return symbol(s.MTU) - symbol(s.Data) }

// data is the octets of data in the frame of a packet.
func (s Scale) data(p *Packet) int { return min(int(p.Data), s.Data) }

// cells scales octets of memory, by what a cell takes.
func (s Scale) cells(octets int64) int64 {
	size := func(data int) float64 { return float64(fec.Stride(symbol(data)) + fec.MaxHead + 128) }
	return int64(float64(octets) * size(s.Data) / size(s.MTU))
}

// send scales the sender's parameters: whatever compares repair with source, or reckons messages in blocks, must come out the same.
func (s Scale) send(p *csf.Params) *csf.Params {
	out := *p
	const minimum = 16 // BTH and CRC
	over := wire.RepairOverhead(min(max(p.K, 1), 255), false, p.Digest)
	ratio := func(data int) float64 { return float64(over+symbol(data)) / float64(minimum+data) }
	out.MaxRepairRatio *= ratio(s.Data) / ratio(s.MTU)
	if p.MessageSize > 0 {
		const leastAnnounced = 512 // what a CSF reckons a block's packets at, at least
		block := func(data int) int64 { return int64(min(max(p.K, 1), 255)) * int64(max(data, leastAnnounced)) }
		blocks := (p.MessageSize + block(s.MTU) - 1) / block(s.MTU)
		out.MessageSize = blocks * block(s.Data)
	}
	if out.PathMTU == 0 {
		out.PathMTU = 20 + 8 + p.TunnelOverhead + wire.RepairOverhead(255, true, true) + symbol(s.MTU)
	}
	out.PathMTU -= s.saved()
	return &out
}

// receive scales the receiver's parameters.
func (s Scale) receive(p *crf.Params) *crf.Params {
	out := *p
	out.HoldBytes, out.ReplayBytes = s.cells(p.HoldBytes), s.cells(p.ReplayBytes)
	out.MaxT -= s.saved()
	return &out
}

// octets is what a frame with a message takes on the wire: a REPAIR's symbol stands for a longer one.
func (s Scale) octets(msg []byte) (octets int, symbol bool) {
	octets = messageOctets + len(msg)
	if m, err := wire.ParseRepair(msg); err == nil && m.T > 0 {
		return octets + s.saved(), true
	}
	return octets, false
}

// whole is the octets of memory for which scaled ones stand.
func (s Scale) whole(octets int64) int64 {
	const exact = 1 << 20
	return int64(float64(octets) * exact / float64(s.cells(exact)))
}

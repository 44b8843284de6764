// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/wire"
)

// minT is the smallest symbol length: a length prefix and the shortest source packet.
const minT = 18

// limits are the effective limits of a flow: the smaller of what either end can do (Section 5.1, rule 1).
type limits struct {
	k, m, T int
	schemes uint16
}

func limitsOf(h *wire.Hello, p *Params) limits {
	return limits{
		k: min(int(h.MaxK), p.MaxK), m: min(int(h.MaxM), p.MaxM), T: min(int(h.MaxT), p.MaxT), schemes: h.Schemes & p.Schemes,
	}
}

// HandleHello takes a HELLO for this flow's descriptor from its peer. With the flow's nonce it is answered, each time alike
// (Section 5.1, rule 3), but not at all without the block digest where the flow's kind needs it. It returns false, and does nothing, if the nonce or the descriptor is another: the CSF has begun
// anew, and the engine closes this machine and makes another with a new Flow ID.
func (f *Flow) HandleHello(now time.Duration, h *wire.Hello, acts *[]Action) bool {
	if f.state == Closed || h.Nonce != f.hello.Nonce || h.Flow != f.hello.Flow {
		return false
	}
	if f.overtakes() && !f.digest {
		f.drop(NoDigest)
		return true // silence, as for a kind that is not known
	}
	const size = 32
	b := f.message(size)
	if b == nil {
		return true
	}
	m := wire.HelloAck{
		FlowID: f.id, Kind: f.hello.Flow.Kind, AF: f.hello.Flow.AF(), Schemes: f.params.Schemes,
		MaxK: uint8(f.params.MaxK), MaxM: uint8(f.params.MaxM), MaxT: uint16(f.params.MaxT),
		MTU: f.hello.MTU, Nonce: f.hello.Nonce, MaxOpenBlocks: uint16(f.params.MaxOpenBlocks),
	}
	if f.digest {
		m.Extensions = wire.ExtDigest
	}
	m.Extensions |= f.hello.Extensions & wire.ExtDetail
	f.send(m.Append(b), acts)
	f.stats.HelloAcks++
	if f.acks == 0 {
		f.firstAck = now
	}
	f.lastAck = now
	f.acks++
	return true
}

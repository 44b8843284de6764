// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/fec"
)

// Delivery says in which order packets reach the RDMA receiver (Section 6.1, rule 7).
type Delivery uint8

const (
	// InOrder holds packets after a gap until it is filled, at most MaxHold: for go-back-N receivers.
	InOrder Delivery = iota
	// Immediate never holds an arrived packet; restored ones come late: for receivers that take packets out of order.
	Immediate
)

// String returns the delivery as a CREMProfile writes it.
func (d Delivery) String() string {
	if d == Immediate {
		return "Immediate"
	}
	return "InOrder"
}

// Params is what an operator can set about the receiver's side. It is immutable and replaced whole (Flow.SetParams); several
// flows and workers may share one. Values out of range are taken as the nearest possible one.
type Params struct {
	Delivery Delivery
	// MaxHold is how long a packet is held for order at most (InOrder).
	MaxHold time.Duration
	// HoldBytes bounds the memory of one flow, in octets: packets held for order and symbols kept for decoding together.
	HoldBytes int64
	// ReplayBytes bounds, within HoldBytes, the packets kept after they went on, for a sender that goes back (InOrder, request
	// space). 0: none is kept.
	ReplayBytes int64
	// MaxOpenBlocks is how many incomplete blocks may wait for repair; it is announced in HELLO_ACK. At most 65535.
	MaxOpenBlocks int
	// MaxK, MaxM and MaxT are the limits announced in HELLO_ACK: positions and ordinary repair symbols of a block (at most
	// 255 each), octets of a symbol (at most 65535).
	MaxK, MaxM, MaxT int
	// Schemes has bit s set for each accepted FEC scheme s. Source Copy and Cauchy are always accepted.
	Schemes uint16
	// Digest accepts the block digest (Section 6.4) from a CSF that offers it.
	Digest bool
}

// Env is what the flows of one worker share. It is not safe for concurrent use, and must be made by NewEnv.
type Env struct {
	// Pool gives all memory for packets, symbols and messages.
	Pool *fec.Pool

	scratch  scratch
	segments *segment // free list
	blocks   *block   // free list
}

// NewEnv makes the environment of one worker. It allocates the decoder's scratch memory (about 200 KiB).
func NewEnv(pool *fec.Pool) *Env {
	e := &Env{Pool: pool}
	e.scratch.decoder = fec.NewDecoder()
	return e
}

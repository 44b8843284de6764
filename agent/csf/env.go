// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"

	"crem.dev/crem/agent/fec"
)

// Send asks the engine to send one CREM message from the CREM port, with the don't-fragment bit set.
type Send struct {
	To  netip.AddrPort
	TOS uint8  // the flow's DSCP and ECT(0)
	Msg []byte // valid until Pool.Reclaim
}

// Action is what a Flow wants done: of this machine, always a Send.
type Action = Send

// Env is what the flows of one worker share. It must not be copied after its first use.
type Env struct {
	Pool   *fec.Pool     // memory of source symbols, repair symbols and messages
	Random func() uint64 // a cryptographic source
	Node   *Budget       // this worker's share of maxRepairBandwidth; nil: no bound
	// Site returns what all workers know of the path to a site, by its name; nil: this one shares nothing.
	Site func(name string) SharedSite

	spare  *block // recycled blocks, linked by newer
	oldest *block // retained blocks of all flows, in the order in which they closed
	newest *block
	sites  map[string]*siteView // by Params.PeerSite
	delays map[delayPath]*delay

	presences presences

	starvedAt int64 // octets in use when the pool had nothing left

	hasher fec.Digest     // scratch
	syms   [256]*fec.Cell // scratch: the cells of one block by position
}

// newBlock returns an empty block, a recycled one if there is one.
func (e *Env) newBlock() *block {
	b := e.spare
	if b == nil {
		return &block{}
	}
	e.spare, b.newer = b.newer, nil
	return b
}

// recycle gives a block's memory back. Nothing may refer to it any more.
func (e *Env) recycle(b *block) {
	for i, c := range b.cells {
		e.Pool.Put(c)
		b.cells[i] = nil
	}
	for i, c := range b.symbols {
		e.Pool.Put(c)
		b.symbols[i] = nil
	}
	*b = block{cells: b.cells[:0], symbols: b.symbols[:0], newer: e.spare}
	e.spare = b
}

// keep appends a closed block to those of all flows.
func (e *Env) keep(b *block) {
	b.older = e.newest
	if b.older != nil {
		b.older.newer = b
	} else {
		e.oldest = b
	}
	e.newest = b
}

// forget takes a block out of those of all flows.
func (e *Env) forget(b *block) {
	if b.older != nil {
		b.older.newer = b.newer
	} else {
		e.oldest = b.newer
	}
	if b.newer != nil {
		b.newer.older = b.older
	} else {
		e.newest = b.older
	}
	b.older, b.newer = nil, nil
}

// load puts a block's source symbols into the scratch table that fec.Encode reads. Positions that are not present keep what
// another block left there; no set of sources names them.
func (e *Env) load(b *block) {
	copy(e.syms[:], b.cells)
}

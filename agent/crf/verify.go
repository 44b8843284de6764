// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"encoding/binary"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

// failure says why a decode is refused.
type failure uint8

const (
	noFailure     failure = iota
	rankShort             // the rows are not independent: the block waits for more
	badSolution           // a surplus row contradicts
	badPacket             // a result can't be the packet of its position
	badNeighbour          // its opcode doesn't fit those beside it
	badICRC               // no headers make its invariant CRC right
	badID                 // only a wrong Identification does
	digestFailure         // held and restored sources together don't give the digest
)

// icrcOf returns the invariant CRC that P carries.
func icrcOf(P []byte) uint32 { return binary.LittleEndian.Uint32(P[len(P)-4:]) }

// verify checks a decode before anything of it is delivered (Section 6.1, rule 3). results are the solved positions and those of
// which a Source Copy came; solved are in the scratch's out.
func (f *Flow) verify(b *block, results, solved fec.Bitmap) failure {
	x := &f.env.scratch
	for j := results.First(); j >= 0; j = results.Next(j + 1) {
		content, err := x.result(j, solved).Parse(b.T)
		if err != nil || len(content) < f.lead {
			return badPacket
		}
		P, psn := content[f.lead:], (b.first + pos(j)).psn()
		if !f.transport.ValidSource(P, f.space, psn, roce.QPN(f.hello.Flow.Label), f.model.pkey, 0) {
			return badPacket
		}
		x.ops[j] = roce.Opcode(P[0])
	}
	if !f.overtakes() && !f.fitNeighbours(b, results) { // else the digest is there, and how a message is cut into packets not known for certain
		return badNeighbour
	}
	if f.digest && !f.digestRight(b, solved) {
		return digestFailure
	}
	f.template.Set(f.model.head[:f.model.n])
	for j := results.First(); j >= 0; j = results.Next(j + 1) {
		c := x.result(j, solved)
		if f.lead > 0 {
			if !f.verifyLed(j, c) {
				f.stats.ICRCFailures++
				return badICRC
			}
			continue
		}
		if r := f.verifyICRC(b, j, c.Payload(), results); r != noFailure {
			return r
		}
	}
	return noFailure
}

// result returns the symbol of a position: solved, or taken as known.
func (x *scratch) result(j int, solved fec.Bitmap) *fec.Cell {
	if solved.Has(j) {
		return x.out[j]
	}
	return x.known[j]
}

// fitNeighbours checks that the opcode of each result may stand beside those of the adjacent PSNs, arrived or restored.
func (f *Flow) fitNeighbours(b *block, results fec.Bitmap) bool {
	x := &f.env.scratch
	for j := results.First(); j >= 0; j = results.Next(j + 1) {
		if before, ok := f.opcodeAt(b, j-1, results); ok && !roce.MayFollow(before, x.ops[j]) {
			return false
		}
		if after, ok := f.opcodeAt(b, j+1, results); ok && !roce.MayFollow(x.ops[j], after) {
			return false
		}
	}
	return true
}

// opcodeAt returns the opcode of the packet at position j of a block, or beside it; false if there is none or it is not known. A
// position that the CSF did not see proves nothing, but what arrived there does.
func (f *Flow) opcodeAt(b *block, j int, results fec.Bitmap) (roce.Opcode, bool) {
	if results.Has(j) {
		return f.env.scratch.ops[j], true
	}
	p := b.first + pos(j)
	s := f.win.at(p)
	if s == nil || !s.has(p, arrived) {
		return 0, false
	}
	return s.ops[p.index()], true
}

// digestRight computes the block digest over all present sources (Section 6.4).
func (f *Flow) digestRight(b *block, solved fec.Bitmap) bool {
	x := &f.env.scratch
	x.digest.Reset(f.hello.Nonce)
	for j := b.present.First(); j >= 0; j = b.present.Next(j + 1) {
		x.digest.Add(x.result(j, solved).Symbol(b.T))
	}
	return x.digest.Sum() == b.digest
}

// verifyICRC checks the invariant CRC of a result under the rebuilt headers, and notes its IPv4 Identification (Section 6.5). With
// the digest the octets of P are certain, and a prediction that fails says only that the sender changed its ways.
func (f *Flow) verifyICRC(b *block, j int, P []byte, results fec.Bitmap) failure {
	id, ok := f.template.SolveID(P)
	if !ok {
		f.stats.ICRCFailures++
		return badICRC
	}
	f.env.scratch.ids[j] = id
	if f.hello.Flow.Src.Is6() {
		return noFailure
	}
	low, hasLow := f.neighbourID(b, j, -1, results)
	high, hasHigh := f.neighbourID(b, j, 1, results)
	switch f.ids.compare(id, low, high, hasLow, hasHigh) {
	case idConstant:
		f.stats.IDConstant++
	case idWindow:
		f.stats.IDWindow++
	case idRefused:
		f.stats.IDRefused++
		if !f.digest {
			return badID
		}
	default:
		f.stats.IDSolved++
	}
	return noFailure
}

// verifyLed is verifyICRC for a result whose own headers are coded with it: nothing has to be guessed, and all 32 bits verify.
func (f *Flow) verifyLed(j int, c *fec.Cell) bool {
	id, head, ok := f.headOf(c)
	if !ok {
		return false
	}
	f.env.scratch.ids[j] = id
	f.template.Set(head)
	P := f.packetIn(c)
	return f.template.Compute(P, id) == icrcOf(P)
}

// neighbourID returns the Identification of the nearest packet of the block before (step -1) or after (step 1) position j that
// arrived in time, or, before it, was restored in the same decode.
func (f *Flow) neighbourID(b *block, j, step int, results fec.Bitmap) (uint16, bool) {
	for i := j + step; i >= 0 && i < b.k; i += step {
		if results.Has(i) {
			if step < 0 {
				return f.env.scratch.ids[i], true
			}
			continue
		}
		p := b.first + pos(i)
		s := f.win.at(p)
		if s == nil || !s.has(p, stored) || s.has(p, late) {
			continue
		}
		return idOf(s.cells[p.index()])
	}
	return 0, false
}

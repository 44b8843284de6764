// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"math/rand/v2"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
)

// source stands in for RDMA sender and CSF: it makes packets, and codes blocks of their first copies.
type source struct {
	w      *world
	rng    *rand.Rand
	frames map[roce.PSN][]byte
	opcode func(psn roce.PSN) roce.Opcode
	data   func(psn roce.PSN) int
	id     func(psn roce.PSN) uint16
	absent map[roce.PSN]bool
	scheme fec.Scheme
	T      int
	config uint8
	begins roce.PSN // Effective PSN of PARAM_UPDATE, 0: the next one
	pool   *fec.Pool
	csum   bool
	tos    uint8
}

func (s *source) init(w *world) {
	s.w = w
	s.rng = rand.New(rand.NewPCG(1, 2))
	s.frames = map[roce.PSN][]byte{}
	s.absent = map[roce.PSN]bool{}
	s.pool = fec.NewPool(64 << 20)
	s.tos = 0x6a // DSCP 26, ECT(0)
	switch w.hello.Flow.Kind {
	case wire.KindRoCEv2Response, wire.KindVeRoCEResponse:
		s.opcode = func(roce.PSN) roce.Opcode { return roce.ReadResponseOnly }
	case wire.KindMRC:
		s.opcode = func(roce.PSN) roce.Opcode { return roce.MRCWriteOnly }
	default:
		s.opcode = func(roce.PSN) roce.Opcode { return roce.SendOnly }
	}
	s.data = func(psn roce.PSN) int { return 64 + int(psn*37)%400 }
	s.id = func(psn roce.PSN) uint16 { return uint16(psn)*3 + 77 }
}

// frame returns the first copy of a PSN.
func (s *source) frame(psn roce.PSN) []byte {
	if b := s.frames[psn]; b != nil {
		return b
	}
	b := s.copy(psn, s.id(psn), false, s.data(psn))
	s.frames[psn] = b
	return b
}

// copy makes a copy of a PSN: the same packet, with this Identification and AckReq.
func (s *source) copy(psn roce.PSN, id uint16, ackReq bool, size int) []byte {
	op := s.opcode(psn)
	var data []byte
	if op.Operation() != roce.ReadRequest {
		data = make([]byte, size)
		r := rand.NewPCG(uint64(psn), 7)
		for i := range data {
			data[i] = byte(r.Uint64())
		}
	}
	r := frames.RoCE{
		Headers: frames.Headers{
			SrcMAC: frames.MAC{2, 0, 0, 0, 0, 1}, DstMAC: frames.MAC{2, 0, 0, 0, 0, 2},
			Src: s.w.hello.Flow.Src, Dst: s.w.hello.Flow.Dst, SrcPort: 50000, TOS: s.tos, ID: id, Checksum: s.csum,
		},
		Opcode: op, QPN: testQPN, PSN: uint32(psn), AckReq: ackReq, DMALength: uint32(size), Data: data,
	}
	s.w.dress(&r)
	return r.Frame()
}

// dress gives a packet what its transport has beside RoCEv2. Every copy takes a path of its own. A copy with an Identification from 0x8000 on is a
// retransmission; every other one of them says so.
func (w *world) dress(r *frames.RoCE) {
	transport, _, _ := w.hello.Flow.Kind.Space()
	if !transport.Multipath() {
		return
	}
	entropy := (r.PSN*2654435761 ^ uint32(r.ID)*40503) & 0xfffff
	r.SrcPort, r.FlowLabel = uint16(entropy)|0x8000, entropy
	r.Extension = make([]byte, 24) // MRC: METH, RETH, and what may follow; veRoCE: MSNETH, POETH and RETH
	for i := range r.Extension {
		r.Extension[i] = byte(int(r.PSN) * (i + 3))
	}
	flag := w.rules.MRC.Retransmission
	if transport == roce.VeRoCE {
		r.DstPort, flag = w.rules.VeRoCE.Port, w.rules.VeRoCE.Retransmission
	}
	if r.ID >= 0x8000 && r.ID&2 != 0 {
		r.Flags |= flag
	}
}

// payload returns what is coded of a packet.
func (w *world) payload(frame []byte) []byte {
	p, _ := w.rules.Parse(frame)
	return append(p.AppendLead(nil), p.P()...)
}

// syms returns the cells of the present positions of a block.
func (s *source) syms(first, k int) (present fec.Bitmap, syms [256]*fec.Cell) {
	if s.pool.InUse() > s.pool.Limit()/2 {
		s.pool.Reclaim()
	}
	for j := range k {
		psn := roce.PSN(first).Add(j)
		if s.absent[psn] {
			continue
		}
		present.Set(j)
		c := s.pool.Get(s.T)
		if err := c.Set(nil, s.w.payload(s.frame(psn)), s.T); err != nil {
			s.w.t.Fatal(err)
		}
		syms[j] = c
	}
	return present, syms
}

// repair makes the REPAIR of an ordinary symbol.
func (s *source) repair(first, k, index int) wire.Repair {
	return s.symbol(first, k, index, fec.Bitmap{})
}

// retx makes a coded retransmission over L.
func (s *source) retx(first, k, index int, L fec.Bitmap) wire.Repair {
	return s.symbol(first, k, index, L)
}

func (s *source) symbol(first, k, index int, L fec.Bitmap) wire.Repair {
	present, syms := s.syms(first, k)
	defer func() {
		for _, c := range syms {
			s.pool.Put(c)
		}
	}()
	m := wire.Repair{
		FlowID: testID, ConfigID: s.config, Scheme: s.scheme, K: uint8(k), Index: uint8(index), Start: roce.PSN(first).Add(0), T: uint16(s.T),
		Present: present,
	}
	over := present
	if !L.Empty() {
		m.Retx, m.Lost, m.Session, over = true, L, 7, L
	}
	m.Symbol = make([]byte, fec.Stride(s.T))
	if err := fec.Encode(m.Symbol, fec.Stride(s.T), s.scheme, m.Index, 1, s.T, over, &syms); err != nil {
		s.w.t.Fatal(err)
	}
	s.addDigest(&m, present, &syms)
	return m
}

func (s *source) addDigest(m *wire.Repair, present fec.Bitmap, syms *[256]*fec.Cell) {
	if !s.w.p.Digest {
		return
	}
	var d fec.Digest
	d.Reset(testNonce)
	for j := present.First(); j >= 0; j = present.Next(j + 1) {
		d.Add(syms[j].Symbol(s.T))
	}
	m.HasDigest, m.Digest = true, d.Sum()
}

// sourceCopy makes the Source Copy of source j.
func (s *source) sourceCopy(first, k, j int) wire.Repair {
	present, syms := s.syms(first, k)
	m := wire.Repair{
		FlowID: testID, ConfigID: s.config, Scheme: fec.SourceCopy, K: uint8(k), Index: uint8(j), Start: roce.PSN(first).Add(0),
		T: uint16(s.T), Present: present, Symbol: append([]byte(nil), syms[j].Symbol(s.T)...),
	}
	s.addDigest(&m, present, &syms)
	for _, c := range syms {
		s.pool.Put(c)
	}
	return m
}

// info makes the INFO of a block.
func (s *source) info(first, k int) wire.Repair {
	present, syms := s.syms(first, k)
	for _, c := range syms {
		s.pool.Put(c)
	}
	return wire.Repair{FlowID: testID, ConfigID: s.config, Scheme: s.scheme, K: uint8(k), Start: roce.PSN(first).Add(0), Info: true, Present: present}
}

func set(js ...int) (b fec.Bitmap) {
	for _, j := range js {
		b.Set(j)
	}
	return b
}

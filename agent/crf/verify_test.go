// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"encoding/binary"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// forge changes what the stand-in of the CSF codes for a PSN, without changing what arrives.
func (w *world) forge(psn roce.PSN, change func(P []byte) []byte) {
	frame := w.src.frame(psn)
	p, _ := roce.Parse(frame)
	P := change(append([]byte(nil), p.P()...))
	head := roce.BuildHead(nil, p.Head(), len(P), p.ID(), p.TOS(), false, P)
	if len(P) >= roce.MinPayload {
		binary.LittleEndian.PutUint32(P[len(P)-4:], roce.ICRC(head, P))
	}
	w.src.frames[psn] = append(head, P...)
}

// Section 6.1, rule 3: every condition refuses the whole decode, also without the digest, also when only one of two packets is wrong.
func TestSection6_1_RestoredPacketRefused(t *testing.T) {
	for name, change := range map[string]func(P []byte) []byte{
		"PSN of another position":   func(P []byte) []byte { P[11]++; return P },
		"another queue pair":        func(P []byte) []byte { P[7]++; return P },
		"another P_Key":             func(P []byte) []byte { P[3]--; return P },
		"reserved bits of octet 4":  func(P []byte) []byte { P[4] = 1; return P },
		"reserved bits of octet 8":  func(P []byte) []byte { P[8] |= 1; return P },
		"transport version":         func(P []byte) []byte { P[1] |= 1; return P },
		"ACK is no source":          func(P []byte) []byte { P[0] = byte(roce.Acknowledge); return P },
		"CNP is no source":          func(P []byte) []byte { P[0] = byte(roce.CNP); return P },
		"response in request space": func(P []byte) []byte { P[0] = byte(roce.ReadResponseMiddle); return P },
		"MIDDLE between two ONLY":   func(P []byte) []byte { P[0] = byte(roce.SendMiddle); P[1] = 0x40; return P },
		"LAST after ONLY":           func(P []byte) []byte { P[0] = byte(roce.SendLast); return P },
		"FIRST before ONLY":         func(P []byte) []byte { P[0] = byte(roce.SendFirst); P[1] = 0x40; return P },
		"other class":               func(P []byte) []byte { P[0] = byte(roce.ClassUC + roce.SendOnly); return P },
		"length 12":                 func(P []byte) []byte { return P[:12] },
		"length no multiple of 4":   func(P []byte) []byte { return P[:len(P)-2] },
	} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, immediate, noDigest)
			w.packets(100, 9, 102, 104)
			w.forge(104, change)
			w.repair(w.src.repair(100, 8, 0))
			w.repair(w.src.repair(100, 8, 1))
			s := w.f.Stats()
			if s.Restored != 0 || s.RestoreVerifyFailures != 1 || len(w.out) != 7 {
				t.Fatalf("%+v", *s)
			}
			// The block starts over with the next REPAIRs.
			delete(w.src.frames, 104)
			w.repair(w.src.repair(100, 8, 0))
			w.repair(w.src.repair(100, 8, 1))
			if s.Restored != 2 {
				t.Fatalf("the block did not start over: %+v", *s)
			}
			w.wantTrue()
		})
	}
}

func TestSection6_1_WrongICRCRefused(t *testing.T) {
	for name, opts := range map[string][]option{"IPv4": {immediate, noDigest}, "IPv6": {immediate, noDigest, ipv6}} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 1, opts...)
			w.packets(100, 9, 102)
			p, _ := roce.Parse(w.src.frame(102))
			P := p.P()
			P[20] ^= 0x10
			w.repair(w.src.repair(100, 8, 0))
			if s := w.f.Stats(); s.Restored != 0 || s.ICRCFailures != 1 || s.RestoreVerifyFailures != 1 {
				t.Fatalf("%+v", *s)
			}
		})
	}
}

func TestSection6_1_PaddingRefused(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, immediate, noDigest)
	w.packets(100, 9, 102)
	m := w.src.repair(100, 8, 0)
	m.Symbol[testT-1] ^= 1
	w.repair(m)
	if s := w.f.Stats(); s.Restored != 0 || s.RestoreVerifyFailures != 1 {
		t.Fatalf("%+v", *s)
	}
}

func TestSection6_1_SurplusRowContradicts(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 3, immediate, noDigest)
	w.packets(100, 8, 102, 104, 107) // the last one may be on its way
	good := w.src.repair(100, 8, 2)
	bad := w.src.repair(100, 8, 0)
	bad.Symbol[300] ^= 1
	w.repair(good)
	w.repair(bad)
	w.repair(w.src.repair(100, 8, 1))
	w.packets(107, 1) // now there is one row more than needed
	if s := w.f.Stats(); s.Restored != 0 || s.RestoreVerifyFailures != 1 {
		t.Fatalf("%+v", *s)
	}
}

func TestSection6_4_DigestDecides(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, immediate)
	w.packets(100, 9, 102)
	m := w.src.repair(100, 8, 0)
	m.Digest ^= 1
	w.repair(m)
	if s := w.f.Stats(); s.Restored != 0 || s.DigestFailures != 1 || s.RestoreVerifyFailures != 1 {
		t.Fatalf("%+v", *s)
	}
	w.repair(w.src.repair(100, 8, 1))
	if w.f.Stats().Restored != 1 {
		t.Error("the block did not start over")
	}
}

// A forged first REPAIR (wrong k) must not poison the block for ever: the block is refused or given up, the flow goes on.
func TestSection6_1_ForgedFirstRepair(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 102)
	m := w.src.repair(100, 8, 0)
	m.Digest ^= 1
	m.Symbol[50] ^= 1
	w.repair(m)
	w.repair(w.src.repair(100, 8, 1))
	w.wantOrder(100, 8)
}

// Opcodes of a message: restored ones fit their neighbours, also restored ones.
func TestSection6_1_Opcodes(t *testing.T) {
	ops := []roce.Opcode{roce.WriteFirst, roce.WriteMiddle, roce.WriteMiddle, roce.WriteLastImm, roce.SendFirst, roce.SendLastInv, roce.WriteOnly, roce.FetchAdd}
	for mask := range 1 << 8 {
		w := configured(t, fec.Cauchy, 8, 8, immediate)
		w.src.opcode = func(p roce.PSN) roce.Opcode { return ops[(int(p)-100)&7] }
		w.src.data = func(p roce.PSN) int {
			switch op := w.src.opcode(p); {
			case op == roce.FetchAdd:
				return 0
			case op.Middle(), op.Starts() && !op.Ends():
				return 512
			}
			return 300
		}
		w.packets(92, 8)
		for j := range 8 {
			if mask>>j&1 == 0 {
				w.packets(100+j, 1)
			}
		}
		w.packets(108, 1)
		for i := range 8 {
			w.repair(w.src.repair(100, 8, i))
		}
		if len(w.out) != 17 || w.f.stats.RestoreVerifyFailures != 0 {
			t.Fatalf("lost %08b: delivered %v", mask, w.psns())
		}
		w.wantTrue()
	}
}

// Section 6.5: Identification outcomes. With the digest a prediction that fails is only counted; without it the decode is refused.
func TestSection6_5_Identification(t *testing.T) {
	constant := func(roce.PSN) uint16 { return 5 }
	random := func(p roce.PSN) uint16 { return uint16(uint32(p) * 2654435761 >> 7) }
	sequential := func(p roce.PSN) uint16 { return uint16(65520 + 5*p) }
	for _, c := range []struct {
		name string
		id   func(roce.PSN) uint16
		odd  uint16 // Identification of the lost packet, 0: by id
		opts []option
		want func(s *Stats) bool
	}{
		{"constant", constant, 0, nil, func(s *Stats) bool { return s.IDConstant == 1 && s.Restored == 1 }},
		{"sequential over the wrap", sequential, 0, nil, func(s *Stats) bool { return s.IDWindow == 1 && s.Restored == 1 }},
		{"random", random, 0, nil, func(s *Stats) bool { return s.IDSolved == 1 && s.Restored == 1 }},
		{"constant, but", constant, 6, []option{noDigest}, func(s *Stats) bool { return s.IDRefused == 1 && s.Restored == 0 }},
		{"constant, but with digest", constant, 6, nil, func(s *Stats) bool { return s.IDRefused == 1 && s.Restored == 1 }},
		{"sequential, but", sequential, 40000, []option{noDigest}, func(s *Stats) bool { return s.IDRefused == 1 && s.Restored == 0 }},
		{"sequential, but with digest", sequential, 40000, nil, func(s *Stats) bool { return s.IDRefused == 1 && s.Restored == 1 }},
		{"IPv6 has none", constant, 0, []option{ipv6}, func(s *Stats) bool { return s.IDConstant+s.IDSolved == 0 && s.Restored == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 1, append(c.opts, immediate)...)
			w.src.id = func(p roce.PSN) uint16 {
				if p == 122 && c.odd != 0 {
					return c.odd
				}
				return c.id(p)
			}
			w.packets(100, 28, 122)
			w.repair(w.src.repair(120, 8, 0))
			if s := w.f.Stats(); !c.want(s) {
				t.Fatalf("%+v", *s)
			}
			w.wantTrue()
		})
	}
}

// Several UDP source ports: the newest packet's is taken, so the ICRC fails and nothing wrong is delivered.
func TestSection6_1_HeadersOfAnotherFlow(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1, immediate, noDigest)
	w.packets(100, 8, 102)
	r := frames.RoCE{
		Headers: frames.Headers{Src: srcAddr, Dst: dstAddr, SrcPort: 50001, TOS: 0x6a, ID: 9}, Opcode: roce.SendOnly, QPN: testQPN, PSN: 108, Data: make([]byte, 64),
	}
	w.arrive(r.Frame())
	w.repair(w.src.repair(100, 8, 0))
	if s := w.f.Stats(); s.Restored != 0 || s.ICRCFailures != 1 {
		t.Fatalf("%+v", *s)
	}
}

// Whatever is wrong with a block for ever, the flow is not stalled, and asks a bounded number of times.
func TestSection7_3_RefusedBlockEnds(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, noDigest)
	w.packets(100, 8, 102)
	w.forge(102, func(P []byte) []byte { P[7]++; return P })
	requests := 0
	for range 20 {
		w.repair(w.src.repair(100, 8, 0))
		w.wait(testRTT)
		requests += len(w.requests())
	}
	if got := w.psns(); len(got) != 7 || requests > allRounds {
		t.Errorf("delivered %v after %d requests", got, requests)
	}
	w.wait(time.Second)
	if w.f.stats.Missing != 0 || w.f.stats.GivenUp != 1 {
		t.Errorf("%+v", w.f.stats)
	}
}

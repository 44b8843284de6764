// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
)

func TestSection6_1_LostPacketRestoredInOrder(t *testing.T) {
	for name, opts := range map[string][]option{"IPv4": nil, "IPv6": {ipv6}, "no digest": {noDigest}} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, opts...)
			w.packets(100, 8, 103, 105)
			if got := w.psns(); len(got) != 3 {
				t.Fatalf("before the repairs: %v", got)
			}
			w.repair(w.src.repair(100, 8, 0))
			if len(w.out) != 3 {
				t.Fatalf("one symbol for two losses gave %v", w.psns())
			}
			w.repair(w.src.repair(100, 8, 1))
			w.wantOrder(100, 8)
			w.wait(time.Second)
			w.packets(108, 8)
			w.wantOrder(100, 16)
			if len(w.requests()) != 0 {
				t.Error("asked for a block that was complete")
			}
			if s := w.f.Stats(); s.Restored != 2 || s.Decodes != 1 || s.Blocks != 1 || s.Completed != 1 || s.MemoryOctets > 9*cellOctets(testT) {
				t.Errorf("%+v", *s)
			}
		})
	}
}

func TestSection6_1_Immediate(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2, immediate)
	w.packets(100, 8, 103)
	w.repair(w.src.repair(100, 8, 0))
	want := []int{100, 101, 102, 104, 105, 106, 107, 103}
	if got := w.psns(); len(got) != len(want) || got[7] != 103 || w.out[7].kernel {
		t.Fatalf("delivered %v", got)
	}
	w.wantTrue()
}

// Every symbol of a block: as many as are lost restore it, whichever they are, also with positions absent, over the wrap of the PSN.
func TestSection4_3_2_AnySymbols(t *testing.T) {
	for _, first := range []int{100, 1<<24 - 3} {
		w := configured(t, fec.Cauchy, 12, 6)
		for i := range 3 {
			w.src.absent[roce.PSN(first).Add(4+i)] = true
		}
		w.src.opcode = func(p roce.PSN) roce.Opcode {
			if p == roce.PSN(first).Add(3) {
				return roce.ReadRequest // takes four PSNs
			}
			return roce.SendOnly
		}
		w.src.data = func(p roce.PSN) int {
			if p == roce.PSN(first).Add(3) {
				return 4 * testMTU
			}
			return 200
		}
		lost := []int{0, 3, 8, 11} // the READ request, too
		for j := range 12 {
			if !w.src.absent[roce.PSN(first).Add(j)] && (!contains(lost, j) || j == 0) {
				w.arrive(w.src.frame(roce.PSN(first).Add(j)))
			}
		}
		for _, i := range []int{5, 1, 2} {
			w.repair(w.src.repair(first, 12, i))
		}
		w.wait(5 * time.Millisecond) // the last position might be on its way
		if got := len(w.out); got != 9 {
			t.Fatalf("delivered %v", w.psns())
		}
		for i := 1; i < len(w.out); i++ {
			if !w.out[i].psn.After(w.out[i-1].psn) {
				t.Fatalf("out of order: %v", w.psns())
			}
		}
		w.wantTrue()
	}
}

func TestSection4_3_3_XOR(t *testing.T) {
	w := configured(t, fec.XOR, 8, 1)
	w.packets(100, 16, 107, 112)
	w.repair(w.src.repair(100, 8, 0))
	w.repair(w.src.repair(108, 8, 0))
	w.wantOrder(100, 16)
}

func TestSection4_3_1_SourceCopies(t *testing.T) {
	for _, scheme := range []fec.Scheme{fec.SourceCopy, fec.Cauchy, fec.XOR} {
		w := configured(t, scheme, 8, 0)
		w.packets(100, 9, 101, 106)
		w.repair(w.src.sourceCopy(100, 8, 1))
		if got := w.psns(); len(got) != 1 {
			t.Fatalf("%v: one copy of two gave %v", scheme, got)
		}
		w.repair(w.src.sourceCopy(100, 8, 1))
		if w.f.stats.Drops[DuplicateSymbol] != 1 {
			t.Errorf("%v: drops %v", scheme, w.f.stats.Drops)
		}
		w.repair(w.src.sourceCopy(100, 8, 6))
		w.wantOrder(100, 9)
	}
}

// A Source Copy is a source symbol like another: it leaves one unknown fewer for the coded symbols.
func TestSection4_3_1_SourceCopyHelpsDecoding(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 9, 101, 106)
	w.repair(w.src.repair(100, 8, 0))
	w.repair(w.src.sourceCopy(100, 8, 6))
	w.wantOrder(100, 9)
}

func TestSection7_CodedRetransmission(t *testing.T) {
	w := configured(t, fec.Cauchy, 16, 2)
	w.packets(100, 17, 101, 104, 106, 109)
	w.repair(w.src.repair(100, 16, 0))
	w.repair(w.src.repair(100, 16, 1))
	w.repair(w.src.retx(100, 16, 2, set(1, 4, 6, 9)))
	if len(w.out) != 1 {
		t.Fatalf("three symbols for four: %v", w.psns())
	}
	w.repair(w.src.retx(100, 16, 3, set(1, 4, 6, 9)))
	w.wantOrder(100, 17)
}

func TestSection6_1_RebuiltHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		opts []option
		tos  uint8
		want uint8
		csum bool
	}{
		"ECT(0)":              {nil, 0x6a, 0x6a, false},
		"ECT(1), checksum":    {nil, 0x69, 0x69, true},
		"not ECT":             {nil, 0x68, 0x68, false},
		"IPv6, checksum":      {[]option{ipv6}, 0x6a, 0x6a, true},
		"CE on every packet":  {nil, 0x6b, 0x6a, false},
		"CE, IPv6, no digest": {[]option{ipv6, noDigest}, 0x6b, 0x6a, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 1, c.opts...)
			w.src.csum, w.src.tos = c.csum, c.tos
			w.packets(100, 8, 103)
			w.repair(w.src.repair(100, 8, 0))
			if len(w.out) != 8 {
				t.Fatalf("delivered %v", w.psns())
			}
			p, _ := roce.Parse(w.out[3].frame)
			if p.TOS() != c.want {
				t.Errorf("TOS %#x, want %#x", p.TOS(), c.want)
			}
			w.src.frames[103] = nil
			w.src.tos = c.want
			if want := w.src.frame(103); string(want) != string(w.out[3].frame) {
				t.Errorf("restored\n%x, want\n%x", w.out[3].frame, want)
			}
		})
	}
}

// Restored packets never carry CE, and keep the flow's codepoint while its packets are marked.
func TestSection6_1_NeverCE(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1)
	w.src.tos = 0x69
	w.packets(100, 4)
	w.src.tos = 0x6b
	w.packets(104, 4, 105)
	w.repair(w.src.repair(100, 8, 0))
	p, _ := roce.Parse(w.out[5].frame)
	if p.PSN() != 105 || p.TOS() != 0x69 {
		t.Errorf("PSN %v with TOS %#x", p.PSN(), p.TOS())
	}
}

// A source packet that a new configuration's T cannot hold is passed on, and is absent for coding.
func TestSection4_1_TooLongForT(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 1)
	w.src.data = func(p roce.PSN) int {
		if p == 104 {
			return 4096
		}
		return 300
	}
	w.src.absent[104] = true
	w.packets(100, 9, 102)
	w.repair(w.src.repair(100, 8, 0))
	w.wantOrder(100, 9)
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/frames"
)

// multipathKinds are the flow kinds whose packets vary their headers.
var multipathKinds = [...]wire.FlowKind{wire.KindVeRoCE, wire.KindVeRoCEResponse, wire.KindMRC}

// multipath makes a flow of such a kind with a configuration.
func multipath(t testing.TB, kind wire.FlowKind, k, m int, opts ...option) *world {
	w := configured(t, fec.Cauchy, k, m, append(opts, ofKind(kind))...)
	w.src.csum = true
	return w
}

// Section 4.4, rule 3: a restored packet has the UDP source port, the Identification or flow label, and the UDP checksum that it was sent with, which
// no other packet of the flow has.
func TestSection4_4_RestoredHeaders(t *testing.T) {
	for _, kind := range multipathKinds {
		for _, v6 := range []bool{false, true} {
			opts := []option{}
			if v6 {
				opts = append(opts, ipv6)
			}
			w := multipath(t, kind, 8, 2, opts...)
			w.packets(0, 9, 3, 5)
			w.repair(w.src.repair(0, 8, 0))
			w.repair(w.src.repair(0, 8, 1))
			if w.f.stats.Restored != 2 || len(w.out) != 9 {
				t.Fatalf("%v: %v, %+v", kind, w.psns(), w.f.stats)
			}
			w.wantTrue()
			ports := map[uint16]bool{}
			for _, d := range w.out {
				p, _ := w.rules.Parse(d.frame)
				ports[p.SrcPort()] = true
				if !roce.CheckICRC(&p) || p.UDPChecksum() == 0 {
					t.Fatalf("%v: PSN %v", kind, d.psn)
				}
			}
			if len(ports) < 8 {
				t.Fatalf("%v: the test's packets take %d ports only", kind, len(ports))
			}
		}
	}
}

// Section 4.4, rule 3: a symbol whose headers are no packet's restores nothing, whatever else is right: neither another source port nor bits in front of a
// flow label pass. Without the digest in the way the invariant CRC must find it.
func TestSection4_4_WrongLead(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for octet := range 6 {
			opts := []option{}
			if v6 {
				opts = append(opts, ipv6)
			} else if octet >= 4 {
				continue
			}
			if v6 && octet >= 3 {
				continue // the rest of the flow label is in no CRC: the digest alone covers it
			}
			w := multipath(t, wire.KindMRC, 4, 1, opts...)
			w.f.digest = false
			w.packets(0, 4, 2)
			m := w.src.repair(0, 4, 0)
			m.Symbol[2+octet] ^= 0x80
			w.repair(m)
			if w.f.stats.Restored != 0 || w.f.stats.RestoreVerifyFailures != 1 {
				t.Fatalf("IPv6 %v octet %d: %+v", v6, octet, w.f.stats)
			}
		}
	}
}

// A Source Copy that is shorter than a lead is no packet.
func TestSection4_4_NoLead(t *testing.T) {
	w := multipath(t, wire.KindMRC, 4, 1)
	w.packets(0, 4, 2)
	m := w.src.repair(0, 4, 0)
	m.Scheme, m.Index = fec.SourceCopy, 2
	clear(m.Symbol)
	m.Symbol[1] = 2
	w.repair(m)
	if w.f.stats.Restored != 0 || w.f.stats.RestoreVerifyFailures != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
}

// Section 6.1, rule 6: a retransmission that the kernel left to us goes on as it came, with its flag.
func TestSection6_1_FlaggedGoesOn(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 2)
	w.packets(0, 4, 2)
	p, _ := w.rules.Parse(w.src.copy(2, 0x8002, false, w.src.data(2)))
	var acts []Action
	w.f.HandleSource(w.now, &p, true, &acts)
	if len(acts) != 1 || acts[0].Kind != Inject || !bytes.Equal(acts[0].Payload, p.P()) || !p.Retransmitted() {
		t.Fatalf("%d actions", len(acts))
	}
}

// Section 6.1, rule 4: retransmissions, which may be in a class of traffic of their own, are no model for restored packets and messages.
func TestSection6_1_ClassOfRetransmissions(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 2)
	w.packets(0, 2)
	tos := w.src.tos
	w.src.tos = tos ^ 0x20
	w.arrive(w.src.copy(2, 0x8002, false, w.src.data(2)))
	if w.src.tos = tos; w.f.newest.psn() != 2 || w.f.model.tos != tos {
		t.Fatalf("newest %v, TOS %#x", w.f.newest.psn(), w.f.model.tos)
	}
}

// Section 4.4, rule 4: T_reorder is half of the shortest round trip, and duplicates between them make nothing late.
func TestSection4_4_LateOnlyAfterHalfARoundTrip(t *testing.T) {
	for late, cause := range map[time.Duration]LateCause{testRTT/2 - time.Millisecond: NotLate, testRTT/2 + time.Millisecond: LateGap} {
		w := multipath(t, wire.KindVeRoCE, 8, 2)
		w.packets(0, 8, 5)
		w.wait(late)
		w.arrive(w.src.frame(1)) // again
		w.arrive(w.src.frame(5))
		if s := w.f.stats; s.Duplicates != 1 || (cause == NotLate) != (s.LateTotal() == 0) || cause != NotLate && s.Late[cause] != 1 {
			t.Errorf("%v late: %v", late, s.Late)
		}
	}
}

// Section 4.4, rule 3: without the digest a HELLO for these kinds is not answered.
func TestSection4_4_DigestNeeded(t *testing.T) {
	for _, kind := range multipathKinds {
		w := multipath(t, kind, 8, 2)
		h := w.hello
		h.Extensions = 0
		f := New(w.now, testID, &h, gateway, local, &w.p, w.env)
		if !f.HandleHello(w.now, &h, &w.acts) || len(w.acts) != 0 || f.Stats().Drops[NoDigest] != 1 {
			t.Fatalf("%v: %d answers, %+v", kind, len(w.acts), f.Stats().Drops)
		}
		w.p.Digest, w.p.Delivery = false, InOrder // what a profile says does not matter
		if f = New(w.now, testID, &w.hello, gateway, local, &w.p, w.env); !f.digest || f.params.Delivery != Immediate {
			t.Fatalf("%v: digest %v, delivery %v", kind, f.digest, f.params.Delivery)
		}
	}
}

// Section 4.4: a packet of another transport is not of the flow, whatever its queue pair and PSN.
func TestSection4_4_OtherTransport(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 2)
	w.packets(0, 2)
	r := frames.RoCE{Headers: frames.Headers{Src: srcAddr, Dst: dstAddr}, Opcode: roce.SendOnly, QPN: testQPN, PSN: 2, Data: make([]byte, 64)}
	p, _ := w.rules.Parse(r.Frame())
	w.f.HandleSource(w.now, &p, false, &w.acts)
	if s := w.f.stats; s.Drops[NotSource] != 1 || w.f.newest.psn() != 1 {
		t.Fatalf("newest %v, %+v", w.f.newest.psn(), s.Drops)
	}
}

// Section 4.2, rule 3: a READ request of veRoCE consumes one PSN, and what follows it is not absent.
func TestSection4_2_VeRoCERead(t *testing.T) {
	w := multipath(t, wire.KindVeRoCE, 8, 2)
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if p%3 == 0 {
			return roce.ReadRequest
		}
		return roce.SendOnly
	}
	w.src.data = func(p roce.PSN) int {
		if p%3 == 0 {
			return 1 << 20 // what the READ asks for
		}
		return 64
	}
	w.packets(0, 8, 3, 4)
	w.repair(w.src.repair(0, 8, 0))
	w.repair(w.src.repair(0, 8, 1))
	if w.f.stats.Restored != 2 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.wantTrue()
}

// A restored READ request of veRoCE does not end the waiting for what follows it either.
func TestSection4_2_VeRoCEReadRestored(t *testing.T) {
	w := multipath(t, wire.KindVeRoCE, 8, 2)
	w.src.opcode = func(p roce.PSN) roce.Opcode {
		if p == 3 {
			return roce.ReadRequest
		}
		return roce.SendOnly
	}
	w.packets(0, 12, 3, 9)
	w.repair(w.src.repair(0, 8, 0))
	if w.f.stats.Restored != 1 || w.f.stats.Missing != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
}

// Section 4.4, rule 2 is of kind 192 alone: in the response space of veRoCE every PSN is a response, so a gap is a loss.
func TestSection4_4_VeRoCEResponseGap(t *testing.T) {
	w := multipath(t, wire.KindVeRoCEResponse, 8, 2)
	w.packets(0, 3)
	w.packets(4, 1)
	if w.f.stats.Missing != 1 {
		t.Fatalf("missing %d", w.f.stats.Missing)
	}
}

// CRF 1: what the transport calls a retransmission is never taken for the first copy, however soon it comes, and no loss is hidden by it. Its flag is cleared
// for decoding: with the same headers otherwise it is the same symbol.
func TestSection6_2_Flagged(t *testing.T) {
	for _, kind := range multipathKinds {
		w := multipath(t, kind, 8, 2, ipv6)
		w.packets(0, 8, 2, 3, 4)
		again := w.src.copy(2, 0x8002, false, w.src.data(2)) // IPv6 has no Identification: only the entropy differs
		p, _ := w.rules.Parse(again)
		if !p.Retransmitted() {
			t.Fatal("the copy has no flag")
		}
		w.arrive(again)
		if w.f.stats.Late[LateFlagged] != 1 || w.f.stats.Lost == 0 {
			t.Fatalf("%v: %+v", kind, w.f.stats)
		}
		w.repair(w.src.repair(0, 8, 0))
		w.repair(w.src.repair(0, 8, 1))
		if w.f.stats.Restored != 0 {
			t.Fatalf("%v: restored from a copy with another source port", kind)
		}
		w.repair(w.src.repair(0, 8, 2))
		if w.f.stats.Restored != 2 || w.f.stats.RestoreVerifyFailures != 0 {
			t.Fatalf("%v: %+v", kind, w.f.stats)
		}
		for _, d := range w.out {
			if want := w.src.frame(d.psn); d.psn == 2 && !d.kernel && !bytes.Equal(d.frame, want) {
				t.Fatal("the retransmission was restored")
			}
		}
	}
}

// A retransmission whose only difference is the flag is as good as the first copy (Section 6.4, rule 4).
func TestSection6_4_FlagCleared(t *testing.T) {
	w := multipath(t, wire.KindVeRoCE, 8, 1, ipv6)
	w.packets(0, 8, 2, 3)
	frame := bytes.Clone(w.src.frame(2))
	p, _ := w.rules.Parse(frame)
	P := p.P()
	P[8] |= w.rules.VeRoCE.Retransmission
	binary.LittleEndian.PutUint32(P[len(P)-4:], roce.ICRC(p.Head(), P))
	w.arrive(frame)
	w.repair(w.src.repair(0, 8, 0))
	if w.f.stats.Restored != 1 || w.f.stats.LateDecodes != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
	last := w.out[len(w.out)-1]
	if last.psn != 3 || !bytes.Equal(last.frame, w.src.frame(3)) {
		t.Fatalf("restored %v", last.psn)
	}
}

// CRF 2: a damaged retransmission is not made right by the ICRC that is reckoned anew for it.
func TestSection6_2_DamagedFlagged(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 1)
	w.packets(0, 2)
	frame := bytes.Clone(w.src.copy(2, 0x8002, false, w.src.data(2)))
	frame[len(frame)-9] ^= 1
	w.arrive(frame) // the next PSN: in order
	if w.f.stats.Drops[BadICRC] != 1 || w.f.newest.psn() != 1 {
		t.Fatalf("newest %v, %+v", w.f.newest.psn(), w.f.stats)
	}
}

// Section 4.4, rule 8: what the network left of a packet, with lengths that agree, is in nobody's way: the packet is missing, and restored from the others.
func TestSection4_4_TrimmedIsMissing(t *testing.T) {
	for _, kind := range multipathKinds {
		w := multipath(t, kind, 8, 2)
		w.packets(0, 3)
		whole := w.src.frame(3)
		left := w.src.copy(3, 0x8003, false, 16)
		p, reason := w.rules.Parse(left)
		if reason != roce.OK {
			t.Fatal(reason)
		}
		b := p.P()
		binary.LittleEndian.PutUint32(b[len(b)-4:], ^roce.ICRC(p.Head(), b))
		w.arrive(left)
		w.packets(4, 5)
		w.repair(w.src.repair(0, 8, 0))
		if w.f.stats.Restored != 1 || w.f.stats.Drops[BadICRC] != 1 {
			t.Fatalf("%v: %+v", kind, w.f.stats)
		}
		if last := w.out[len(w.out)-1]; last.psn != 3 || !bytes.Equal(last.frame, whole) {
			t.Fatalf("%v: restored %v", kind, last.psn)
		}
	}
}

// Section 4.4, rule 4: nothing is asked for and nothing restored while what is missing may only be late, as late as packets of the flow have been shown to be.
func TestSection4_4_Reordering(t *testing.T) {
	const late = 700 * time.Microsecond
	w := multipath(t, wire.KindMRC, 8, 2)
	w.packets(0, 8, 3)
	w.wait(late)
	w.arrive(w.src.frame(3)) // a slow path
	if w.f.skew.most != late || w.f.stats.LateTotal() != 0 || w.f.stats.Reordered != 1 {
		t.Fatalf("skew %v, %+v", w.f.skew.most, w.f.stats)
	}
	w.packets(8, 9, 11)
	w.repair(w.src.repair(8, 8, 0))
	if w.f.stats.Restored != 0 {
		t.Fatal("restored at once what others may have overtaken")
	}
	w.wait(late - 1)
	if w.f.stats.Restored != 0 {
		t.Fatal("restored too early")
	}
	w.wait(1)
	if w.f.stats.Restored != 1 || w.f.stats.Lost != 0 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.msgs = nil
	w.arrive(w.src.frame(11)) // it was not lost after all
	if w.f.stats.Lost != 0 || w.f.stats.Reordered != 2 {
		t.Fatalf("%+v", w.f.stats)
	}
	w.wait(testRTT)
	if n := len(w.requests()); n != 0 {
		t.Fatalf("%d requests", n)
	}
}

// Section 4.4, rule 4: what is missing for less than twice the skew is not asked for, be its block known or not.
func TestSection4_4_AskedAfterTwiceTheSkew(t *testing.T) {
	const skew = 4 * time.Millisecond
	for _, known := range []bool{false, true} {
		w := multipath(t, wire.KindMRC, 8, 2)
		w.f.skew.take(skew)
		if known {
			w.packets(0, 8, 2, 3)
			m := w.src.repair(0, 8, 0)
			m.Last = true
			w.repair(m) // one symbol for two packets
		} else {
			w.packets(0, 30, 2) // so far behind that no symbol is to be expected
		}
		w.wait(2*skew - 1)
		if n := len(w.requests()); n != 0 {
			t.Errorf("block known %v: %d requests too early", known, n)
		}
		w.wait(2)
		if n := len(w.requests()); n != 1 {
			t.Errorf("block known %v: %d requests in time", known, n)
		}
	}
}

// A flow without reordering waits no longer than others do.
func TestSection4_4_NoReordering(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 2)
	w.packets(0, 9, 3)
	w.repair(w.src.repair(0, 8, 0))
	if w.f.stats.Restored != 1 {
		t.Fatalf("%+v", w.f.stats)
	}
	other := configured(t, fec.Cauchy, 8, 2) // of RoCEv2, whatever it has shown
	other.f.skew.take(time.Second)
	for _, f := range []*Flow{w.f, other.f} {
		if f.tolerance() != f.rtt.tolerance() || f.window() != 0 {
			t.Fatalf("tolerance %v, window %v", f.tolerance(), f.window())
		}
	}
}

// Section 8.1, rule 3: a packet that the transport calls a retransmission was not overtaken, however soon it comes: what was restored was lost, and tells nothing
// of how late packets are.
func TestSection8_1_RetransmissionIsNotOvertaken(t *testing.T) {
	for _, flagged := range []bool{false, true} {
		w := multipath(t, wire.KindVeRoCE, 8, 1)
		w.packets(0, 8, 2)
		w.repair(w.src.repair(0, 8, 0))
		w.wait(time.Millisecond)
		again := w.src.frame(2)
		if flagged {
			again = w.src.copy(2, 0x8002, false, w.src.data(2))
		}
		w.arrive(again)
		w.wait(testRTT)
		if s := w.f.stats; s.Restored != 1 || (s.Lost == 1) != flagged || (w.f.skew.most == 0) != flagged {
			t.Errorf("flagged %v: skew %v, %+v", flagged, w.f.skew.most, s)
		}
	}
}

// However late packets come, what is missing is asked for within half a round trip after it was missed, and the skew of one bad moment is forgotten.
func TestSection4_4_SkewIsBounded(t *testing.T) {
	w := multipath(t, wire.KindMRC, 8, 2)
	w.f.skew.take(time.Second)
	if got := w.f.tolerance(); got != w.f.rtt.smooth/2 {
		t.Fatalf("tolerance %v", got)
	}
	if got := w.f.window(); got != w.f.rtt.smooth/8 {
		t.Fatalf("window %v", got)
	}
	for psn := range 1000 {
		w.packets(psn, 1)
		w.wait(testRTT)
	}
	if w.f.skew.most > time.Millisecond {
		t.Fatalf("after 1000 round trips: %v", w.f.skew.most)
	}
}

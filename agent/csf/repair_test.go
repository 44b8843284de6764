// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection5_4_OrdinarySymbols(t *testing.T) {
	for _, digest := range []bool{false, true} {
		p := fixed(4)
		p.Digest = digest
		w := protected(t, p, 1)
		nonce := w.f.Nonce()
		w.burst(2, 32, 100*time.Microsecond)
		w.wait(20 * time.Millisecond)
		r := w.all(wire.TypeRepair)
		if len(r) != 4 {
			t.Fatalf("%d symbols", len(r))
		}
		for i, m := range r {
			if int(m.Index) != i || m.Session != 0 || m.Retx || m.Info || m.Last != (i == 3) || m.FlowID != testID || m.to != gateway || m.HasDigest != digest {
				t.Errorf("%v", m)
			}
			w.checkSymbol(m, nil)
			if digest && m.Digest != naiveDigest(t, nonce, m) {
				t.Errorf("wrong digest in symbol %d", i)
			}
		}
	}
}

// A CRF that doesn't echo the extension bit gets no digest.
func TestSection6_4_DigestIsNegotiated(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.write(1)
	w.wait(testRTT)
	w.answerHello(gateway, func(m *wire.HelloAck) { m.Extensions = 0 })
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.burst(2, 32, 10*time.Microsecond)
	if r := w.lastOf(wire.TypeRepair); r.HasDigest || w.f.Stats().Digest {
		t.Fatalf("%v", r)
	}
}

// The digest is computed while packets come; one that comes out of order must not spoil it.
func TestSection6_4_DigestOfAReorderedBlock(t *testing.T) {
	w := protected(t, fixed(1), 1)
	nonce := w.f.Nonce()
	w.burst(2, 32, 10*time.Microsecond)
	for _, psn := range []roce.PSN{34, 36, 35, 37, 39} {
		w.write(psn)
	}
	w.wait(5 * time.Millisecond)
	w.burst(40, 32, 10*time.Microsecond)
	if n := len(w.blocks()); n != 3 {
		t.Fatalf("%d blocks", n)
	}
	for _, m := range w.blocks() {
		if m.Digest != naiveDigest(t, nonce, m) {
			t.Errorf("wrong digest: %v", m)
		}
	}
}

// naiveDigest hashes the source symbols of the present positions, one after the other (Section 6.4, rule 2).
func naiveDigest(t testing.TB, nonce uint64, m message) uint64 {
	var all []byte
	for j := m.Present.First(); j >= 0; j = m.Present.Next(j + 1) {
		p := packet(t, roce.WriteMiddle, m.Start.Add(j), 1024, 0).P()
		s := make([]byte, m.T)
		s[0], s[1] = byte(len(p)>>8), byte(len(p))
		copy(s[2:], p)
		all = append(all, s...)
	}
	return xxh3.HashSeed(all, nonce)
}

func TestSection4_3_3_XOR(t *testing.T) {
	p := fixed(1)
	p.Schemes = []fec.Scheme{fec.XOR}
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond)
	r := w.lastOf(wire.TypeRepair)
	if r.Scheme != fec.XOR || r.Index != 0 || !r.Last {
		t.Fatalf("%v", r)
	}
	w.checkSymbol(r, nil)
}

func TestSection4_3_1_SourceCopyAlone(t *testing.T) {
	p := defaults()
	p.Schemes = []fec.Scheme{fec.SourceCopy}
	w := protected(t, p, 1)
	w.burst(2, 32, 10*time.Microsecond)
	if n := len(w.all(wire.TypeRepair)); n != 0 || w.f.Stats().Scheme != fec.SourceCopy {
		t.Fatalf("%d ordinary symbols without a code", n)
	}
	sent := w.requestRanges(1, wire.Range{Start: 5, Count: 2})
	if len(sent) != 2 || sent[0].Scheme != fec.SourceCopy || sent[0].Index != 3 || sent[1].Index != 4 {
		t.Fatalf("%v", sent)
	}
}

// XOR is used only while one symbol meets the target, and Cauchy takes over by PARAM_UPDATE.
func TestSection5_3_XORGivesWayToLoss(t *testing.T) {
	p := defaults()
	p.Schemes = []fec.Scheme{fec.XOR, fec.Cauchy}
	w := newWorld(t, p)
	w.setLoss(1e-5)
	w.protect(1)
	if w.f.Stats().Scheme != fec.XOR {
		t.Fatal(w.f.Stats().Scheme)
	}
	w.report(2000, 1980, nil)
	if u := w.lastOf(wire.TypeParamUpdate).param; u.Scheme != fec.Cauchy {
		t.Fatalf("%+v", u)
	}
}

func TestSection5_3_Spread(t *testing.T) {
	p := fixed(4)
	p.Spread = true
	w := protected(t, p, 1)
	count := func(start roce.PSN) (n int) {
		for _, m := range w.all(wire.TypeRepair) {
			if m.Start == start {
				n++
			}
		}
		return n
	}
	w.burst(2, 32, 20*time.Microsecond)
	for i := range 32 {
		if got, want := count(2), min(4, 1+i*4/32); got != want {
			t.Fatalf("%d symbols after %d packets of the next block, want %d", got, i, want)
		}
		w.write(roce.PSN(34 + i))
		w.wait(20 * time.Microsecond)
	}
	if count(2) != 4 || count(34) != 1 {
		t.Fatalf("%d and %d", count(2), count(34))
	}
	// The burst ends: what waits leaves after burstGap, and a block that ends with its burst is not spread.
	w.burst(66, 3, 20*time.Microsecond)
	last := w.now - 20*time.Microsecond
	w.wait(900 * time.Microsecond)
	if count(34) != 1 {
		t.Fatalf("%d symbols before the gap", count(34))
	}
	w.until(last + time.Millisecond)
	w.wait(2 * time.Millisecond)
	if count(34) != 4 || count(66) == 0 {
		t.Fatalf("%d and %d after the gap", count(34), count(66))
	}
	if w.f.Stats().Withheld > 3 {
		t.Errorf("%d withheld", w.f.Stats().Withheld)
	}
}

func TestSection5_3_SpreadEndsInTime(t *testing.T) {
	p := fixed(4)
	p.Spread = true
	w := protected(t, p, 1)
	w.burst(2, 32, 20*time.Microsecond)
	closed := w.now - 20*time.Microsecond
	for psn := roce.PSN(34); w.now < closed+testRTT/2; psn++ { // a slow trickle: one packet every 0.9 ms
		w.write(psn)
		w.wait(900 * time.Microsecond)
	}
	for _, m := range w.all(wire.TypeRepair) {
		if m.Start == 2 && m.at > closed+testRTT/4 {
			t.Errorf("symbol %d leaves %v after the close", m.Index, m.at-closed)
		}
	}
}

func TestSection5_3_NotSpread(t *testing.T) {
	w := protected(t, fixed(3), 1)
	w.burst(2, 32, 20*time.Microsecond)
	r := w.all(wire.TypeRepair)
	if len(r) != 3 || r[2].at != r[0].at {
		t.Fatalf("%v", r)
	}
}

func TestAppendix_ExampleSymbols(t *testing.T) {
	// The draft's example, through the same path as every REPAIR: k = 4, T = 16. Its payloads are no RoCEv2 packets, so they
	// are put into the block directly.
	w := protected(t, fixed(2), 0xfff)
	b := w.f.env.newBlock()
	b.flow, b.config, b.start = w.f, &config{choice: choice{scheme: fec.Cauchy, k: 4, m: 2, T: 16}, id: 1}, 0x1000
	for j := range 4 {
		c := w.env.Pool.Get(16)
		if err := c.Set(nil, []byte("RDMA-PKT-"+string(rune('0'+j))), 16); err != nil {
			t.Fatal(err)
		}
		b.put(j, c)
	}
	b.total, b.released, b.nextIndex, b.config.blocks = 2, 2, 2, 1
	w.f.digest, w.f.session = false, 6
	w.f.window.at(w.now, testRTT).source = 1 << 20
	w.f.retain(w.now, b)
	w.f.queue = append(w.f.queue, b)
	w.f.pump(w.now, &w.acts)
	w.take()
	ordinary := w.lastOf(wire.TypeRepair).Repair
	w.request(1, &ordinary, 1, 0, 1, 2)
	want := []string{
		"\x00\x1e\xf6\xcc\xd7\xc3\x77\xf0\xdd\xfc\x77\x4c\x00\x00\x00\x00",
		"\x00\x1e\xf6\xcc\xd7\xc3\x77\xf0\xdd\xfc\x77\x4f\x00\x00\x00\x00",
		"\x00\x35\x4f\xdf\x6d\x4b\x40\xb5\x7e\x5c\x40\x00\x00\x00\x00\x00",
	}
	r := w.all(wire.TypeRepair)
	if len(r) != len(want) {
		t.Fatalf("%v", r)
	}
	for i := range want {
		if string(r[i].Symbol) != want[i] {
			t.Errorf("R%d = %x", i, r[i].Symbol)
		}
	}
	if m := r[2]; m.Session != 7 || !m.Retx || !m.Last || m.Index != 2 || m.Lost != set(0, 1, 2) || m.size != 44 {
		t.Errorf("%v", m)
	}
}

// Symbols are not spread past the end of a message: there may be no next block. A message of one packet ends nothing, since more like it may follow.
func TestSection5_3_NotSpreadPastTheEndOfAMessage(t *testing.T) {
	for op, want := range map[roce.Opcode]bool{roce.WriteMiddle: false, roce.WriteLast: true, roce.SendOnly: false} {
		p := fixed(8)
		p.Spread = true
		w := protected(t, p, 1)
		w.burst(2, 31, 30*time.Microsecond)
		w.give(packet(t, op, 33, w.mtu, 0))
		if w.f.spreading() == want {
			t.Errorf("%v: symbols wait for the next block: %v", op, !want)
		}
		w.wait(testRTT) // paced, while the flow's rate is not known yet
		if n := len(w.all(wire.TypeRepair)); n != 8 {
			t.Errorf("%v: %d symbols", op, n)
		}
	}
}

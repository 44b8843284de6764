// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection5_2_NoBlockBeforeParamAck(t *testing.T) {
	w := newWorld(t, fixed(2))
	w.write(10)
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	p := w.lastOf(wire.TypeParamUpdate).param
	if p.K != 32 || p.M != 8 || p.Scheme != fec.Cauchy || p.T != 1064 || p.Effective != 11 {
		t.Fatalf("%+v", p)
	}
	w.burst(11, 64, 100*time.Microsecond)
	if n := len(w.all(wire.TypeRepair)); n != 0 {
		t.Fatalf("%d REPAIRs before PARAM_ACK", n)
	}
	sent := w.acceptNow(p.ConfigID)
	// The Effective PSN has passed: it is told again, later, under the same Config ID.
	if len(sent) != 1 || sent[0].param.ConfigID != p.ConfigID || sent[0].param.Effective != 75 {
		t.Fatalf("%+v", sent)
	}
	if again := w.acceptNow(p.ConfigID); len(again) != 0 || w.f.State() != Protecting {
		t.Fatalf("the answer to that: %+v", again)
	}
	w.burst(75, 32, 10*time.Microsecond)
	r := w.all(wire.TypeRepair)
	if len(r) != 2 || r[0].Start != 75 || r[0].ConfigID != p.ConfigID {
		t.Fatalf("%d REPAIRs, %v", len(r), r)
	}
}

func TestSection5_2_RetransmissionAndClose(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(10)
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	begin := w.now
	w.wait(time.Millisecond)
	for i := range 100 { // packets go on, so that the Effective PSN has to move
		w.write(roce.PSN(11 + i))
		w.wait(100 * time.Millisecond)
	}
	w.until(begin + 20*time.Second)
	updates := w.all(wire.TypeParamUpdate)
	want := time.Duration(0)
	for i, u := range updates[:8] {
		if u.at-begin != want {
			t.Errorf("attempt %d after %v, want %v", i, u.at-begin, want)
		}
		if i > 0 && (u.param.ConfigID != updates[0].param.ConfigID || u.param.Effective.Before(updates[i-1].param.Effective)) {
			t.Errorf("attempt %d: %+v", i, u.param)
		}
		want += 2 * testRTT << i
	}
	if updates[1].param.Effective == updates[0].param.Effective {
		t.Error("the Effective PSN that has passed is sent again")
	}
	c := w.lastOf(wire.TypeClose)
	if c.close.Reason != wire.CloseNoAnswer || c.at-begin != want {
		t.Errorf("%+v after %v", c.close, c.at-begin)
	}
	if n := len(slices.DeleteFunc(updates, func(m message) bool { return m.at > c.at })); n != 8 {
		t.Errorf("%d attempts", n)
	}
}

func TestSection5_2_ShortestTimeout(t *testing.T) {
	w := newWorld(t, defaults())
	w.write(10)
	w.wait(100 * time.Microsecond)
	w.answerHello(gateway, nil)
	w.wait(10 * time.Millisecond)
	u := w.all(wire.TypeParamUpdate)
	if len(u) < 2 || u[1].at-u[0].at != time.Millisecond {
		t.Fatalf("%d", len(u))
	}
}

func TestSection5_2_RefusedKeepsThePresentOne(t *testing.T) {
	w := protected(t, fixed(1), 1)
	old := w.f.current.id
	p := *w.p
	p.K = 64
	w.setParams(&p)
	u := w.lastOf(wire.TypeParamUpdate).param
	if u.K != 64 || u.ConfigID == old {
		t.Fatalf("%+v", u)
	}
	w.burst(2, 32, 10*time.Microsecond)
	if r := w.lastOf(wire.TypeRepair); r.K != 32 || r.ConfigID != old {
		t.Fatalf("while it waits: %v", r)
	}
	w.f.proposal.attempts++ // no RTT sample
	w.paramAck(u.ConfigID, wire.StatusExhausted)
	w.burst(34, 32, 10*time.Microsecond)
	if r := w.lastOf(wire.TypeRepair); r.K != 32 || r.ConfigID != old || w.f.State() != Protecting {
		t.Fatalf("after the refusal: %v", r)
	}
	// It is asked again, with pauses that double, under another ID.
	w.wait(999 * time.Millisecond)
	n := len(w.all(wire.TypeParamUpdate))
	w.wait(2 * time.Millisecond)
	again := w.all(wire.TypeParamUpdate)
	if len(again) != n+1 || again[n].param.K != 64 || again[n].param.ConfigID == u.ConfigID {
		t.Fatalf("%d PARAM_UPDATEs", len(again))
	}
}

func TestSection5_2_RefusedSchemeGivesWay(t *testing.T) {
	p := fixed(1)
	p.Schemes = []fec.Scheme{fec.XOR, fec.Cauchy}
	w := newWorld(t, p)
	w.write(1)
	w.answerHello(gateway, nil)
	u := w.lastOf(wire.TypeParamUpdate).param
	if u.Scheme != fec.XOR || u.M != 1 {
		t.Fatalf("%+v", u)
	}
	sent := w.paramAck(u.ConfigID, wire.StatusUnsupportedScheme)
	if len(sent) != 1 || sent[0].param.Scheme != fec.Cauchy {
		t.Fatalf("%+v", sent)
	}
	w.acceptNow(sent[0].param.ConfigID)
	if w.f.State() != Protecting {
		t.Fatal(w.f.State())
	}
}

func TestSection5_2_FirstRefusedIsExplained(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.write(1)
	w.answerHello(gateway, nil)
	w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusLimitsExceeded)
	if e := w.f.Explain(); e.Why != WhyRefused || e.Status != wire.StatusLimitsExceeded || w.f.State() != Configuring {
		t.Fatalf("%+v", e)
	}
}

func (w *world) setParams(p *Params) []message {
	w.p = p
	w.f.SetParams(w.now, p, &w.acts)
	return w.take()
}

func TestSection5_2_WhatNeedsParamUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Params)
		update bool
	}{
		"fixed m":             {func(p *Params) { p.FixedM = 3 }, false},
		"epsilon":             {func(p *Params) { p.Epsilon = 1e-6 }, false},
		"ratio":               {func(p *Params) { p.MaxRepairRatio = 0.1 }, false},
		"smaller bound":       {func(p *Params) { p.MaxM = 4 }, false},
		"larger bound":        {func(p *Params) { p.MaxM = 12 }, true},
		"k":                   {func(p *Params) { p.K = 16 }, true},
		"scheme":              {func(p *Params) { p.Schemes = []fec.Scheme{fec.SourceCopy} }, true},
		"larger path":         {func(p *Params) { p.PathMTU = 9000 }, false},
		"path just too small": {func(p *Params) { p.PathMTU = 1064 + 63 }, true},
	} {
		w := protected(t, fixed(2), 1)
		p := *w.p
		c.change(&p)
		w.setParams(&p)
		if n := len(w.all(wire.TypeParamUpdate)); (n == 1) != c.update {
			t.Errorf("%s: %d PARAM_UPDATEs, state %v, %v", name, n, w.f.State(), w.f.Explain())
		}
	}
}

func TestSection5_2_MActsAtOnce(t *testing.T) {
	w := protected(t, fixed(2), 1)
	w.burst(2, 32, 10*time.Microsecond)
	w.wait(2 * time.Millisecond)
	p := *w.p
	p.FixedM = 4
	w.setParams(&p)
	w.burst(34, 32, 10*time.Microsecond)
	w.wait(20 * time.Millisecond)
	count := map[roce.PSN]int{}
	for _, r := range w.all(wire.TypeRepair) {
		count[r.Start]++
	}
	if count[2] != 2 || count[34] != 4 || len(w.all(wire.TypeParamUpdate)) != 0 {
		t.Errorf("%v", count)
	}
}

func TestSection5_2_NewConfigurationFromTheNextBlock(t *testing.T) {
	w := protected(t, fixed(1), 1)
	old := w.f.current.id
	w.burst(2, 10, 10*time.Microsecond)
	p := *w.p
	p.K = 16
	w.setParams(&p)
	u := w.lastOf(wire.TypeParamUpdate).param
	w.burst(12, 5, 10*time.Microsecond)
	w.acceptNow(u.ConfigID)
	w.burst(17, 17+16, 10*time.Microsecond)
	r := w.all(wire.TypeRepair)
	if len(r) != 2 || r[0].Start != 2 || r[0].K != 32 || r[0].ConfigID != old {
		t.Fatalf("the open block goes on under the old configuration: %v", r)
	}
	if r[1].Start != 34 || r[1].K != 16 || r[1].ConfigID != u.ConfigID {
		t.Fatalf("%v", r[1])
	}
	for _, u := range w.all(wire.TypeParamUpdate) {
		if u.param.ConfigID == r[1].ConfigID && r[1].Start.Before(u.param.Effective) {
			t.Errorf("a block starts before its Effective PSN %v", u.param.Effective)
		}
	}
}

func TestSection5_2_ConfigIDsInUseAreSkipped(t *testing.T) {
	w := protected(t, fixed(1), 1)
	first := w.f.current
	w.burst(2, 32, 10*time.Microsecond) // a block of the first configuration is retained
	p := *w.p
	psn := roce.PSN(34)
	for i := range 300 {
		w.write(psn) // keeps the flow alive
		psn++
		q := p
		q.K = 16 + i%2
		w.setParams(&q)
		u := w.lastOf(wire.TypeParamUpdate).param
		if u.ConfigID == first.id {
			t.Fatalf("Config ID %d is used again, %d blocks need it", u.ConfigID, first.blocks)
		}
		w.now += 200 * time.Microsecond
		w.acceptNow(u.ConfigID)
		first.replacedAt = w.now - time.Hour // only the block keeps it
		if len(w.f.configs) > 256 {
			t.Fatal("Config IDs leak")
		}
	}
	// Once the block is gone and 4 SRTT have passed the IDs can be used again.
	w.wait(time.Second)
	w.f.releaseConfigs(w.now)
	if n := len(w.f.configs); n != 1 {
		t.Errorf("%d configurations live on", n)
	}
}

func TestSection4_1_SymbolLength(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  *roce.Packet
		mtu, T int
	}{
		{"WRITE FIRST 1024", packet(t, roce.WriteFirst, 1, 1024, 0), 1024, 1064},
		{"WRITE MIDDLE 1024", packet(t, roce.WriteMiddle, 1, 1024, 0), 1024, 1064},
		{"SEND ONLY of 100 octets: the least guess", packet(t, roce.SendOnly, 1, 100, 0), 512, 552},
		{"SEND ONLY of 600 octets", packet(t, roce.SendOnly, 1, 600, 0), 1024, 1064},
		{"SEND FIRST 256: known", packet(t, roce.SendFirst, 1, 256, 0), 256, 296},
		{"READ requests only", readRequest(t, 1, 1<<20), 2048, 36},
	} {
		p := defaults()
		w := newWorld(t, p)
		w.give(c.first)
		if c.first.Opcode() == roce.ReadRequest { // it is the next one that tells how far it reached
			w.give(readRequest(t, 1+1<<20/2048, 1<<20))
		}
		if got := int(w.lastOf(wire.TypeHello).hello.MTU); got != max(c.mtu, 512) {
			t.Errorf("%s: RDMA MTU %d in HELLO", c.name, got)
		}
		w.answerHello(gateway, nil)
		if got := int(w.lastOf(wire.TypeParamUpdate).param.T); got != c.T {
			t.Errorf("%s: T = %d, want %d", c.name, got, c.T)
		}
	}
}

func TestSection4_1_LargerPacketNeedsLargerT(t *testing.T) {
	p := fixed(1)
	p.PathMTU = 9000
	w := newWorld(t, p)
	w.mtu = 100
	w.give(packet(t, roce.SendOnly, 1, 100, 0))
	w.wait(testRTT)
	w.answerHello(gateway, nil)
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.log = nil
	w.give(packet(t, roce.SendOnly, 2, 100, 0))
	w.give(packet(t, roce.SendOnly, 3, 2000, 0)) // T is 552: absent, never truncated
	w.give(packet(t, roce.SendOnly, 4, 100, 0))
	u := w.lastOf(wire.TypeParamUpdate).param
	if u.T != 2088 || len(w.all(wire.TypeParamUpdate)) != 1 {
		t.Fatalf("%+v", u)
	}
	w.wait(5 * time.Millisecond)
	r := w.lastOf(wire.TypeRepair)
	if r.Start != 2 || r.K != 3 || r.Present != set(0, 2) || r.T != 552 {
		t.Fatalf("%v", r)
	}
	w.acceptNow(u.ConfigID)
	w.give(packet(t, roce.SendOnly, 5, 2000, 0))
	w.wait(5 * time.Millisecond)
	if r := w.lastOf(wire.TypeRepair); r.Start != 5 || r.T != 2088 {
		t.Fatalf("%v", r)
	}
}

// The lengths of Section 4.1, rule 3: for k = 32, IPv4, with digest and RETX, T + 64.
func TestSection4_1_RepairFitsThePath(t *testing.T) {
	const need = 1064 + 64
	for _, c := range []struct {
		name     string
		change   func(*Params)
		pathMTU  int
		peer     string
		protects bool
	}{
		{"just fits", nil, need, "", true},
		{"too small by four, but the longest packet seen fits", nil, need - 4, "", true},
		{"too small for the packets seen", nil, 1023 + 64, "", false},
		{"tunnel", func(p *Params) { p.TunnelOverhead = 80 }, 1060 + 64 + 20, "", false},
		{"no digest", func(p *Params) { p.Digest = false }, need - 8, "", true},
		{"k = 64", func(p *Params) { p.K = 64 }, need + 8, "", true},
		{"IPv6", nil, need + 20, "[2001:db8::1]:52000", true},
		{"IPv6 too small, IPv4 would do", nil, 1044 + 64 + 16, "[2001:db8::1]:52000", false},
	} {
		p := fixed(1)
		p.PathMTU = c.pathMTU
		if c.change != nil {
			c.change(p)
		}
		w := newWorld(t, p)
		if c.peer != "" {
			w.f = w.newFlow(wire.KindRoCEv2, mustAddrPort(c.peer))
		}
		w.write(1)
		if n := len(w.all(wire.TypeHello)); (n == 1) != c.protects {
			t.Errorf("%s: %d HELLOs", c.name, n)
		}
		if c.protects {
			continue
		}
		s, e := w.f.Stats(), w.f.Explain()
		if w.f.State() != Idle || e.Why != WhyMTUTooSmall || s.MTUHave != c.pathMTU || s.MTUNeed <= c.pathMTU {
			t.Errorf("%s: state %v, need %d, have %d", c.name, w.f.State(), s.MTUNeed, s.MTUHave)
		}
		if text := e.String(); !strings.Contains(text, "MTU") {
			t.Error(text)
		}
		q := *p
		q.PathMTU = 9000
		w.setParams(&q)
		if w.write(2); len(w.all(wire.TypeHello)) != 1 {
			t.Errorf("%s: no HELLO after the MTU was raised", c.name)
		}
	}
}

func TestSection4_1_PacketsOutgrowThePath(t *testing.T) {
	w := newWorld(t, fixed(1))
	w.give(packet(t, roce.SendOnly, 1, 100, 0))
	w.answerHello(gateway, nil)
	w.acceptNow(w.lastOf(wire.TypeParamUpdate).param.ConfigID)
	w.give(packet(t, roce.SendFirst, 2, 2048, 0))
	if w.f.State() != Idle || w.f.Explain().Why != WhyMTUTooSmall || w.lastOf(wire.TypeClose).close.FlowID != testID {
		t.Fatalf("state %v", w.f.State())
	}
	if s := w.f.Stats(); s.MTUNeed != 2088+64 || s.MTUHave != 1500 {
		t.Errorf("need %d, have %d", s.MTUNeed, s.MTUHave)
	}
	w.log = nil
	for i := range 100 {
		w.write(roce.PSN(3 + i))
		w.wait(100 * time.Millisecond)
	}
	if len(w.log) != 0 {
		t.Errorf("%d messages for a flow that can't be protected", len(w.log))
	}
}

func TestSetParamsDigestNeedsANewHandshake(t *testing.T) {
	w := protected(t, fixed(1), 1)
	p := *w.p
	p.Digest = false
	sent := w.setParams(&p)
	if len(sent) != 1 || sent[0].close.Reason != wire.CloseRestarted {
		t.Fatalf("%+v", sent)
	}
	if w.write(2); w.lastOf(wire.TypeHello).hello.Extensions&wire.ExtDigest != 0 {
		t.Error("HELLO still offers the digest")
	}
}

func TestSection4_3_2_IndicesLeftForCodedRounds(t *testing.T) {
	for _, c := range []struct{ k, maxM, m int }{
		{1, 8, 8}, {32, 8, 8}, {32, 254, 221}, {128, 254, 119}, {200, 254, 43}, {250, 8, 1}, {252, 8, 1}, {254, 8, 1}, {255, 8, 0},
	} {
		p := defaults()
		p.K, p.MaxM = c.k, c.maxM
		w := newWorld(t, p)
		w.write(1)
		w.answerHello(gateway, nil)
		if u := w.lastOf(wire.TypeParamUpdate).param; int(u.K) != c.k || int(u.M) != c.m || c.k+c.m > 255 {
			t.Errorf("k = %d: %+v, want m = %d", c.k, u, c.m)
		}
	}
}

// G12: for each uplink, RDMA MTU and IPsec a flow is either protected, with every REPAIR within the path (the world looks at each), or passes unprotected and
// says how much is missing. It never waits for something.
func TestG12_Section4_1_MTUs(t *testing.T) {
	const esp = 76 // of a tunnel over IPv4: outer header, SPI and number, IV, padding, ICV
	fits := map[[3]int]bool{
		{1500, 1024, 0}: true, {1500, 1024, esp}: true,
		{4200, 1024, 0}: true, {4200, 1024, esp}: true, {4200, 4096, 0}: true, {4200, 4096, esp}: false,
		{9000, 1024, 0}: true, {9000, 1024, esp}: true, {9000, 4096, 0}: true, {9000, 4096, esp}: true,
	}
	for c, want := range fits {
		p := defaults()
		p.PathMTU, p.TunnelOverhead = c[0], c[2]
		w := newWorld(t, p)
		w.mtu = c[1]
		w.burst(1, 4, time.Millisecond)
		if !want {
			e := w.f.Explain()
			if s := w.f.Stats(); e.Why != WhyMTUTooSmall || s.MTUNeed <= c[0] || s.MTUHave != c[0] || len(w.log) > 0 {
				t.Errorf("uplink %d, RDMA MTU %d, ESP %d: %v, %d messages", c[0], c[1], c[2], e, len(w.log))
			}
			continue
		}
		w.answerHello(gateway, nil)
		w.wait(testRTT)
		w.paramAck(w.lastOf(wire.TypeParamUpdate).param.ConfigID, wire.StatusAccepted)
		w.burst(5, 200, 100*time.Microsecond)
		w.wait(testRTT)
		if w.f.State() != Protecting || len(w.all(wire.TypeRepair)) == 0 {
			t.Errorf("uplink %d, RDMA MTU %d, ESP %d: %v, %v", c[0], c[1], c[2], w.f.State(), w.f.Explain())
		}
	}
}

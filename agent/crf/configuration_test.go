// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

func TestSection5_2_Status(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.p.MaxK, w.p.MaxM, w.p.MaxT = 64, 16, 4202
		w.hello.MaxK, w.hello.MaxM, w.hello.MaxT = 200, 8, 1500
		w.hello.Schemes = 3
	})
	for _, c := range []struct {
		name    string
		scheme  fec.Scheme
		k, m, T int
		want    wire.Status
	}{
		{"Cauchy", fec.Cauchy, 64, 8, 1500, wire.StatusAccepted},
		{"Source Copy has no bit of its own", fec.SourceCopy, 32, 0, 1074, wire.StatusAccepted},
		{"XOR not offered", fec.XOR, 32, 1, 1074, wire.StatusUnsupportedScheme},
		{"unknown scheme", 3, 32, 1, 1074, wire.StatusUnsupportedScheme},
		{"scheme without a bit", 200, 32, 1, 1074, wire.StatusUnsupportedScheme},
		{"k over ours", fec.Cauchy, 65, 1, 1074, wire.StatusLimitsExceeded},
		{"m over theirs", fec.Cauchy, 32, 9, 1074, wire.StatusLimitsExceeded},
		{"T over theirs", fec.Cauchy, 32, 2, 1501, wire.StatusLimitsExceeded},
		{"T too short for any packet", fec.Cauchy, 32, 2, 17, wire.StatusLimitsExceeded},
		{"k zero", fec.Cauchy, 0, 1, 1074, wire.StatusLimitsExceeded},
		{"Source Copy with m", fec.SourceCopy, 32, 1, 1074, wire.StatusLimitsExceeded},
	} {
		if got := w.configure(9, c.scheme, c.k, c.m, c.T); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		w.f.configs = w.f.configs[:0]
	}
	w = newWorld(t)
	for _, c := range []struct {
		scheme fec.Scheme
		k, m   int
		want   wire.Status
	}{
		{fec.XOR, 32, 2, wire.StatusLimitsExceeded}, {fec.XOR, 32, 1, wire.StatusAccepted},
		{fec.Cauchy, 250, 7, wire.StatusLimitsExceeded}, {fec.Cauchy, 250, 6, wire.StatusAccepted},
	} {
		if got := w.configure(9, c.scheme, c.k, c.m, 1074); got != c.want {
			t.Errorf("%v k %d m %d: %v, want %v", c.scheme, c.k, c.m, got, c.want)
		}
		w.f.configs = w.f.configs[:0]
	}
}

func TestSection5_2_Repeated(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	if s := w.configure(1, fec.Cauchy, 8, 2, testT); s != wire.StatusAccepted {
		t.Errorf("the same again: %v", s)
	}
	for _, other := range [][3]int{{9, 2, testT}, {8, 1, testT}, {8, 2, testT + 4}} {
		if s := w.configure(1, fec.Cauchy, other[0], other[1], other[2]); s != wire.StatusLimitsExceeded {
			t.Errorf("other values %v under an ID in use: %v", other, s)
		}
	}
	if s := w.configure(1, fec.XOR, 8, 1, testT); s != wire.StatusLimitsExceeded {
		t.Errorf("another scheme under an ID in use: %v", s)
	}
	if len(w.f.configs) != 1 || w.f.configs[0].k != 8 {
		t.Errorf("configurations %+v", w.f.configs)
	}
	if s := w.configure(0, fec.Cauchy, 8, 2, testT); s != wire.StatusAccepted {
		t.Errorf("Config ID 0: %v", s)
	}
}

func TestSection5_2_Exhausted(t *testing.T) {
	w := newWorld(t, with(func(p *Params) { p.HoldBytes = 100 << 10 }))
	if s := w.configure(1, fec.Cauchy, 64, 8, testT); s != wire.StatusExhausted {
		t.Errorf("more than the flow's memory: %v", s)
	}
	if s := w.configure(1, fec.Cauchy, 32, 8, testT); s != wire.StatusAccepted {
		t.Errorf("what fits: %v", s)
	}
	w = newWorld(t)
	for id := range maxConfigs {
		w.configure(uint8(id), fec.Cauchy, 8, 2, testT)
	}
	if s := w.configure(100, fec.Cauchy, 8, 2, testT); s != wire.StatusExhausted {
		t.Errorf("one configuration too many: %v", s)
	}
}

// A replaced configuration is good for at least 4 SRTT, and is released in the end (rule 6).
func TestSection5_2_Released(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 101)
	w.configure(2, fec.Cauchy, 16, 4, testT)
	w.src.config = 1
	w.now += 4 * testRTT
	w.repair(w.src.repair(100, 8, 0))
	w.wantOrder(100, 8)
	for range 40 { // it is used no more, while the flow goes on
		w.wait(50 * time.Millisecond)
		w.packets(108+int(w.f.stats.Sources), 1)
	}
	drops := w.f.stats.Drops[UnknownConfig]
	w.repair(w.src.repair(100, 8, 1))
	if w.f.stats.Drops[UnknownConfig] != drops+1 || len(w.f.configs) != 1 {
		t.Errorf("configurations %+v, drops %v", w.f.configs, w.f.stats.Drops)
	}
	w.src.config = 2
	w.repair(w.src.repair(100, 8, 1))
	if w.f.stats.Drops[UnknownConfig] != drops+1 {
		t.Error("the newest configuration was released")
	}
}

// Without a configuration nothing is held: packets pass on as they come.
func TestSection5_2_NothingHeldBeforeTheFirst(t *testing.T) {
	w := newWorld(t)
	w.packets(100, 8, 102, 105)
	if got := w.psns(); len(got) != 6 {
		t.Errorf("delivered %v", got)
	}
	if w.env.Pool.InUse() != 0 {
		t.Errorf("%d octets kept", w.env.Pool.InUse())
	}
}

func TestSection5_2_RepairsThatDontFit(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8, 101)
	good := w.src.repair(100, 8, 0)
	for _, c := range []struct {
		reason DropReason
		change func(m *wire.Repair)
	}{
		{UnknownConfig, func(m *wire.Repair) { m.ConfigID = 3 }},
		{WrongScheme, func(m *wire.Repair) { m.Scheme = fec.XOR }},
		{WrongK, func(m *wire.Repair) { m.K = 9 }},
		{WrongT, func(m *wire.Repair) { m.T, m.Symbol = testT-4, m.Symbol[:testT-4] }},
		{WrongIndex, func(m *wire.Repair) { m.Index = 248 }},
		{WrongSet, func(m *wire.Repair) { m.Retx = true }},
		{WrongSet, func(m *wire.Repair) { m.Present.Clear(2); m.Retx, m.Lost = true, set(2) }},
		{WrongSet, func(m *wire.Repair) { m.Present = fec.Bitmap{} }},
		{WrongSet, func(m *wire.Repair) { m.Scheme, m.Index = fec.SourceCopy, 8 }},
		{WrongSet, func(m *wire.Repair) { m.Scheme, m.Index = fec.SourceCopy, 2; m.Present.Clear(2) }},
		{NoDigest, func(m *wire.Repair) { m.HasDigest = false }},
		{Stale, func(m *wire.Repair) { m.Start = 91 }},
		{TooFar, func(m *wire.Repair) { m.Start = 100000 }},
	} {
		before := w.f.stats.Drops
		m := good
		c.change(&m)
		w.repair(m)
		before[c.reason]++
		if w.f.stats.Drops != before {
			t.Errorf("%v: counted %v", c.reason, w.f.stats.Drops)
		}
	}
	if len(w.f.blocks) != 0 {
		t.Error("a refused REPAIR opened a block")
	}
	w.repair(good)
	w.wantOrder(100, 8)
}

func TestSection6_1_SymbolsOfOtherBlocksDropped(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 4)
	w.packets(100, 16, 101, 102, 103, 115)
	first := w.src.repair(100, 8, 0)
	w.repair(first)
	for _, c := range []struct {
		reason DropReason
		change func(m *wire.Repair)
	}{
		{DuplicateSymbol, func(*wire.Repair) {}},
		{OtherBlock, func(m *wire.Repair) { m.Index, m.K = 1, 7; m.Present.Clear(7) }},
		{OtherBlock, func(m *wire.Repair) { m.Index = 1; m.Present.Clear(7) }},
		{OtherBlock, func(m *wire.Repair) { m.Index = 1; m.Digest++ }},
		{Overlap, func(m *wire.Repair) { m.Index, m.Start = 1, 104 }},
		{Overlap, func(m *wire.Repair) { m.Index, m.Start = 1, 97 }},
		{OtherBlock, func(m *wire.Repair) { m.Info, m.T, m.Symbol, m.HasDigest = true, 0, nil, false; m.Present.Clear(7) }},
	} {
		before := w.f.stats.Drops
		m := first
		c.change(&m)
		w.repair(m)
		before[c.reason]++
		if w.f.stats.Drops != before {
			t.Errorf("%v: counted %v", c.reason, w.f.stats.Drops)
		}
	}
	w.repair(w.src.repair(100, 8, 1))
	w.repair(w.src.repair(100, 8, 2))
	w.repair(w.src.repair(108, 8, 0))
	w.wait(time.Millisecond) // the last packet might be on its way
	w.wantOrder(100, 16)
}

// Section 5.2, rule 7: a PARAM_UPDATE that comes again as it was is acknowledged, and keeps nothing alive: the CSF only times the answer.
func TestSection5_2_ProbesKeepNoOldConfiguration(t *testing.T) {
	w := configured(t, fec.Cauchy, 8, 2)
	w.packets(100, 8)
	u := wire.ParamUpdate{FlowID: testID, ConfigID: 2, Scheme: fec.Cauchy, K: 8, M: 3, T: testT, Effective: 108}
	for range 20 {
		before := w.f.stats.ParamAcks[wire.StatusAccepted]
		w.f.HandleParamUpdate(w.now, &u, &w.acts)
		w.take()
		if w.f.stats.ParamAcks[wire.StatusAccepted] != before+1 {
			t.Fatal("not acknowledged")
		}
		w.wait(testRTT)
		w.f.Poll(w.now, &w.acts)
	}
	if n := len(w.f.configs); n != 1 {
		t.Errorf("%d configurations", n)
	}
}

// Section 5.2, rule 2: what the sender codes begins at the Effective PSN of its first PARAM_UPDATE. If that lies before all that was seen, or before
// where the flow's last machine stood, its PSNs began anew: they are no second run, and what is lost of them is restored in order.
func TestSection5_2_PSNsBeganAnew(t *testing.T) {
	const seen = 1 << 20
	for _, c := range []struct {
		name     string
		from     int
		restarts uint64
	}{{"behind all", seen - 1000, 1}, {"far behind all", seen - 1<<19, 1}, {"at the first", seen, 0}, {"at the next", seen + 10, 0}} {
		for _, succeeds := range []bool{false, true} {
			w := newWorld(t)
			w.packets(seen, 10)
			if succeeds {
				old := w.f
				w.f.HandleClose(w.now, &wire.Close{FlowID: testID, Reason: wire.CloseRestarted}, &w.acts)
				w.f = New(w.now, testID, &w.hello, gateway, local, &w.p, w.env)
				w.f.Succeed(old)
				w.f.HandleHello(w.now, &w.hello, &w.acts)
				w.take()
			}
			w.now += testRTT
			w.src.begins = roce.PSN(c.from)
			w.configure(1, fec.Cauchy, 8, 2, testT)
			w.reset()
			first, restarts := seen+10, c.restarts
			if succeeds && c.from == seen {
				restarts = 1 // the last machine stood after the ten packets
			}
			if restarts > 0 {
				first = c.from
			}
			w.packets(first, 8, first+3)
			w.repair(w.src.repair(first, 8, 0))
			w.wantOrder(first, 8)
			if w.f.stats.Restarts != restarts || w.f.stats.Restored != 1 {
				t.Errorf("%s, succeeds %v: %+v", c.name, succeeds, w.f.stats)
			}
		}
	}
}

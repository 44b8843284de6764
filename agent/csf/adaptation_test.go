// SPDX-License-Identifier: Apache-2.0

package csf_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/test/lab/wan"
)

// wide is a profile whose bounds are beyond what any loss here needs.
func wide() *csf.Params {
	p := profile()
	p.MaxM, p.MaxRepairRatio = 20, 1
	return p
}

// A clean path costs nothing: with OnDemand from the first packet on, with Proactive once the path is known.
func TestSection5_3_CleanPathCostsNothing(t *testing.T) {
	for strategy, learns := range map[csf.Strategy]time.Duration{csf.OnDemand: 0, csf.Proactive: 10 * pairRTT} {
		p := newPair(t, wan.Settings{Seed: 1})
		params := profile()
		params.Strategy = strategy
		f := p.open(params, pairGap)
		p.run(learns)
		if d := f.during(20 * pairRTT); d.repair != 0 || d.requests != 0 || d.source == 0 {
			t.Errorf("%v: %+v", strategy, d)
		}
	}
}

// Once a path is known, m is within one symbol of the best for its true loss, and blocks are complete as often as they should be.
func TestSection5_3_ProactiveIsNearTheOptimum(t *testing.T) {
	for _, loss := range []float64{1e-5, 1e-4, 1e-3, 1e-2, 5e-2} {
		p := newPair(t, wan.Settings{Seed: 2, Loss: loss})
		f := p.established(wide(), pairGap)
		p.run(20 * pairRTT)
		best := fec.MinRepair(32, loss, 1e-4, 20)
		for range 4 {
			if d := f.during(10 * pairRTT); math.Abs(d.ordinary/d.blocks-float64(best)) > 1 || d.incomplete > 3 {
				t.Errorf("a loss of %g: %.2f symbols a block, the best is %d; %g of %g blocks incomplete", loss, d.ordinary/d.blocks, best, d.incomplete, d.blocks)
			}
		}
	}
}

// After a step up m fits within three round trips; where so few packets are lost that these tell nothing, within two of the seventh. It fits
// when less than twice as many blocks as epsilon are incomplete: half a dozen more losses in a round trip are chance, and a symbol.
func TestSection5_3_LossStepIsFollowedInThreeRoundTrips(t *testing.T) {
	const enough = 7
	for _, s := range []struct{ from, to float64 }{{0, 1e-4}, {0, 1e-3}, {0, 1e-2}, {1e-4, 1e-3}, {1e-3, 1e-2}, {1e-2, 5e-2}, {1e-4, 5e-2}} {
		for seed := range uint64(2) {
			p := newPair(t, wan.Settings{Seed: 10 + seed, Loss: s.from})
			f := p.established(wide(), pairGap)
			p.run(25 * pairRTT)
			p.lose(s.to)
			took := p.runUntil(100*pairRTT, func() bool {
				m := f.csf.Stats().M
				return fec.Tail(32+m, m, s.to) < 2e-4
			})
			most := max(3*pairRTT, 2*pairRTT+time.Duration(enough/s.to)*pairGap)
			if took > most {
				t.Errorf("from %g to %g (seed %d): m fits after %.1f round trips, want %.1f", s.from, s.to, seed, ratio(took, pairRTT), ratio(most, pairRTT))
			}
		}
	}
}

// Section 5.3, rule 5: where losses come to be in runs of five at the same mean rate, lossModel Empirical has as many symbols as they need within four round
// trips, and keeps them; where they are independent it has at most one more than the Independent model.
func TestSection5_3_RunsAreFollowed(t *testing.T) {
	const rate, length = 1e-2, 5
	const apart = 3 // of the flow's own packets: repair symbols are between them
	params := wide()
	params.LossModel, params.MaxM = csf.Empirical, 40
	for seed := range uint64(2) {
		p := newPair(t, wan.Settings{Seed: 50 + seed, Loss: rate})
		f := p.established(params, pairGap)
		p.run(25 * pairRTT)
		best := fec.MinRepair(32, rate, 1e-4, 20)
		if d := f.during(10 * pairRTT); d.ordinary/d.blocks > float64(best)+1 {
			t.Errorf("seed %d: %.2f symbols a block for independent losses, the best is %d", seed, d.ordinary/d.blocks, best)
		}
		p.setPath(wan.Settings{BurstLoss: rate, BurstLength: length})
		need := fec.MinBurstRepair(32, rate, apart, 1e-3, 40)
		took := p.runUntil(50*pairRTT, func() bool { return f.csf.Stats().M >= need })
		if took > 4*pairRTT {
			t.Errorf("seed %d: %d symbols after %.1f round trips", seed, need, ratio(took, pairRTT))
		}
		p.run(10 * pairRTT)
		d := f.during(20 * pairRTT)
		if d.incomplete > 2e-3*d.blocks {
			t.Errorf("seed %d: %g of %g blocks incomplete with %.2f symbols", seed, d.incomplete, d.blocks, d.ordinary/d.blocks)
		}
		if s := f.csf.Stats(); s.Burst < apart-1 || s.Burst > apart+1 {
			t.Errorf("seed %d: runs of %.2f", seed, s.Burst)
		}
		t.Logf("seed %d: %d symbols after %.1f round trips; then %.2f, %g of %g blocks incomplete", seed, need, ratio(took, pairRTT), d.ordinary/d.blocks, d.incomplete, d.blocks)
	}
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// A new flow between two sites that others have told of has the right m in its first block.
func TestSection5_3_NewFlowFitsFromItsFirstBlock(t *testing.T) {
	for _, loss := range []float64{1e-3, 1e-2} {
		p := newPair(t, wan.Settings{Seed: 3, Loss: loss})
		p.established(wide(), pairGap)
		p.run(25 * pairRTT)
		best := fec.MinRepair(32, loss, 1e-4, 20)
		f := p.established(wide(), pairGap)
		if f.csf.Stats().LossReports > 2 {
			t.Fatal("the flow has learned from its own packets")
		}
		p.run(33 * pairGap) // the first full block
		if m := f.csf.Stats().M; m < best || m > best+1 {
			t.Errorf("a loss of %g: the first block has %d symbols, the best is %d", loss, m, best)
		}
	}
}

// Packets that overtake others by less than the tolerance are neither asked for nor taken for lost, whether repair symbols come or not.
func TestSection8_1_ReorderingCostsNothing(t *testing.T) {
	for _, params := range []*csf.Params{profile(), fixedCode(2)} {
		for _, delay := range []time.Duration{50 * time.Microsecond, 500 * time.Microsecond, 1900 * time.Microsecond} {
			p := newPair(t, wan.Settings{Seed: 4, Reorder: 0.01, ReorderDelay: wan.Duration(delay)})
			f := p.established(params, pairGap)
			p.run(25 * pairRTT)
			s, r := f.csf.Stats(), f.crf.Stats()
			if s.Lost != 0 || r.Lost != 0 || s.Requests != 0 || r.LateTotal() != 0 {
				t.Errorf("m %d, %v: %d (%d) lost, %d requests, %d late", params.FixedM, delay, s.Lost, r.Lost, s.Requests, r.LateTotal())
			}
			if r.Reordered < 1000 {
				t.Fatalf("%d reordered", r.Reordered)
			}
			if params.FixedM < 0 && s.M != 0 {
				t.Errorf("m = %d on a path that loses nothing", s.M)
			}
		}
	}
}

// What is adapted completes messages as fast as a fixed EC(32, 8), with half of its repair traffic at most, and a quarter on good paths. The
// receiver takes messages in order, so a block that waits for a request delays all messages of a round trip.
func TestSection5_3_AsGoodAsAFixedCodeForHalf(t *testing.T) {
	for _, c := range []struct {
		loss, share float64
		learn       time.Duration // so that some losses have been seen
	}{{1e-5, 0.25, 1000 * pairRTT}, {1e-4, 0.25, 200 * pairRTT}, {1e-3, 0.5, 100 * pairRTT}, {1e-2, 0.5, 100 * pairRTT}} {
		const gap = 4 * pairGap
		var repair [2]float64
		var slow [2]time.Duration
		for i, params := range []*csf.Params{fixedCode(8), profile()} {
			p := newPair(t, wan.Settings{Seed: 5, Loss: c.loss})
			f := p.established(params, gap)
			if params.FixedM < 0 {
				p.run(c.learn)
			}
			f.finished = nil
			repair[i] = f.during(200 * pairRTT).repair
			slow[i] = p99(f.finished)
		}
		t.Logf("a loss of %g: p99 %v with %.3f of the repair octets of EC(32, 8), whose p99 is %v", c.loss, slow[1], repair[1]/repair[0], slow[0])
		// A block's packets and the repairs spread over the next block are two blocks of packets.
		if repair[1] > c.share*repair[0] || slow[1] > slow[0]+2*32*gap {
			t.Errorf("want p99 within two blocks of that, with %g of its octets at most", c.share)
		}
	}
}

// A slow sender pays for few symbols, although its blocks close with few packets: what it loses inside a message is repaired on request, and
// its messages take a round trip longer at most than those of a code that doubles every packet.
func TestSection5_3_SlowSendersPayLittle(t *testing.T) {
	for _, c := range []struct {
		gap time.Duration
		pay float64 // repair octets of the source's
	}{{pairRTT / 64, 0.15}, {pairRTT / 16, 0.31}, {pairRTT / 4, 0.05}, {pairRTT * 4 / 5, 0.05}} {
		var slow [2]time.Duration
		var pay [2]float64
		for i, params := range []*csf.Params{fixedCode(1), profile()} {
			p := newPair(t, wan.Settings{Seed: 40, Loss: 1e-2})
			var flows []*stream
			for range 20 {
				flows = append(flows, p.established(params, c.gap))
			}
			p.run(200 * c.gap)
			var source, repair float64
			var done []time.Duration
			before := make([]tally, len(flows))
			for j, f := range flows {
				before[j], f.finished = f.tally(), nil
			}
			p.run(10 * msgLen * c.gap)
			for j, f := range flows {
				now := f.tally()
				source, repair = source+now.source-before[j].source, repair+now.repair-before[j].repair
				done = append(done, f.finished...)
			}
			slow[i], pay[i] = p99(done), repair/source
		}
		t.Logf("a packet every %v: repair octets %.3f of the source's, p99 %v; with every block's m = 1 %.3f, %v", c.gap, pay[1], slow[1], pay[0], slow[0])
		if pay[1] > c.pay || slow[1] > slow[0]+pairRTT+pairRTT/4 {
			t.Errorf("a packet every %v: want %.2f of the octets, and p99 within a round trip and a quarter", c.gap, c.pay)
		}
	}
}

// Repair symbols that fare as the flow does are no sign of congestion, although SRTT varies with acknowledgements that wait for repairs.
func TestSection8_1_RoundTripsThatVaryAreNoExcessLoss(t *testing.T) {
	for seed := range uint64(3) {
		p := newPair(t, wan.Settings{Seed: 20 + seed, Loss: 1e-2})
		f := p.established(fixedCode(2), pairGap) // too few: many blocks wait for requests
		p.run(10 * pairRTT)
		longest := time.Duration(0)
		for range 100 {
			p.run(pairRTT / 2)
			s := f.csf.Stats()
			if longest = max(longest, s.SRTT); s.RepairShare < 1 {
				t.Fatalf("at %v only %.2f of the symbols are sent; SRTT %v", p.now, s.RepairShare, s.SRTT)
			}
		}
		if longest < pairRTT*21/20 {
			t.Errorf("SRTT was %v at most: nothing varied", longest)
		}
	}
}

// The repair path alone is lossy: fewer symbols are sent there.
func TestSection10_LossOnTheRepairPathAlone(t *testing.T) {
	p := newPair(t, wan.Settings{Seed: 6, Loss: 1e-2})
	f := p.established(profile(), pairGap)
	p.run(25 * pairRTT)
	before := f.during(10 * pairRTT)
	p.side = p.line(wan.Settings{Seed: 7, Loss: 0.2})
	p.run(5 * pairRTT)
	after := f.during(20 * pairRTT)
	if a, b := after.ordinary/after.blocks, before.ordinary/before.blocks; a > 0.7*b {
		t.Errorf("%.2f symbols a block on a path that loses a fifth of them, %.2f before", a, b)
	}
}

// What the sender's own queue drops before the CSF sees it was never a source packet: it is absent, counts as no loss, and opens no breaker, also
// where nothing but INFO says so. What is lost behind the CSF counts, wherever that is.
func TestSection10_DropsInTheSendersOwnQueue(t *testing.T) {
	for _, params := range []*csf.Params{fixedCode(0), fixedCode(2)} {
		p := newPair(t, wan.Settings{Seed: 40})
		f := p.established(params, 5*pairGap)
		p.run(10 * pairRTT)
		before := f.csf.Stats().Lost
		p.queue = 0.15
		p.run(4 * time.Second)
		s := f.csf.Stats()
		t.Logf("m %d: %d of %d lost, %d requests, %d INFO", params.FixedM, s.Lost-before, s.Expected, s.Requests, s.Info)
		if s.BreakerOpened != 0 || f.csf.State() != csf.Protecting {
			t.Errorf("m %d: the breaker opened %d times; %d lost of %d", params.FixedM, s.BreakerOpened, s.Lost-before, s.Expected)
		}
		p.queue = 0
		p.lose(0.15)
		p.run(2 * time.Second)
		if s := f.csf.Stats(); s.BreakerOpened != 1 {
			t.Errorf("m %d: the breaker opened %d times at a loss of 15 %%", params.FixedM, s.BreakerOpened)
		}
	}
}

// fate is what became of a packet.
type fate struct {
	due  time.Duration // when it arrives, or would have
	lost bool
}

// impaired is the times at which more than a tenth of the packets of the last second are lost, by the words of Section 10, rule 5: the first, and the
// last.
func impaired(all []fate) (first, last time.Duration) {
	lost, from := 0, 0
	for i, x := range all {
		if x.lost {
			lost++
		}
		for ; all[from].due <= x.due-time.Second; from++ {
			if all[from].lost {
				lost--
			}
		}
		if 10*lost > i+1-from && x.due-all[0].due >= time.Second {
			if last = x.due; first == 0 {
				first = last
			}
		}
	}
	return first, last
}

// Section 10, rule 5: the breaker opens, closes and gives up within a round trip, on average, of when the condition holds, or has been absent for long
// enough, where packets arrive, and never before it.
func TestSection10_BreakerInTime(t *testing.T) {
	const (
		gap  = 20 * pairGap
		late = pairRTT + pairRTT/2 + pairRTT/16 // where the loss is near the threshold a few packets are some milliseconds; it is looked at so often
	)
	var lags []time.Duration
	for _, loss := range []float64{0.12, 0.2, 0.5} {
		for seed := range uint64(3) {
			p := newPair(t, wan.Settings{Seed: 8 + seed, Loss: 1e-3})
			f := p.established(profile(), gap)
			f.fates = make([]fate, 0, 1<<18)
			p.run(2 * time.Second)
			p.lose(loss)
			p.runUntil(5*time.Second, func() bool { return f.csf.Impaired() })
			opened := p.now
			if f.csf.State() != csf.Suspended {
				t.Errorf("a loss of %g: %v", loss, f.csf.State())
			}
			p.run(2 * time.Second)
			want, _ := impaired(f.fates)
			if opened < want || opened > want+late {
				t.Errorf("a loss of %g (seed %d): open %v after the condition, want %v at most", loss, seed, opened-want, late)
			}
			lags = append(lags, opened-want)
			f.fates = f.fates[:0]
			p.run(2 * time.Second)
			p.lose(1e-3)
			p.runUntil(20*time.Second, func() bool { return !f.csf.Impaired() })
			if f.csf.State() != csf.Protecting {
				t.Errorf("a loss of %g: %v", loss, f.csf.State())
			}
			_, last := impaired(f.fates)
			if want := last + 10*time.Second; p.now < want || p.now > want+late {
				t.Errorf("a loss of %g (seed %d): closed %v after ten seconds without the condition, want %v at most", loss, seed, p.now-want, late)
			}
			lags = append(lags, p.now-last-10*time.Second)
			if seed > 0 {
				continue
			}
			p.lose(loss)
			p.runUntil(5*time.Second, func() bool { return f.csf.State() == csf.Suspended })
			ended := p.runUntil(70*time.Second, func() bool { return f.csf.State() != csf.Suspended })
			if ended < time.Minute-pairRTT || ended > time.Minute+late || f.csf.Explain().Why != csf.WhyImpaired {
				t.Errorf("a loss of %g: ended %v after it opened: %v", loss, ended, f.csf.Explain())
			}
		}
	}
	sum := time.Duration(0)
	for _, l := range lags {
		sum += l
	}
	mean := sum / time.Duration(len(lags))
	t.Logf("%v after the condition on average, %v at most", mean, slices.Max(lags))
	if mean > pairRTT {
		t.Errorf("%v after the condition on average, want a round trip", mean)
	}
	p := newPair(t, wan.Settings{Seed: 8, Loss: 0.09})
	f := p.established(profile(), gap)
	if p.runUntil(5*time.Second, func() bool { return f.csf.State() != csf.Protecting }) <= 5*time.Second {
		t.Error("open at a loss of 9 %")
	}
}

// rivalry is what came of a while in which a rival overfilled the bottleneck.
type rivalry struct {
	before, during, after tally
	rival                 int     // packets that it got through
	got                   float64 // of what it sent
	most                  float64 // repair octets of the source's in any round trip
	why                   csf.Why
}

// congested runs a flow through such a while. Without params it is not protected.
func congested(t *testing.T, params *csf.Params, path wan.Settings, loss float64) (r rivalry) {
	path.Rate, path.Loss = 750_000_000, loss
	p := newPair(t, path)
	var f *stream
	if params == nil {
		p.mute = true
		f = p.open(profile(), pairGap)
	} else {
		f = p.established(params, pairGap)
	}
	p.run(50 * pairRTT)
	r.before = f.during(50 * pairRTT)
	// Its frames are as long as the flow's: a full queue that has no room for those would often have some for shorter ones.
	p.rival = &rival{gap: 16 * time.Microsecond, next: p.now, frame: make([]byte, len(f.frame)), rng: rand.New(rand.NewPCG(path.Seed, 12))}
	p.run(pairRTT) // the queue fills
	sent, arrived := p.rival.sent, p.rival.arrived
	from := f.tally()
	for range 100 {
		x := f.during(pairRTT)
		r.most = max(r.most, x.repair/x.source)
	}
	r.during = f.tally().since(from)
	r.rival, r.why = p.rival.arrived-arrived, f.csf.Explain().Why
	r.got = float64(r.rival) / float64(p.rival.sent-sent)
	p.rival.next = never
	p.run(4 * pairRTT)
	r.after = f.during(20 * pairRTT)
	return r
}

// Loss by congestion raises nothing, whether it is known by marks or by queueing delay alone: neither p, nor the repair octets beside those of the
// source. A rival gets what it gets beside a flow without protection.
func TestSection5_3_CongestionRaisesNothing(t *testing.T) {
	onDemand := profile()
	onDemand.Strategy = csf.OnDemand
	for _, c := range []struct {
		name   string
		params *csf.Params
		path   wan.Settings
		loss   float64
	}{
		{"without marks", profile(), wan.Settings{Seed: 30, Queue: 600_000}, 1e-3},
		{"with marks", profile(), wan.Settings{Seed: 31, Queue: 600_000, CEThreshold: 150_000}, 1e-3},
		{"on demand", onDemand, wan.Settings{Seed: 32, Queue: 600_000}, 1e-4},
		{"clean before", profile(), wan.Settings{Seed: 33, Queue: 600_000}, 0},
	} {
		r, plain := congested(t, c.params, c.path, c.loss), congested(t, nil, c.path, c.loss)
		during, before, after := r.during, r.before, r.after
		share := float64(r.rival) / float64(plain.rival)
		t.Logf("%s: repair octets %.4f of the source's before, %.4f during, %.4f at most; m %.2f, %.2f, after %.2f; the rival has %.3f, %.3f of what it sends; %v", c.name,
			before.repair/before.source, during.repair/during.source, r.most, before.ordinary/before.blocks, during.ordinary/during.blocks, after.ordinary/after.blocks, share, r.got, r.why)
		if during.repair/during.source > before.repair/before.source*1.01 {
			t.Errorf("%s: %.4f of the source octets for repair, %.4f before", c.name, during.repair/during.source, before.repair/before.source)
		}
		const symbol = 2.5e-4 // of what the flow sends in a round trip
		if r.most > before.repair/before.source*1.01+symbol {
			t.Errorf("%s: %.4f of the source octets for repair in one round trip, %.4f before", c.name, r.most, before.repair/before.source)
		}
		if a, b := after.ordinary/after.blocks, before.ordinary/before.blocks; a > b+0.1 {
			t.Errorf("%s: %.2f symbols a block after it, %.2f before", c.name, a, b)
		}
		if plain.got > 0.99 {
			t.Fatalf("%s: the rival gets %.3f of what it sends: nothing is full", c.name, plain.got)
		}
		if share < 0.95 {
			t.Errorf("%s: the rival gets %.3f of what it gets beside a flow without protection", c.name, share)
		}
	}
}

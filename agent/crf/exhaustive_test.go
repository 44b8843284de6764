// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Every loss pattern of small blocks: all subsets of sources and repair symbols lost, for all k + m <= 8, in several orders of
// arrival, InOrder and Immediate, both coding schemes. A block comes back whole exactly when no more sources than symbols are missing.
func TestExhaustiveLossPatterns(t *testing.T) {
	most := 8
	if testing.Short() {
		most = 6
	}
	exhaust(t, most, wire.KindRoCEv2, InOrder, Immediate)
}

// The same for the transports whose packets vary their headers (Section 4.4, rule 3): whatever is lost, and in whatever order the rest comes, what is
// restored is octet for octet what was sent.
func TestSection4_4_ExhaustiveMultipath(t *testing.T) {
	const most = 6
	for _, kind := range multipathKinds {
		exhaust(t, most, kind, Immediate)
	}
}

func exhaust(t *testing.T, most int, kind wire.FlowKind, deliveries ...Delivery) {
	env := NewEnv(fec.NewPool(64 << 20))
	patterns := 0
	for k := 1; k < most; k++ {
		for m := 0; k+m <= most; m++ {
			x := newExhaustive(t, env, k, m, kind)
			for lost := range 1 << (k + m) {
				for _, order := range arrivalOrders {
					for _, d := range deliveries {
						x.run(lost, order, d)
						patterns++
					}
				}
			}
		}
	}
	t.Logf("%v: %d patterns", kind, patterns)
}

// order says when the repair symbols of the block come.
type order int

const (
	repairsLast    order = iota // after the block, first index first
	repairsReverse              // last index first
	repairsSpread               // among the next block's packets
	repairsFirst                // before the last source packet of the block
	sourcesReverse              // the block's packets come in reverse order, a burst of reordering within T_reorder
)

var arrivalOrders = [...]order{repairsLast, repairsReverse, repairsSpread, repairsFirst, sourcesReverse}

type exhaustive struct {
	t       *testing.T
	env     *Env
	k, m    int
	src     *source
	repairs []wire.Repair
}

const exhaustiveFirst = 1<<24 - 4 // blocks wrap

func newExhaustive(t *testing.T, env *Env, k, m int, kind wire.FlowKind) *exhaustive {
	w := configured(t, fec.Cauchy, k, m, ofKind(kind))
	w.src.data = func(p roce.PSN) int { return 8 + int(p)%40 }
	x := &exhaustive{t: t, env: env, k: k, m: m, src: &w.src}
	for i := range m {
		x.repairs = append(x.repairs, w.src.repair(exhaustiveFirst, k, i))
	}
	return x
}

func (x *exhaustive) run(lost int, o order, d Delivery) {
	w := &world{t: x.t, now: begin, p: testParams(), sent: nil, env: x.env}
	w.p.Delivery, w.p.MaxHold = d, 10*time.Second
	w.hello, w.rules = x.src.w.hello, x.src.w.rules
	w.f = New(w.now, testID, &w.hello, gateway, local, &w.p, w.env)
	w.k = kernel{learn: true, immediate: d == Immediate}
	w.f.HandleHello(w.now, &w.hello, &w.acts)
	w.take()
	w.now += testRTT
	w.configure(1, fec.Cauchy, x.k, x.m, testT)
	w.src = *x.src
	x.play(w, lost, o)
	x.judge(w, lost)
	w.f.Close(w.now, wire.CloseUnspecified, &w.acts)
	w.take()
	if w.f.cells != 0 || x.env.Pool.InUse() != 0 {
		x.t.Fatalf("k %d m %d lost %b order %d: %d cells, %d octets left", x.k, x.m, lost, o, w.f.cells, x.env.Pool.InUse())
	}
}

// play lets a packet before, the block, its symbols, and the next block arrive.
func (x *exhaustive) play(w *world, lost int, o order) {
	at := func(i int) roce.PSN { return roce.PSN(exhaustiveFirst).Add(i) }
	w.arrive(w.src.frame(at(-1)))
	repairs := func(from, to int) {
		for i := from; i < to; i++ {
			n := i
			if o == repairsReverse {
				n = x.m - 1 - i
			}
			if lost>>(x.k+n)&1 == 0 {
				w.repair(x.repairs[n])
			}
		}
	}
	for j := range x.k {
		n := j
		if o == sourcesReverse {
			n = x.k - 1 - j
		}
		if o == repairsFirst && j == x.k-1 {
			repairs(0, x.m)
		}
		if lost>>n&1 == 0 {
			w.arrive(w.src.frame(at(n)))
		}
	}
	if o != repairsFirst && o != repairsSpread {
		repairs(0, x.m)
	}
	for j := range x.k {
		w.arrive(w.src.frame(at(x.k + j)))
		if o == repairsSpread {
			repairs(j*x.m/x.k, (j+1)*x.m/x.k)
		}
	}
	w.wait(5 * time.Second)
}

func (x *exhaustive) judge(w *world, lost int) {
	gone, symbols := 0, 0
	for i := range x.k + x.m {
		switch {
		case i < x.k:
			gone += lost >> i & 1
		case lost>>i&1 == 0:
			symbols++
		}
	}
	want := 2*x.k + 1
	if gone > symbols {
		want -= gone
	}
	seen := map[roce.PSN]bool{}
	for i, d := range w.out {
		if seen[d.psn] {
			x.t.Fatalf("k %d m %d lost %b: %v twice", x.k, x.m, lost, d.psn)
		}
		seen[d.psn] = true
		if w.p.Delivery == InOrder && i > 0 && !d.psn.After(w.out[i-1].psn) {
			x.t.Fatalf("k %d m %d lost %b: out of order %v", x.k, x.m, lost, w.psns())
		}
	}
	if len(w.out) != want {
		x.t.Fatalf("k %d m %d lost %b: %d packets delivered, want %d: %v, %+v", x.k, x.m, lost, len(w.out), want, w.psns(), w.f.stats)
	}
	w.wantTrue()
	if w.f.stats.RestoreVerifyFailures != 0 || w.f.stats.Missing != 0 {
		x.t.Fatalf("k %d m %d lost %b: %+v", x.k, x.m, lost, w.f.stats)
	}
}

// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"cmp"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// oracle is a Reporter by the words of the protocol, with lists for tables and everything reckoned anew each time.
type oracle struct {
	c       Config
	flows   []*naiveFlow // the most recently used last
	last    Counters
	read    bool
	reports uint64
	drops   [DropReasons]uint64
	dropped uint64
}

type naiveFlow struct {
	k       Flow
	packets uint64
	share   float64
	sentAt  time.Duration // long ago: never
	making  []*naiveReport
}

type naiveReport struct {
	method wire.Method
	since  time.Duration
	drop   bool
	cut    bool
	hops   []naiveHop
}

type naiveHop struct {
	wire.Hop
	own  bool
	psns []roce.PSN
}

// octets is the length of the IP packet.
func (r *naiveReport) octets(k Flow) int {
	n := 40 + 8 + 8 + 4 + 4 + 2*k.Src.BitLen()/8
	for _, h := range r.hops {
		n += 20 + 4*len(h.psns)
	}
	return n
}

func (o *oracle) flow(k Flow) *naiveFlow {
	i := slices.IndexFunc(o.flows, func(f *naiveFlow) bool { return f.k == k })
	if i >= 0 {
		f := o.flows[i]
		o.flows = append(slices.Delete(o.flows, i, i+1), f)
		return f
	}
	if len(o.flows) == o.c.Flows {
		o.drops[DropEvicted] += uint64(len(o.flows[0].making))
		o.flows = o.flows[1:]
	}
	f := &naiveFlow{k: k, sentAt: -time.Hour}
	o.flows = append(o.flows, f)
	return f
}

func (o *oracle) making(now time.Duration, f *naiveFlow, method wire.Method) *naiveReport {
	n := 0
	for _, g := range o.flows {
		n += len(g.making)
	}
	for _, r := range f.making {
		if r.method == method {
			return r
		}
	}
	if n == o.c.Pending {
		o.drops[DropPending]++
		return nil
	}
	r := &naiveReport{method: method, since: now}
	f.making = append(f.making, r)
	return r
}

// ownHop returns the node's entry for a cause.
func (o *oracle) ownHop(f *naiveFlow, r *naiveReport, cause wire.Cause) *naiveHop {
	for i := range r.hops {
		if r.hops[i].own && r.hops[i].Cause == cause {
			return &r.hops[i]
		}
	}
	return o.hop(f, r, naiveHop{Hop: wire.Hop{NodeID: o.c.Node, Cause: cause}, own: true})
}

func (o *oracle) hop(f *naiveFlow, r *naiveReport, h naiveHop) *naiveHop {
	if len(r.hops) == 16 || r.octets(f.k)+20 > o.c.MTU {
		o.drops[DropPending]++
		return nil
	}
	r.hops = append(r.hops, h)
	return &r.hops[len(r.hops)-1]
}

func (o *oracle) drop(now time.Duration, k Flow, psn roce.PSN, cause wire.Cause) {
	o.dropped++
	f := o.flow(k)
	r := o.making(now, f, 3)
	if r == nil {
		return
	}
	h := o.ownHop(f, r, cause)
	if h == nil {
		return
	}
	r.drop = true
	if h.Lost < math.MaxUint32 {
		h.Lost++
	}
	if r.octets(f.k)+4 > o.c.MTU || len(h.psns) == 255 {
		r.cut = true
		o.drops[DropTruncated]++
		return
	}
	h.psns = append(h.psns, psn)
}

func (o *oracle) counters(now time.Duration, c Counters) {
	last, first := o.last, !o.read
	o.last, o.read = c, true
	whole := !first && c.Passed >= last.Passed && c.Dropped >= last.Dropped
	for i := len(o.flows) - 1; i >= 0; i-- {
		f := o.flows[i]
		if n := f.packets; whole && n > 0 && c.Dropped > last.Dropped {
			passed := max(float64(c.Passed-last.Passed), float64(n))
			f.share += float64(c.Dropped-last.Dropped) * float64(n) / passed
			lost := uint32(f.share)
			f.share -= float64(lost)
			if lost > 0 {
				if r := o.making(now, f, 3); r != nil {
					if h := o.ownHop(f, r, wire.CauseCongestion); h != nil {
						h.Lost += lost
						r.drop = true
					}
				}
			}
		}
		f.packets = 0
	}
}

func (o *oracle) measured(now time.Duration, x Measurement) {
	if x.Lost == 0 && x.DelayChange < 100 && x.DelayChange > -100 {
		return
	}
	f := o.flow(x.Flow)
	if r := o.making(now, f, 1); r != nil {
		o.hop(f, r, naiveHop{Hop: wire.Hop{NodeID: o.c.Node, Period: x.Period, Lost: x.Lost, DelayChange: x.DelayChange}, own: true})
	}
}

func (o *oracle) merge(now time.Duration, x *wire.PathReport) bool {
	if x.Method < 1 || x.Method > 3 || x.HopCount == 0 {
		o.drops[DropMalformed]++
		return false
	}
	var hops []naiveHop
	need, drop := 0, false
	for _, h := range x.Hops[:x.HopCount] {
		if h.NodeID == o.c.Node {
			o.drops[DropOwnNode]++
			return false
		}
		n := naiveHop{Hop: h, psns: psns(h)}
		need += 20 + 4*len(n.psns)
		drop = drop || h.Lost > 0 || len(n.psns) > 0
		n.PSNs = nil
		hops = append(hops, n)
	}
	f := o.flow(Flow{Src: x.Src, Dst: x.Dst, Label: x.Label})
	r := o.making(now, f, x.Method)
	if r == nil {
		return false
	}
	cut := (&naiveReport{}).octets(f.k)+need > o.c.MTU
	if cut {
		need = 20 * len(hops)
	}
	if len(r.hops)+len(hops) > 16 || r.octets(f.k)+need > o.c.MTU {
		o.drops[DropForwarded]++
		if len(r.hops) == 0 {
			f.making = slices.DeleteFunc(f.making, func(x *naiveReport) bool { return x == r })
		}
		return false
	}
	if left := (o.c.MTU - r.octets(f.k) - need) / 4; cut {
		for i := range hops {
			n := min(left, len(hops[i].psns))
			if n < len(hops[i].psns) {
				r.cut = true
			}
			o.drops[DropTruncated] += uint64(len(hops[i].psns) - n)
			if hops[i].psns = hops[i].psns[:n]; n == 0 {
				hops[i].psns = nil
			}
			left -= n
		}
	}
	r.hops = append(r.hops, hops...)
	r.drop, r.cut = r.drop || drop, r.cut || x.Truncated
	return true
}

// due returns what must leave by now and takes it away. The two reports of a flow that are due at once must not leave together, and which of
// them goes first is not said: take decides.
func (o *oracle) take(now time.Duration, x *sent) *naiveReport {
	for _, f := range o.flows {
		if f.k != (Flow{Src: x.Src, Dst: x.Dst, Label: x.Label}) {
			continue
		}
		for i, r := range f.making {
			if r.method != x.Method || o.dueAt(f, r) > now {
				continue
			}
			f.making = slices.Delete(f.making, i, i+1)
			f.sentAt = now
			o.reports++
			return r
		}
	}
	return nil
}

func (o *oracle) dueAt(f *naiveFlow, r *naiveReport) time.Duration {
	gap := 10 * time.Millisecond
	if r.drop {
		gap = 100 * time.Microsecond
	}
	return max(r.since+50*time.Microsecond, f.sentAt+gap)
}

func (o *oracle) next() time.Duration {
	at := roce.Never
	for _, f := range o.flows {
		for _, r := range f.making {
			at = min(at, o.dueAt(f, r))
		}
	}
	return at
}

// check compares a report that was sent with what the oracle has for it.
func (o *oracle) check(t testing.TB, now time.Duration, x *sent) {
	t.Helper()
	r := o.take(now, x)
	if r == nil {
		t.Fatalf("at %v a report that is not due: %+v", now, x)
	}
	var got []naiveHop
	number := uint32((o.c.Unix + now) / (10 * time.Microsecond))
	for i, h := range x.Hops[:x.HopCount] {
		n := naiveHop{Hop: h, psns: psns(h), own: h.NodeID == o.c.Node}
		n.PSNs = nil
		if n.own && x.Method == 3 {
			if n.Period != number {
				t.Fatalf("entry %d has number %d, not %d", i, n.Period, number)
			}
			number++
			n.Period = 0
		}
		got = append(got, n)
	}
	if x.Truncated != r.cut || !reflect.DeepEqual(got, r.hops) {
		t.Fatalf("method %d, truncated %v: %+v\nnot %v: %+v", x.Method, x.Truncated, got, r.cut, r.hops)
	}
}

// tape reads operations from fuzz input.
type tape struct{ b []byte }

func (t *tape) next() int {
	if len(t.b) == 0 {
		return 0
	}
	v := t.b[0]
	t.b = t.b[1:]
	return int(v)
}

// play does all operations of an input with both.
func play(t testing.TB, data []byte) *bench {
	in := &tape{data}
	c := Config{Node: testNode, Unix: testUnix, MTU: 576 + 4*in.next(), Flows: 1 + in.next()%6, Pending: 1 + in.next()%8, PerSecond: 1e9}
	b, o := newBench(t, c), &oracle{c: c}
	count := Counters{}
	settle := func(at time.Duration) {
		for {
			next := o.next()
			if d := b.r.NextDeadline(); d > next {
				t.Fatalf("due at %v, the deadline is %v", next, d)
			}
			if next > at {
				break
			}
			got := b.until(next)
			if len(got) == 0 {
				t.Fatalf("nothing left at %v", next)
			}
			slices.SortStableFunc(got, func(x, y sent) int { return cmp.Compare(x.at, y.at) })
			for i := range got {
				o.check(t, got[i].at, &got[i])
			}
		}
		for _, x := range b.until(at) {
			o.check(t, x.at, &x)
		}
	}
	for len(in.b) > 0 {
		k := testFlow(in.next() % 8)
		if k.Label%2 == 1 {
			k.Src, k.Dst = src6, dst6
		}
		switch in.next() % 8 {
		case 0, 1:
			cause := wire.Cause(in.next() % 5)
			for i := range 1 + in.next()%90 {
				b.r.HandleDrop(b.now, k, roce.PSN(i), cause)
				o.drop(b.now, k, roce.PSN(i), cause)
			}
		case 2:
			n := in.next()
			b.r.Count(k, n)
			o.flow(k).packets += uint64(n)
		case 3:
			count.Passed, count.Dropped = count.Passed+uint64(in.next())*8, count.Dropped+uint64(in.next())
			if in.next() == 0 {
				count = Counters{}
			}
			b.r.HandleCounters(b.now, count)
			o.counters(b.now, count)
		case 4:
			x := Measurement{Flow: k, Period: uint32(in.next()), Lost: uint32(in.next() % 4), DelayChange: int32(in.next()-128) * 2}
			b.r.HandleMeasurement(b.now, &x)
			o.measured(b.now, x)
		case 5, 6:
			x := &wire.PathReport{Method: wire.Method(in.next() % 5), Src: k.Src, Dst: k.Dst, Label: k.Label, Truncated: in.next()%8 == 0, HopCount: in.next() % 6}
			for i := range x.Hops[:x.HopCount] {
				h := wire.Hop{NodeID: uint32(in.next()), Period: uint32(in.next()), Lost: uint32(in.next() % 3), Cause: wire.Cause(in.next() % 5)}
				if in.next() == 0 {
					h.NodeID = testNode
				}
				for range in.next() % 64 {
					h.PSNs = h.PSNs.Append(roce.PSN(in.next()))
				}
				x.Hops[i] = h
			}
			if got, want := b.r.Merge(b.now, x), o.merge(b.now, x); got != want {
				t.Fatalf("merged: %v, not %v", got, want)
			}
		case 7:
			settle(b.now + time.Duration(in.next()*in.next())*time.Microsecond)
		}
	}
	settle(b.now + time.Second)
	s := b.r.Stats()
	if s.Reports != o.reports || s.Drops != o.drops || s.Dropped != o.dropped || b.r.pending != 0 {
		t.Fatalf("%+v, %d pending\nnot %d reports, %d dropped, %v", s, b.r.pending, o.reports, o.dropped, o.drops)
	}
	return b
}

func randomTape(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func FuzzReporter(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 16 {
		f.Add(randomTape(rng, 400))
	}
	f.Fuzz(func(t *testing.T, data []byte) { play(t, data[:min(len(data), 2000)]) })
}

// The same with long random inputs, and proof that they reach what they should.
func TestRandomOperations(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var sum Stats
	for range 400 {
		s := play(t, randomTape(rng, 2000)).r.Stats()
		sum.Reports += s.Reports
		sum.Attributed += s.Attributed
		sum.Merged += s.Merged
		sum.Measured += s.Measured
		sum.Evicted += s.Evicted
		for i, n := range s.Drops {
			sum.Drops[i] += n
		}
	}
	for name, n := range map[string]uint64{
		"reports": sum.Reports, "attributed": sum.Attributed, "merged": sum.Merged, "measured": sum.Measured, "evicted flows": sum.Evicted,
		"malformed": sum.Drops[DropMalformed], "pending": sum.Drops[DropPending], "truncated": sum.Drops[DropTruncated],
		"forwarded": sum.Drops[DropForwarded], "evicted reports": sum.Drops[DropEvicted], "own node": sum.Drops[DropOwnNode],
	} {
		if n < 20 {
			t.Errorf("only %d %s", n, name)
		}
	}
	t.Logf("%+v", sum)
}

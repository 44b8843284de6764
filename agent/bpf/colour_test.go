// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/test/frames"
)

// colourPeriod is so long that a test stays in the period in which it sets the clock.
const colourPeriod = 24 * time.Hour

const colour = 0x04

// newMeasuredWorld has tunnels that are measured.
func newMeasuredWorld(t *testing.T, use int, tunnels ...bpf.Tunnel) *tunnelWorld {
	t.Helper()
	w := newTunnelWorldOf(t, bpf.TunnelConfig{Period: colourPeriod})
	plan := tunnelPlan(use, tunnels...)
	plan.Sites[0].Measured = true
	w.set(plan)
	return w
}

// at sets the programs' clock to a part of a period.
func (w *tunnelWorld) at(n uint32, part float64) {
	w.t.Helper()
	w.tunnels.SetUnix(w.t, time.Duration(n)*colourPeriod+time.Duration(part*float64(colourPeriod)))
}

// recolour sets the octet of DSCP and ECN of an outer header.
func recolour(p []byte, class uint8) {
	if p[0]>>4 == 6 {
		p[0], p[1] = p[0]&0xf0|class>>4, p[1]&0x0f|class<<4
		return
	}
	p[1], p[10], p[11] = class, 0, 0
	sum := frames.Checksum(p[:20])
	p[10], p[11] = byte(sum>>8), byte(sum)
}

func class(p []byte) uint8 {
	if p[0]>>4 == 6 {
		return p[0]<<4 | p[1]>>4
	}
	return p[1]
}

// RFC 9341 and Section 8.2, rule 7: the outer DSCP carries the colour of its period and nothing else changes, in all four pairs of IP versions, for every ECN
// field; a DSCP that has the bit itself stays as it is.
func TestRFC9341_OuterColourOfThePeriod(t *testing.T) {
	for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
		w := newMeasuredWorld(t, 0, tunnel)
		w.open(tunnel)
		oracle := w.oracle(tunnel, false)
		for n := uint32(100); n < 102; n++ {
			w.at(n, 0.25)
			for _, v6 := range []bool{false, true} {
				for _, tos := range []uint8{0x68, 0x69, 0x6a, 0x6b, 0x6e} {
					frame := fromHost(v6, tos, 7, 1024).Frame()
					w.hostSends(frame)
					got := w.seen()[14:]
					want, why := oracle.Encapsulate(nil, forwarded(frame))
					if why != ecn.DropNone {
						t.Fatal(why)
					}
					if n&1 == 1 {
						recolour(want, class(want)|colour)
					}
					if !bytes.Equal(asOracle(got), asOracle(want)) {
						t.Errorf("period %d, outer IPv6 %v, inner IPv6 %v, class %#x:\n%x, want\n%x", n, tunnel.Remote.Is6(), v6, tos, got, want)
					}
				}
			}
		}
		if got := w.stats().Passages[bpf.Colourless]; got != 4 {
			t.Errorf("%d packets without a colour, want 4", got)
		}
		for _, v6 := range []bool{false, true} {
			r := fromHost(v6, 0, 0, 0)
			c, ok, err := w.tunnels.EnteredOf(tunnel, bpf.TunnelFlow{Src: r.Src, Dst: r.Dst, QPN: r.QPN})
			if !ok || err != nil || c.Periods[100%reporter.Kept].Packets != 4 || c.Periods[101%reporter.Kept].Packets != 4 {
				t.Errorf("%+v, %v, %v", c, ok, err)
			}
		}
	}
}

// RFC 9341: what arrives is counted in the nearest period of its colour, what leaves in the present one, as agent/reporter says; the colour does not
// reach the host.
func TestRFC9341_KernelCountsAsPeriodsSay(t *testing.T) {
	w := newMeasuredWorld(t, 0, tunnel4, tunnel6)
	w.open(tunnel4)
	host, there := w.listenRaw(), w.oracle(tunnel4, true)
	periods := reporter.NewPeriods(colourPeriod)
	rng := rand.New(rand.NewPCG(1, 2))
	type bounds struct {
		reporter.Counts
		least [reporter.Kept]time.Duration
	}
	entered, arrived := map[uint32]*bounds{}, map[uint32]*bounds{}
	add := func(list map[uint32]*bounds, qpn, n uint32, before, after time.Duration) {
		b := list[qpn]
		if b == nil {
			b = &bounds{Counts: reporter.Counts{Since: periods.At(before)}}
			list[qpn] = b
		}
		p := &b.Periods[n%reporter.Kept]
		if p.Number != n {
			*p, b.least[n%reporter.Kept] = reporter.PeriodCounts{Number: n}, 0
		}
		p.Packets++
		p.Sum += periods.Since(after, n)
		b.least[n%reporter.Kept] += periods.Since(before, n)
	}
	for i := range 60 {
		n := 100 + uint32(i/10)
		at := time.Duration(n)*colourPeriod + time.Duration((0.1+0.8*rng.Float64())*float64(colourPeriod))
		w.tunnels.SetUnix(t, at)
		start := bpf.TAI(t)
		now := func() time.Duration { return at + bpf.TAI(t) - start }
		const slack = 10 * time.Millisecond // between reading a clock and setting the other by it
		r := toHost(i%2 == 0, 0x68, uint32(i))
		r.QPN = 0x10 + uint32(rng.IntN(2))
		p, why := there.Encapsulate(nil, r.Frame()[14:])
		if why != ecn.DropNone {
			t.Fatal(why)
		}
		coloured := rng.IntN(2) == 1
		if coloured {
			recolour(p, class(p)|colour)
		}
		before := now()
		w.sendPacket(p, false)
		if got := host.next(soon); !bytes.Equal(got, forwarded(r.Frame())) {
			t.Fatalf("%x, want\n%x", got, r.Frame()[14:])
		}
		key := r.QPN | uint32(i%2)<<16
		add(arrived, key, periods.Of(before, coloured), before-slack, now()+slack)

		s := fromHost(i%2 == 0, 0x68, uint32(i), 256)
		s.QPN = r.QPN
		before = now()
		w.hostSends(s.Frame())
		w.seen()
		add(entered, key, periods.At(before), before-slack, now()+slack)
	}
	check := func(what string, got reporter.Counts, want *bounds) {
		t.Helper()
		if got.Since != want.Since || got.Recoloured != 0 {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		for i, p := range got.Periods {
			x := want.Periods[i]
			if p.Number != x.Number || p.Packets != x.Packets || p.Sum < want.least[i] || p.Sum > x.Sum {
				t.Errorf("%s: %+v, want %+v, at least %v", what, p, x, want.least[i])
			}
		}
	}
	flow := func(key uint32, leaves bool) bpf.TunnelFlow {
		r := toHost(key>>16 == 0, 0, 0)
		if leaves {
			r = fromHost(key>>16 == 0, 0, 0, 0)
		}
		return bpf.TunnelFlow{Src: r.Src, Dst: r.Dst, QPN: key & 0xffff}
	}
	seen := 0
	err := w.tunnels.Arrived(func(c *bpf.FlowCounts) {
		for key, want := range arrived {
			if c.Flow == flow(key, false) && c.Tunnel == tunnel4 {
				check("arrived", c.Counts, want)
				seen++
			}
		}
	})
	if err != nil || seen != len(arrived) || seen != 4 {
		t.Errorf("%v; %d flows of %d", err, seen, len(arrived))
	}
	for key, want := range entered {
		got, ok, err := w.tunnels.EnteredOf(tunnel4, flow(key, true))
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		check("entered", got, want)
	}
	seen = 0
	err = w.tunnels.Entered(func(c *bpf.FlowCounts) {
		for key, want := range entered {
			if c.Flow == flow(key, true) && c.Tunnel == tunnel4 {
				check("all that entered", c.Counts, want)
				seen++
			}
		}
	})
	if err != nil || seen != len(entered) || seen != 4 {
		t.Errorf("%v; %d flows of %d", err, seen, len(entered))
	}
	if _, ok, err := w.tunnels.EnteredOf(tunnel6, flow(0x10, true)); ok || err != nil {
		t.Errorf("%v, %v: nothing went into the other tunnel", ok, err)
	}
}

// A DSCP that was changed on its way says nothing of the colour; the packet arrives all the same.
func TestRFC9341_ChangedDSCP(t *testing.T) {
	w := newMeasuredWorld(t, -1, tunnel4)
	w.at(100, 0.25)
	host, there := w.listenRaw(), w.oracle(tunnel4, true)
	for _, outer := range []uint8{0x6a, 0x02, 0x6e, 0x4a} {
		p, _ := there.Encapsulate(nil, toHost(false, 0x6a, 1).Frame()[14:])
		recolour(p, outer)
		w.sendPacket(p, false)
		if got := host.next(soon); got == nil || class(got) != 0x6a {
			t.Fatalf("%#x outside: %x", outer, got)
		}
	}
	own, _ := there.Encapsulate(nil, toHost(false, 0x6e, 1).Frame()[14:])
	w.sendPacket(own, false)
	if got := host.next(soon); got == nil || class(got) != 0x6e {
		t.Fatalf("%x", got)
	}
	if got := w.stats().Passages; got[bpf.Recoloured] != 2 || got[bpf.Colourless] != 1 || got[bpf.Decapsulated] != 5 {
		t.Errorf("%v", got)
	}
	_ = w.tunnels.Arrived(func(c *bpf.FlowCounts) {
		if c.Recoloured != 100 || c.Periods[0].Packets != 1 || c.Periods[3].Packets != 1 {
			t.Errorf("%+v", c)
		}
	})
}

// Counting is off unless asked for, and begins with the plan that asks for it; the tunnel stays open.
func TestRFC9341_OffUnlessAskedFor(t *testing.T) {
	w := newMeasuredWorld(t, 0, tunnel4)
	w.open(tunnel4)
	w.at(101, 0.25)
	for _, on := range []bool{false, true, false} {
		plan := tunnelPlan(0, tunnel4)
		plan.Sites[0].Measured = on
		w.set(plan)
		frame := fromHost(false, 0x68, 7, 512).Frame()
		w.hostSends(frame)
		got := w.seen()[14:]
		if coloured := class(got) == 0x68|colour; got[9] != 4 || coloured != on || !on && class(got) != 0x68 {
			t.Errorf("measured %v: %x", on, got)
		}
	}
	w.arriveUncounted(toHost(false, 0x68, 1).Frame()[14:])
	plan := tunnelPlan(0, tunnel4)
	plan.Sites[0].Measured = true
	w.set(plan)
	request := toHost(false, 0x68, 1)
	request.Opcode, request.DstPort, request.Src, request.Dst = 0x1d, cremPort, tunnel4.Remote, tunnel4.Local
	w.arriveUncounted(request.Frame()[14:])
	c, ok, err := w.tunnels.EnteredOf(tunnel4, bpf.TunnelFlow{Src: netip.MustParseAddr("10.2.0.6"), Dst: netip.MustParseAddr("10.9.0.9"), QPN: fromHost(false, 0, 0, 0).QPN})
	if !ok || err != nil || c.Periods[101%reporter.Kept].Packets != 1 {
		t.Errorf("%+v, %v, %v", c, ok, err)
	}
}

// arriveUncounted has a packet come out of the tunnel, and nothing counted of it.
func (w *tunnelWorld) arriveUncounted(inner []byte) {
	w.t.Helper()
	p, why := w.oracle(tunnel4, true).Encapsulate(nil, inner)
	if why != ecn.DropNone {
		w.t.Fatal(why)
	}
	const colourless = 0x6c // never counted
	last, _ := w.oracle(tunnel4, true).Encapsulate(nil, toHost(false, colourless, 1).Frame()[14:])
	host, before := w.listenRaw(), w.stats().Passages[bpf.Decapsulated]
	w.sendPacket(p, false)
	w.sendPacket(last, false) // when it is at the host, the other one has passed
	for got := host.next(soon); got == nil || class(got) != colourless; got = host.next(soon) {
		if got == nil {
			w.t.Fatal("nothing has come")
		}
	}
	if n := w.stats().Passages[bpf.Decapsulated] - before; n != 2 {
		w.t.Fatalf("%d packets came out of the tunnel, want 2", n)
	}
	if err := w.tunnels.Arrived(func(c *bpf.FlowCounts) { w.t.Errorf("counted: %+v", c) }); err != nil {
		w.t.Fatal(err)
	}
}

// A flow for which there is no room arrives uncounted; when others are forgotten it is counted.
func TestRFC9341_RoomForCounts(t *testing.T) {
	w := newMeasuredWorld(t, -1, tunnel4)
	w.at(100, 0.25)
	w.tunnels.FillCounts(t, 90)
	host, there := w.listenRaw(), w.oracle(tunnel4, true)
	arrive := func() (counted int) {
		t.Helper()
		p, _ := there.Encapsulate(nil, toHost(false, 0x6a, 1).Frame()[14:])
		w.sendPacket(p, false)
		if host.next(soon) == nil {
			t.Fatal("lost")
		}
		if err := w.tunnels.Arrived(func(*bpf.FlowCounts) { counted++ }); err != nil {
			t.Fatal(err)
		}
		return counted
	}
	if n := arrive(); n != 0 || w.stats().Passages[bpf.Uncounted] != 1 {
		t.Errorf("%d flows counted, %v", n, w.stats().Passages)
	}
	for _, x := range []struct {
		since   uint32
		counted int
	}{{90, 0}, {91, 1}} {
		if err := w.tunnels.ForgetCounts(x.since); err != nil {
			t.Fatal(err)
		}
		if n := arrive(); n != x.counted {
			t.Errorf("forgotten before %d: %d flows counted, want %d", x.since, n, x.counted)
		}
	}
	if n := w.stats().Passages[bpf.Uncounted]; n != 2 {
		t.Errorf("%d uncounted", n)
	}
}

// No packet is counted twice or left out while several processors count one flow.
func TestRFC9341_CountedByManyProcessors(t *testing.T) {
	w := newMeasuredWorld(t, -1, tunnel4)
	w.at(100, 0.25)
	p, _ := w.oracle(tunnel4, true).Encapsulate(nil, toHost(false, 0x68, 1).Frame()[14:])
	recolour(p, 0x6b) // counted, and then dropped: it cannot say that it met congestion
	frame := append(append(append([]byte{}, upMAC[:]...), farMAC[:]...), append([]byte{0x08, 0x00}, p...)...)
	const each, processors = 100_000, 4
	var group sync.WaitGroup
	for range processors {
		group.Go(func() { w.tunnels.Arrive(t, frame, each) })
	}
	group.Wait()
	err := w.tunnels.Arrived(func(c *bpf.FlowCounts) {
		if c.Periods[100%reporter.Kept].Packets != each*processors {
			t.Errorf("%+v", c)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// The programs' clock follows the system's, and says when it made a jump by that.
func TestRFC9341_ClockOfThePrograms(t *testing.T) {
	w := newMeasuredWorld(t, -1, tunnel4)
	for i, want := range []bool{false, true, false} {
		if i == 1 {
			w.at(100, 0)
		}
		if jumped, err := w.tunnels.SetClock(); err != nil || jumped != want {
			t.Errorf("%d: jumped %v, %v", i, jumped, err)
		}
	}
}

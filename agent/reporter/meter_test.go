// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const (
	testPeriod = 100 * time.Millisecond
	period     = uint64(testPeriod / time.Microsecond)
	testWall   = uint64(1_800_000_000_000_000)
)

// line is two measurement points with a path between them. Times are microseconds.
type line struct {
	t        testing.TB
	wall     uint64
	offset   int64 // of the second point's clock
	delay    uint64
	in, out  *Meter
	lose     func(n int) bool
	n        int
	inFlight []flying
	got      []Measurement
}

type flying struct {
	at   uint64
	k    Flow
	mark Mark
}

func newLine(t testing.TB, double bool) *line {
	c := MeterConfig{Period: testPeriod, Double: double, Flows: 8}
	return &line{t: t, wall: testWall + 1, delay: 10_000, in: NewMeter(c), out: NewMeter(c), lose: func(int) bool { return false }}
}

// step lets time pass, sends a packet, and compares what is over.
func (l *line) step(d uint64, k Flow) {
	l.wall += d
	mark := l.in.Mark(l.wall, k)
	if l.n++; !l.lose(l.n) {
		l.inFlight = append(l.inFlight, flying{l.wall + l.delay, k, mark})
	}
	l.arrive()
	l.in.Readings(l.wall, func(up Reading) {
		if x, why := l.out.Compare(uint64(int64(l.wall)+l.offset), up); why == DropNone {
			l.got = append(l.got, x)
		}
	})
}

func (l *line) arrive() {
	keep := l.inFlight[:0]
	for _, f := range l.inFlight {
		if f.at > l.wall {
			keep = append(keep, f)
			continue
		}
		l.out.Count(uint64(int64(f.at)+l.offset), f.k, f.mark)
	}
	l.inFlight = keep
}

func (l *line) lost() (n uint32) {
	for _, x := range l.got {
		n += x.Lost
	}
	return n
}

// Loss of every period is exact, with clocks apart, packets in flight over the change of colour, and reordering.
func TestRFC9341_LossBetweenTwoPoints(t *testing.T) {
	for _, offset := range []int64{0, 30_000, -30_000} {
		l := newLine(t, false)
		l.offset = offset
		rng := rand.New(rand.NewPCG(1, 2))
		by := map[uint32]uint32{}
		l.lose = func(int) bool {
			if l.wall < testWall+2*period || rng.IntN(50) != 0 {
				return false
			}
			by[l.in.periods.At(l.wall)]++
			return true
		}
		for range 20_000 {
			l.delay = 10_000 + uint64(rng.IntN(5000)) // reordered
			l.step(uint64(rng.IntN(200)), testFlow(1))
		}
		if len(l.got) < 15 {
			t.Fatalf("%d periods compared", len(l.got))
		}
		for i, x := range l.got {
			if x.Lost != by[x.Period] || x.Flow != testFlow(1) || i > 0 && x.Period != l.got[i-1].Period+1 {
				t.Errorf("clocks %d apart: %+v, %d were lost", offset, x, by[x.Period])
			}
		}
	}
}

// A period of which nothing arrives is lost as a whole.
func TestRFC9341_EverythingLost(t *testing.T) {
	l := newLine(t, false)
	l.lose = func(int) bool { return l.in.periods.At(l.wall) == l.in.periods.At(testWall)+5 }
	for range 1000 {
		l.step(1000, testFlow(1))
	}
	if n := l.lost(); n != 100 {
		t.Errorf("%d lost of 100", n)
	}
}

// The change of delay is that of the mean, whatever the difference of clocks is: single marking sums all packets, double marking some.
func TestRFC9341_ChangeOfDelay(t *testing.T) {
	for _, double := range []bool{false, true} {
		l := newLine(t, double)
		l.offset = 20_000
		changes := map[uint32]int32{}
		first := l.in.periods.At(testWall)
		for range 1200 {
			if l.in.periods.At(l.wall+1000) >= first+6 {
				l.delay = 13_000
			}
			l.step(1000, testFlow(1))
		}
		for _, x := range l.got {
			changes[x.Period-first] = x.DelayChange
		}
		for n := uint32(1); n < 9; n++ {
			want := int32(0)
			if n == 6 {
				want = 3000
			}
			if got := changes[n]; got != want {
				t.Errorf("double %v, period %d: %d us", double, n, got)
			}
		}
		if len(l.got) < 9 {
			t.Errorf("%d periods", len(l.got))
		}
	}
}

// Double marking measures delay where packets are lost, as long as none of the few with the second mark is; single marking does not.
func TestRFC9341_DelayUnderLoss(t *testing.T) {
	for _, double := range []bool{false, true} {
		l := newLine(t, double)
		first := l.in.periods.At(testWall)
		l.lose = func(n int) bool { return n%10 == 7 }
		for range 1200 {
			if l.in.periods.At(l.wall+1000) >= first+6 {
				l.delay = 13_000
			}
			l.step(1000, testFlow(1))
		}
		measured := false
		for _, x := range l.got {
			measured = measured || x.DelayChange == 3000
		}
		if measured != double || l.lost() < 80 {
			t.Errorf("double %v: a change was measured: %v; %d lost", double, measured, l.lost())
		}
	}
}

func TestRFC9341_SecondMarks(t *testing.T) {
	l := newLine(t, true)
	by := map[uint32]int{}
	for range 999 {
		l.wall += 500
		if l.in.Mark(l.wall, testFlow(1)).Delay {
			by[l.in.periods.At(l.wall)]++
		}
	}
	for n, marked := range by {
		if marked != marks {
			t.Errorf("period %d: %d second marks", n, marked)
		}
	}
	if len(by) != 5 {
		t.Errorf("%d periods", len(by))
	}
}

func TestRFC9341_ReadingsThatSayNothing(t *testing.T) {
	l := newLine(t, false)
	n := l.out.periods.At(testWall)
	start := func(p uint32) uint64 { return testWall + uint64(p)*period }
	l.out.Count(start(0)+5, testFlow(1), Mark{Colour: coloured(n)})
	for p := uint32(1); p < 3; p++ {
		l.out.Count(start(p)+5, testFlow(1), Mark{Colour: coloured(n + p)})
	}
	at := start(3)
	up := func(k, p uint32) Reading { return Reading{Flow: testFlow(int(k)), Period: n + p, Packets: 9} }
	for name, c := range map[string]struct {
		wall uint64
		up   Reading
		why  DropReason
	}{
		"of another flow":         {at, up(2, 1), DropUnknownFlow},
		"before this point began": {at, up(1, 0), DropPartial},
		"not over":                {at, up(1, 2), DropEarly},
		"long over":               {start(1) + 4*period, up(1, 1), DropOutdated},
		"of the future":           {at, up(1, 1<<31-1), DropEarly},
	} {
		before := l.out.Stats().Drops[c.why]
		if _, why := l.out.Compare(c.wall, c.up); why != c.why || l.out.Stats().Drops[c.why] != before+1 {
			t.Errorf("%s: %v", name, why)
		}
	}
	if x, why := l.out.Compare(at, up(1, 1)); why != DropNone || x.Lost != 8 {
		t.Errorf("%+v, %v", x, why)
	}
	if _, why := l.out.Compare(at, up(1, 1)); why != DropRepeated {
		t.Errorf("again: %v", why)
	}
	if l.out.Count(start(1), testFlow(1), Mark{Colour: coloured(n + 1)}); l.out.Stats().Packets != 4 {
		t.Error("a late packet of a period that is kept counts")
	}
	l.out.Count(start(5)+5, testFlow(1), Mark{Colour: coloured(n + 5)}) // takes the place of period 1
	if l.out.Count(start(1)+5, testFlow(1), Mark{Colour: coloured(n + 1)}); l.out.Stats().Drops[DropOutdated] != 2 {
		t.Error("a packet of a period that is not kept")
	}
	l.out.Count(at, Flow{}, Mark{})
	if s := l.out.Stats(); s.Drops[DropMalformed] != 1 {
		t.Errorf("%+v", s)
	}
}

// Flows are bounded; one that was forgotten counts again from its next whole period on.
func TestRFC9341_BoundedFlows(t *testing.T) {
	l := newLine(t, false)
	for i := range 2000 {
		l.step(500, testFlow(i%20)) // of 8 that fit: none is ever whole
	}
	if len(l.got) != 0 || l.in.Stats().Evicted < 1900 || l.in.flows.Len() != 8 {
		t.Errorf("%d compared, %d evicted", len(l.got), l.in.Stats().Evicted)
	}
	for range 1000 {
		l.step(500, testFlow(1))
	}
	if len(l.got) == 0 || l.lost() != 0 {
		t.Errorf("%+v", l.got)
	}
}

// What was measured goes to the CSF: loss, and a change of delay that it could take for a rise.
func TestSection8_2_MeasurementsAreReported(t *testing.T) {
	b := newBench(t, testConfig())
	for _, x := range []Measurement{{Flow: testFlow(1), Period: 4, DelayChange: 99}, {Flow: testFlow(1), Period: 5, DelayChange: -99}} {
		b.r.HandleMeasurement(b.now, &x)
	}
	if got := b.wait(time.Second); len(got) != 0 {
		t.Fatalf("nothing worth a report: %+v", got)
	}
	b.r.HandleMeasurement(b.now, &Measurement{Flow: testFlow(1), Period: 6, Lost: 3, DelayChange: -7})
	b.r.HandleMeasurement(b.now, &Measurement{Flow: testFlow(1), Period: 7, DelayChange: 100})
	got := b.wait(time.Second)
	if len(got) != 1 || got[0].HopCount != 2 || got[0].Method != wire.MethodAlternateMarking {
		t.Fatalf("%+v", got)
	}
	h, i := got[0].Hops[0], got[0].Hops[1]
	if h.NodeID != testNode || h.Period != 6 || h.Lost != 3 || h.DelayChange != -7 || h.Cause != wire.CauseUnknown || i.Period != 7 || i.DelayChange != 100 {
		t.Errorf("%+v, %+v", h, i)
	}
	if b.r.NextDeadline() != roce.Never {
		t.Error("something is due")
	}
}

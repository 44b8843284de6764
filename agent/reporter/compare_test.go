// SPDX-License-Identifier: Apache-2.0

package reporter

import (
	"math/rand/v2"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

const testPeriod = 100 * time.Millisecond

// meter counts as a measurement point does.
type meter struct {
	periods Periods
	flows   map[Flow]*Counts
}

func newMeter() *meter { return &meter{NewPeriods(testPeriod), map[Flow]*Counts{}} }

func (m *meter) count(unix time.Duration, k Flow, n uint32) {
	c := m.flows[k]
	if c == nil {
		c = &Counts{Since: m.periods.At(unix)}
		m.flows[k] = c
	}
	p := &c.Periods[n%Kept]
	if p.Number != n {
		*p = PeriodCounts{Number: n}
	}
	p.Packets++
	p.Sum += m.periods.Since(unix, n)
}

// line is two measurement points with a path between them.
type line struct {
	t        testing.TB
	periods  Periods
	unix     time.Duration
	offset   time.Duration // of the second point's clock
	delay    time.Duration
	in, out  *meter
	of       *Comparer
	lose     func() bool
	bleached bool // a node of the path takes the colours away
	inFlight []flying
	told     uint32
	got      []Measurement
}

type flying struct {
	at     time.Duration
	k      Flow
	colour bool
}

func newLine(t testing.TB) *line {
	p := NewPeriods(testPeriod)
	return &line{
		t: t, periods: p, unix: testUnix + 1, delay: 10 * time.Millisecond, in: newMeter(), out: newMeter(), of: NewComparer(p, 8),
		lose: func() bool { return false }, told: p.At(testUnix),
	}
}

// step lets time pass, sends a packet, and compares what is over by the second point's clock.
func (l *line) step(d time.Duration, k Flow) {
	l.unix += d
	n := l.periods.At(l.unix)
	l.in.count(l.unix, k, n)
	if !l.lose() {
		l.inFlight = append(l.inFlight, flying{l.unix + l.delay, k, Colour(n) && !l.bleached})
	}
	keep := l.inFlight[:0]
	for _, f := range l.inFlight {
		if f.at > l.unix {
			keep = append(keep, f)
			continue
		}
		at := f.at + l.offset
		l.out.count(at, f.k, l.periods.Of(at, f.colour))
	}
	l.inFlight = keep
	if over := l.periods.Over(l.unix + l.offset); over != l.told {
		l.told = over
		l.compare(over)
	}
}

func (l *line) compare(n uint32) {
	for k, c := range l.out.flows {
		down, why := c.Reading(k, n, n)
		if why != DropNone {
			l.of.Drop(why)
			continue
		}
		up, why := l.in.flows[k].Reading(k, l.periods.At(l.unix)-1, n)
		if why != DropNone {
			l.of.Drop(why)
			continue
		}
		if x, why := l.of.Compare(up, down); why == DropNone {
			l.got = append(l.got, x)
		}
	}
}

func (l *line) lost() (n uint32) {
	for _, x := range l.got {
		n += x.Lost
	}
	return n
}

// Loss of every period is exact, with clocks apart, packets in flight over the change of colour, and reordering.
func TestRFC9341_LossBetweenTwoPoints(t *testing.T) {
	for _, offset := range []time.Duration{0, 30 * time.Millisecond, -30 * time.Millisecond} {
		l := newLine(t)
		l.offset = offset
		rng := rand.New(rand.NewPCG(1, 2))
		by := map[uint32]uint32{}
		l.lose = func() bool {
			if rng.IntN(50) != 0 {
				return false
			}
			by[l.periods.At(l.unix)]++
			return true
		}
		for range 20_000 {
			l.delay = 10*time.Millisecond + time.Duration(rng.IntN(5000))*time.Microsecond // reordered
			l.step(time.Duration(rng.IntN(200))*time.Microsecond, testFlow(1))
		}
		if len(l.got) < 15 {
			t.Fatalf("%d periods compared: %v", len(l.got), l.of.Stats().Drops)
		}
		for i, x := range l.got {
			if x.Lost != by[x.Period] || x.Flow != testFlow(1) || i > 0 && x.Period != l.got[i-1].Period+1 {
				t.Errorf("clocks %v apart: %+v, %d were lost", offset, x, by[x.Period])
			}
		}
	}
}

// A period of which nothing arrives is lost as a whole.
func TestRFC9341_EverythingLost(t *testing.T) {
	l := newLine(t)
	l.lose = func() bool { return l.periods.At(l.unix) == l.periods.At(testUnix)+5 }
	for range 1000 {
		l.step(time.Millisecond, testFlow(1))
	}
	if n := l.lost(); n != 100 {
		t.Errorf("%d lost of 100", n)
	}
}

// The change of delay is that of the mean, whatever the difference of clocks is.
func TestRFC9341_ChangeOfDelay(t *testing.T) {
	l := newLine(t)
	l.offset = 20 * time.Millisecond
	changes := map[uint32]int32{}
	first := l.periods.At(testUnix)
	for range 1200 {
		if l.periods.At(l.unix+time.Millisecond) >= first+6 {
			l.delay = 13 * time.Millisecond
		}
		l.step(time.Millisecond, testFlow(1))
	}
	for _, x := range l.got {
		changes[x.Period-first] = x.DelayChange
	}
	for n := uint32(3); n < 9; n++ {
		want := int32(0)
		if n == 6 {
			want = 3000
		}
		if got := changes[n]; got != want {
			t.Errorf("period %d: %d us", n, got)
		}
	}
	if len(l.got) < 7 {
		t.Errorf("%d periods", len(l.got))
	}
}

// Under loss the change is told as far as it is beyond what the loss may explain: it is never larger than the true one, nor of the other sign.
func TestRFC9341_DelayUnderLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, burst := range []bool{false, true} {
		l := newLine(t)
		first := l.periods.At(testUnix)
		l.lose = func() bool {
			if burst { // all in one place, where it changes the mean most
				return l.unix%testPeriod > testPeriod*99/100
			}
			return rng.IntN(100) == 0
		}
		rise := int32(0)
		for range 12_000 {
			if l.periods.At(l.unix+100*time.Microsecond) >= first+6 {
				l.delay = 20 * time.Millisecond
			}
			l.step(100*time.Microsecond, testFlow(1))
		}
		for _, x := range l.got {
			if x.Period == first+6 {
				rise = x.DelayChange
			} else if x.DelayChange != 0 {
				t.Errorf("burst %v: %+v", burst, x)
			}
		}
		if rise < 6000 || rise > 10_000 || l.lost() < 50 {
			t.Errorf("burst %v: a rise of 10000 us is told as %d; %d lost", burst, rise, l.lost())
		}
	}
}

// Colours that a node of the path takes away never look like loss.
func TestRFC9341_ColoursThatAreGoneAreNoLoss(t *testing.T) {
	l := newLine(t)
	l.bleached = true
	for range 5000 {
		l.step(time.Millisecond, testFlow(1))
	}
	if s := l.of.Stats(); len(l.got) != 0 || s.Drops[DropExcess] < 20 {
		t.Errorf("%+v, %+v", l.got, s)
	}
}

// After packets that were too many the next period of the other colour does not count.
func TestRFC9341_AfterExcess(t *testing.T) {
	c := NewComparer(NewPeriods(testPeriod), 4)
	reading := func(n, packets uint32) Reading { return Reading{Flow: testFlow(1), Period: n, Packets: packets} }
	for i, x := range []struct {
		up, down uint32
		why      DropReason
	}{
		{9, 9, DropUnproven}, {9, 8, DropNone}, {9, 10, DropExcess}, {9, 0, DropUnproven}, {9, 9, DropNone}, {0, 0, DropIdle}, {9, 9, DropNone}, {0, 1, DropExcess}, {9, 3, DropUnproven},
	} {
		m, why := c.Compare(reading(uint32(i), x.up), reading(uint32(i), x.down))
		if why != x.why || why == DropNone && (m.Lost != x.up-x.down || m.Entered != x.up) {
			t.Errorf("%d: %+v, %v, want %v", i, m, why, x.why)
		}
	}
	if s := c.Stats(); s.Packets != 27 || s.Lost != 1 {
		t.Errorf("%+v", s)
	}
}

func TestRFC9341_ReadingsThatSayNothing(t *testing.T) {
	full := Counts{Since: 100}
	for n := uint32(101); n < 105; n++ {
		full.Periods[n%Kept] = PeriodCounts{Number: n, Packets: n, Sum: time.Duration(n)}
	}
	recoloured := full
	recoloured.Recoloured = 102
	idle := Counts{Since: 100}
	for name, x := range map[string]struct {
		c       Counts
		over, n uint32
		packets uint32
		why     DropReason
	}{
		"whole":                    {full, 103, 103, 103, DropNone},
		"whole, earlier":           {full, 103, 102, 102, DropNone},
		"begun in it":              {full, 103, 100, 0, DropPartial},
		"begun in the one before":  {full, 103, 101, 0, DropPartial},
		"not over":                 {full, 103, 104, 0, DropEarly},
		"its place is another's":   {Counts{Since: 10, Periods: full.Periods}, 103, 100, 0, DropOutdated},
		"nothing came":             {full, 106, 106, 0, DropNone},
		"nothing ever came":        {idle, 106, 106, 0, DropNone},
		"changed in it":            {recoloured, 103, 102, 0, DropRecoloured},
		"changed in one before it": {recoloured, 103, 103, 0, DropRecoloured},
		"changed long before it":   {recoloured, 104, 104, 104, DropNone},
	} {
		r, why := x.c.Reading(testFlow(1), x.over, x.n)
		if why != x.why || why == DropNone && (r.Packets != x.packets || r.Sum != time.Duration(x.packets) || r.Period != x.n || r.Flow != testFlow(1)) {
			t.Errorf("%s: %+v, %v", name, r, why)
		}
	}
	idleButRecoloured := Counts{Since: 100, Recoloured: 102}
	if full.Newest() != 104 || idle.Newest() != 100 || idleButRecoloured.Newest() != 102 {
		t.Errorf("newest %d, %d and %d", full.Newest(), idle.Newest(), idleButRecoloured.Newest())
	}
	c := NewComparer(NewPeriods(testPeriod), 4)
	r := Reading{Flow: testFlow(1), Period: 7, Packets: 3}
	c.Compare(r, r)
	other, earlier, mixed := r, r, r
	other.Flow = testFlow(2)
	earlier.Period = 6
	mixed.Flow.Dst = dst6
	for name, x := range map[string]struct {
		up, down Reading
		why      DropReason
	}{
		"again":          {r, r, DropRepeated},
		"earlier":        {earlier, earlier, DropRepeated},
		"of two flows":   {r, other, DropMalformed},
		"of two periods": {r, earlier, DropMalformed},
		"of no flow":     {mixed, mixed, DropMalformed},
	} {
		before := c.Stats().Drops[x.why]
		if _, why := c.Compare(x.up, x.down); why != x.why || c.Stats().Drops[x.why] != before+1 {
			t.Errorf("%s: %v", name, why)
		}
	}
}

// Periods: every time is of one period, a colour is that of the nearest, and one is over when it has been for half its length.
func TestRFC9341_Periods(t *testing.T) {
	p := NewPeriods(testPeriod)
	rng := rand.New(rand.NewPCG(5, 6))
	for range 10_000 {
		at := testUnix + time.Duration(rng.Int64N(int64(testPeriod)*1000))
		n := p.At(at)
		if d := p.Since(at, n); d < 0 || d >= testPeriod || p.Since(at, n+1) != d-testPeriod || p.Since(at, n-2) != d+2*testPeriod {
			t.Fatalf("%v is %v after the start of period %d", at, d, n)
		}
		for _, late := range []time.Duration{0, testPeriod/2 - 1, -testPeriod / 2} {
			if got := p.Of(at+late, Colour(n)); got != n {
				t.Fatalf("%v late: period %d, want %d", late, got, n)
			}
		}
		over, wait := p.Over(at), p.UntilOver(at)
		if p.Since(at, over) < testPeriod*3/2 || p.Since(at, over) >= testPeriod*5/2 || wait <= 0 || wait > testPeriod || p.Over(at+wait) != over+1 || p.Over(at+wait-1) != over {
			t.Fatalf("at %v period %d is over, the next one %v later", at, over, wait)
		}
	}
}

// Flows are bounded; one that was forgotten is proven anew.
func TestRFC9341_BoundedFlows(t *testing.T) {
	c := NewComparer(NewPeriods(testPeriod), 8)
	for n := range uint32(200) {
		for i := range 20 {
			r := Reading{Flow: testFlow(i), Period: n, Packets: 5}
			if _, why := c.Compare(r, r); why != DropUnproven {
				t.Fatal(why)
			}
		}
	}
	if c.Stats().Evicted < 3900 || c.flows.Len() != 8 {
		t.Errorf("%+v", c.Stats())
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

// RFC 9341: a mean that lost packets may have moved is doubted also when it is what the next period is compared with; and what was before colours that
// were wrong is compared with nothing.
func TestRFC9341_DoubtfulDelays(t *testing.T) {
	const ms = time.Millisecond
	c := NewComparer(NewPeriods(testPeriod), 4)
	for i, x := range []struct {
		up, down       uint32
		upSum, downSum time.Duration
		why            DropReason
		change         int32
	}{
		{10, 10, 500 * ms, 500 * ms, DropUnproven, 0},
		{10, 9, 500 * ms, 400 * ms, DropNone, 0}, // the last one of a period is lost: the mean falls by 5.6 ms
		{10, 10, 500 * ms, 500 * ms, DropNone, 0},
		{10, 10, 500 * ms, 550 * ms, DropNone, 5000},
		{10, 12, 500 * ms, 900 * ms, DropExcess, 0},
		{10, 10, 500 * ms, 600 * ms, DropUnproven, 0},
		{10, 10, 500 * ms, 700 * ms, DropNone, 0}, // the first that is known
		{10, 10, 500 * ms, 710 * ms, DropNone, 1000},
	} {
		m, why := c.Compare(Reading{testFlow(1), uint32(i), x.up, x.upSum}, Reading{testFlow(1), uint32(i), x.down, x.downSum})
		if why != x.why || m.DelayChange != x.change {
			t.Errorf("%d: %v, change %d; want %v, %d", i, why, m.DelayChange, x.why, x.change)
		}
	}
}

// Numbers of periods go round: those of the far half are not taken for empty places of the list, nor these for newer ones.
func TestRFC9341_PeriodsGoRound(t *testing.T) {
	const n = 3_000_000_000
	c := Counts{Since: n}
	c.Periods[n%Kept] = PeriodCounts{Number: n, Packets: 1}
	if got := c.Newest(); got != n {
		t.Errorf("newest %d", got)
	}
	if r, why := c.Reading(testFlow(1), n+5, n+3); why != DropNone || r.Packets != 0 {
		t.Errorf("a period without packets: %+v, %v", r, why)
	}
	p := NewPeriods(time.Second)
	if got := p.Of(10*time.Second+500*time.Millisecond, true); got != 11 {
		t.Errorf("in the middle of period 10, as near to 9 as to 11: %d; the programs say 11", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func marker(t *testing.T, random func() uint32) *Marker {
	t.Helper()
	m, err := NewMarker(MarkerConfig{T1: 1000, T2: 3000, Average: time.Millisecond, Random: random})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// at makes queue the average.
func (m *Marker) atQueue(queue int64) {
	m.Sample(m.at, queue)
	m.Sample(m.at+time.Second, queue)
}

func TestWANECN_T2IsStrictlyGreaterThanT1(t *testing.T) {
	one := func() uint32 { return 1 }
	for _, c := range []MarkerConfig{
		{T1: 1000, T2: 1000}, {T1: 1000, T2: 999}, {T1: 0, T2: 10}, {T1: -1, T2: 10}, {T1: 1, T2: 2, T3: 2}, {T1: 1, T2: 2, EarlyMax: 1.1}, {T1: 1, T2: 2, CEMax: -1},
	} {
		c.Average, c.Random = time.Millisecond, one
		if _, err := NewMarker(c); err == nil {
			t.Errorf("%+v accepted", c)
		}
	}
}

// The early warning is linear in the average queue between T1 and T2; above T2 there is CE.
func TestWANECN_EarlyWarningIsLinear(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := marker(t, rng.Uint32)
	const tries = 20_000
	for _, c := range []struct {
		queue         int64
		early, severe float64
	}{{0, 0, 0}, {1000, 0, 0}, {1500, 0.25, 0}, {2000, 0.5, 0}, {3000, 1, 0}, {4500, 0.75, 0.25}, {6000, 0, 1}, {1 << 40, 0, 1}} {
		m.atQueue(c.queue)
		*m.Stats() = MarkerStats{}
		for i := range tries {
			m.Mark([]Codepoint{ECT0, ECT1}[i%2])
		}
		for _, x := range []struct{ got, want float64 }{{float64(m.Stats().Early) / tries, c.early}, {float64(m.Stats().Severe) / tries, c.severe}} {
			if math.Abs(x.got-x.want) > 0.02 {
				t.Errorf("queue %d: share %.3f, want %.3f (%+v)", c.queue, x.got, x.want, *m.Stats())
			}
		}
	}
}

// With the same draw a longer queue never gives a lesser mark; Not-ECT is never marked, and CE never unmarked.
func TestWANECN_MarksRiseWithTheQueue(t *testing.T) {
	draw := uint32(0)
	m := marker(t, func() uint32 { return draw })
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 2000 {
		if i > 0 { // the least draw is one of them
			draw = rng.Uint32()
		}
		before := LevelNone
		for queue := int64(0); queue < 8000; queue += 250 {
			m.atQueue(queue)
			c, level := m.Mark(ECT0)
			if queue <= 3000 && level == LevelSevere {
				t.Fatalf("CE at %d, not above T2", queue)
			}
			if level < before {
				t.Fatalf("draw %#x: level %v at %d after %v", draw, level, queue, before)
			}
			if want := map[Level]Codepoint{LevelNone: ECT0, LevelEarly: ECT1, LevelSevere: CE}[level]; c != want {
				t.Fatalf("level %v with field %v", level, c)
			}
			before = level
			if c, level := m.Mark(NotECT); c != NotECT || level != LevelNone {
				t.Fatal("Not-ECT was marked")
			}
			if c, _ := m.Mark(CE); c != CE {
				t.Fatal("CE was taken away")
			}
		}
	}
}

// Micro-bursts do not count: the average follows time, however many samples there are.
func TestWANECN_MicroBurstsAreNotCongestion(t *testing.T) {
	m := marker(t, func() uint32 { return 0 })
	for range 1000 {
		m.Sample(m.at+time.Microsecond, 50)
		for range 20 {
			m.Sample(m.at, 100_000) // at once, and gone again
		}
		m.Sample(m.at, 50)
	}
	if m.Average() > 60 {
		t.Errorf("average %d", m.Average())
	}
	if n := testing.AllocsPerRun(100, func() { m.Sample(m.at+1, 5); m.Mark(ECT0) }); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

// The clock that goes back changes nothing of what was before: the sample counts as the last one's.
func TestWANECN_SamplesOfThePast(t *testing.T) {
	m := marker(t, func() uint32 { return 0 })
	m.Sample(time.Second, 1000)
	m.Sample(time.Second-time.Hour, 2000)
	m.Sample(time.Second+time.Microsecond, 2000)
	if got := m.Average(); got < 0 || got > 2 { // a microsecond of 2000 octets, in an average over a millisecond
		t.Errorf("average %d", got)
	}
}

// A marking node that seldom warns: the chance of any mark is never less than that of CE, which is one of them.
func TestWANECN_CEIsAmongTheMarks(t *testing.T) {
	m, err := NewMarker(MarkerConfig{T1: 1000, T2: 3000, EarlyMax: 0.1, CEMax: 0.5, Average: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	m.atQueue(5999)
	if marked, severe := m.Chances(); severe < 0.49 || marked < severe {
		t.Errorf("any mark %g, CE %g", marked, severe)
	}
	m.atQueue(3001)
	if marked, severe := m.Chances(); severe > 0.01 || marked != 0.1 {
		t.Errorf("just over T2: any mark %g, CE %g", marked, severe)
	}
}

// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math"
	"slices"
	"testing"
	"time"

	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
)

func pipe(t *testing.T, l Link, seed uint64) *Pipe[int] {
	t.Helper()
	p, err := NewPipe[int](l, seed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// got is a packet that arrived.
type got struct {
	at    time.Duration
	n     int
	marks Marks
}

// drain lets everything arrive, each at its deadline.
func drain(p *Pipe[int]) (out []got) {
	for p.NextDeadline() != roce.Never {
		at := p.NextDeadline()
		n, marks, ok := p.Receive(at)
		if !ok {
			return append(out, got{at, -1, marks})
		}
		out = append(out, got{at, n, marks})
	}
	return out
}

// A packet arrives when it has been sent, and has travelled; nothing arrives before its deadline. Two million packets of 83.2 ns take as long as
// their octets.
func TestTimeOnTheWire(t *testing.T) {
	p := pipe(t, Link{Rate: 400e9, Delay: time.Millisecond, Framing: 64}, 1)
	const n, octets = 100_000, 4096
	for i := range n {
		if p.Send(0, i, octets, ecn.ECT0) != OnItsWay {
			t.Fatal("lost without loss")
		}
	}
	if _, _, ok := p.Receive(p.NextDeadline() - 1); ok {
		t.Error("received before its time")
	}
	all := drain(p)
	for i, x := range all {
		exact := math.Ceil(float64(i+1)*(octets+64)*8/400) + 1e6 // 8 bits at 400 bits a nanosecond
		if x.n != i || math.Abs(float64(x.at)-exact) > 1 {
			t.Fatalf("packet %d came as %d at %v, not %v ns", i, x.n, x.at, exact)
		}
	}
	if s := p.Stats(); len(all) != n || s.Delivered != n || s.SentOctets != n*octets || s.DeliveredOctets != n*octets {
		t.Errorf("%d packets, %+v", len(all), s)
	}
	// A sender that waits until the wire is free leaves no gap.
	q := pipe(t, Link{Rate: 400e9, Framing: 64}, 1)
	now := time.Duration(0)
	for i := range n {
		q.Send(now, i, octets, ecn.ECT0)
		now = q.Free()
	}
	if exact := math.Ceil(n * (octets + 64) * 8 / 400.); math.Abs(float64(now)-exact) > 1 {
		t.Errorf("%d packets, each sent when the wire was free, took %v, not %v ns", n, now, exact)
	}
	if free := p.Free(); free != all[n-1].at-time.Millisecond {
		t.Errorf("the wire is free at %v, the last packet left it at %v", free, all[n-1].at-time.Millisecond)
	}
}

// Random loss has the rate that was asked for, independently; bursts have the rate and the mean length; bit errors grow with size.
func TestLossIsAsAskedFor(t *testing.T) {
	const n = 1 << 21
	for name, c := range map[string]struct {
		loss     Loss
		octets   int
		rate     float64
		meanRun  float64
		variance float64 // of the number of losses, over that of independent ones
	}{
		"independent":         {Loss{Rate: 0.01}, 1000, 0.01, 1 / 0.99, 1},
		"rare":                {Loss{Rate: 1e-4}, 1000, 1e-4, 1, 1},
		"bursts of 8":         {Loss{Rate: 0.01, Burst: 8}, 1000, 0.01, 8, 15},
		"half lost in bursts": {Loss{Rate: 0.01, Burst: 8, Inside: 0.5}, 1000, 0.01, 1 / (1 - 0.5*7/8), 8},
		"size of reference":   {Loss{Rate: 0.01, Reference: 1000}, 1000, 0.01, 1 / 0.99, 1},
		"four times as large": {Loss{Rate: 0.01, Reference: 1000}, 4000, 1 - math.Pow(0.99, 4), 1 / math.Pow(0.99, 4), 1},
		"a tenth as large":    {Loss{Rate: 0.01, Reference: 1000}, 100, 1 - math.Pow(0.99, 0.1), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := pipe(t, Link{Rate: 1e9, Loss: c.loss}, 5)
			lost, runs, before := 0, 0, false
			for i := range n {
				now := p.Send(0, i, c.octets, ecn.ECT0) == Lost
				if now {
					lost++
					if !before {
						runs++
					}
				}
				before = now
			}
			sigma := math.Sqrt(n * c.rate * c.variance)
			if math.Abs(float64(lost)-n*c.rate) > 4*sigma {
				t.Errorf("%d of %d lost, expected %.0f±%.0f", lost, n, n*c.rate, sigma)
			}
			if run := float64(lost) / float64(runs); math.Abs(run-c.meanRun) > 0.05*c.meanRun {
				t.Errorf("runs of losses have a mean length of %.2f, expected %.2f", run, c.meanRun)
			}
			if int(p.Stats().Lost) != lost {
				t.Errorf("%d counted as lost, not %d", p.Stats().Lost, lost)
			}
		})
	}
}

// A bounded queue drops what finds no room, or trims it: then the rest overtakes what waits.
func TestFullQueueDropsOrTrims(t *testing.T) {
	l := Link{Rate: 8e9, Queue: Queue{Octets: 10_000}} // an octet a nanosecond
	p := pipe(t, l, 1)
	var full int
	for i := range 20 {
		if p.Send(0, i, 1000, ecn.ECT0) == Full {
			full++
		}
	}
	if full != 10 || p.Stats().Full != 10 || len(drain(p)) != 10 {
		t.Errorf("%d of 20 packets of 1,000 octets did not fit into 10,000 octets", full)
	}
	if p.Send(5500, 0, 1000, ecn.ECT0) != OnItsWay {
		t.Error("no room although five packets have left")
	}

	l.Queue.Trim = 64
	p = pipe(t, l, 1)
	for i := range 12 {
		p.Send(0, i, 1000, ecn.ECT0)
	}
	all := drain(p)
	if len(all) != 12 || all[0].n != 10 || !all[0].marks.Trimmed || all[0].at != 64 || all[1].n != 11 || all[2].marks.Trimmed {
		t.Errorf("trimmed packets did not overtake: %+v", all)
	}
	if last := all[11].at; last != 10_000 {
		t.Errorf("the queue was empty at %v, not 10us", last)
	}
}

// Marks follow the queue: none below the lower threshold; Step marks all above; RED marks more the longer the average queue is; two thresholds give
// early warnings first, CE above. What is not ECN-capable is never marked.
func TestMarkingFollowsTheQueue(t *testing.T) {
	share := func(m Marking, waiting int, field ecn.Codepoint) (early, severe float64) {
		const n = 4000
		p := pipe(t, Link{Rate: 8e9, Queue: Queue{Marking: m}}, 3)
		now := time.Duration(0)
		for range n { // every packet finds so many octets before it
			p.lanes[0].busy = int64(now)*1000 + int64(waiting)*1000
			p.Send(now, 0, 1000, field)
			now += time.Microsecond
		}
		s := p.Stats()
		for _, x := range drain(p) {
			if x.marks.ECN != field && field == ecn.NotECT {
				t.Errorf("%v became %v", field, x.marks.ECN)
			}
		}
		return float64(s.Early) / n, float64(s.CE) / n
	}
	step := Marking{Kind: Step, Low: 10_000}
	red := Marking{Kind: RED, Low: 10_000, High: 30_000, Most: 0.4}
	two := Marking{Kind: TwoThreshold, Low: 10_000, High: 30_000}
	for _, c := range []struct {
		m             Marking
		waiting       int
		early, severe float64
	}{
		{step, 9_000, 0, 0}, {step, 11_000, 0, 1},
		{red, 9_000, 0, 0}, {red, 20_000, 0, 0.2}, {red, 25_000, 0, 0.3}, {red, 40_000, 0, 1},
		{two, 9_000, 0, 0}, {two, 20_000, 0.5, 0}, {two, 45_000, 0.75, 0.25},
	} {
		early, severe := share(c.m, c.waiting, ecn.ECT0)
		if math.Abs(early-c.early) > 0.06 || math.Abs(severe-c.severe) > 0.06 {
			t.Errorf("marking %d with %d octets waiting: early %.2f, CE %.2f; expected %.2f, %.2f", c.m.Kind, c.waiting, early, severe, c.early, c.severe)
		}
		if early, severe := share(c.m, c.waiting, ecn.NotECT); early+severe > 0 {
			t.Errorf("marking %d marked packets that are not ECN-capable", c.m.Kind)
		}
	}
}

// Jitter keeps the order of a lane and stays within its bound. Reordering lets others overtake the packets that it delays, and all arrive.
func TestJitterAndReordering(t *testing.T) {
	send := func(l Link) []got {
		p := pipe(t, l, 9)
		for i := range 5000 {
			p.Send(time.Duration(i)*time.Microsecond, i, 100, ecn.ECT0)
		}
		return drain(p)
	}
	for i, x := range send(Link{Rate: 8e9, Delay: time.Millisecond, Jitter: 50 * time.Microsecond}) {
		least := time.Duration(i)*time.Microsecond + time.Millisecond + 100
		if x.n != i || x.at < least || x.at > least+50*time.Microsecond {
			t.Fatalf("packet %d came as %d at %v", i, x.n, x.at)
		}
	}
	all := send(Link{Rate: 8e9, Reorder: Reorder{Share: 0.1, By: 50 * time.Microsecond}})
	late, last := 0, time.Duration(0)
	seen := make([]bool, 5000)
	for i, x := range all {
		if x.at < last || seen[x.n] {
			t.Fatalf("packet %d came at %v after %v, or twice", x.n, x.at, last)
		}
		seen[x.n], last = true, x.at
		if i > 0 && x.n < all[i-1].n {
			late++
		}
	}
	if len(all) != 5000 || late < 300 || late > 600 {
		t.Errorf("%d packets came, %d of them late; expected about a tenth", len(all), late)
	}
}

// Lanes take turns, each with its share of the rate and its own length.
func TestLanesSprayPackets(t *testing.T) {
	p := pipe(t, Link{Rate: 32e9, Delay: time.Millisecond, Lanes: 4, Skew: 300 * time.Microsecond}, 1)
	for i := range 8 {
		p.Send(0, i, 1000, ecn.ECT0)
	}
	var order []int
	for _, x := range drain(p) {
		order = append(order, x.n)
		lane, place := x.n%4, x.n/4
		if want := time.Millisecond + time.Duration(place+1)*time.Microsecond + time.Duration(lane)*100*time.Microsecond; x.at != want {
			t.Errorf("packet %d came at %v, not %v", x.n, x.at, want)
		}
	}
	if !slices.Equal(order, []int{0, 4, 1, 5, 2, 6, 3, 7}) {
		t.Errorf("order %v", order)
	}
}

// The order of arrivals is that of a stable sort by time, whatever mix of ring and heap holds them.
func TestArrivalsAreSorted(t *testing.T) {
	var q arrivals[int]
	var want []got
	x := uint64(1)
	for i := range 20_000 {
		x = x*6364136223846793005 + 1442695040888963407
		at := time.Duration(i/3) + time.Duration(x>>60)*time.Duration(x>>32&0xf)
		q.push(arrival[int]{at: at, packet: i})
		want = append(want, got{at: at, n: i})
	}
	slices.SortStableFunc(want, func(a, b got) int { return int(a.at - b.at) })
	for i, w := range want {
		if a := q.pop(); a.at != w.at || a.packet != w.n {
			t.Fatalf("place %d: packet %d at %v, expected %d at %v", i, a.packet, a.at, w.n, w.at)
		}
	}
	if q.first() != nil {
		t.Error("more comes out than went in")
	}
}

// What no link can be is refused, with a reason.
func TestImpossibleLinks(t *testing.T) {
	good := Link{Rate: 1e9}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Link){
		"no rate":            func(l *Link) { l.Rate = 0 },
		"negative delay":     func(l *Link) { l.Delay = -1 },
		"loss of everything": func(l *Link) { l.Loss.Rate = 1 },
		"negative burst":     func(l *Link) { l.Loss.Burst = -1 },
		"burst too dense":    func(l *Link) { l.Loss = Loss{Rate: 0.9, Burst: 2} },
		"reordering over 1":  func(l *Link) { l.Reorder.Share = 1.5 },
		"negative queue":     func(l *Link) { l.Queue.Octets = -1 },
		"no threshold":       func(l *Link) { l.Queue.Marking.Kind = Step },
		"thresholds equal":   func(l *Link) { l.Queue.Marking = Marking{Kind: TwoThreshold, Low: 5, High: 5} },
		"unknown marking":    func(l *Link) { l.Queue.Marking.Kind = 9 },
		"too many lanes":     func(l *Link) { l.Lanes = 5000 },
	} {
		l := good
		change(&l)
		if _, err := NewPipe[int](l, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Bounds of how much is sampled: delayed units in all samples together, and samples. Of a message with more delayed units than partDelays a part is
// sampled, and the rest takes as long as the second half of that.
const (
	sampledDelays = 1 << 17
	mostSamples   = 4000
	leastSamples  = 64
	partDelays    = sampledDelays / leastSamples
	// fewSamples do not tell a p99.9, but are of so many delays each that their sum is next to normal.
	fewSamples = 1000
)

// Within is the completion where a unit may be sent only when all units before it but the last window are complete: what a receiver that keeps
// track of a window of packets lets its sender do. A delayed unit then holds up all that would be sent past the window, so there is no product of
// independent distributions: messages are sampled, always the same ones. What no sample is needed for stays exact: a message without a delayed unit,
// and one that fits into the window.
func (s Stream) Within(window float64) Distribution {
	window = max(math.Floor(window), 1)
	if window >= s.Units || len(s.Delay) == 0 {
		return s
	}
	w := windowed{stream: s, window: window}
	// Steps of the delay that end before anything could notice are no delay.
	const unnoticed = 1.0 / 64
	for len(w.stream.Delay) > 1 && w.stream.Delay[1].At < unnoticed*s.After {
		w.stream.Delay = w.stream.Delay[1:]
	}
	d := bounded{free: w.completion(nil), units: s.Units, share: w.stream.Delay[0].Left}
	if d.some() <= negligible {
		return d
	}
	delays := s.Units * d.share
	parts := max(delays/partDelays, 1)
	w.stream.Units /= parts
	n := int(min(sampledDelays/(delays/parts), mostSamples))
	const stream = 0x77696e
	rng := rand.New(rand.NewPCG(uint64(n), stream))
	d.sample(n, 2*(parts-1), func() (whole, half float64) { return w.completion(rng), w.second })
	return d
}

// windowed samples messages.
type windowed struct {
	stream Stream
	window float64
	ahead  []piece // when the units from the next one on may be sent
	at     int     // first of them
	waited float64 // number after the last unit that was complete later than it arrived
	second float64 // of the last completion, how long its second half took
}

// piece is when units in a row are complete: all at a time, or one after the other in steps.
type piece struct {
	first, end float64
	time       float64 // of the first unit
	steps      bool
}

// completion of one message. Without rng no unit is delayed; with it at least one is.
func (w *windowed) completion(rng *rand.Rand) float64 {
	s := &w.stream
	units := math.Ceil(s.Units)
	w.ahead, w.at, w.waited = append(w.ahead[:0], piece{end: w.window}), 0, 0
	next := math.Inf(1) // unit that is delayed next
	if rng != nil {
		next = w.firstDelayed(rng)
	}
	free, complete := 0.0, 0.0 // when the wire is free, and when all before are complete
	middle := 0.0
	for unit := 0.0; unit < units; {
		if unit < units/2 {
			middle = complete
		}
		if n := w.rounds(unit, min(next, units)); n > 0 {
			later := n * max(w.window*s.Step, s.Step+s.After)
			for i := w.at; i < len(w.ahead); i++ {
				p := &w.ahead[i]
				p.first, p.end, p.time = p.first+n*w.window, p.end+n*w.window, p.time+later
			}
			unit, free, complete = unit+n*w.window, free+later, complete+later
			continue
		}
		p := w.ahead[w.at]
		w.at++
		end := min(p.end, units)
		begin := max(free, p.time)
		free = begin + (end-unit)*s.Step
		for unit < end {
			arrival := begin + (unit-p.first+1)*s.Step + s.After
			if unit == next {
				complete = max(complete, arrival+w.delay(rng))
				w.complete(piece{first: unit, end: unit + 1, time: complete})
				unit, next = unit+1, unit+1+w.gap(rng)
				continue
			}
			till := min(end, next)
			if complete > arrival { // they wait for one before them
				held := min(unit+math.Ceil((complete-arrival)/s.Step), till)
				w.complete(piece{first: unit, end: held, time: complete})
				unit = held
				continue
			}
			w.complete(piece{first: unit, end: till, time: arrival, steps: true})
			complete = arrival + (till-1-unit)*s.Step
			unit = till
		}
	}
	w.second = complete - middle
	return complete
}

// rounds is how many times the next window can be sent just as the one before was, as no unit until then is delayed: two windows after the last that
// was, every unit follows the one a window before it after a round trip, or the wire is never free.
func (w *windowed) rounds(unit, until float64) float64 {
	if unit < w.waited+2*w.window {
		return 0
	}
	return max(math.Floor((until-unit)/w.window)-1, 0)
}

// complete notes when units are complete, which is when those a window later may be sent.
func (w *windowed) complete(p piece) {
	if !p.steps {
		w.waited = p.end
	}
	p.first, p.end = p.first+w.window, p.end+w.window
	if n := len(w.ahead); n > w.at {
		if last := &w.ahead[n-1]; !last.steps && !p.steps && last.time == p.time {
			last.end = p.end
			return
		}
	}
	w.ahead = append(w.ahead, p)
}

// firstDelayed is a unit that is delayed first, given that one is.
func (w *windowed) firstDelayed(rng *rand.Rand) float64 {
	log := math.Log1p(-w.stream.Delay[0].Left)
	some := -math.Expm1(w.stream.Units * log)
	return min(math.Floor(math.Log1p(-some*rng.Float64())/log), math.Ceil(w.stream.Units)-1)
}

// gap is how many units in a row are not delayed.
func (w *windowed) gap(rng *rand.Rand) float64 {
	return math.Floor(math.Log1p(-rng.Float64()) / math.Log1p(-w.stream.Delay[0].Left))
}

// delay of a unit that is delayed.
func (w *windowed) delay(rng *rand.Rand) float64 {
	steps := w.stream.Delay
	u := rng.Float64() * steps[0].Left
	for i := 1; i < len(steps); i++ {
		if u >= steps[i].Left {
			return steps[i].At
		}
	}
	return steps[len(steps)-1].At
}

// bounded is the completion of a message, known for one without a delayed unit and by samples for others.
type bounded struct {
	free         float64 // without a delayed unit
	units, share float64 // how many, and the probability that one is delayed
	times        []float64
	mean, spread float64 // of times
}

// some is the probability that a unit is delayed.
func (d *bounded) some() float64 { return -math.Expm1(d.units * math.Log1p(-d.share)) }

// sample takes n messages that go on for so many more halves of what one returns.
func (d *bounded) sample(n int, halves float64, one func() (whole, half float64)) {
	d.times = make([]float64, n)
	rest := make([]float64, n)
	for i := range d.times {
		d.times[i], rest[i] = one()
	}
	whole, wholeVariance := moments(d.times)
	half, halfVariance := moments(rest)
	d.mean = whole + halves*half
	d.spread = math.Sqrt(wholeVariance + halves*halfVariance)
	slices.Sort(d.times)
}

// moments are mean and variance.
func moments(list []float64) (mean, variance float64) {
	for _, x := range list {
		mean += x / float64(len(list))
	}
	for _, x := range list {
		variance += (x - mean) * (x - mean) / float64(len(list))
	}
	return mean, variance
}

// Mean implements Distribution.
func (d bounded) Mean() float64 {
	if len(d.times) == 0 {
		return d.free
	}
	some := d.some()
	return (1-some)*d.free + some*d.mean
}

// Tail implements Distribution.
func (d bounded) Tail(t float64) float64 {
	switch {
	case t < d.free*(1-1e-12):
		return 1
	case len(d.times) == 0:
		return 0
	case len(d.times) < fewSamples:
		return d.some() * math.Erfc((t-d.mean)/(d.spread*math.Sqrt2)) / 2
	}
	i, _ := slices.BinarySearch(d.times, t)
	for i < len(d.times) && d.times[i] <= t {
		i++
	}
	return d.some() * float64(len(d.times)-i) / float64(len(d.times))
}

// Span implements Distribution.
func (d bounded) Span() (least, most float64) {
	if len(d.times) == 0 {
		return d.free, d.free
	}
	const deviations = 9
	most = max(d.times[len(d.times)-1], d.mean+deviations*d.spread)
	return min(d.free, most), most
}

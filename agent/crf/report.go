// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/wire"
)

// report is the LOSS_REPORT of the current interval (Section 8.1). A position counts as expected once: when its packet arrives in
// time, and then as received too; or when it is found lost, which is when it is restored, asked for, given up, or comes late. So
// expected less received is what was lost, and nothing that is merely on its way counts.
type report struct {
	active bool          // there was something to report since the last one
	since  time.Duration // start of the interval
	due    time.Duration

	expected   int64 // may be less than received: what an earlier interval counted too much is taken off later losses
	received   int64
	restored   uint32
	incomplete uint32
	marked     uint32
	repairs    uint32
	repairsCE  uint32

	// How losses cluster (Section 8.1, rule 5). What one report counted too much is taken off later ones, as with expected.
	runs  int64 // runs of consecutive lost positions
	pairs int64 // pairs of lost positions in the same clusterLen positions
}

// clusterLen is the length of the stretches of positions in which pairs of losses are counted: half a word of marks.
const clusterLen = 32

// lossWeight is the weight of an interval of at least fullInterval packets in the moving average of the loss rate.
const (
	lossWeight   = 1.0 / 8
	fullInterval = 1000
)

// With heavyLosses losses, which are one of heavyPart packets or more, a report leaves after an eighth of a round trip.
const (
	heavyLosses = 4
	heavyPart   = 20
)

// reporting returns the report of the current interval. The first thing to report after a pause begins one; its report leaves
// before one SRTT is over.
func (f *Flow) reporting(now time.Duration) *report {
	r := &f.report
	if !r.active {
		r.active = true
		r.since = now
		r.due = now + f.rtt.smooth - f.rtt.smooth/8
		f.wake()
	}
	return r
}

// heavy says that so much is lost that the circuit breaker may have to open: the CSF must know at once.
func (r *report) heavy() bool {
	lost := r.expected - r.received
	return lost >= heavyLosses && lost*heavyPart >= r.expected
}

// countLost counts a position as expected and not received, once.
func (f *Flow) countLost(now time.Duration, s *segment, p pos) {
	if s.has(p, lost) {
		return
	}
	r := f.reporting(now)
	r.expected++
	f.cluster(s, p, 1)
	s.set(p, lost)
	pause := f.rtt.smooth / 2
	if r.heavy() {
		pause = f.rtt.smooth / 8
	}
	if sooner := r.since + pause; sooner < r.due {
		r.due = sooner // there is something to react to
		f.wake()
	}
	f.stats.Lost++
}

// uncountLost takes that back: the position is absent.
func (f *Flow) uncountLost(s *segment, p pos) {
	if s.has(p, lost) {
		s.clear(p, lost)
		f.report.expected--
		f.cluster(s, p, -1)
		f.stats.Lost--
	}
}

// cluster takes a position that joins (sign 1) or leaves (sign -1) the lost ones into runs and pairs, whatever the order in which they are found:
// one beside no other is a run of its own, one between two makes one run of them.
func (f *Flow) cluster(s *segment, p pos, sign int64) {
	r := &f.report
	r.runs += sign
	for _, beside := range [...]pos{p - 1, p + 1} {
		if f.win.has(beside, lost) {
			r.runs -= sign
		}
	}
	r.pairs += sign * int64(ones(s.words[lost]&span(p.segment(), p&^(clusterLen-1), p|(clusterLen-1)+1)))
}

// sendReport sends the LOSS_REPORT that is due, unless the flow has no configuration yet, when nobody could use it.
func (f *Flow) sendReport(now time.Duration, acts *[]Action) {
	r := &f.report
	if !r.active || now < r.due {
		return
	}
	if f.state != Protecting || now == r.since {
		r.active = false
		return
	}
	f.settleDoubts(now)
	expected := max(r.expected, r.received)
	f.learnLoss(expected, r.received)
	const size = 52
	if b := f.message(size); b != nil {
		m := wire.LossReport{
			FlowID: f.id, Interval: uint32(min((now - r.since).Microseconds(), 1<<32-1)),
			Expected: uint32(expected), Received: uint32(r.received), Restored: r.restored,
			Incomplete: r.incomplete, CEMarked: r.marked, RepairsReceived: r.repairs, RepairsCEMarked: r.repairsCE,
		}
		if m.Detailed = f.hello.Extensions&wire.ExtDetail != 0; m.Detailed {
			m.Runs, m.Pairs, m.Hold = uint32(max(r.runs, 0)), uint32(max(r.pairs, 0)), f.holdBound()
		}
		f.send(m.Append(b), acts)
		f.stats.LossReports++
	}
	*r = report{expected: r.expected - expected, runs: min(r.runs, 0), pairs: min(r.pairs, 0)}
	if f.doubts.len() > 0 {
		f.reporting(now) // so that they are told of, whatever comes
	}
}

// holdBound is for how long packets wait behind a gap at most, in microseconds.
func (f *Flow) holdBound() uint32 {
	if f.params.Delivery == Immediate {
		return wire.HoldUnbounded
	}
	return uint32(min(f.params.MaxHold.Microseconds(), wire.HoldUnbounded-1))
}

// learnLoss takes an interval into the moving average by which delta is chosen (Section 7.1, rule 1).
func (f *Flow) learnLoss(expected, received int64) {
	if expected <= 0 {
		return
	}
	weight := lossWeight * min(1, float64(expected)/fullInterval)
	rate := float64(max(expected-received, 0)) / float64(expected)
	f.stats.LossRate += weight * (rate - f.stats.LossRate)
}

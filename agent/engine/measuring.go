// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"sync/atomic"
	"time"

	"crem.dev/crem/agent/reporter"
	"crem.dev/crem/internal/agentapi"
)

const (
	// markingPeriod is the same at every gateway. Half of it is for the difference of two clocks and the delay of the WAN together.
	markingPeriod = time.Second
	// wholeAfter is how many periods later than a beginning, or a jump of the clock, one is whole at both ends.
	wholeAfter = 2

	comparedFlows = 4096
	// forgetEvery is how often, in periods, flows that ended are forgotten, countsKept for how long they are known.
	forgetEvery, countsKept = 16, 64
)

// measuring finds what is lost in tunnels, and how their delay changes (docs/design/alternate-marking.md): this node compares what it counted of the
// flows that go into them with what their other ends say came out. All but what workers do is for the goroutine of keepTunnels.
type measuring struct {
	periods reporter.Periods
	unix    func() time.Duration
	inbox   chan readings
	offset  time.Duration // of Unix time against the clock that never jumps
	told    uint32        // period that was told last

	refusals    [refusals]atomic.Uint64
	sent, taken atomic.Uint64 // messages

	mu sync.Mutex // guards what follows; no worker takes it, and nobody reads counters of the kernel under it
	of *reporter.Comparer
}

func newMeasuring() measuring {
	p := reporter.NewPeriods(markingPeriod)
	return measuring{
		periods: p, inbox: make(chan readings, readingsWaiting), of: reporter.NewComparer(p, comparedFlows),
		unix: func() time.Duration { return time.Duration(time.Now().UnixNano()) },
	}
}

// measures reports whether any domain wants its tunnels measured.
func (c *Config) measures() bool {
	for i := range c.Domains {
		if w := c.Domains[i].WAN; w != nil && w.Measure {
			return true
		}
	}
	return false
}

// refusal is why a message of readings was not used, or measurements not reported.
type refusal uint8

const (
	refusedMalformed refusal = iota
	refusedTunnel            // no tunnel of ours that is measured and open
	refusedLimit             // more than a period needs
	refusedClocks            // the clocks of both ends differ by too much
	refusedBusy              // too many wait
	refusals
)

var refusalNames = [refusals]string{"malformed", "no_tunnel", "limit", "clocks", "busy"}

// afterPeriod is for when a period is over: what came out of the measured tunnels is told, and what should have been told of those that lead away is missed.
func (e *Engine) afterPeriod() {
	m, t := &e.measuring, &e.tunnels
	kernel, targets := t.targets(m.jumped(e.now(), t.clock()), m.present())
	over := m.periods.Over(m.unix())
	if kernel == nil || over == m.told {
		return
	}
	m.told = over
	e.tellReadings(kernel, targets, over)
	e.noteSilence(kernel, over)
	if over%forgetEvery == 0 {
		_ = kernel.ForgetCounts(over - countsKept) // else there is less room, which is counted
	}
}

// drop counts a period of a flow that says nothing.
func (m *measuring) drop(why reporter.DropReason) reporter.DropReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of.Drop(why)
}

func (m *measuring) refuse(why refusal) { m.refusals[why].Add(1) }

// present is the number of the present period.
func (m *measuring) present() uint32 { return m.periods.At(m.unix()) }

// wait is how long it is until readings are due.
func (m *measuring) wait() time.Duration { return m.periods.UntilOver(m.unix()) }

// count fills in the counters.
func (m *measuring) count(s *agentapi.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.of.Stats()
	s.Counters["readings_sent"], s.Counters["readings_received"] = m.sent.Load(), m.taken.Load()
	s.Counters["measured_packets"], s.Counters["measured_lost"] = of.Packets, of.Lost
	s.Unmeasured = map[string]uint64{}
	add := func(name string, n uint64) {
		if n > 0 {
			s.Unmeasured[name] = n
			s.Drops["readings_unused"] += n
		}
	}
	for i, n := range of.Drops {
		add("flow_"+reporter.DropReason(i).String(), n)
	}
	for i := range m.refusals {
		add("message_"+refusalNames[i], m.refusals[i].Load())
	}
}

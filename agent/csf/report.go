// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// lostOf is the number of source packets that a report misses. Received may count more than was expected, for instance packets
// of the interval before; that is no loss.
func lostOf(m *wire.LossReport) uint32 {
	if m.Received >= m.Expected {
		return 0
	}
	return m.Expected - m.Received
}

// HandleLossReport takes a LOSS_REPORT for the flow's ID (Section 8.1): the estimate p, the reaction to congestion, and the
// circuit breaker follow from it.
func (f *Flow) HandleLossReport(now time.Duration, from netip.AddrPort, m *wire.LossReport, acts *[]Action) {
	if !f.fromPeer(now, from, m.FlowID) {
		return
	}
	f.stats.LossReports++
	f.stats.Expected += uint64(m.Expected)
	f.stats.Lost += uint64(lostOf(m))
	f.stats.Restored += uint64(m.Restored)
	f.stats.Incomplete += uint64(m.Incomplete)
	f.stats.CE = 0
	if m.Received > 0 {
		f.stats.CE = min(float64(m.CEMarked)/float64(m.Received), 1)
	}
	f.failures = 0 // the peer is at work: the next back-off starts small

	lost, congested := f.path.transmission(now, lostOf(m))
	congested = congested || f.warning.Congested || float64(m.CEMarked) > congestedCE*float64(m.Received)
	f.followDelay(now)
	f.delay.report(m.Expected, lostOf(m), congested || lost < lostOf(m))
	f.estimate(interval{
		sent: int(m.Expected), lost: int(lost), raise: !congested && !f.delay.rises(), detailed: m.Detailed && lost == lostOf(m), runs: m.Runs, pairs: m.Pairs,
	})
	f.learnHold(m)
	congested = congested || lost < lostOf(m) || f.delay.congestion()
	if congested {
		f.stats.Congested++
		f.restraint.congestion(now, f.rtt.smoothed(), f.unusual(m))
	}
	f.restraint.report(now, f.restrained(now) || f.breaker.open, &f.stats)
	f.repairPath.report(now, &f.rtt, m)

	switch f.breaker.add(now, m) {
	case opened:
		f.stats.BreakerOpened++
		f.settle()
	case recovered:
		f.settle()
	case persistent:
		f.sendClose(f.peer, f.id, wire.CloseImpaired, acts)
		f.unbind(WhyImpaired)
		f.helloAfter = now + impairedPause
		return
	case unchanged:
	}
	f.reconfigure(now, acts)
	f.probe(now, acts)
	f.pump(now, acts)
}

// unusual reports whether a report misses more packets than is known to be lost by transmission.
func (f *Flow) unusual(m *wire.LossReport) bool {
	e, _ := f.evidence()
	return seen{float64(m.Expected), float64(lostOf(m))}.exceeds(e.known(), e.burst())
}

// learnHold takes how long the CRF holds packets behind a gap.
func (f *Flow) learnHold(m *wire.LossReport) {
	switch {
	case !m.Detailed:
		f.hold = 0
	case m.Hold == wire.HoldUnbounded:
		f.hold = roce.Never
	default:
		f.hold = time.Duration(m.Hold) * time.Microsecond
	}
}

// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/wire"
)

const (
	// The circuit breaker opens when loss before restoration or CE exceeds these fractions over a second, closes after ten seconds
	// without, and closes the flow after more than a minute with it (Section 10, rule 5).
	breakerLoss    = 0.10
	breakerCE      = 0.50
	breakerWindow  = time.Second
	breakerRecover = 10 * time.Second
	breakerGiveUp  = 60 * time.Second
	// Few packets prove nothing: of 20, two are lost once in four seconds at a loss of 5 %. A window goes on until it has this many packets, or as
	// many losses or marks as would be a tenth of them, or is as long as the time without. At 5 % it then opens by chance once in half a day.
	breakerEvidence = 400
)

// breaker is the circuit breaker of a flow, in the sense of RFC 8084. Its windows are reckoned from LOSS_REPORT intervals that
// together cover at least a second, more for a slow flow.
type breaker struct {
	open bool

	span                         time.Duration // of the window that is being gathered
	expected, lost, received, ce uint64

	bad, good           bool          // the last window was one
	badSince, goodSince time.Duration // start of the unbroken run of such windows
}

// verdict is what a report does to the breaker.
type verdict uint8

const (
	unchanged verdict = iota
	opened
	recovered
	persistent
)

// add takes a LOSS_REPORT that came now.
func (b *breaker) add(now time.Duration, m *wire.LossReport) verdict {
	b.span += time.Duration(m.Interval) * time.Microsecond
	b.expected += uint64(m.Expected)
	b.lost += uint64(lostOf(m))
	b.received += uint64(m.Received)
	b.ce += uint64(m.CEMarked)
	const telling = breakerEvidence * breakerLoss
	events := max(b.lost, b.ce)
	if b.span < breakerWindow || b.expected < breakerEvidence && events < telling && b.span < breakerRecover {
		return unchanged
	}
	start := now - b.span
	bad := events >= telling && (float64(b.lost) > breakerLoss*float64(b.expected) || float64(b.ce) > breakerCE*float64(b.received))
	b.span, b.expected, b.lost, b.received, b.ce = 0, 0, 0, 0, 0
	if bad {
		return b.addBad(now, start)
	}
	return b.addGood(now, start)
}

func (b *breaker) addBad(now, start time.Duration) verdict {
	if !b.bad {
		b.bad, b.good, b.badSince = true, false, start
	}
	switch {
	case !b.open:
		b.open = true
		return opened
	case now-b.badSince > breakerGiveUp:
		return persistent
	}
	return unchanged
}

func (b *breaker) addGood(now, start time.Duration) verdict {
	if !b.good {
		b.good, b.bad, b.goodSince = true, false, start
	}
	if b.open && now-b.goodSince >= breakerRecover {
		b.open = false
		return recovered
	}
	return unchanged
}

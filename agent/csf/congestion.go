// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"math"
	"time"

	"crem.dev/crem/agent/wire"
)

const (
	// growShare of the target comes back in every SRTT, excessLoss on the repair path over that of the source path counts as
	// congestion, least is the smallest share (Section 10, rule 3).
	growShare  = 1.0 / 16
	excessLoss = 0.01
	leastShare = 1.0 / 64
	// excessSigmas standard deviations and excessSlack symbols must the excess exceed before it is believed, over excessSample
	// symbols and excessRTTs SRTTs or less: a few lost symbols are no sign of congestion.
	excessSigmas = 3
	excessSlack  = 2
	excessSample = 1000
	excessRTTs   = 8

	sentMarks = 64
)

// repairPath is the reaction to congestion on the path of the repair messages, which may differ from that of the flow
// (Section 10, rule 3).
type repairPath struct {
	share float64       // of the ordinary symbols that may be sent, 1: all
	grown time.Duration // up to when growth is reckoned
	cutAt time.Duration // last reduction; at most one per SRTT
	cut   bool          // there was one

	total uint64          // REPAIRs that were sent, of every kind, as the CRF counts them
	marks [sentMarks]mark // total over time, a ring
	count int             // marks that were made

	// What the reports since the last verdict say: symbols that arrived, and source packets. An earlier report may have told of
	// the first edge symbols that were sent.
	edge                   uint64
	begunAt, reportAt      time.Duration // the account began; the last report came
	arrived                float64
	sourceLost, sourceSent float64
}

// mark says how many symbols had been sent before the one that left at a time.
type mark struct {
	at    time.Duration
	total uint64
}

func newRepairPath() repairPath { return repairPath{share: 1} }

// sent counts a symbol that leaves now.
func (r *repairPath) sent(now, srtt time.Duration) {
	if r.count == 0 || now-r.marks[(r.count-1)%sentMarks].at > srtt/slotsPerRTT {
		r.marks[r.count%sentMarks] = mark{at: now, total: r.total}
		r.count++
	}
	r.total++
}

// sentUntil is how many symbols had been sent at a time of the recent past: at least and at most, as exactly as the marks tell.
func (r *repairPath) sentUntil(at time.Duration) (least, most uint64) {
	most = r.total
	for i := r.count - 1; i >= 0 && i >= r.count-sentMarks; i-- {
		m := &r.marks[i%sentMarks]
		if m.at <= at {
			return m.total + 1, most
		}
		most = m.total
	}
	return most, most
}

// shareAt is the share of the ordinary symbols that may be sent now: it grows back by 1/16 in every SRTT.
func (r *repairPath) shareAt(now, srtt time.Duration) float64 {
	if r.share < 1 {
		r.share = min(r.share+growShare*float64(now-r.grown)/float64(srtt), 1)
	}
	r.grown = now
	return r.share
}

// report takes a LOSS_REPORT: CE marks on REPAIR take the share down by half their fraction, loss beyond that of the flow by half,
// once per SRTT.
func (r *repairPath) report(now time.Duration, path *rtt, m *wire.LossReport) {
	srtt := path.smoothed()
	excess := r.excess(now, srtt, path.min(), m)
	marked := 0.0
	if m.RepairsReceived > 0 {
		marked = min(float64(m.RepairsCEMarked)/float64(m.RepairsReceived), 1)
	}
	if !excess && marked == 0 || r.cut && now-r.cutAt < srtt {
		return
	}
	factor := 1 - marked/2
	if excess {
		factor = min(factor, 0.5)
	}
	r.share = max(r.shareAt(now, srtt)*factor, leastShare)
	r.cut, r.cutAt = true, now
}

// excess reports whether more repair symbols were lost than the flow's loss and one percent explain. Reports tile the past, but which
// symbols one accounts for is known only as well as the round trip is: an acknowledgement that waits for a lost packet makes SRTT
// longer than what a symbol and its report take. So of the symbols sent, those count that must have arrived by now, which is as long
// as SRTT exceeds the smallest round trip after it, and that no earlier report can have told of.
func (r *repairPath) excess(now, srtt, least time.Duration, m *wire.LossReport) bool {
	interval := time.Duration(m.Interval) * time.Microsecond
	if r.reportAt == 0 || now-r.reportAt > interval+interval/2 {
		r.account(now, now-least-interval) // a report is missing
	}
	r.reportAt = now
	r.arrived += float64(m.RepairsReceived)
	r.sourceLost += float64(lostOf(m))
	r.sourceSent += float64(m.Expected)
	sent := 0.0
	if to, _ := r.sentUntil(now - (2*srtt - least)); to > r.edge {
		sent = float64(to - r.edge)
	}
	expected := excessLoss
	if r.sourceSent > 0 {
		expected += r.sourceLost / r.sourceSent
	}
	expected = min(expected, 1)
	over := sent-r.arrived > sent*expected+excessSigmas*math.Sqrt(sent*expected*(1-expected))+excessSlack
	if over || sent >= excessSample && now-r.begunAt >= excessRTTs*srtt {
		r.account(now, now-least)
	}
	return over
}

// account begins a new account, with what was sent after a time.
func (r *repairPath) account(now, after time.Duration) {
	_, r.edge = r.sentUntil(after)
	r.begunAt = now
	r.arrived, r.sourceLost, r.sourceSent = 0, 0, 0
}

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
	// excessSigmas standard deviations and excessSlack symbols must the excess exceed before it is believed, over at most
	// excessSample symbols: a few lost symbols are no sign of congestion.
	excessSigmas = 3
	excessSlack  = 2
	excessSample = 1000

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

	// What the reports since the last verdict say: symbols sent, shifted by one SRTT because of what is in flight, symbols that
	// arrived, and source packets.
	edge                   uint64 // total up to which symbols are in sum
	edgeAt                 time.Duration
	sum, arrived           float64
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

// sentUntil is how many symbols had been sent at a time of the recent past, as exactly as the marks tell.
func (r *repairPath) sentUntil(at time.Duration) uint64 {
	total := r.total
	for i := r.count - 1; i >= 0 && i >= r.count-sentMarks; i-- {
		m := &r.marks[i%sentMarks]
		if m.at <= at {
			break
		}
		total = m.total
	}
	return total
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
func (r *repairPath) report(now, srtt time.Duration, m *wire.LossReport) {
	excess := r.excess(now, srtt, m)
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

// excess reports whether more repair symbols were lost than the flow's loss and one percent explain. Reports tile the past: each
// accounts for what was sent up to one SRTT ago since the report before.
func (r *repairPath) excess(now, srtt time.Duration, m *wire.LossReport) bool {
	interval := time.Duration(m.Interval) * time.Microsecond
	if r.edgeAt == 0 || now-r.edgeAt > interval+interval/2 {
		// A report is missing: begin anew with this one's interval.
		r.edge = r.sentUntil(now - srtt - interval)
		r.sum, r.arrived, r.sourceLost, r.sourceSent = 0, 0, 0, 0
	}
	edge := max(r.sentUntil(now-srtt), r.edge)
	r.sum += float64(edge - r.edge)
	r.edge, r.edgeAt = edge, now
	r.arrived += float64(m.RepairsReceived)
	r.sourceLost += float64(lostOf(m))
	r.sourceSent += float64(m.Expected)
	expected := excessLoss
	if r.sourceSent > 0 {
		expected += r.sourceLost / r.sourceSent
	}
	expected = min(expected, 1)
	lost := r.sum - r.arrived
	over := lost > r.sum*expected+excessSigmas*math.Sqrt(r.sum*expected*(1-expected))+excessSlack
	if over || r.sum >= excessSample {
		r.sum, r.arrived, r.sourceLost, r.sourceSent = 0, 0, 0, 0
	}
	return over
}

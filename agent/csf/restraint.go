// SPDX-License-Identifier: Apache-2.0

package csf

import "time"

const (
	// restraintKept is the part of what is known of the time before that stays with every report.
	restraintKept = 7.0 / 8
	// restraintRTTs is how many SRTTs a report of congestion holds.
	restraintRTTs = 2
	// mostHalvings of what was sent before are an eighth of it; one is taken back when congestion dropped nothing for doublingRTTs SRTTs.
	mostHalvings = 3
	doublingRTTs = 16
)

// restraint keeps the flow's repair traffic during congestion at what it was before, of its source traffic: requests for what a full queue
// drops would add to it (Section 10, rule 3). Where the queue does drop packets it is halved with every SRTT, since who else is on the path gets what it
// takes; where only marks or round trips tell of congestion, what the path always loses is still to be repaired.
type restraint struct {
	repair, source     float64 // octets of the time without congestion, the recent ones
	repairAt, sourceAt uint64  // counters when the last report came
	withheld           bool    // then repairs were withheld
	until              time.Duration
	halvings           int
	halvedAt           time.Duration // or when the last drops after it were reported, or one was taken back
}

// begin forgets congestion, and that nothing was sent while the flow was not protected.
func (r *restraint) begin(s *Stats) {
	r.repairAt, r.sourceAt = s.RepairOctets, s.SourceOctets
	r.until, r.halvings = 0, 0
}

// congestion takes a report of it. drops says that it is why packets are lost: by chance alone that seems so now and then, and marks may last for hours.
func (r *restraint) congestion(now, srtt time.Duration, drops bool) {
	r.until = now + restraintRTTs*srtt
	switch past := now - r.halvedAt; {
	case drops && (r.halvings == 0 || past >= srtt):
		r.halvings, r.halvedAt = min(r.halvings+1, mostHalvings), now
	case r.halvings > 0 && past >= doublingRTTs*srtt:
		r.halvings, r.halvedAt = r.halvings-1, now
	}
}

// report takes what was sent since the last report, unless repairs were withheld meanwhile, or in a part of it.
func (r *restraint) report(now time.Duration, withheld bool, s *Stats) {
	repair, source := float64(s.RepairOctets-r.repairAt), float64(s.SourceOctets-r.sourceAt)
	r.repairAt, r.sourceAt = s.RepairOctets, s.SourceOctets
	if now >= r.until {
		r.halvings = 0
	}
	was := r.withheld
	if r.withheld = withheld; was || withheld {
		return
	}
	r.repair = restraintKept*r.repair + repair
	r.source = restraintKept*r.source + source
}

// limit is the repair octets for an SRTT with so many source octets. Beside what was sent without congestion stands a block as its target asks for it: a
// flow that begins while marks last, which may be hours, has no other time.
func (r *restraint) limit(source int64, target blockOctets) int64 {
	part := (r.repair + target.repair) / max(r.source+target.source, 1)
	return int64(part*float64(source)) >> r.halvings
}

// blockOctets is a block with its ordinary symbols.
type blockOctets struct{ repair, source float64 }

// targetOctets is a whole block as its target asks for it. Congestion does not raise that (Section 5.3, rule 1).
func (f *Flow) targetOctets() blockOctets {
	c := f.current
	if c == nil {
		return blockOctets{}
	}
	m := &f.redundancy.byCount[c.k]
	if !m.known {
		f.choose(m, c.k)
	}
	symbols := min(int(m.m), max(f.params.MaxM, f.params.FixedM)) // those of Source Copies are sent on request
	return blockOctets{repair: float64(symbols * f.repairSize(c, false)), source: float64(c.k * c.T)}
}

// restrained reports whether the path is congested, as far as the flow knows.
func (f *Flow) restrained(now time.Duration) bool {
	return now < f.restraint.until || f.delay.congestion() || f.warning.Early
}

// Warning is what the nodes of the WAN say of congestion on the flow's path, as an ingress takes it (docs/wan-ecn.md). The zero value
// is a path of which nothing was said.
type Warning struct {
	Early     bool    // repair traffic must not grow
	Congested bool    // losses are congestion
	Withheld  float64 // part of the flow's repair budget that it must not use, from 0 to 1
}

// Warning returns what SetWarning said last.
func (f *Flow) Warning() Warning { return f.warning }

// SetWarning makes w what is known from now on.
func (f *Flow) SetWarning(w Warning) { f.warning = w }

// SPDX-License-Identifier: Apache-2.0

package crf

import "time"

// rtt is the smoothed round-trip time (Section 5.1, rule 9), and the smallest one, by which lateness is judged.
//
// Before there is an unambiguous sample, smooth is an upper bound, so that nothing is asked for too early, and least a lower
// bound, so that no retransmission of the transport passes for a first copy.
type rtt struct {
	smooth    time.Duration
	deviation time.Duration
	least     time.Duration
	sampled   bool // there was an unambiguous sample
}

// assumedRTT holds before any sample.
const assumedRTT = 100 * time.Millisecond

// longestTolerance is how long a missing packet may be merely late at most.
const longestTolerance = 2 * time.Millisecond

// shortest and longest bound a sample that is believed.
const (
	shortest = 10 * time.Microsecond
	longest  = 10 * time.Second
)

func newRTT() rtt { return rtt{smooth: assumedRTT, deviation: assumedRTT / 2, least: assumedRTT} }

// bound takes the first sample when it is ambiguous: the round trip took between low and high.
func (r *rtt) bound(low, high time.Duration) {
	if r.sampled {
		return
	}
	r.smooth = min(max(high, shortest), longest)
	r.deviation = r.smooth / 2
	r.least = min(max(low, shortest), longest)
}

// sample takes an unambiguous sample, smoothed as RFC 6298 does.
func (r *rtt) sample(d time.Duration) {
	d = min(max(d, shortest), longest)
	if !r.sampled {
		*r = rtt{smooth: d, deviation: d / 2, least: d, sampled: true}
		return
	}
	r.deviation += (max(d-r.smooth, r.smooth-d) - r.deviation) / 4
	r.smooth += (d - r.smooth) / 8
	r.least = min(r.least, d)
}

// tolerance is how old a gap must be before it is asked for by range (Section 7.1, rule 3).
func (r *rtt) tolerance() time.Duration {
	return min(max(r.smooth/8, 50*time.Microsecond), longestTolerance)
}

// reorder is T_reorder of rule CRF 1. What the tolerance waits for is not late, also while only bounds of the round trip are known: the
// transport's retransmission takes a round trip, of which an eighth of either bound is a part.
func (r *rtt) reorder() time.Duration {
	return max(r.least/4, min(r.smooth/8, longestTolerance))
}

// tail is how long a position past the newest arrived packet may still be on its way when a REPAIR already named it. REPAIRs
// may take a faster path than the flow: without this every block they overtake would be restored for nothing.
func (r *rtt) tail() time.Duration {
	return min(max(r.smooth/32, 50*time.Microsecond), 500*time.Microsecond)
}

// retry is how long after a request the next one for the same positions may go: no sooner than one SRTT (Section 7.1, rule 5),
// and late enough that an answer on its way arrives first.
func (r *rtt) retry() time.Duration {
	margin := min(max(4*r.deviation, r.smooth/8), r.smooth/4)
	return r.smooth + max(margin, 50*time.Microsecond)
}

// expiry is how long a block may stay open (Section 6.1, rule 8).
func (r *rtt) expiry() time.Duration { return 8*r.smooth + 2*time.Millisecond }

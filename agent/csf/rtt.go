// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

const (
	// initialRTT stands in for SRTT before the first sample.
	initialRTT = 100 * time.Millisecond
	// maxRTT bounds a sample: whatever took longer was not a round trip.
	maxRTT = 3 * time.Second
	// minEpoch is how long a smallest sample is believed: a path that became longer shows within two epochs.
	minEpoch = 10 * time.Second
)

// rtt smooths round-trip times (Section 5.1; RFC 6298 with weight 1/8) and remembers the smallest recent one.
type rtt struct {
	srtt  time.Duration // 0: no sample yet
	bound bool          // srtt is an upper bound from a message that was sent more than once

	// own is the smallest sample of CREM messages. An RDMA acknowledgement travels further than they do; one that seems to take less
	// than half of it belongs to another queue pair.
	own time.Duration

	epoch           time.Duration // start of the present epoch
	lowest, earlier time.Duration // smallest sample of the present and of the previous epoch, 0: none
}

// add takes a sample. One that is not exact (the message was repeated, so the time runs from its first transmission) is used
// only while there is nothing better, and the first exact one replaces it (decision on Karn's rule, Section 5.1).
func (r *rtt) add(now, sample time.Duration, exact bool) {
	sample = min(max(sample, time.Microsecond), maxRTT)
	switch {
	case r.srtt == 0:
		r.srtt, r.bound, r.epoch, r.lowest, r.earlier = sample, !exact, now, sample, 0
		return
	case !exact:
		return
	case r.bound:
		r.srtt, r.bound, r.epoch, r.lowest, r.earlier = sample, false, now, sample, 0
		return
	}
	r.srtt += (sample - r.srtt) / 8
	r.turn(now)
	if r.lowest == 0 || sample < r.lowest {
		r.lowest = sample
	}
}

// turn begins a new epoch when the present one is over.
func (r *rtt) turn(now time.Duration) {
	if now-r.epoch >= minEpoch {
		r.epoch, r.earlier, r.lowest = now, r.lowest, 0
	}
}

// smoothed returns SRTT, never 0.
func (r *rtt) smoothed() time.Duration {
	if r.srtt == 0 {
		return initialRTT
	}
	return r.srtt
}

// min returns the smallest round-trip time of the last epochs, never more than SRTT.
func (r *rtt) min() time.Duration {
	m := r.smoothed()
	if r.lowest != 0 {
		m = min(m, r.lowest)
	}
	if r.earlier != 0 {
		m = min(m, r.earlier)
	}
	return m
}

// ackSample times one source packet until an RDMA acknowledgement covers it (Section 5.1). Only packets that ask for an
// acknowledgement are timed, because others are acknowledged when it suits the receiver.
type ackSample struct {
	psn    roce.PSN // of the timed packet
	sentAt time.Duration
	timing bool
}

// burstGap is how long a flow must be silent for its open block to close: SRTT/8, between 50 microseconds and 1 ms (Section 4.2), but
// longer than the pauses that the tap itself makes, which are no silence of the flow.
func (f *Flow) burstGap() time.Duration {
	return max(min(max(f.rtt.smoothed()/8, 50*time.Microsecond), time.Millisecond), f.params.LeastBurstGap)
}

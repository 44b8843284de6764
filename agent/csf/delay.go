// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

const (
	// probeGap is the least time between two probes; probeLost is when one that was not answered is taken for lost, at least, and
	// probeLostRTTs the same in SRTTs. An answer that comes later would be taken for that of the next.
	probeGap      = 10 * time.Millisecond
	probeLost     = 100 * time.Millisecond
	probeLostRTTs = 8
	// unusual is how many mean deviations a round trip may be off before it is a rise.
	unusual = 4
	// usualGain is the slowness of both averages: a queue that takes some round trips to fill must not become usual.
	usualGain = 16
	// firstDeviation is the part of the first round trip that the others are assumed to be off.
	firstDeviation = 8
	// risenFor is how long round trips may be risen: then the path has become longer.
	risenFor = time.Minute
)

// delay is the flow's own view of queues on its path (Section 5.3, rule 2): round trips of a PARAM_UPDATE that is repeated only to be timed.
// RDMA acknowledgements do not serve, because those that wait for a lost packet are late without any queue.
type delay struct {
	sentAt  time.Duration // the probe that is under way
	waiting bool
	next    time.Duration // no probe before

	usual, deviation time.Duration // round trips while there was no rise; usual is 0 before the first
	risen            bool          // the last one was longer
	since            time.Duration // so long
}

// sample takes a round trip and says whether it tells of a rise.
func (d *delay) sample(now, trip time.Duration) {
	if d.usual == 0 || d.risen && now-d.since > risenFor {
		d.usual, d.deviation, d.risen = trip, trip/firstDeviation, false
		return
	}
	off := trip - d.usual
	risen := off > max(d.usual/risePart, leastRise, unusual*d.deviation)
	if risen && !d.risen {
		d.since = now
	}
	if d.risen = risen; risen {
		return
	}
	d.usual += off / usualGain
	d.deviation += (max(off, -off) - d.deviation) / usualGain
}

// probe asks the peer for an answer that can be timed: the PARAM_UPDATE of the configuration in force comes again as it was, and is
// acknowledged again (Section 5.2, rule 7). LOSS_REPORTs cause it, so a flow that sends nothing probes nothing.
func (f *Flow) probe(now time.Duration, acts *[]Action) {
	d := &f.delay
	if f.current == nil || f.proposal.due != roce.Never || now < d.next {
		return
	}
	if d.waiting && now-d.sentAt < max(probeLost, probeLostRTTs*f.rtt.smoothed()) {
		return
	}
	d.sentAt, d.waiting = now, true
	d.next = now + max(f.rtt.smoothed(), probeGap)
	f.stats.Probes++
	f.sendUpdate(f.current, acts)
}

// answerProbe takes the acknowledgement of a probe, if it is one.
func (f *Flow) answerProbe(now time.Duration, id uint8) bool {
	d := &f.delay
	if !d.waiting || f.current == nil || f.current.id != id {
		return false
	}
	d.waiting = false
	d.sample(now, now-d.sentAt)
	f.sampleRTT(now, now-d.sentAt, true)
	return true
}

// forgetProbe makes an acknowledgement that is still to come no answer to a probe.
func (f *Flow) forgetProbe(now time.Duration) {
	f.delay.waiting, f.delay.next = false, now+max(probeLost, probeLostRTTs*f.rtt.smoothed())
}

// SPDX-License-Identifier: Apache-2.0

package csf

import "time"

const (
	// paceGain is the slowness of the usual distance of two packets of a message. What is farther apart than twice that, and leastPause, counts as so
	// far: the few long pauses of a sender that waits for acknowledgements after every burst do not become usual.
	paceGain   = 8
	leastPause = 50 * time.Microsecond
	// answeredIn SRTTs, in quarters, and answerSlack are what a request takes from when the gap shows until its answer fills it.
	answeredIn  = 5
	answerSlack = 4 * time.Millisecond
	// silentPaces usual distances without a packet inside a message are silence.
	silentPaces = 2
)

// pace is how a flow sends: the usual distance of two packets of one message, and whether a message has begun that is not over.
type pace struct {
	usual  time.Duration
	inside bool
}

// next takes a new packet that comes after another one by a while. ends says that it is the last of its message.
func (p *pace) next(after time.Duration, ends bool) {
	if p.inside {
		p.usual += (min(after, 2*p.usual+leastPause) - p.usual) / paceGain
	}
	p.inside = !ends
}

// silence is how long a flow must be silent for its open block to close (Section 4.2, rule 8). Inside a message more will come: a slow sender is
// waited for as long as its packets are usually apart, so that they share a block instead of having one each.
func (f *Flow) silence() time.Duration {
	if f.pace.inside {
		return max(f.burstGap(), silentPaces*f.pace.usual)
	}
	return f.burstGap()
}

// onRequest reports whether what a slow sender loses inside a message is left to requests, beyond what MaxRepairRatio of the block's own packets
// pays for (Section 5.3, rule 8): the next packet shows the loss, and the CRF holds what follows for long enough to be answered.
func (f *Flow) onRequest(cause CloseCause) bool {
	return (cause == ByGap || cause == ByAge) && f.pace.inside && f.hold >= answeredIn*f.rtt.smoothed()/4+answerSlack
}

// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// answering is the part of a Receiver that waits: answers in the order in which they are sent, and what is counted. A receiver that answers at
// once, without timers of its own, has its Next and NextDeadline.
type answering struct {
	answers fifo[Packet]
	stats   ReceiverStats
}

// Next implements Receiver.
func (a *answering) Next(time.Duration) (Packet, bool) {
	if a.answers.len() == 0 {
		return Packet{}, false
	}
	p := a.answers.pop()
	a.stats.answered(&p)
	return p, true
}

// NextDeadline implements Receiver.
func (a *answering) NextDeadline() time.Duration {
	if a.answers.len() > 0 {
		return 0
	}
	return roce.Never
}

// Stats implements Receiver.
func (a *answering) Stats() *ReceiverStats { return &a.stats }

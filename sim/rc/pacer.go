// SPDX-License-Identifier: Apache-2.0

package rc

import "time"

// Pacer spaces what is sent. A caller that polls late may catch up on at most slack of time.
type Pacer struct {
	Rate int64 // bits per second; 0: as fast as asked
	next time.Duration
}

const slack = time.Millisecond

// Ready says whether a frame may leave.
func (p *Pacer) Ready(now time.Duration) bool { return p.next <= now }

// Next returns when a frame may leave.
func (p *Pacer) Next() time.Duration { return p.next }

// Sent notes a frame that left, by its octets.
func (p *Pacer) Sent(now time.Duration, octets int) {
	if p.Rate == 0 {
		return
	}
	p.next = max(p.next, now-slack) + time.Duration(int64(octets)*8*int64(time.Second)/p.Rate)
}

// SPDX-License-Identifier: Apache-2.0

package rc

import "time"

// pacer spaces what is sent. A caller that polls late may catch up on at most slack of time.
type pacer struct {
	rate int64 // bits per second; 0: as fast as asked
	next time.Duration
}

const slack = time.Millisecond

func (p *pacer) ready(now time.Duration) bool { return p.next <= now }

func (p *pacer) sent(now time.Duration, octets int) {
	if p.rate == 0 {
		return
	}
	p.next = max(p.next, now-slack) + time.Duration(int64(octets)*8*int64(time.Second)/p.rate)
}

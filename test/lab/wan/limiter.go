// SPDX-License-Identifier: Apache-2.0

package wan

import "time"

// limiter is a link of a given rate with a first-in first-out queue in front. Since the service time of a frame is known when it comes, the
// whole queue is one number: when the link will be free.
type limiter struct {
	rate int64         // bits per second; 0: unlimited
	free time.Duration // when the last bit of the last queued frame leaves
	rem  int64         // part of a nanosecond in units of 1/rate, so that rounding never adds up
}

// backlog returns the octets that wait or are being sent at now.
func (l *limiter) backlog(now time.Duration) int64 {
	if l.rate == 0 || l.free <= now {
		return 0
	}
	return int64(float64(l.free-now) * float64(l.rate) / 8e9)
}

// send puts a frame of n octets in the queue and returns when its last bit leaves the link.
func (l *limiter) send(now time.Duration, n int) time.Duration {
	if l.rate == 0 {
		return now
	}
	if l.free < now {
		l.free, l.rem = now, 0
	}
	work := int64(n)*8*int64(time.Second) + l.rem
	l.free += time.Duration(work / l.rate)
	l.rem = work % l.rate
	return l.free
}

// SPDX-License-Identifier: Apache-2.0

package wan

import (
	"math/rand/v2"
	"time"
)

// jitter varies the delay slowly: every 4 bounds of time a new value between -bound and +bound, straight lines between them. The delay then
// falls by at most half a second per second, so a frame never overtakes the one in front.
type jitter struct {
	bound    time.Duration
	start    time.Duration // when the present piece began
	from, to float64       // nanoseconds
	running  bool
}

func (j *jitter) at(now time.Duration, r *rand.Rand) time.Duration {
	if j.bound == 0 {
		return 0
	}
	piece := 4 * j.bound
	draw := func() float64 { return (2*r.Float64() - 1) * float64(j.bound) }
	if !j.running || now-j.start >= 64*piece {
		j.running, j.start, j.from, j.to = true, now, draw(), draw()
	}
	for now-j.start >= piece {
		j.start += piece
		j.from, j.to = j.to, draw()
	}
	return time.Duration(j.from + (j.to-j.from)*float64(max(now-j.start, 0))/float64(piece))
}

// SPDX-License-Identifier: Apache-2.0

package world

import (
	"math"
	"math/rand/v2"
)

// losses decides which packets the path loses.
type losses struct {
	c      Loss
	rng    *rand.Rand
	enter  float64 // probability that a run begins with the next packet
	leave  float64 // probability that a run is over
	inRun  bool
	octets int // size for which chance was reckoned
	chance float64
}

func newLosses(c Loss, rng *rand.Rand) losses {
	l := losses{c: c, rng: rng, chance: c.Rate}
	if c.Burst > 1 {
		l.leave = 1 / c.Burst
		share := c.Rate / c.inside() // of packets that are in a run
		l.enter = share * l.leave / (1 - share)
	}
	return l
}

func (c *Loss) inside() float64 {
	if c.Inside == 0 {
		return 1
	}
	return c.Inside
}

// next says whether the next packet, of so many octets on the wire, is lost.
func (l *losses) next(octets int) bool {
	switch {
	case l.c.Rate == 0:
		return false
	case l.c.Burst > 1:
		if l.inRun {
			l.inRun = l.rng.Float64() >= l.leave
		} else {
			l.inRun = l.rng.Float64() < l.enter
		}
		return l.inRun && (l.c.Inside == 0 || l.rng.Float64() < l.c.Inside)
	case l.c.Reference > 0 && octets != l.octets:
		// 1-(1-bit)^size: independent bit errors.
		l.octets = octets
		l.chance = -math.Expm1(math.Log1p(-l.c.Rate) * float64(octets) / float64(l.c.Reference))
	}
	return l.rng.Float64() < l.chance
}

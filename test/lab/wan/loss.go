// SPDX-License-Identifier: Apache-2.0

package wan

import "math/rand/v2"

// gilbert is the two-state loss process of Gilbert and Elliott with a bad state that loses everything and a good one that loses nothing. Runs of
// loss are geometric: with mean length B the bad state is left with probability 1/B, and a mean loss p needs that it is entered with
// p / (1-p) / B.
type gilbert struct {
	bad          bool
	enter, leave float64
}

func newGilbert(loss, length float64) gilbert {
	switch {
	case loss <= 0:
		return gilbert{}
	case loss >= 1:
		return gilbert{bad: true}
	}
	return gilbert{enter: loss / (1 - loss) / length, leave: 1 / length}
}

// lose moves the process by one frame and says whether that frame is lost.
func (g *gilbert) lose(r *rand.Rand) bool {
	if g.bad {
		g.bad = g.leave == 0 || r.Float64() >= g.leave
	} else if g.enter > 0 {
		g.bad = r.Float64() < g.enter
	}
	return g.bad
}

// chance draws with probability p.
func chance(r *rand.Rand, p float64) bool {
	return p > 0 && (p >= 1 || r.Float64() < p)
}

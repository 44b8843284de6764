// SPDX-License-Identifier: Apache-2.0

package csf

import "math"

// clusters is how the losses of late follow each other, as a peer counts it (Section 8.1, rule 5): runs of consecutive losses, and pairs of losses
// within stretches of clusterLen packets. All counts fade with the losses that come after them.
type clusters struct {
	told  bool // there was such a count
	sent  float64
	lost  float64
	runs  float64
	pairs float64
}

// add takes an interval of n packets of which x were lost.
func (c *clusters) add(n, x float64, i *interval) {
	c.told = true
	fade := math.Exp(-x / clusterMemory)
	c.sent = c.sent*fade + n
	c.lost = c.lost*fade + x
	c.runs = c.runs*fade + min(float64(i.runs), x)
	c.pairs = c.pairs*fade + min(float64(i.pairs), x*(clusterLen-1)/2)
}

// dispersion is the variance of the losses of a stretch over their mean: 1 for independent losses. A loss has 2 pairs / lost others in its stretch
// where clusterLen * rate are to be expected of independent ones.
func (c *clusters) dispersion() float64 {
	if c.lost == 0 {
		return 1
	}
	excess := 2*c.pairs - c.lost*clusterLen*c.lost/c.sent
	return 1 + max(excess, 0)/(c.lost+priorAlone)
}

// runLength is the mean length of a run of losses.
func (c *clusters) runLength() float64 {
	return (c.lost + priorAlone) / (min(c.runs, c.lost) + priorAlone)
}

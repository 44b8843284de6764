// SPDX-License-Identifier: Apache-2.0

package csf

const (
	// lossWeight is the weight of an interval of fullInterval packets or more; smaller ones weigh in proportion (Section 5.3,
	// rule 3).
	lossWeight   = 1.0 / 8
	fullInterval = 1000

	// priorLoss is assumed of a path of which nothing is known, with the weight of priorPackets packets: the first losses find
	// a repair symbol, and a clean path soon shows that it needs none.
	priorLoss    = 1e-3
	priorPackets = 100

	// congestedCE is the CE fraction on source packets above which an interval's loss is congestion (Section 5.3, rule 2).
	congestedCE = 0.01
)

// lossEstimate is the packet-weighted moving average of the loss before restoration, and of how bursty it is. Sums are kept
// together with the weight behind them, so that the average is unbiased from the first report on.
type lossEstimate struct {
	sum, weight float64

	// Dispersion of the losses of an interval: squared deviation from the expected number, and the expected number. Their
	// ratio is 1 for independent losses.
	deviation, expected float64
}

// newLossEstimate starts from what is known of the path, or from the prior if that is nil.
func newLossEstimate(path *lossEstimate) *lossEstimate {
	if path != nil {
		e := *path
		return &e
	}
	const weight = lossWeight * priorPackets / fullInterval
	return &lossEstimate{sum: weight * priorLoss, weight: weight}
}

// p is the estimated loss rate.
func (e *lossEstimate) p() float64 { return e.sum / e.weight }

// add takes an interval in which lost of expected packets did not arrive. Without raise the estimate may only fall: loss by
// congestion never raises m (Section 5.3, rule 1).
func (e *lossEstimate) add(expected, lost int, raise bool) {
	if expected <= 0 {
		return
	}
	rate := float64(lost) / float64(expected)
	if !raise && rate > e.p() {
		return
	}
	w := lossWeight * float64(min(expected, fullInterval)) / fullInterval
	mean := e.p() * float64(expected)
	off := float64(lost) - mean
	e.deviation = (1-w)*e.deviation + w*off*off
	e.expected = (1-w)*e.expected + w*mean
	e.sum = (1-w)*e.sum + w*rate
	e.weight = (1-w)*e.weight + w
}

// burst is the estimated mean length of a run of losses, at least 1. For runs of geometric length B the dispersion is 2B-1.
func (e *lossEstimate) burst() float64 {
	if !(e.expected > 0) {
		return 1
	}
	return min(max((e.deviation/e.expected+1)/2, 1), maxBurst)
}

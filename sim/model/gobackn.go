// SPDX-License-Identifier: Apache-2.0

package model

import "math"

// Rewinds is the completion where each loss stops everything. Each of a number of Packets is lost with probability Loss, and every loss
// costs Rewind. With probability Fail that is not enough, and it costs a Timeout more, and one more with probability Loss each time. The
// end of the message may cost Timeouts as a loss does.
type Rewinds struct {
	Sent            float64 // completion without a loss, seconds
	Packets         float64
	Loss, Fail      float64
	Rewind, Timeout float64 // seconds
}

// GoBackN is the completion under the go-back-N of RoCEv2: the first packet behind a gap makes the responder send one NAK, the
// requester goes back and sends everything from the gap again, so that a loss costs a round trip; what is lost of the packets that are
// thrown away does not matter. Where the NAK or the packet that was sent again is lost, nothing tells of it but the local ACK timeout,
// in seconds; neither does anything tell of a lost last packet, or its lost ACK.
func GoBackN(p Path, m Message, timeout float64) Rewinds {
	step := p.PacketTime(m)
	return Rewinds{
		Sent: p.Lossless(m), Packets: max(math.Round(m.Packets()/p.runs()), 1), Loss: p.Loss, Fail: 1 - (1-p.Loss)*(1-p.Back),
		Rewind: p.RTT + step, Timeout: max(timeout, p.RTT),
	}
}

// Mean implements Distribution.
func (r Rewinds) Mean() float64 {
	losses := r.Packets * r.Loss
	return r.Sent + losses*r.Rewind + (losses+1)*r.Fail/(1-r.Loss)*r.Timeout
}

// Tail implements Distribution.
func (r Rewinds) Tail(t float64) float64 {
	over := t - r.Sent
	switch {
	case over < -1e-12*t:
		return 1
	case r.Packets*r.Loss*r.Fail >= manyTimeouts:
		return math.Erfc((t-r.Mean())/math.Sqrt(2*r.variance())) / 2
	}
	return r.exactTail(over)
}

// manyTimeouts is how many make the sum of all costs next to normal.
const manyTimeouts = 100

// variance of the completion.
func (r Rewinds) variance() float64 {
	g, g2 := r.Fail/(1-r.Loss), r.Fail*(1+r.Loss)/((1-r.Loss)*(1-r.Loss)) // moments of the timeouts of a loss
	cost := r.Rewind + g*r.Timeout
	square := r.Rewind*r.Rewind + 2*g*r.Rewind*r.Timeout + g2*r.Timeout*r.Timeout
	return r.Packets*r.Loss*(square-r.Loss*cost*cost) + (g2-g*g)*r.Timeout*r.Timeout
}

// exactTail is the probability that losses cost more than over.
func (r Rewinds) exactTail(over float64) float64 {
	return expect(r.Packets, r.Loss, func(losses float64) float64 {
		most := math.Floor((over-losses*r.Rewind)/r.Timeout + 1e-9) // timeouts that fit
		if most < 0 {
			return 1
		}
		return expect(losses+1, r.Fail, func(failed float64) float64 {
			if failed > most {
				return 1
			}
			return incompleteBeta(most-failed+1, failed, r.Loss) // more repetitions than are left before that many recoveries
		})
	})
}

// Span implements Distribution.
func (r Rewinds) Span() (least, most float64) {
	_, losses, _ := likely(r.Packets, r.Loss)
	_, failed, _ := likely(losses+1, r.Fail)
	return r.Sent, r.Sent + losses*r.Rewind + (2*failed+40)*r.Timeout
}

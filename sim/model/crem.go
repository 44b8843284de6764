// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"

	"crem.dev/crem/agent/fec"
)

// Rounds of coded retransmission, the one of single packets included, before a block is left to RDMA (Section 7.3 of the protocol).
const Rounds = 3

// CREM is the protection of a flow whose loss is known: m does not have to be found out.
type CREM struct {
	K, M int
	// Repair is what a repair symbol takes on the wire over what a source packet takes.
	Repair float64
	// Rounds of coded retransmission that the receiver waits for: those that fit into maxHold and the hold memory, at most Rounds.
	Rounds int
	// Spread sends the symbols of a block but the first among the packets of the next one. BurstGap is after how many seconds without a
	// packet a block that is not full is closed, and those wait no longer.
	Spread   bool
	BurstGap float64
	// LastResort is how long RDMA takes for what CREM leaves to it, in seconds, from when it is left.
	LastResort float64
	// Window is how many packets the transport lets be in flight, counted from the first that has not come; 0: any number.
	Window float64
}

// deltaLoss is the loss over which a request asks for one symbol more than it needs (Section 7.1, rule 1).
const deltaLoss = 0.01

// block is the number of packets in a block of the message: less than K in a short one.
func (c CREM) block(m Message) int { return int(min(float64(c.K), m.Packets())) }

// Completion of a message.
func (c CREM) Completion(p Path, m Message) Distribution {
	packets, step := m.Packets(), p.PacketTime(m)
	k := c.block(m)
	blocks := math.Ceil(packets / float64(k))
	s := Stream{Units: blocks, Step: (packets + blocks*float64(c.M)*c.Repair) * step / blocks, After: p.RTT}
	left := c.left(p, k)
	due := float64(c.M) * c.Repair * step // all symbols are in
	asked := due + tolerance(p)
	if c.M > 0 {
		s.Delay = append(s.Delay, Delay{0, -math.Expm1(float64(k) / p.runs() * math.Log1p(-p.Loss))}, Delay{due, left[0]})
	} else {
		s.Delay = append(s.Delay, Delay{0, left[0]})
	}
	for n := range c.Rounds {
		if n == 0 {
			asked += p.RTT
		} else {
			asked += p.RTT * 9 / 8 // the next request leaves room for a late answer
		}
		s.Delay = append(s.Delay, Delay{asked, left[n+1]})
	}
	s.Delay = append(s.Delay, Delay{asked + c.LastResort, 0})
	d := Distribution(s)
	if c.Window > 0 {
		d = s.Within(c.Window / float64(k))
	}
	if wait, share := c.tailWait(p, m); share > 0 {
		least, _ := d.Span()
		return Held{Distribution: d, Until: least + wait, Share: share}
	}
	return d
}

// tailWait is how long the last block's symbols wait, as no packet follows, and with what probability one of them is needed.
func (c CREM) tailWait(p Path, m Message) (wait, share float64) {
	k := c.block(m)
	switch rest := int(math.Mod(m.Packets(), float64(k))); {
	case c.M == 0:
		return 0, 0
	case rest > 0: // it closes when the burst is over, and then all leave
		return c.BurstGap, tail(p, rest+c.M, 0) - tail(p, rest+c.M, c.M)
	case c.Spread: // the first leaves at once, the others when the burst is over, or before a retransmission can pass
		return min(c.BurstGap, p.RTT/4), tail(p, k+c.M, 1) - tail(p, k+c.M, max(c.M, 1))
	}
	return 0, 0
}

// tolerance is how old a gap must be before it is asked for (Section 7.1, rule 3).
func tolerance(p Path) float64 { return min(max(p.RTT/8, 50e-6), 2e-3) }

// Outcome is what becomes of the blocks that lost a packet, as probabilities of a block.
type Outcome struct {
	Lossy     float64 `json:"lossy"`     // lost a source packet, or a symbol
	InTime    float64 `json:"inTime"`    // and was restored by the symbols that came with it
	OnRequest float64 `json:"onRequest"` // and was restored by coded retransmission
	Left      float64 `json:"left"`      // and was left to RDMA
}

// Outcome of a block of the message.
func (c CREM) Outcome(p Path, m Message) Outcome {
	k := c.block(m)
	left := c.left(p, k)
	o := Outcome{Lossy: tail(p, k+c.M, 0), Left: left[c.Rounds]}
	o.InTime, o.OnRequest = o.Lossy-left[0], left[0]-o.Left
	return o
}

// maxShort bounds how many symbols a block may be short of; the rest of the probability is taken for never restored.
const maxShort = 96

// short is the distribution of how many symbols a block lacks. In each pair the second has held a symbol before, so that a request may
// name one more source than symbols are missing.
type short [maxShort + 1][2]float64

// left is the probability that a block of k sources is incomplete after its own symbols, and after each round.
func (c CREM) left(p Path, k int) [Rounds + 1]float64 {
	var s short
	rest := tail(p, k+c.M, c.M)
	left := [Rounds + 1]float64{rest}
	for d := 1; d <= min(k, maxShort); d++ {
		q := max(tail(p, k+c.M, c.M+d-1)-tail(p, k+c.M, c.M+d), 0)
		none := math.Exp(logChoose(float64(k), float64(d)) - logChoose(float64(k+c.M), float64(c.M+d))) // all symbols are among the lost
		s[d][0] += q * none
		s[d][1] += q * (1 - none)
		rest -= q
	}
	s[maxShort][0] += max(rest, 0)
	for n := range Rounds {
		s = s.round(p.Loss, n == Rounds-1)
		left[n+1] = s.sum()
	}
	return left
}

// round asks once. copies says that single packets are sent, one for each that is lost.
func (s short) round(loss float64, copies bool) short {
	var after short
	for d := 1; d <= maxShort; d++ {
		for held, q := range s[d] {
			if q < 1e-30 {
				continue
			}
			sent := d
			if held == 1 && (copies || loss > deltaLoss) {
				sent++
			}
			after[d][held] += q * loss // the request is lost
			for come := 0; come < d; come++ {
				now := held
				if come > 0 {
					now = 1
				}
				after[d-come][now] += q * (1 - loss) * binomial(float64(sent), float64(come), 1-loss)
			}
		}
	}
	return after
}

func (s short) sum() float64 {
	sum := 0.0
	for _, pair := range s {
		sum += pair[0] + pair[1]
	}
	return sum
}

// PerBlock is what each block of k of the message may miss, so that the message has an incomplete one with probability epsilon.
func PerBlock(m Message, k int, epsilon float64) float64 {
	blocks := math.Ceil(m.Packets() / min(float64(k), m.Packets()))
	return -math.Expm1(math.Log1p(-epsilon) / blocks)
}

// Repairs is the static rule of Section 5.3, rule 4: the smallest m, up to most, with which a block of k of the message is incomplete
// with a probability below epsilon.
func Repairs(p Path, m Message, k int, epsilon float64, most int) int {
	k = int(min(float64(k), m.Packets()))
	if p.runs() > 1 {
		return fec.MinBurstRepair(k, p.Loss, p.Burst, epsilon, most)
	}
	return fec.MinRepair(k, p.Loss, epsilon, most)
}

// RoundsMeet says whether OnDemand can do without symbols sent ahead: one coded round meets the block's epsilon,
// 1 - (1 - p^2)^k < epsilon (Section 5.3, rule 4).
func RoundsMeet(p Path, k int, perBlock float64) bool {
	return -math.Expm1(float64(k)*math.Log1p(-p.Loss*p.Loss)) < perBlock
}

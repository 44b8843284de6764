// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/internal/render"
	"crem.dev/crem/sim"
	"crem.dev/crem/sim/model"
)

const (
	defaultK = 32
	// codeLength is k + m of a code over GF(2^8).
	codeLength = 255
	// near is within what two completion times count as equally good: then the lower overhead decides.
	near = 0.03
)

// What is tried.
var (
	blockSizes = []int{16, 32, 64, 128}
	targets    = []target{
		{1e-7, true}, {1e-6, true}, {1e-5, true}, {1e-4, true}, {1e-3, true}, {1e-2, true}, {0.1, true},
		{1e-4, false}, {1e-3, false}, {1e-2, false}, {0.1, false}, {0.5, false},
	}
)

// target is an epsilon, for a message or for a block.
type target struct {
	epsilon float64
	message bool
}

// perBlock is what a block may miss.
func (t target) perBlock(m model.Message, k int) float64 {
	if t.message {
		return model.PerBlock(m, k, t.epsilon)
	}
	return t.epsilon
}

// candidate is one way to set CREM up.
type candidate struct {
	crem     model.CREM
	target   target
	onDemand bool
	spread   bool          // of repair symbols over the next block's packets
	maxHold  time.Duration // how long a packet may wait for order
	timeout  float64       // of the last acknowledgement, in seconds
	contender
}

// choose finds the candidate to recommend: of those whose p99.9 and mean are within 3 % of the least, the one with the least overhead;
// of these the one with the least p99.9, then the smallest blocks.
func (in *Input) choose() candidate {
	all := in.candidates()
	best := all[0]
	p999 := make([]float64, len(all))
	leastTail, leastMean := math.Inf(1), math.Inf(1)
	for i, c := range all {
		p999[i] = model.Quantile(c, 0.999)
		leastTail, leastMean = min(leastTail, p999[i]), min(leastMean, c.Mean())
	}
	found, tail := false, 0.0
	for i, c := range all {
		if p999[i] > (1+near)*leastTail || c.Mean() > (1+near)*leastMean {
			continue
		}
		if !found || c.overhead < best.overhead-1e-9 || c.overhead < best.overhead+1e-9 && p999[i] < tail*(1-1e-3) {
			found, best, tail = true, c, p999[i]
		}
	}
	if found {
		return best
	}
	for i, c := range all { // the least mean and the least tail are not of one candidate
		if s := p999[i]/leastTail + c.Mean()/leastMean; i == 0 || s < tail {
			best, tail = c, s
		}
	}
	return best
}

// candidates lists what can be tried. There is at least one.
func (in *Input) candidates() []candidate {
	p, m := in.path(), in.message()
	var all []candidate
	seen := map[[2]int]bool{} // k and m: of the targets that lead to the same m the strictest is taken, as a loss that grows then finds more
	add := func(k, repairs int, t target, onDemand bool) {
		if !seen[[2]int{k, repairs}] {
			seen[[2]int{k, repairs}] = true
			for _, rounds := range in.choicesOfRounds() {
				if in.hopeless(k, repairs, rounds) {
					continue
				}
				all = append(all, in.candidate(k, repairs, rounds, t, onDemand, true))
				if in.Burst == 1 && repairs > 1 { // no burst to be spread over
					all = append(all, in.candidate(k, repairs, rounds, t, onDemand, false))
				}
			}
		}
	}
	for _, k := range in.blockSizes() {
		for _, t := range targets {
			perBlock := t.perBlock(m, k)
			repairs := model.Repairs(p, m, k, perBlock, mostRepairs(k))
			add(k, repairs, t, false)
			if in.rounds() > 0 && repairs > 0 && model.RoundsMeet(p, k, perBlock) {
				add(k, 0, t, true)
			}
		}
	}
	return all
}

// mostFailing is how many blocks of a message may wait for a request under a transport that stops for each sooner or later.
const mostFailing = 30

// hopeless says that a transport with bitmaps would stand still all the time, because its window is used up while a block waits. Such candidates only
// take time to be judged.
func (in *Input) hopeless(k, repairs, rounds int) bool {
	if !in.Transport.bitmaps() || repairs >= mostRepairs(k) {
		return false
	}
	o := model.CREM{K: k, M: repairs, Rounds: rounds}.Outcome(in.path(), in.message())
	return in.message().Packets()/float64(k)*(o.OnRequest+o.Left) > mostFailing
}

// blockSizes are those that make a difference for the message, and whose REPAIRs fit the link if any do.
func (in *Input) blockSizes() (list []int) {
	for _, k := range blockSizes {
		whole := len(list) > 0 && float64(k) >= 2*in.message().Packets() // a smaller block holds the message already
		if !whole && (in.LinkMTU == 0 || in.neededMTU(in.RDMAMTU, k) <= in.LinkMTU) {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		list = []int{defaultK}
	}
	return list
}

// mostRepairs leaves Repair Indices for two coded rounds.
func mostRepairs(k int) int { return codeLength - k - 2*max(1, k/32) }

func (in *Input) candidate(k, m, rounds int, t target, onDemand, spread bool) candidate {
	p := in.path()
	c := candidate{target: t, onDemand: onDemand, spread: spread, maxHold: in.maxHold(rounds), crem: model.CREM{
		K: k, M: m, Repair: in.repairRatio(k), Rounds: rounds, Spread: spread, BurstGap: sim.CREM().Send.LeastBurstGap.Seconds(),
		Window: in.transportWindow(),
	}}
	switch in.Transport {
	case GoBackN:
		c.timeout = ackTimeout(in.exponent(c.maxHold)).Seconds()
	case MRC, VeRoCE:
		c.timeout = in.timeout()
	default:
		c.timeout = model.RTO * p.RTT
	}
	c.crem.LastResort = in.lastResort(c.timeout, c.maxHold)
	late := model.Late{Distribution: c.crem.Completion(p, in.message()), Again: p.Back, Timeout: c.timeout}
	if m == 0 { // no repair symbol tells that a last packet was sent
		late.Again = 1 - (1-p.Back)*(1-p.Loss)
	}
	c.contender = contender{keyCREM, float64(m) * c.crem.Repair / math.Min(float64(k), in.message().Packets()), late}
	return c
}

// lastResort is how long the transport takes, in seconds, for what CREM leaves to it.
func (in *Input) lastResort(timeout float64, maxHold time.Duration) float64 {
	p := in.path()
	switch in.Transport {
	case SelectiveRepeat, MRC, VeRoCE:
		return model.NACK * p.RTT
	case SelectiveRepeatTime:
		return model.RTO * p.RTT
	case GoBackN:
	}
	// Going back, the sender sends what it had in flight again, unprotected. The last packets of it the gateway gives from memory where
	// they are lost; each other loss costs a round trip (Section 6.1, rule 9).
	m := in.message()
	_, replay := in.hold(maxHold)
	again := min(in.inFlight(), m.Packets()/2) - float64(replay)/in.cell()
	if again <= 0 {
		return p.RTT
	}
	window := m
	window.Octets = int64(again) * int64(m.Packet)
	return p.RTT + model.GoBackN(p, window, timeout).Mean() - p.Lossless(window)
}

// cell is what a packet takes in a gateway's memory, in octets.
func (in *Input) cell() float64 {
	return float64(fec.Stride(in.RDMAMTU+40) + fec.MaxHead + 128)
}

// choicesOfRounds are how many rounds the receiver may be told to wait for: as many as it can, or one, which keeps the local ACK timeout
// short.
func (in *Input) choicesOfRounds() []int {
	if most := in.rounds(); most > 1 && in.delivery() == crf.InOrder {
		return []int{most, 1}
	}
	return []int{in.rounds()}
}

// rounds is how many rounds of coded retransmission the receiver can wait for. Packets that wait for order fill the hold memory.
func (in *Input) rounds() int {
	if in.delivery() == crf.Immediate {
		return model.Rounds
	}
	rounds := 0
	for rounds < model.Rounds && in.holdFor(rounds+1) <= min(in.longestHold(in.holdFor(rounds+1)), mostHold) {
		rounds++
	}
	return rounds
}

func (in *Input) delivery() crf.Delivery {
	if in.Transport == GoBackN {
		return crf.InOrder
	}
	return crf.Immediate
}

// mostHold is the largest maxHold of a profile.
const mostHold = 2 * time.Second

// holdFor is the maxHold that so many rounds need: finding out, a round trip each, and a margin.
func (in *Input) holdFor(rounds int) time.Duration {
	rtt := in.RTT
	find := min(max(rtt/8, 50*time.Microsecond), 2*time.Millisecond) + sim.CREM().Send.LeastBurstGap
	return find + time.Duration(rounds)*(rtt+rtt/8)
}

// maxHold is what the rounds need that the receiver waits for; where it can wait for none, one round all the same, as the memory ends the
// wait before it. In whole milliseconds.
func (in *Input) maxHold(rounds int) time.Duration {
	if in.delivery() == crf.Immediate {
		return render.ProfileDefaults().MaxHold.Duration
	}
	hold := in.holdFor(max(rounds, 1))
	return min(hold.Round(time.Millisecond)+time.Millisecond, mostHold)
}

// longestWait is how long an acknowledgement takes at most: a round trip, and the wait for order.
func (in *Input) longestWait(maxHold time.Duration) time.Duration {
	return in.RTT + min(maxHold, in.longestHold(maxHold))
}

// exponent is that of the local ACK timeout: the NIC's, else the smallest that leaves acknowledgements their time.
func (in *Input) exponent(maxHold time.Duration) int {
	if in.AckTimeout != 0 {
		return in.AckTimeout
	}
	return in.leastExponent(maxHold)
}

func (in *Input) leastExponent(maxHold time.Duration) int {
	longest := in.longestWait(maxHold)
	return timeoutAbove(longest + longest/10)
}

// longestHold is how long one flow's packets can wait, with a profile's maxHold, before its hold memory is full.
func (in *Input) longestHold(maxHold time.Duration) time.Duration {
	all, replay := in.hold(maxHold)
	packets := float64(all-replay) / in.cell()
	return time.Duration(packets * in.path().PacketTime(in.message()) * 1e9)
}

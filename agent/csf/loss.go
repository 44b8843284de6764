// SPDX-License-Identifier: Apache-2.0

package csf

import "math"

const (
	// A lossEstimate counts over several memories at once: the shortest forgets after shortMemory packets, each further one after
	// longerBy times as many.
	shortMemory = 512
	longerBy    = 8
	memories    = 5 // 512 to 2 million packets

	// doubtSigmas standard deviations and doubtSlack packets must the losses of a shorter memory be off what a longer one expects
	// before the longer one is held to be about another time.
	doubtSigmas = 3
	doubtSlack  = 2

	// priorLost in priorPackets packets is assumed of a path of which nothing is known: the first losses find a repair symbol, and
	// a clean path soon shows that it needs none.
	priorLost    = 0.1
	priorPackets = 100

	// burstWeight is the weight of an interval of burstPackets packets in the burst length; smaller ones weigh in proportion.
	burstWeight  = 1.0 / 32
	burstPackets = 1000
	// priorDispersed losses an interval are assumed to have been independent.
	priorDispersed = 0.5

	// congestedCE is the CE fraction on source packets above which an interval's loss is congestion (Section 5.3, rule 2).
	congestedCE = 0.01

	// clusterMemory losses are remembered of how they cluster, priorAlone more are assumed to have been independent, and pairs of them are counted in
	// stretches of clusterLen packets (Section 8.1, rule 5).
	clusterMemory = 128
	priorAlone    = 2
	clusterLen    = 32

	// maxBurst bounds the estimated burst length.
	maxBurst = 64
)

// seen is how many packets are known to have been sent, and how many of them were lost before restoration.
type seen struct{ sent, lost float64 }

// add takes n packets of which x were lost into a count that forgets after memory packets.
func (s *seen) add(n, x, memory float64) {
	fade := math.Exp(-n / memory)
	now := memory * (1 - fade) // of the n packets the earlier ones have faded too
	s.sent = s.sent*fade + now
	s.lost = s.lost*fade + now*x/n
}

// agrees reports whether the losses of s can be chance at the rate of t, for losses that come in runs of a mean length.
func (s seen) agrees(t seen, burst float64) bool {
	expected := t.rate() * s.sent
	return math.Abs(s.lost-expected) <= chance(expected, burst)
}

// exceeds reports whether the losses of s are more than chance makes of the rate of t.
func (s seen) exceeds(t seen, burst float64) bool {
	expected := t.rate() * s.sent
	return s.lost > expected+chance(expected, burst)
}

// chance is how far losses may be off the expected number.
func chance(expected, burst float64) float64 {
	return doubtSigmas*math.Sqrt(expected*(2*burst-1)) + doubtSlack*burst
}

// rate is the mean of the loss rate given what was seen, with the prior.
func (s seen) rate() float64 { return (s.lost + priorLost) / (s.sent + priorPackets) }

// beta gives the distribution of the loss rate, given what was seen, as the parameters of Beta(a, b).
func (s seen) beta() (a, b float64) { return s.lost + priorLost, max(s.sent-s.lost, 0) + priorPackets }

// upper is the loss rate and one standard error, for losses that come in runs of a mean length.
func (s seen) upper(burst float64) float64 {
	a, b := s.beta()
	return (a + math.Sqrt(a*(2*burst-1))) / (a + b)
}

// evidence is a moving average of losses whose memory is as long as they agree with each other: that of a steady path grows to millions of packets,
// which is what telling 1e-5 from 1e-4 takes, and a step is followed within some hundred.
type evidence struct {
	by   [memories]seen // shortest memory first
	rose bool           // the last interval showed a step up
}

// lossEstimate is what the LOSS_REPORTs say of the loss before restoration (Section 5.3, rule 3).
type lossEstimate struct {
	evidence
	congested evidence // what was lost since there is congestion, by whatever cause: as much by transmission at most

	// Dispersion of the losses of an interval: squared deviation from the expected number, and the expected number. Their
	// ratio is 1 for independent losses.
	deviation, expected float64

	clusters clusters
}

// interval is what a LOSS_REPORT says of losses.
type interval struct {
	sent, lost  int
	raise       bool // loss by transmission; without it the estimate may only fall: loss by congestion never raises m (Section 5.3, rule 1)
	detailed    bool // the peer tells of runs and pairs
	runs, pairs uint32
}

// add takes an interval.
func (e *lossEstimate) add(i interval) {
	if i.sent <= 0 {
		return
	}
	n, x := float64(i.sent), float64(i.lost)
	burst := e.burst()
	if !i.raise {
		e.congested.add(seen{n, x}, burst)
		return
	}
	if e.fell() {
		e.evidence = e.congested
	}
	e.congested = evidence{}
	if i.detailed {
		e.clusters.add(n, x, &i)
	}
	e.disperse(n, x, burst)
	e.evidence.add(seen{n, x}, burst)
}

// fell reports whether less is lost during congestion than was before, and not by chance. Only so loss by congestion changes p (Section 5.3, rule 1): a mean of
// the intervals with less than p alone would fall and fall. Where nothing was known before, anything is more.
func (e *lossEstimate) fell() bool {
	before, now := e.evidence.known(), e.congested.known()
	if before.sent == 0 {
		return now.rate() < before.rate()
	}
	return now.sent >= shortMemory && now.rate() < before.rate() && !now.agrees(before, e.burst())
}

// add takes an interval, for losses that come in runs of a mean length.
func (e *evidence) add(interval seen, burst float64) {
	if e.stepped(interval, burst) {
		return
	}
	memory := float64(shortMemory)
	for i := range e.by {
		e.by[i].add(interval.sent, interval.lost, memory)
		memory *= longerBy
	}
	e.doubt(burst)
}

// stepped begins anew with an interval that contradicts what is known. It must have enough packets to speak for itself: what fewer
// say the shortest memory tells. The interval in which a step up shows first is partly about the time before; the one after it is not.
func (e *evidence) stepped(interval seen, burst float64) bool {
	known := e.known()
	if known.sent == 0 || interval.sent < shortMemory || interval.agrees(known, burst) {
		e.rose = false
		return false
	}
	up := interval.rate() > known.rate()
	if up && !e.rose {
		interval.straddle()
	}
	e.rose = up
	e.beginWith(0, interval)
	return true
}

// straddle takes off half of the packets of a count that holds a step up: about so many are of the time before. Too few repair symbols
// cost more than too many.
func (s *seen) straddle() { s.sent = max(s.sent/2, s.lost) }

// beginWith makes a count what the memories from the i-th on hold.
func (e *evidence) beginWith(i int, s seen) {
	for ; i < memories; i++ {
		e.by[i] = s
	}
}

// doubt drops what longer memories hold once a shorter one contradicts them.
func (e *evidence) doubt(burst float64) {
	for i := memories - 2; i >= 0; i-- {
		now := e.by[i]
		if now.agrees(e.by[i+1], burst) {
			continue
		}
		if now.rate() > e.by[i+1].rate() {
			now.straddle()
		}
		e.beginWith(i, now)
	}
}

// known is what the longest memory holds.
func (e *evidence) known() seen { return e.by[memories-1] }

// known is what the estimate rests on.
func (e *lossEstimate) known() seen {
	if e.fell() {
		return e.congested.known()
	}
	return e.evidence.known()
}

// double makes what is known that of twice the loss rate.
func (e *lossEstimate) double() {
	s := e.known()
	s.lost = min(2*s.lost, s.sent)
	e.congested = evidence{}
	e.beginWith(memories-1, s)
}

// p is the estimated loss rate.
func (e *lossEstimate) p() float64 { return e.known().rate() }

// disperse takes an interval into the burst length. What contradicts the rate counts as if it were just within chance: it may be a
// step, and if it is none more such intervals will follow.
func (e *lossEstimate) disperse(n, x, burst float64) {
	known := e.by[1] // a memory that a step has reached by now, and one interval not
	if known.sent == 0 {
		return
	}
	w := burstWeight * min(n, burstPackets) / burstPackets
	mean := known.rate() * n
	off := min(math.Abs(x-mean), chance(mean, burst))
	e.deviation = (1-w)*e.deviation + w*off*off
	e.expected = (1-w)*e.expected + w*mean
}

// burst is the mean length of runs of losses that would disperse losses over blocks as they are, at least 1: for runs of geometric length B the
// dispersion is 2B-1. Until losses have shown something else they are taken to be independent. A peer that tells of pairs of losses shows their
// dispersion within a block; of others only that over whole intervals is known.
func (e *lossEstimate) burst() float64 {
	dispersion := (e.deviation + priorDispersed) / (e.expected + priorDispersed)
	if e.clusters.told {
		dispersion = e.clusters.dispersion()
	}
	return min(max((dispersion+1)/2, 1), maxBurst)
}

// runLength is the mean length of a run of losses.
func (e *lossEstimate) runLength() float64 {
	if e.clusters.told {
		return e.clusters.runLength()
	}
	return e.burst()
}

// evidence is what the flow's m is chosen by: all that is known of the pair of sites, unless the flow's own losses contradict it.
func (f *Flow) evidence() (e *lossEstimate, ofSite bool) {
	site := f.env.path(f.params.PeerSite)
	if site == nil || site.known().sent <= f.loss.known().sent || !f.loss.known().agrees(site.known(), site.burst()) {
		return &f.loss, false
	}
	return site, true
}

// lossRate is the estimate p.
func (f *Flow) lossRate() float64 {
	e, _ := f.evidence()
	return e.p()
}

// estimate takes an interval.
func (f *Flow) estimate(i interval) {
	f.loss.add(i)
	f.env.learn(f.params.PeerSite, i)
	f.redundancy.forget()
}

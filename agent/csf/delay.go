// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"

	"crem.dev/crem/agent/roce"
)

const (
	// probeGap is the least time between two probes; probeLost is when one that was not answered is taken for lost, at least, and
	// probeLostRTTs the same in SRTTs. An answer that comes later would be taken for that of the next.
	probeGap      = 10 * time.Millisecond
	probeLost     = 100 * time.Millisecond
	probeLostRTTs = 8
	// unusual is how many mean deviations a round trip may be off before it is a rise.
	unusual = 4
	// usualGain is the slowness of both averages: a queue that takes some round trips to fill must not become usual.
	usualGain = 16
	// firstDeviation is the part of the first round trip that the others are assumed to be off.
	firstDeviation = 8
	// settledTrips is how many risen round trips tell of a longer path, if they grow no further and neither unusual loss nor marks come with them: a
	// queue that is fed too much does grow, and meets its end or the threshold of its marks.
	settledTrips = 16
	// risenFor is how long round trips may be risen: then they are the usual ones.
	risenFor = time.Minute
	// riseMemory is over how many packets the losses during a rise are compared with the usual ones.
	riseMemory = shortMemory * longerBy
	// maxDelays bounds the paths that an Env remembers.
	maxDelays = 256
)

// delayPath is what the round trips of CREM messages have in common: they leave from one port for one, so they take one route, and their DSCP
// decides in which queues they wait.
type delayPath struct {
	peer netip.AddrPort
	dscp uint8
}

// delay is the sender's own view of queues on the path to a peer (Section 5.3, rule 2), shared by the flows that take it: round trips of a
// PARAM_UPDATE that one of them repeats only to be timed. RDMA acknowledgements do not serve, because those that wait for a lost packet are late
// without any queue.
type delay struct {
	path   delayPath
	prober *Flow         // whose probe is under way, nil: none is
	sentAt time.Duration // the last probe
	next   time.Duration // no probe before

	trip   time.Duration // the last round trip
	tripAt time.Duration

	usual, deviation time.Duration // round trips while there was no rise; usual is 0 before the first
	risen            bool          // the last one was longer
	rise             rise
}

// rise is what is known of round trips that are longer than usual.
type rise struct {
	since  time.Duration
	trips  int           // so many of them since they grew, or loss or marks were unusual
	level  time.Duration // the shortest of these
	before seen          // what was known of the loss when it began
	burst  float64       // mean length of a run of losses then
	during seen          // losses since then, the recent ones
}

// delay returns what is known of the round trips to a peer. With no place left, the path that was probed least recently gives way.
func (e *Env) delay(p delayPath) *delay {
	d := e.delays[p]
	if d != nil {
		return d
	}
	if e.delays == nil {
		e.delays = make(map[delayPath]*delay)
	}
	if len(e.delays) >= maxDelays {
		oldest := p
		for k, o := range e.delays {
			if oldest == p || o.sentAt < e.delays[oldest].sentAt {
				oldest = k
			}
		}
		delete(e.delays, oldest)
	}
	d = &delay{path: p}
	e.delays[p] = d
	return d
}

// sample takes a round trip, and says whether a rise begins with it.
func (d *delay) sample(now, trip time.Duration) (begins bool) {
	d.trip, d.tripAt = trip, now
	if d.usual == 0 || d.risen && now-d.rise.since > risenFor {
		d.usual, d.deviation, d.risen = trip, trip/firstDeviation, false
		return false
	}
	off, much := trip-d.usual, max(d.usual/risePart, leastRise, unusual*d.deviation)
	if off > much {
		begins, d.risen = !d.risen, true
		d.rise.add(trip, much)
		return begins
	}
	d.risen = false
	d.usual += off / usualGain
	d.deviation += (max(off, -off) - d.deviation) / usualGain
	return false
}

// add takes a round trip of the rise. One that is much longer than those before it says that the rise goes on.
func (r *rise) add(trip, much time.Duration) {
	if r.trips == 0 || trip-r.level > much {
		r.trips, r.level = 0, trip
	}
	r.trips++
	r.level = min(r.level, trip)
}

// report takes the losses of an interval. More of them than before the rise, or marks, say that it is a queue.
func (d *delay) report(expected, lost uint32, marked bool) {
	if !d.risen || expected == 0 {
		return
	}
	r, interval := &d.rise, seen{float64(expected), float64(lost)}
	r.during.add(interval.sent, interval.lost, riseMemory)
	if marked || interval.exceeds(r.before, r.burst) || r.during.exceeds(r.before, r.burst) {
		r.trips, r.during = 0, seen{}
	}
}

// congestion reports whether round trips are longer, and not because the path is.
func (d *delay) congestion() bool { return d != nil && d.risen && d.rise.trips <= settledTrips }

// rises reports whether round trips are longer than usual, for whatever reason.
func (d *delay) rises() bool { return d != nil && d.risen }

// followDelay joins the flows that take the same path as this one, and takes what the round trip of another's probe tells of it.
func (f *Flow) followDelay(now time.Duration) {
	if p := (delayPath{f.peer, f.tos >> 2}); f.delay == nil || f.delay.path != p {
		f.endProbe()
		f.delay, f.tripAt = f.env.delay(p), now
	}
	if d := f.delay; d.tripAt > f.tripAt {
		f.tripAt = d.tripAt
		f.sampleRTT(now, d.trip, true)
	}
}

// probe asks the peer for an answer that can be timed: the PARAM_UPDATE of the configuration in force comes again as it was, and is
// acknowledged again (Section 5.2, rule 7). LOSS_REPORTs cause it, so flows that send nothing probe nothing.
func (f *Flow) probe(now time.Duration, acts *[]Action) {
	d := f.delay
	if f.current == nil || f.proposal.due != roce.Never || now < f.probeAfter || now < d.next {
		return
	}
	if d.prober != nil && now-d.sentAt < f.probePatience() {
		return
	}
	d.prober, d.sentAt = f, now
	d.next = now + max(f.rtt.smoothed(), probeGap)
	f.stats.Probes++
	f.sendUpdate(f.current, acts)
}

// probePatience is when an answer that has not come will not come any more.
func (f *Flow) probePatience() time.Duration { return max(probeLost, probeLostRTTs*f.rtt.smoothed()) }

// answerProbe takes the acknowledgement of a probe, if it is one.
func (f *Flow) answerProbe(now time.Duration, id uint8) bool {
	d := f.delay
	if d == nil || d.prober != f || f.current == nil || f.current.id != id {
		return false
	}
	f.endProbe()
	if d.sample(now, now-d.sentAt) {
		e, _ := f.evidence()
		d.rise = rise{since: now, trips: 1, level: d.trip, before: e.known(), burst: e.burst()}
	}
	f.tripAt = now
	f.sampleRTT(now, d.trip, true)
	return true
}

// endProbe ends the flow's probe, if one is under way.
func (f *Flow) endProbe() {
	if f.delay != nil && f.delay.prober == f {
		f.delay.prober = nil
	}
}

// forgetProbe makes an acknowledgement that is still to come no answer to a probe.
func (f *Flow) forgetProbe(now time.Duration) {
	f.endProbe()
	f.probeAfter = now + f.probePatience()
}

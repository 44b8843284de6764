// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"net/netip"
	"time"
)

const (
	// scoutPause is the least time between two series of HELLO out of turn to a silent gateway, scoutSlowest the most, and in between it is
	// the scoutPart of how long the gateway has been silent: flows are protected again soon after it is back, by that measure.
	scoutPause   = 250 * time.Millisecond
	scoutSlowest = 4 * time.Second
	scoutPart    = 16
	// scoutGrace is the part of that by which flows that the gateway served before have the turn alone: others may not pass it at all.
	scoutGrace = 4
	// scoutGap is the least time between two series out of turn, to whatever gateway, and between two looks of one flow.
	scoutGap = 25 * time.Millisecond
	// maxPresences bounds the gateways that an Env remembers.
	maxPresences = 1024
	// yieldLooks is among how many of them, whichever, the one that gives way is chosen: thousands of flows may miss an answer in one batch.
	yieldLooks = 16
)

// presence is what the flows of one worker know of whether a gateway is there. Each of them waits longer with every series that nobody answers
// (Section 5.1); together they send one of them ahead now and then, and when it is answered the others wait no longer.
type presence struct {
	bound    int           // flows that have it as their peer
	lost     bool          // one of them lost it while it sent, and none has heard it since
	silent   bool          // it has answered no series since, while it was the peer of none that hears it
	since    time.Duration // when it became so, or when it was heard after that
	returned bool          // since is when it was heard again
	scout    time.Duration // no series out of turn before
}

// presences are those of an Env, by address.
type presences struct {
	of    map[netip.Addr]*presence
	scout time.Duration // no series out of turn before
}

// at gives what is known of a gateway. With no place left, one of no flow gives way of which nothing was learnt for long; nil if none is found.
func (p *presences) at(a netip.Addr) *presence {
	if q := p.of[a]; q != nil {
		return q
	}
	if p.of == nil {
		p.of = make(map[netip.Addr]*presence)
	}
	if len(p.of) >= maxPresences && !p.yield() {
		return nil
	}
	q := &presence{}
	p.of[a] = q
	return q
}

func (p *presences) yield() bool {
	var oldest *presence
	var at netip.Addr
	looks := 0
	for a, q := range p.of {
		if q.bound == 0 && (oldest == nil || q.since < oldest.since) {
			oldest, at = q, a
		}
		if looks++; looks == yieldLooks {
			break
		}
	}
	if oldest == nil {
		return false
	}
	delete(p.of, at)
	return true
}

// hear notes that the gateway said something.
func (q *presence) hear(now time.Duration) {
	q.lost = false
	if q.silent {
		q.silent, q.returned, q.since = false, true, now
	}
}

// join notes that a gateway is the flow's peer.
func (f *Flow) join(now time.Duration) {
	f.unanswered, f.served = false, f.peer.Addr().Unmap()
	q := f.env.presences.at(f.served)
	if q == nil {
		return
	}
	q.hear(now)
	q.bound++
	f.with = q
}

// leave takes it back. Flows that rest would not notice that it is lost.
func (f *Flow) leave(lost bool) {
	if q := f.with; q != nil {
		q.bound--
		q.lost = q.lost || lost
		f.with = nil
	}
}

// missed notes that no gateway of the flow answered. One that is the peer of other flows is there all the same: the flow does not pass it.
func (f *Flow) missed(now time.Duration) {
	f.unanswered, f.missedAt, f.lookAt = true, f.hello.last, now
	for _, p := range f.peers {
		q := f.env.presences.at(p.Addr())
		if q != nil && !q.silent && (q.bound == 0 || q.lost) {
			q.silent, q.returned, q.since, q.scout = true, false, now, now+scoutPause
		}
	}
}

// outOfTurn reports whether a flow that nobody answered need not wait for the end of its pause: one of its gateways is back, or it is the one that finds
// that out.
func (f *Flow) outOfTurn(now time.Duration) bool {
	if !f.unanswered || now < f.lookAt {
		return false
	}
	f.lookAt = now + scoutGap
	if _, able := f.want(); !able {
		return false // it would take the turn of one that can ask
	}
	all := &f.env.presences
	for _, p := range f.peers {
		switch q := all.of[p.Addr()]; {
		case q == nil:
		case q.returned && q.since > f.missedAt:
			f.failures = 0
			return true
		case q.silent && now >= max(q.scout, all.scout):
			pause := min(max((now-q.since)/scoutPart, scoutPause), scoutSlowest)
			if f.served != p.Addr() && now < q.scout+pause/scoutGrace {
				continue
			}
			q.scout, all.scout = now+pause, now+scoutGap
			return true
		}
	}
	return false
}

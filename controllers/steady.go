// SPDX-License-Identifier: Apache-2.0

package controllers

import "time"

// steady keeps a node that failed shown as failing until it was well for some time, so that a status does not flap with it. Worse is shown at
// once. It belongs to one goroutine.
type steady struct {
	hold   time.Duration
	failed map[nodeInDomain]failure
}

type nodeInDomain struct{ domain, node string }

// failure is the last one of a node in a domain.
type failure struct {
	shown   verdict
	last    time.Time // when it was last seen failing
	visited uint64    // the round in which the node was last looked at
}

// show gives what to show of a node whose true state is v.
func (s *steady) show(key nodeInDomain, v verdict, now time.Time, round uint64) verdict {
	if v.state == nodeFailing {
		s.failed[key] = failure{shown: v, last: now, visited: round}
		return v
	}
	f, ok := s.failed[key]
	if !ok {
		return v
	}
	end := f.last.Add(s.hold)
	if !now.Before(end) {
		delete(s.failed, key)
		return v
	}
	f.visited = round
	s.failed[key] = f
	held := f.shown
	held.until, held.rendered = end, v.rendered
	return held
}

// forget drops nodes and domains that the round did not meet.
func (s *steady) forget(round uint64) {
	for key, f := range s.failed {
		if f.visited != round {
			delete(s.failed, key)
		}
	}
}

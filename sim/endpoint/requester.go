// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// requester is what RC requesters have in common, whether they send data or ask for it: what is under way, the local ACK timer, and going back once a
// gap. Its rules are those of sim/rc, where each is explained.
type requester struct {
	book
	cfg Config
	err string

	una  uint64 // oldest packet that has not got through: of those sent, no acknowledgement came; of those asked for, nothing came
	next uint64 // to be sent, or asked for, next
	high uint64 // never sent, or asked for, so far

	progress time.Duration // when the ACK timer began
	retries  int           // times in a row that the requester went back without progress
	rewound  bool          // for a gap, since una moved last
}

// Post implements Poster.
func (r *requester) Post(now time.Duration, octets int64) { r.post(now, octets) }

// Err implements Poster.
func (r *requester) Err() string { return r.err }

// open reports whether there is more, and room for it in the window.
func (r *requester) open() bool {
	return r.err == "" && r.next < r.end && r.next-r.una < uint64(r.cfg.Window)
}

// timer is when the local ACK timeout expires.
func (r *requester) timer() time.Duration {
	if r.err != "" || r.una == r.next {
		return roce.Never
	}
	return r.progress + r.cfg.Timeout
}

// begin starts the timer when nothing is under way yet.
func (r *requester) begin(now time.Duration) {
	if r.una == r.next {
		r.progress = now
	}
}

// advance notes that everything before upto got through.
func (r *requester) advance(now time.Duration, upto uint64) {
	r.una = upto
	r.progress = now
	r.retries, r.rewound = 0, false
	r.next = max(r.next, r.una) // in the middle of going over it again
}

// goBack rewinds once a gap, and says whether it did: until there is progress, further signs of the gap are older than the rewinding, and only the
// timer helps.
func (r *requester) goBack(now time.Duration) bool {
	if r.rewound || r.una == r.next {
		r.stats.Stale++
		return false
	}
	done := r.rewind(now)
	r.rewound = true
	return done
}

// rewind begins again at the oldest packet that has not got through. It is false when the retries are used up: the queue pair has failed.
func (r *requester) rewind(now time.Duration) bool {
	if r.cfg.Retries >= 0 && r.retries >= r.cfg.Retries {
		r.err = "transport retry counter exceeded"
		return false
	}
	r.retries++
	r.rewound = false
	r.progress = now
	r.next = r.una
	return true
}

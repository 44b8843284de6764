// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"fmt"
	"time"
)

// HoldDown is how long policies must cover a domain again before it is protected again: an IKE daemon that restarts removes and sets them several times.
const HoldDown = 5 * time.Second

// Guard remembers one domain's verdicts, so that protection ends at once and comes back only when the policies stay. The zero value has judged nothing.
type Guard struct {
	judged bool
	open   bool          // protection is allowed
	again  time.Duration // since when the policies cover the domain again; meaningful while covered
	cover  bool
	last   Verdict
}

// Judge takes a verdict at time now and says whether the domain may be protected. The first verdict counts at once.
func (g *Guard) Judge(now time.Duration, v Verdict) bool {
	switch {
	case !v.OK():
		g.open = false
	case !g.judged:
		g.open = true
	case !g.cover:
		g.again = now
	}
	if v.OK() && g.judged && !g.open && now-g.again >= HoldDown {
		g.open = true
	}
	g.judged, g.cover, g.last = true, v.OK(), v
	return g.open
}

// Wait is how long after now the guard opens if nothing changes; 0: it does not wait.
func (g *Guard) Wait(now time.Duration) time.Duration {
	if !g.cover || g.open {
		return 0
	}
	return max(HoldDown-(now-g.again), time.Millisecond)
}

// Messages reports whether what this node sends to the CREM port is covered.
func (g *Guard) Messages() bool { return g.last.Messages }

// Problem says why the domain is not protected, empty when it is.
func (g *Guard) Problem() string {
	switch {
	case g.open:
		return ""
	case g.cover:
		return fmt.Sprintf("the policies cover the domain again; it is protected when they have stayed for %v", HoldDown)
	}
	return g.last.String()
}

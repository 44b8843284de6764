// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"testing"
	"time"
)

// RFC 6040, Section 4.2: each odd pair of fields is logged once in a while; usual ones never.
func TestWANECN_OddCombinationsAreLimited(t *testing.T) {
	n := NewNotices(time.Minute)
	at := func(now time.Duration, inner, outer Codepoint, want bool, suppressed uint64) {
		t.Helper()
		if ok, since := n.Log(now, inner, outer, Inner(inner, outer).Notice); ok != want || since != suppressed {
			t.Errorf("%v: inner %v, outer %v: %v after %d, want %v after %d", now, inner, outer, ok, since, want, suppressed)
		}
	}
	at(0, ECT0, ECT0, false, 0)
	at(0, NotECT, CE, true, 0)
	at(time.Second, NotECT, CE, false, 0)
	at(time.Second, CE, ECT1, true, 0)
	at(2*time.Second, NotECT, CE, false, 0)
	at(time.Minute, NotECT, CE, true, 2)
	at(2*time.Minute, NotECT, CE, true, 0) // not those again
	if n.Suppressed() != 2 {
		t.Errorf("%d suppressed", n.Suppressed())
	}
}

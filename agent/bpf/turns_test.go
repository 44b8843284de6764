// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"
	"time"
)

// A flow is not handed back while injected frames are under way; frames that never come through delay that, and do not
// prevent it.
func TestTurnsSettle(t *testing.T) {
	counts := &turnCounts{}
	turns := turns{counts: counts}
	at := time.Hour
	want := func(what string, want bool) {
		t.Helper()
		if got := turns.settled(at); got != want {
			t.Fatalf("%s: settled %v", what, got)
		}
	}
	want("nothing injected", true)
	counts.redirected.Add(3)
	want("three under way", false)
	at += lossTime - 1
	counts.turned.Add(1)
	want("one through", false)
	at += lossTime - 1
	want("two still under way", false)
	counts.turned.Add(2)
	want("all through", true)

	counts.redirected.Add(2)
	counts.turned.Add(1)
	want("one under way", false)
	at += lossTime
	want("nothing came for long: lost", true)
	counts.redirected.Add(1)
	want("the next is waited for", false)
	counts.turned.Add(1)
	want("and came", true)
	counts.turned.Add(1)
	want("the lost one came after all", true)
	counts.redirected.Add(1)
	want("a further one is waited for", false)
	counts.turned.Add(1)
	want("through", true)
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"runtime"
	"sync"
	"testing"

	"crem.dev/crem/agent/csf"
)

// One worker at a time has what is known of a site, and the others do not wait for it.
func TestSection5_3_OneWorkerAtATimeHasASite(t *testing.T) {
	const workers, turns = 4, 1000
	sites := newKnownSites()
	had := 0
	var all sync.WaitGroup
	for range workers {
		k := sites.site("west")
		all.Go(func() {
			for range turns {
				for !k.Try(func(*csf.KnownSite) { had++ }) {
					runtime.Gosched()
				}
			}
		})
	}
	all.Wait()
	if had != workers*turns {
		t.Errorf("%d turns, want %d", had, workers*turns)
	}
	west := sites.site("west")
	west.Try(func(*csf.KnownSite) {
		if sites.site("west").Try(func(*csf.KnownSite) {}) {
			t.Error("two workers have it at once")
		}
		if !sites.site("north").Try(func(*csf.KnownSite) {}) {
			t.Error("another site is not to be had meanwhile")
		}
	})
}

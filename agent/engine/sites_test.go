// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/internal/agentapi"
)

// TestSitesAreSummedOverWorkers: the mean counts flows, not workers; round-trip times only where one was measured; a site without flows is shown too.
func TestSitesAreSummedOverWorkers(t *testing.T) {
	c := &Config{Domains: []Domain{{Name: "d", Site: "east", Sites: []Site{{Name: "east"}, {Name: "west"}, {Name: "north"}}}, {Name: "e", Site: "a", Sites: []Site{{Name: "b"}, {Name: "a"}}}}}
	sums := siteSums{}
	sums.merge(siteSums{{"d", "west"}: {flows: 3, suspended: 2, measured: 1, rtt: 0.02, loss: 0.3, expected: 1000, lost: 7}, {"e", "b"}: {flows: 1, loss: 0.5}})
	sums.merge(siteSums{{"d", "west"}: {flows: 1, suspended: 1, measured: 1, rtt: 0.04, loss: 0.1, expected: 500, lost: 1}, {"gone", "x"}: {flows: 1}})
	want := []agentapi.Site{
		{Domain: "d", Name: "west", Protected: 4, Suspended: 3, SRTT: 0.03, Loss: 0.1, Expected: 1500, Lost: 8},
		{Domain: "d", Name: "north"},
		{Domain: "e", Name: "b", Protected: 1, Loss: 0.5},
	}
	if diff := cmp.Diff(want, sums.describe(c)); diff != "" {
		t.Error(diff)
	}
	// What ended flows reported stays, as long as their site is configured.
	ended := siteSums{{"d", "west"}: {expected: 5}, {"d", "gone"}: {expected: 5}, {"gone", "west"}: {expected: 5}}
	if ended.keep(c); len(ended) != 1 || ended[siteKey{"d", "west"}].expected != 5 {
		t.Errorf("kept %v", ended)
	}
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"

	"crem.dev/crem/sim/endpoint"
)

// Section 10, rule 1: messages that follow each other, each a short burst a round trip, have the budget of what they send: the repairs of one burst do not
// stand against nothing when the next one begins.
func TestBurstsHaveTheirBudget(t *testing.T) {
	r := run(t, Scenario{
		Link: wan(1e-2), Protection: CREM(), Transport: endpoint.Config{Kind: endpoint.MRC}, MessageOctets: 8 * mib, Messages: 150, Warmup: 10, MTU: 4096, Seed: 1,
	})
	if s := &r.CSF; !r.Done || s.Ordinary == 0 || s.Withheld > s.Ordinary/200 {
		t.Errorf("%d symbols were sent and %d withheld, at a ratio of %.3f", s.Ordinary, s.Withheld, r.Cost.RepairRatio())
	}
}

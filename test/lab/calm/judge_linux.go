// SPDX-License-Identifier: Apache-2.0

package calm

import (
	"fmt"
	"testing"
)

// rounds is how often a measurement that was disturbed is tried.
const rounds = 3

// Judge runs rounds of a measurement until one shows what it shall. A round says what is wrong with what it measured, or nothing; and what the machine did to
// it, as far as the round itself can tell. The test fails with a round that is wrong though the machine let it be. If each of them was wrong and
// disturbed, nothing can be said: then Judge returns why, for the test to skip what it left out.
func Judge(t testing.TB, round func() (wrong, disturbed string)) (leftOut string) {
	t.Helper()
	w, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var wrong, disturbed string
	for n := range rounds {
		_ = w.Worst() // what was before the round is no excuse
		wrong, disturbed = round()
		away := w.Worst()
		if disturbed == "" && away > Limit {
			disturbed = fmt.Sprintf("a processor was away for %d ms", away.Milliseconds())
		}
		switch {
		case wrong == "":
			return ""
		case disturbed == "":
			t.Errorf("%s; the longest that a processor was away is %v", wrong, away)
			return ""
		}
		t.Logf("round %d of %d: %s; but %s", n+1, rounds, wrong, disturbed)
	}
	return fmt.Sprintf("LEFT OUT: in each of %d rounds the machine was too busy to tell, in the last one %s: %s", rounds, disturbed, wrong)
}

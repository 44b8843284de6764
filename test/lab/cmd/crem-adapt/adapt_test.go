// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/wan"
)

// Every scenario is one that the lab can run, within two minutes, and says what its phases are.
func TestScenariosCanRun(t *testing.T) {
	names := map[string]bool{}
	for _, s := range scenarios() {
		c := s.trial(&watch{})
		ways := [2]wan.Settings{c.Path, c.Path}
		if c.Back != nil {
			ways[1] = *c.Back
		}
		for _, p := range s.phases {
			if p.name == "" || p.length <= 0 {
				t.Errorf("%s: phase %+v", s.name, p)
			}
			if p.change == "" {
				continue
			}
			if err := bridge.Merge(&ways, []byte(p.change)); err != nil {
				t.Errorf("%s, %s: %v", s.name, p.name, err)
			}
		}
		for i := range ways {
			if err := ways[i].Validate(); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
		if names[s.name] || s.length() == 0 || s.length() > 2*time.Minute || c.Transfer.Duration <= s.length() {
			t.Errorf("%s: %v of %v", s.name, s.length(), c.Transfer.Duration)
		}
		names[s.name] = true
		if protected := c.Profile != ""; protected == s.unprotected {
			t.Errorf("%s: protected %v", s.name, protected)
		}
	}
}

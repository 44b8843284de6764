// SPDX-License-Identifier: Apache-2.0

package engine

import "testing"

// Who waits for a configuration to be in force is told when the workers follow it, not only when it was given to them.
func TestObeyedIsTold(t *testing.T) {
	b := newBench(t, reporting(true))
	told := 0
	b.w.e.opts.Changed = func() { told++ }
	b.w.obeyed()
	cfg := reporting(true)
	cfg.Generation = 8
	if _, err := b.w.e.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	told = 0
	if s := b.w.e.Overview(); s.AppliedGeneration == 8 {
		t.Error("a configuration counts as applied that no worker has seen")
	}
	for range 3 {
		b.w.obey()
		b.w.obeyed()
	}
	if s := b.w.e.Overview(); s.AppliedGeneration != 8 || told != 1 {
		t.Errorf("generation %d is applied, told %d times", s.AppliedGeneration, told)
	}
}

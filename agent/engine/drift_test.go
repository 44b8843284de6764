// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// G04: what somebody changed in the kernel is repaired, told and counted; nothing is told of a kernel that is as it should be; a failure that goes on is told once.
func TestG04_DriftIsTold(t *testing.T) {
	w := newWorld(t, shape{workers: 1, seed: 1}, setting{})
	n := w.nodes[east]
	var told []string
	n.engine.opts.Drift = func(found []string) { told = append(told, found...) }
	n.engine.opts.Notice = func(text string) { told = append(told, text) }
	said := n.engine.repairKernel("")
	if len(told) > 0 || said != "" {
		t.Fatalf("%q, %q", told, said)
	}
	n.repair = func() ([]string, error) { return []string{"a", "b"}, nil }
	n.engine.repairKernel(said)
	if !slices.Equal(told, []string{"a", "b"}) || n.engine.repaired.Load() != 2 {
		t.Errorf("told %q, counted %d", told, n.engine.repaired.Load())
	}
	told = nil
	n.repair = func() ([]string, error) { return nil, errors.New("no") }
	for range 3 {
		said = n.engine.repairKernel(said)
	}
	if len(told) != 1 || !strings.Contains(told[0], "tried again: no") {
		t.Errorf("%q", told)
	}
	n.repair = nil
	if said = n.engine.repairKernel(said); said != "" {
		t.Errorf("still %q", said)
	}
}

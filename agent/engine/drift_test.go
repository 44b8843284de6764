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

// G04: the programs of tunnels are compared too. What can not be repaired there is told, in the log and by the status of a tunnel that is not up, until it can.
func TestG04_DriftOfTunnelsIsTold(t *testing.T) {
	b := newTunnelBench(t, false)
	e := b.w.e
	var told []string
	e.opts.Drift = func(found []string) { told = append(told, found...) }
	e.opts.Notice = func(text string) { told = append(told, text) }
	b.kernel.amiss = []string{"a"}
	if said := e.repairKernel(""); said != "" || !slices.Equal(told, []string{"a"}) || e.repaired.Load() != 1 {
		t.Errorf("%q, told %q, counted %d", said, told, e.repaired.Load())
	}
	told, b.kernel.amiss, b.kernel.broken = nil, nil, errors.New("no")
	e.repairKernel("")
	if len(told) != 1 || !strings.Contains(told[0], "tried again: no") {
		t.Errorf("told %q", told)
	}
	if p := e.Overview().Tunnels[0].Problem; !strings.Contains(p, "tried again: no") {
		t.Errorf("the tunnel says %q", p)
	}
	b.kernel.broken = nil
	e.repairKernel("")
	if p := e.Overview().Tunnels[0].Problem; strings.Contains(p, "tried again: no") {
		t.Errorf("the tunnel still says %q", p)
	}
}

// What went with its interface is not repaired: the interface may come back for something else.
func TestG04_UplinksThatAreGoneAreLeft(t *testing.T) {
	b := newTunnelBench(t, false)
	two := tunnelled(true)
	two.Domains[0].Uplinks = []string{"wan0", "wan1"}
	b.use(t, two)
	b.kernel.attached = []int{7} // wan1, 8, is unplugged, and its link is dead
	b.use(t, tunnelled(true))
	if !slices.Equal(b.kernel.detached, []int{8}) {
		t.Errorf("given up: %v", b.kernel.detached)
	}
}

// G13: where another interface has an uplink's index at once, everything of the uplink is made anew, and what is of no use is closed.
func TestG13_AnotherInterfaceOfTheSameIndex(t *testing.T) {
	b := newTunnelBench(t, false)
	two := tunnelled(true)
	two.Domains[0].Uplinks = []string{"wan0", "wan1"}
	b.use(t, two) // the first tap there is wan1's
	b.use(t, two)
	if b.opened != 1 || len(b.closed) > 0 {
		t.Fatalf("%d taps opened, closed %v", b.opened, b.closed)
	}
	b.gone, b.looks, b.kernel.attached = 1, map[int]bool{}, nil
	b.use(t, two)
	if b.opened != 2 || !slices.Equal(b.closed, []int{1}) || !b.looks[8] || !slices.Equal(b.kernel.attached, []int{8}) || len(b.kernel.detached) > 0 {
		t.Errorf("%d taps opened, closed %v, look into tunnels %v, programs on %v", b.opened, b.closed, b.looks, b.kernel.attached)
	}
}

// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// tunnelUplinks is where the programs of tunnels are.
type tunnelUplinks struct {
	problems map[int]string        // by the index of each uplink: why they are not there; empty: they are
	left     map[int]time.Duration // interfaces that are no uplinks any more: until when packets may come there in tunnels
}

func newTunnelUplinks() tunnelUplinks {
	return tunnelUplinks{problems: map[int]string{}, left: map[int]time.Duration{}}
}

// attach puts the programs on the uplinks of a snapshot that is being made. One that does not get them keeps its flows outside of tunnels,
// protected as before.
func (t *tunnels) attach(next *snapshot) {
	problems := map[int]string{}
	for i := range next.uplinks {
		u := &next.uplinks[i]
		delete(t.uplinks.left, u.index)
		before, known := t.uplinks.problems[u.index]
		switch {
		case u.bare:
			problems[u.index] = fmt.Sprintf("packets of uplink %s have no Ethernet header, and only those that have one go into tunnels: name the interface below it in the domain's uplinks, or leave spec.wan out", u.name)
		case known && before == "" && !u.anew:
			problems[u.index] = ""
		default:
			problems[u.index] = ""
			if err := t.take(u); err != nil {
				problems[u.index] = err.Error()
			}
		}
	}
	attached := t.kernel.Attached()
	for index := range t.uplinks.problems {
		if next.uplinkOf(index) == nil && !slices.Contains(attached, index) {
			_ = t.kernel.Detach(index) // it went with its interface, which may come back for something else
		}
	}
	t.uplinks.problems = problems
	if t.waiting {
		return // the whole configuration may know more uplinks
	}
	for _, index := range attached {
		if _, waits := t.uplinks.left[index]; !waits && next.uplinkOf(index) == nil {
			t.uplinks.left[index] = t.kernel.Promised()
		}
	}
}

// take makes an uplink one of tunnels. Its taps look into them first: no flow must be out of sight.
func (t *tunnels) take(u *uplinkState) error {
	if err := u.lookIntoTunnels(true); err != nil {
		return err
	}
	if _, err := t.kernel.Attach(u.index); err != nil {
		return fmt.Errorf("attach the programs of tunnels to %s: %w", u.name, err)
	}
	return nil
}

func (u *uplinkState) lookIntoTunnels(on bool) error {
	for _, tap := range u.taps {
		if err := tap.LookIntoTunnels(on); err != nil {
			return fmt.Errorf("look into tunnels on %s: %w", u.name, err)
		}
	}
	return nil
}

// leave takes the programs off the interfaces where no other site may send into a tunnel any more.
func (u *tunnelUplinks) leave(kernel Tunnels, now time.Duration) {
	for index, until := range u.left {
		if now >= until {
			_ = kernel.Detach(index) // the interface may be gone, and its programs with it
			delete(u.left, index)
		}
	}
}

// problem says why an uplink is without the programs; empty: none is.
func (u *tunnelUplinks) problem() string {
	for _, index := range slices.Sorted(maps.Keys(u.problems)) {
		if u.problems[index] != "" {
			return u.problems[index]
		}
	}
	return ""
}

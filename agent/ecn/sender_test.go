// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"net/netip"
	"testing"
	"time"
)

// WAN ECN, CNP: an interval of a flow ends with it; after an early warning in the next one a severe level need not wait.
func TestWANECN_IntervalsOfAFlow(t *testing.T) {
	s := NewSender(SenderConfig{Start: wall, Every: every, PerSecond: 1e6, Flows: 4})
	for i, x := range []struct {
		now   time.Duration
		level Level
		want  DropReason
	}{
		{0, LevelSevere, DropNone}, {every - 1, LevelEarly, DropLimit}, {every, LevelEarly, DropNone},
		{every + 1, LevelSevere, DropNone}, {every + 2, LevelSevere, DropLimit}, {2*every + 1, LevelSevere, DropNone},
	} {
		if _, why := s.Notify(x.now, wall, flow4, x.level); why != x.want {
			t.Errorf("%d: %v, want %v", i, why, x.want)
		}
	}
	if got := s.Stats(); got.Sent != [3]uint64{0, 1, 3} || got.Drops[DropLimit] != 2 {
		t.Errorf("%+v", *got)
	}
}

// WAN ECN, CNP: of all flows no more leave at once than a tenth of a second's, but one, however slow it is and whatever the clock does.
func TestWANECN_BurstOfAllFlows(t *testing.T) {
	for _, x := range []struct {
		perSecond float64
		burst     int
	}{{100, 10}, {5, 1}} {
		s := NewSender(SenderConfig{Start: wall, Every: every, PerSecond: x.perSecond, Flows: 64})
		flow := flow4
		burst := func(now time.Duration) (sent int) {
			for range 20 {
				flow.Label++
				if _, why := s.Notify(now, wall, flow, LevelEarly); why == DropNone {
					sent++
				}
			}
			return sent
		}
		if got := burst(time.Minute); got != x.burst {
			t.Errorf("%g a second: %d at once", x.perSecond, got)
		}
		if got := burst(time.Minute + time.Second); got != x.burst {
			t.Errorf("%g a second: %d a second later", x.perSecond, got)
		}
	}
	s := NewSender(SenderConfig{Start: wall, Every: every, PerSecond: 100, Flows: 64})
	flow := flow4
	for i := range 11 { // the clock goes back meanwhile
		flow.Label++
		if _, why := s.Notify(time.Minute-time.Duration(i)*time.Second, wall, flow, LevelEarly); (why == DropNone) != (i < 10) {
			t.Errorf("CNP %d of a burst: %v", i, why)
		}
	}
}

// What no CNP can say is not told, and takes nothing of the limits.
func TestWANECN_WhatIsNotNotified(t *testing.T) {
	s := NewSender(SenderConfig{Start: wall, Every: every, PerSecond: 10, Flows: 4})
	for _, x := range []struct {
		flow  Flow
		level Level
	}{
		{flow4, LevelNone}, {flow4, LevelSevere + 1}, {Flow{}, LevelEarly}, {Flow{Src: flow4.Src, Dst: flow6.Dst}, LevelEarly}, {Flow{Src: flow6.Src, Dst: netip.Addr{}}, LevelEarly},
	} {
		if _, why := s.Notify(time.Second, wall, x.flow, x.level); why != DropMalformed {
			t.Errorf("%+v: %v", x, why)
		}
	}
	if x, why := s.Notify(time.Second, wall, flow4, LevelEarly); why != DropNone || x.Sequence != wall {
		t.Errorf("%+v, %v", x, why)
	}
}

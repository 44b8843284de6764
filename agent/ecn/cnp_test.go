// SPDX-License-Identifier: Apache-2.0

package ecn

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"
	"time"
)

var (
	flow4 = Flow{Src: netip.MustParseAddr("10.1.0.1"), Dst: netip.MustParseAddr("10.2.0.1"), Label: 0x123456}
	flow6 = Flow{Src: netip.MustParseAddr("fd00:1::1"), Dst: netip.MustParseAddr("fd00:2::1"), Label: 7}
	node  = netip.MustParseAddr("192.0.2.9")
)

// The layout octet by octet, written by hand from the picture in cnp.go.
func TestWANECN_CNPLayout(t *testing.T) {
	x := CNP{Level: LevelSevere, Flow: flow4, Node: 0x0a0b0c0d, Sequence: 0x0102030405060708, Time: 0x1112131415161718}
	want := "1c00002c" + "00000000" + "02040000" + "0a010001" + "0a020001" + "00123456" + "0a0b0c0d" + "0102030405060708" + "1112131415161718"
	b := x.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("\n%s, want\n%s", got, want)
	}
	for _, x := range []CNP{x, {Level: LevelEarly, Flow: flow6, Node: 1, Sequence: 2, Time: 3}} {
		b := x.Append(nil)
		if got, err := ParseCNP(b); err != nil || got != x {
			t.Fatalf("%+v, %v", got, err)
		}
		for n := range b {
			if _, err := ParseCNP(b[:n]); err == nil {
				t.Fatalf("%d octets of %d were taken", n, len(b))
			}
		}
		if _, err := ParseCNP(append(b, 0)); err == nil {
			t.Fatal("an octet too many was taken")
		}
	}
}

func FuzzCNP(f *testing.F) {
	for _, flow := range []Flow{flow4, flow6} {
		x := CNP{Level: LevelEarly, Flow: flow, Node: 1, Sequence: 2, Time: 3}
		f.Add(x.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := ParseCNP(b)
		if err != nil {
			return
		}
		again := x.Append(nil)
		if y, err := ParseCNP(again); err != nil || y != x || len(again) != len(b) {
			t.Fatalf("%+v became %+v, %v", x, y, err)
		}
	})
}

const (
	wall   = uint64(1_700_000_000_000_000) // microseconds
	maxAge = 100 * time.Millisecond
	every  = 10 * time.Millisecond
)

func receiver() *Receiver {
	return NewReceiver(ReceiverConfig{
		Domain: func(from netip.Addr, id uint32) bool { return from == node && id < 100 }, MaxAge: maxAge, Every: every,
		Early: time.Millisecond, Severe: 5 * time.Millisecond, Senders: 4, Flows: 4,
	})
}

func cnp(id uint32, sequence, at uint64, level Level) []byte {
	x := CNP{Level: level, Flow: flow4, Node: id, Sequence: sequence, Time: at}
	return x.Append(nil)
}

func TestWANECN_OnlyTrueCNPsAreBelieved(t *testing.T) {
	r := receiver()
	see := func(name string, from netip.Addr, b []byte, local func(Flow) Observation, want DropReason, now time.Duration) {
		t.Helper()
		if _, why := r.Handle(now, wall, from, b, local); why != want {
			t.Errorf("%s: %v, want %v", name, why, want)
		}
	}
	queue := func(d time.Duration) func(Flow) Observation {
		return func(Flow) Observation { return Observation{Known: true, Delay: d} }
	}
	age := uint64(maxAge.Microseconds())
	early := cnp(1, 10, wall, LevelEarly)
	see("outside the domain", netip.MustParseAddr("203.0.113.1"), early, nil, DropForeign, 0)
	see("unknown node", node, cnp(100, 10, wall, LevelEarly), nil, DropForeign, 0)
	see("malformed", node, early[:20], nil, DropMalformed, 0)
	see("old", node, cnp(1, 10, wall-age-1, LevelEarly), nil, DropOld, 0)
	see("future time", node, cnp(1, 10, wall+age+1, LevelEarly), nil, DropFuture, 0)
	see("future sequence", node, cnp(1, wall+age+1, wall, LevelEarly), nil, DropFuture, 0)
	see("true", node, early, nil, DropNone, 0)
	see("again", node, early, nil, DropReplayed, time.Second)
	see("too soon", node, cnp(1, 11, wall, LevelEarly), nil, DropLimit, every-1)
	see("worse", node, cnp(1, 12, wall, LevelSevere), queue(5*time.Millisecond), DropNone, every-1)
	see("later", node, cnp(1, 13, wall, LevelEarly), queue(time.Millisecond), DropNone, 3*every)
	see("no queue", node, cnp(1, 14, wall, LevelEarly), queue(time.Microsecond), DropContradict, 6*every)
	see("no long queue", node, cnp(1, 15, wall, LevelSevere), queue(2*time.Millisecond), DropContradict, 6*every)
	see("behind the window", node, cnp(1, 1000, wall, LevelEarly), nil, DropNone, 9*every)
	see("behind the window", node, cnp(1, 1000-replayWindow, wall, LevelEarly), nil, DropReplayed, 12*every)
	if s := r.Stats(); s.Accepted[LevelEarly] != 3 || s.Accepted[LevelSevere] != 1 {
		t.Errorf("%+v", *s)
	}
}

// The window of sequences against a plain set, with any order of sequences.
func FuzzReplayWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 3, 200, 130, 2, 255, 0})
	f.Fuzz(func(t *testing.T, jumps []byte) {
		var s sequences
		s.newest = 1000
		seen, at := map[uint64]bool{}, uint64(1000)
		newest := at
		for _, j := range jumps {
			at += uint64(j) - 100
			if at > 1<<40 {
				return
			}
			fresh := !seen[at] && (at > newest || newest-at < replayWindow)
			if got := s.take(at); got != fresh {
				t.Fatalf("sequence %d at newest %d: taken %v, want %v", at, newest, got, fresh)
			}
			newest = max(newest, at)
			seen[at] = true
		}
	})
}

// A full table of nodes forgets only who cannot be replayed any more; more flows than fit are forgotten one by one.
func TestReceiverIsBounded(t *testing.T) {
	r := receiver()
	for id := range uint32(4) {
		if _, why := r.Handle(0, wall, node, cnp(id, 1, wall, LevelEarly), nil); why != DropNone && why != DropLimit {
			t.Fatal(why)
		}
	}
	if _, why := r.Handle(0, wall, node, cnp(50, 1, wall, LevelEarly), nil); why != DropTable {
		t.Errorf("%v", why)
	}
	soon := wall + 2*uint64(maxAge.Microseconds()) // a CNP that was ahead by MaxAge could still be replayed
	if _, why := r.Handle(time.Second, soon, node, cnp(50, 1, soon, LevelEarly), nil); why != DropTable {
		t.Errorf("%v", why)
	}
	later := wall + 3*uint64(maxAge.Microseconds())
	if _, why := r.Handle(time.Second, later, node, cnp(50, 1, later, LevelEarly), nil); why != DropNone {
		t.Errorf("%v", why)
	}
	if _, why := r.Handle(2*time.Second, later, node, cnp(0, 1, wall, LevelEarly), nil); why != DropOld {
		t.Errorf("a replay after its node was forgotten: %v", why)
	}
	b := cnp(50, 2, later, LevelEarly)
	if n := testing.AllocsPerRun(100, func() { r.Handle(time.Second, later, node, b, nil) }); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

func TestWANECN_CNPsAreLimited(t *testing.T) {
	s := NewSender(SenderConfig{Node: 9, Start: wall, Every: every, PerSecond: 100, Flows: 64})
	first, why := s.Notify(0, wall, flow4, LevelEarly)
	if why != DropNone || first.Node != 9 || first.Sequence != wall || first.Time != wall || !bytes.Equal(first.Append(nil)[:1], []byte{0x1c}) {
		t.Fatalf("%+v, %v", first, why)
	}
	if _, why := s.Notify(every-1, wall, flow4, LevelEarly); why != DropLimit {
		t.Errorf("%v", why)
	}
	if x, why := s.Notify(every-1, wall, flow4, LevelSevere); why != DropNone || x.Sequence != wall+1 {
		t.Errorf("severe must not wait for early: %v", why)
	}
	sent := 0
	for i := range 1000 { // many flows in one second
		f := flow4
		f.Label = uint32(i) + 1<<20
		if _, why := s.Notify(time.Second+time.Duration(i)*time.Millisecond, wall, f, LevelEarly); why == DropNone {
			sent++
		} else if why != DropTotal {
			t.Fatal(why)
		}
	}
	if sent < 100 || sent > 111 {
		t.Errorf("%d in a second, want 100 and a burst of 10", sent)
	}
}

// A mark of the node itself counts as a CNP, and the one that its egress sends about it does not count again: the ingress reacts to it once. What else
// congests the flow is told by further CNPs, which count.
func TestWANECN_OwnMarksCountOnce(t *testing.T) {
	const every, echo = 10 * time.Millisecond, time.Second
	r := NewReceiver(ReceiverConfig{Domain: func(netip.Addr, uint32) bool { return true }, MaxAge: 5 * time.Second, Every: every, Echo: echo, Senders: 4, Flows: 4})
	s := NewSender(SenderConfig{Node: 1, Start: 1000, Every: time.Millisecond, PerSecond: 1e6, Flows: 4})
	now := time.Second
	cnp := func(level Level) DropReason {
		x, why := s.Notify(now, uint64(now.Microseconds()), flow4, level)
		if why != DropNone {
			t.Fatal(why)
		}
		_, why = r.Handle(now, uint64(now.Microseconds()), netip.MustParseAddr("192.0.2.9"), x.Append(nil), nil)
		return why
	}
	for _, level := range []Level{LevelEarly, LevelSevere} {
		now += 10 * every
		if why := r.Own(now, flow4, level); why != DropNone {
			t.Fatalf("%v: %v", level, why)
		}
		if why := r.Own(now+every-1, flow4, level); why != DropLimit {
			t.Errorf("%v, again within the interval: %v", level, why)
		}
		now += 5 * every // a round trip
		if why := cnp(level); why != DropEcho {
			t.Errorf("%v, the egress tells of it: %v", level, why)
		}
		if now += every; cnp(level) != DropNone {
			t.Errorf("%v, another mark", level)
		}
		now += every
		if why := r.Own(now, flow4, level); why != DropNone {
			t.Fatalf("%v: %v", level, why)
		}
		if now += echo; cnp(level) != DropNone {
			t.Errorf("%v, long after the own mark", level)
		}
	}
	if got := r.Stats(); got.Own != [3]uint64{0, 2, 2} || got.Accepted != [3]uint64{0, 2, 2} || got.Drops[DropEcho] != 2 {
		t.Errorf("%+v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
)

// WAN ECN, two thresholds: by the chances that the own queue gives, outer headers tell the level, in all four pairs of IP versions. The inner field
// stays; what is no ECN-capable packet, or CE already, is left alone, and so is everything in compatibility mode and after the chances are over.
func TestWANECN_QueueMarksOuterHeaders(t *testing.T) {
	w := newTunnelWorld(t, "")
	field := func(tunnel bpf.Tunnel, v6 bool, inner ecn.Codepoint) (outer, left ecn.Codepoint) {
		w.hostSends(fromHost(v6, 0x68|uint8(inner), 7, 512).Frame())
		p := w.seen()[14:]
		return ecn.CodepointOf(p), ecn.CodepointOf(p[ecn.Overhead(tunnel.Remote):])
	}
	var want bpf.TunnelStats
	for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6, compatible(tunnel4)} {
		w.set(tunnelPlan(0, tunnel))
		w.open(tunnel)
		mode := ecn.Normal
		if tunnel.Compatibility {
			mode = ecn.Compatibility
		}
		for _, c := range []struct {
			marked, severe float64
			lasts          time.Duration
			mark           ecn.Codepoint // of what can be marked
		}{{0, 0, time.Minute, ecn.NotECT}, {1, 0, time.Minute, ecn.ECT1}, {1, 1, time.Minute, ecn.CE}, {1, 1, 0, ecn.NotECT}} {
			w.tunnels.Mark(tunnel, c.marked, c.severe, packet.Now()+c.lasts)
			for _, v6 := range []bool{false, true} {
				for inner := range ecn.Codepoint(4) {
					wantOuter := ecn.Outer(mode, inner)
					if c.mark != ecn.NotECT && wantOuter == ecn.ECT0 {
						wantOuter = c.mark
						if c.mark == ecn.CE {
							want.Passages[bpf.QueueSevere]++
						} else {
							want.Passages[bpf.QueueEarly]++
						}
					}
					if outer, left := field(tunnel, v6, inner); outer != wantOuter || left != inner {
						t.Errorf("%+v, %+v, inner IPv6 %v: inner %v left as %v under %v, want under %v", tunnel, c, v6, inner, left, outer, wantOuter)
					}
				}
			}
		}
	}
	got := w.stats().Passages
	if got[bpf.QueueEarly] != want.Passages[bpf.QueueEarly] || got[bpf.QueueSevere] != want.Passages[bpf.QueueSevere] {
		t.Errorf("%v, want %v", got, want.Passages)
	}
}

// WAN ECN, two thresholds: of many packets about the share is marked that the chances say, and CE is among them.
func TestWANECN_QueueMarksByChance(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	w.tunnels.Mark(tunnel4, 0.5, 0.25, packet.Now()+time.Minute)
	const packets = 1000
	frame := fromHost(false, 2, 1, 256).Frame()
	for range packets {
		w.hostSends(frame)
		w.seen()
	}
	s := w.stats().Passages
	for passage, share := range map[bpf.Passage]float64{bpf.QueueEarly: 0.25, bpf.QueueSevere: 0.25} {
		// Nine standard deviations.
		if got := float64(s[passage]) / packets; got < share-0.125 || got > share+0.125 {
			t.Errorf("%s: %.3f of the packets, want about %.2f", passage, got, share)
		}
	}
}

// The marks of the own queue are told with the flow and their level, apart from those that arrive.
func TestWANECN_OwnMarksAreTold(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	for _, severe := range []float64{0, 1} {
		w.tunnels.Mark(tunnel4, 1, severe, packet.Now()+time.Minute)
		w.hostSends(fromHost(false, 2, 1, 256).Frame())
		m, err := w.tunnels.ReadMark()
		if err != nil {
			t.Fatal(err)
		}
		r := fromHost(false, 2, 1, 256)
		want := bpf.Mark{
			Flow: bpf.TunnelFlow{Src: r.Src, Dst: r.Dst, QPN: r.QPN}, Own: true, Severe: severe == 1, Local: tunnel4.Local, Remote: tunnel4.Remote,
		}
		if m != want {
			t.Errorf("%+v, want %+v", m, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// inMeasuredTunnels is what a domain says to have its tunnels measured.
const inMeasuredTunnels = "  wan: {mode: Normal, l4s: Absent, measurement: AlternateMarking}\n"

// classes counts the packets of tunnels on the WAN by the octet of DSCP and ECN outside, and inside.
type classes map[[2]byte]int

// watchClasses looks at so many packets that gateway A sends into its tunnel.
func (w *world) watchClasses(packets int) classes {
	w.t.Helper()
	code, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0x0800, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 23, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_IPIP, SkipTrue: 1},
		bpf.RetConstant{Val: 100},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var filter []unix.SockFilter
	for _, f := range code {
		filter = append(filter, unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K})
	}
	var ring *raw.Ring
	w.do(w.lab.WAN, func() error {
		device, err := net.InterfaceByName(topology.WANA)
		if err != nil {
			return err
		}
		ring, err = raw.OpenRing(device.Index, 100, 1024, filter)
		return err
	})
	defer ring.Close()
	seen := classes{}
	w.eventually("packets in the tunnel", func() bool {
		for {
			f, ok := ring.Next(time.Now())
			if !ok {
				return packets <= 0
			}
			if b := f.Data; len(b) > 58 && b[43] == unix.IPPROTO_UDP && int(b[56])<<8|int(b[57]) == 4791 {
				seen[[2]byte{b[15], b[35]}]++
				packets--
			}
			ring.Release(f.Slot)
		}
	})
	return seen
}

// measured is what the gateway measured of its one tunnel.
func (g *gateway) measured() agentapi.Measured {
	g.w.t.Helper()
	s := g.status()
	if len(s.Tunnels) != 1 || s.Tunnels[0].Measured == nil {
		g.w.t.Fatalf("not measured: %+v", s.Tunnels)
	}
	return *s.Tunnels[0].Measured
}

// losses is how many packets of RDMA the emulator lost so far on the way west, for whatever reason.
func (w *world) losses() uint64 {
	p := w.path().AToB
	var n uint64
	for _, class := range []wan.Class{wan.RoCEData, wan.RoCEOther} {
		n += p.LostRandom[class].Packets + p.LostBurst[class].Packets + p.DroppedFull[class].Packets
	}
	return n + p.RingDropped + p.SendDropped
}

func (w *world) setPath(settings string) {
	w.t.Helper()
	var now map[string]wan.Settings
	w.askWAN(http.MethodPatch, "/v1/settings", `{"a_to_b":`+settings+`}`, &now)
}

// awaitMeasured waits until so many more periods were compared, and returns false if one was left out meanwhile: a machine that stood still.
func (w *world) awaitMeasured(periods int) (whole bool) {
	w.t.Helper()
	next := func() (at time.Time) {
		before := w.a.counted("readings_received")
		w.eventually("another period is measured", func() bool { at = time.Now(); return w.a.counted("readings_received") > before })
		return at
	}
	start := next()
	end := start
	for range periods {
		end = next()
	}
	return int(math.Round(end.Sub(start).Seconds())) == periods
}

// TestRFC9341_LossAndDelayOfTheTunnel: two gateways measure the tunnel between them while the WAN loses a known number of packets, then delays them by a
// known time. The loss is exact; the change of the delay is the WAN's, but for how late the emulator was. The sender is told of both. The colour
// changes, and never reaches the receiver.
func TestRFC9341_LossAndDelayOfTheTunnel(t *testing.T) {
	w := newWorld(t, options{path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Seed: 3}, profile: proactive, domain: inMeasuredTunnels})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: 2000, data: 1000})
	w.awaitProtecting(1)
	w.eventually("the tunnel is measured", func() bool { return w.a.measured().Packets > 0 })
	if m := w.a.measured(); m.Lost != 0 || m.Problem != "" {
		t.Errorf("%+v", m)
	}

	seen := w.watchClasses(5000) // more than two periods
	if seen[[2]byte{0x02, 0x02}] == 0 || seen[[2]byte{0x06, 0x02}] == 0 || len(seen) != 2 {
		t.Errorf("outer and inner DSCP and ECN of the tunnel: %x", seen)
	}

	// Losses.
	for attempt := 0; ; attempt++ {
		before, lost := w.a.measured(), w.losses()
		reports := w.a.one("csf").Counters["path_reports"]
		w.setPath(`{"loss":0.01}`)
		whole := w.awaitMeasured(3)
		w.setPath(`{"loss":0}`)
		whole = w.awaitMeasured(4) && whole
		after := w.a.measured()
		got, want := after.Lost-before.Lost, w.losses()-lost
		t.Logf("%d packets measured, %d lost, the WAN lost %d; %v", after.Packets-before.Packets, got, want, w.a.status().Unmeasured)
		if got > want || want == 0 {
			t.Fatalf("%d packets lost, the WAN lost %d", got, want)
		}
		if w.a.one("csf").Counters["path_reports"] == reports {
			t.Error("the sender was not told")
		}
		if got == want {
			break
		}
		if whole || attempt == 3 {
			t.Fatalf("%d packets lost, the WAN lost %d", got, want)
		}
	}

	// Delay.
	before := w.a.measured()
	const rise = 20 * time.Millisecond
	w.setPath(fmt.Sprintf(`{"delay":%q}`, 5*time.Millisecond+rise))
	w.awaitMeasured(4)
	after := w.a.measured()
	got := time.Duration(after.DelayChange-before.DelayChange) * time.Microsecond
	late := time.Duration(w.path().AToB.LateMax) + time.Millisecond
	t.Logf("delay changed by %v, lateness of the emulator at most %v", got, late)
	if got < rise-late || got > rise+late {
		t.Errorf("delay changed by %v, the WAN's by %v; its frames are late by %v at most", got, rise, late)
	}
	if after.Lost != before.Lost || after.Problem != "" {
		t.Errorf("%+v, before the change %+v", after, before)
	}
	if _, got := s.end(); got.classes != [256]int{2: got.distinct} {
		t.Errorf("a colour reached the receiver: %v", got.classes)
	}
}

// TestRFC9341_OffUnlessAskedFor: without the setting the outer DSCP is the inner one, and nothing is told.
func TestRFC9341_OffUnlessAskedFor(t *testing.T) {
	w := newWorld(t, options{path: wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Seed: 3}, profile: proactive, domain: inTunnels})
	w.discard(w.lab.HostB)
	w.awaitTunnels()
	s := w.stream(streamOptions{rate: 2000, data: 1000})
	w.awaitProtecting(1)
	if seen := w.watchClasses(5000); len(seen) != 1 || seen[[2]byte{0x02, 0x02}] == 0 {
		t.Errorf("outer and inner DSCP and ECN of the tunnel: %x", seen)
	}
	if n := w.a.counted("readings_received") + w.b.counted("readings_sent"); n != 0 || w.a.status().Tunnels[0].Measured != nil {
		t.Errorf("%d readings", n)
	}
	s.end()
}

// SPDX-License-Identifier: Apache-2.0

package system

import (
	"syscall"
	"testing"
	"time"

	"crem.dev/crem/test/lab/wan"
)

// lostOnPath counts the stream's packets that the WAN lost.
func (w *world) lostOnPath() int {
	w.t.Helper()
	p := w.path()
	return int(p.AToB.LostRandom[wan.RoCEData].Packets)
}

// TestSection6_ImmediateDelivery: a receiver that takes packets in any order. Nothing is ever held, and what the path loses is injected afterwards. The
// books balance: what is missing at the receiver and what was restored is what the path lost.
func TestSection6_ImmediateDelivery(t *testing.T) {
	w := newWorld(t, options{path: lossy(), profile: `{k: 32, delivery: Immediate}`})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 5000})
	w.awaitProtecting(1)
	s.moves(15_000)
	sent, got := s.end()
	f, st, lost := w.b.one("crf"), w.b.status(), w.lostOnPath()
	missing, restored := sent-got.distinct, int(f.Restored)
	t.Logf("%d sent, %d lost on the path, %d restored, %d missing, %d twice, %d out of order", sent, lost, restored, missing, got.twice, got.order)
	if f.Held > 0 || st.Counters["kernel_held"] > 0 || st.Memory.Held > 0 {
		t.Errorf("%d packets were held, the kernel program held %d", f.Held, st.Counters["kernel_held"])
	}
	if restored == 0 || st.Counters["injected"] != f.Restored {
		t.Errorf("%d restored, %d injected", restored, st.Counters["injected"])
	}
	if missing+restored-got.twice != lost {
		t.Errorf("%d missing and %d restored (%d of them twice there) are not the %d lost", missing, restored, got.twice, lost)
	}
}

// TestStopUnderTrafficWithLoss: SIGTERM while packets are held for order. They leave, so that nothing is lost but what the path lost; the programs stay
// attached and pass everything, the next agent takes them over, and uninstall leaves nothing behind.
func TestStopUnderTrafficWithLoss(t *testing.T) {
	w := newWorld(t, options{path: lossy(), profile: proactive})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 5000})
	w.awaitProtecting(1)
	for range 3 {
		held := w.b.status().Counters["kernel_held"]
		w.eventually("packets are held", func() bool {
			st, ok := w.b.ask()
			return ok && st.Counters["kernel_held"] > held
		})
		w.b.stop()
		w.b.wantPrograms(1, "after SIGTERM")
		s.moves(1000)
		w.b.start()
		w.b.awaitAttached()
		w.awaitProtecting(1)
		w.b.wantPrograms(1, "after a restart")
	}
	for _, g := range []*gateway{w.b, w.a} {
		g.stop()
		if len(g.pinned()) == 0 {
			t.Errorf("%s: nothing is pinned after SIGTERM", g.ns.Name)
		}
		g.wantPrograms(1, "after SIGTERM")
		s.moves(1000)
		g.uninstall()
		g.wantPrograms(0, "after uninstall")
		if left := g.pinned(); len(left) > 0 {
			t.Errorf("%s: uninstall left %v", g.ns.Name, left)
		}
		s.moves(1000)
		g.uninstall() // finds nothing, and says no error
	}
	sent, got := s.end()
	lost := w.lostOnPath()
	t.Logf("%d sent, %d lost on the path, %d missing, %d twice, %d out of order", sent, lost, sent-got.distinct, got.twice, got.order)
	if missing := sent - got.distinct; missing > lost {
		t.Errorf("%d packets are missing, the path lost %d", missing, lost)
	}
}

// uninstall runs crem-agent uninstall in the gateway.
func (g *gateway) uninstall() {
	g.w.t.Helper()
	p := g.w.start(g.ns, programs.agent, "uninstall", "--socket", g.socket)
	out, err := p.Wait(patience)
	if err != nil {
		g.w.t.Error(err)
	}
	g.w.t.Logf("%s: %s", g.ns.Name, out)
}

// TestRealtimeIsASwitch: workers run before ordinary programs, unless --realtime=false.
func TestRealtimeIsASwitch(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: proactive, each: func(g *gateway) {
		if g.site == "west" {
			g.arguments = append(g.arguments, "--realtime=false")
		}
	}})
	for _, x := range []struct {
		g    *gateway
		want bool
	}{{w.a, true}, {w.b, false}} {
		for _, worker := range x.g.status().Workers {
			if worker.Realtime != x.want {
				t.Errorf("%s: worker %d runs as real-time: %v", x.g.ns.Name, worker.ID, worker.Realtime)
			}
		}
	}
	w.a.signal(syscall.SIGTERM)
	select {
	case <-w.a.process.Done():
	case <-time.After(patience):
		t.Error("the agent does not end")
	}
}

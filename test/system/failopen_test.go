// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"crem.dev/crem/test/lab/calm"
)

// protectedAgain is how soon after its start an agent must protect the flows again.
const protectedAgain = 2 * time.Second

// TestAgentsDieUnderTraffic: kill -9 of either agent at 20,000 packets a second, flows in order, loses nothing; neither does SIGSTOP for two seconds,
// during which traffic goes on. After a restart the flow is protected again, and no second program was attached. With programs that are pinned, and
// with programs that end with the agent.
func TestAgentsDieUnderTraffic(t *testing.T) {
	for _, pinned := range []bool{true, false} {
		t.Run(fmt.Sprintf("pinned %v", pinned), func(t *testing.T) {
			o := options{wire: true, profile: proactive}
			left := 1 // programs on a hook while no agent runs
			if !pinned {
				o.arguments, left = []string{"--pin-dir", ""}, 0
			}
			w := newWorld(t, o)
			w.discard(w.lab.HostB)
			s := w.stream(streamOptions{})
			w.awaitProtecting(1)
			for _, g := range []*gateway{w.b, w.a} {
				g.wantPrograms(1, "while the agent runs")
				s.moves(5000)
				g.kill()
				s.moves(5000)
				g.wantPrograms(left, "after kill -9")
				w.restart(g)
			}
			for _, g := range []*gateway{w.b, w.a} {
				g.signal(syscall.SIGSTOP)
				stopped := time.Now()
				for time.Since(stopped) < 2*time.Second {
					s.moves(2000)
				}
				g.signal(syscall.SIGCONT)
				w.awaitProtecting(1)
				s.moves(5000)
			}
			sent, got := s.end()
			t.Logf("%d sent, %d arrived, %d twice, %d out of order", sent, got.distinct, got.twice, got.order)
			if got.distinct != sent || got.order > 0 {
				t.Errorf("%d packets lost (%v), %d out of order", sent-got.distinct, got.missing(sent), got.order)
			}
		})
	}
}

// restart starts a killed agent and demands that its flow is protected again in time, by one program on each hook.
func (w *world) restart(g *gateway) {
	w.t.Helper()
	machine, err := calm.Start()
	if err != nil {
		w.t.Fatal(err)
	}
	defer machine.Stop()
	start := time.Now()
	g.start()
	g.awaitAttached()
	attached := time.Since(start)
	w.awaitProtecting(1)
	took, away := time.Since(start), machine.Worst()
	w.t.Logf("%s: attached %v after its start, protecting after %v; a processor was away for %v at most", g.ns.Name, attached.Round(time.Millisecond),
		took.Round(time.Millisecond), away)
	if took > protectedAgain && away <= calm.Limit {
		w.t.Errorf("%s: protected again %v after its restart", g.ns.Name, took)
	}
	g.wantPrograms(1, "after a restart")
}

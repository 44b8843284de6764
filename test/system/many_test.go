// SPDX-License-Identifier: Apache-2.0

package system

import (
	"testing"
	"time"
)

// TestManyFlowsOnTwoWorkers: 64 queue pairs, half of them over IPv4 from host A and half over IPv6 from host B, so that the pairs of hosts go to different
// workers. Every flow is protected, in both roles, and every octet is right.
func TestManyFlowsOnTwoWorkers(t *testing.T) {
	const each = 32
	w := newWorld(t, options{path: lossy(), profile: proactive, arguments: []string{"--workers", "2"}})
	o := rdma()
	o.Connections, o.Size, o.Config.Rate, o.Config.Window, o.Duration = each, 20_000, 1_500_000, 100, 5*time.Second
	four, six := w.transfer(o, false, false), w.transfer(o, true, true)
	for _, d := range []*done{four.end(), six.end()} {
		t.Logf("%d messages, %d NAKs, %d timeouts, sent over needed %.3f", d.requester.Messages, d.requester.NAKs, d.requester.Timeouts, d.requester.SentOverNeeded)
	}
	restored := uint64(0)
	for _, g := range []*gateway{w.a, w.b} {
		for _, role := range []string{"csf", "crf"} {
			workers, protected := map[int]int{}, 0
			for _, f := range g.flows(role) {
				workers[f.Worker]++
				if f.State == "Protecting" {
					protected++
				} else {
					t.Logf("%s %s: %s", f.ID, f.State, f.Why)
				}
				if role == "crf" {
					restored += f.Restored
				}
			}
			if protected != each {
				t.Errorf("%s: %d flows protected in role %s, want %d; by worker %v", g.ns.Name, protected, role, each, workers)
			}
		}
		for _, worker := range g.status().Workers {
			if worker.Flows != each {
				t.Errorf("%s: worker %d has %d flows, want %d", g.ns.Name, worker.ID, worker.Flows, each)
			}
		}
	}
	if restored == 0 {
		t.Error("nothing was restored")
	}
}

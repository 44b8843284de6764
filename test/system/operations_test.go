// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"testing"
	"time"

	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/wan"
)

// lossy is a path of 10 ms round trip that loses 1 % in each direction.
func lossy() wan.Settings {
	return wan.Settings{Delay: wan.Duration(5 * time.Millisecond), Loss: 0.01, Seed: 7}
}

const proactive = `{k: 32, maxRepairSymbols: 8, epsilon: "1e-4", maxHold: 200ms}`

// TestEveryOperationIsProtected: WRITE, SEND and READ from both sides at once, so that request and response spaces (Flow Kind 1 and 192) of both
// directions are protected; over IPv4 and IPv6; against the same transfers without agents.
func TestEveryOperationIsProtected(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %v", ipv6), func(t *testing.T) {
			o := rdma()
			o.Op, o.Connections = endpoint.Mixed, 2
			naks := map[bool]uint64{}
			for _, protected := range []bool{false, true} {
				setup := options{path: lossy()}
				if protected {
					setup.profile = proactive
				}
				w := newWorld(t, setup)
				there, back := w.transfer(o, ipv6, false), w.transfer(o, ipv6, true)
				for _, d := range []*done{there.end(), back.end()} {
					naks[protected] += d.requester.NAKs
					t.Logf("protected %v: %d messages, %d NAKs, %d timeouts, sent over needed %.3f", protected, d.requester.Messages, d.requester.NAKs, d.requester.Timeouts, d.requester.SentOverNeeded)
				}
				if protected {
					wantRestored(t, w, 2)
				}
			}
			if naks[true]*3 > naks[false]*2 {
				t.Errorf("%d NAKs with agents, %d without", naks[true], naks[false])
			}
		})
	}
}

// wantRestored demands that both gateways have n flows of each space in each role, and restored packets of both spaces.
func wantRestored(t *testing.T, w *world, n int) {
	t.Helper()
	for _, g := range []*gateway{w.a, w.b} {
		count, restored := map[string]int{}, map[string]uint64{}
		for _, role := range []string{"csf", "crf"} {
			for _, f := range g.flows(role) {
				if f.State == "Protecting" {
					count[role+" "+f.Space]++
				}
				restored[role+" "+f.Space] += f.Restored
				if n := f.Counters["digest_failures"] + f.Counters["restore_verify_failures"]; n > 0 {
					t.Logf("%s: %d refused decodes", f.ID, n)
				}
			}
		}
		for _, space := range []string{"request", "response"} {
			for _, role := range []string{"csf", "crf"} {
				if count[role+" "+space] != n {
					t.Errorf("%s: %d flows of %s space in role %s are protected, want %d", g.ns.Name, count[role+" "+space], space, role, n)
				}
			}
			if restored["crf "+space] == 0 {
				t.Errorf("%s: nothing restored in the %s space", g.ns.Name, space)
			}
		}
		t.Logf("%s: restored %v", g.ns.Name, restored)
	}
}

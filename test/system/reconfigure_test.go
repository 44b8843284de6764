// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/topology"
)

// one returns the only flow of a gateway in a role.
func (g *gateway) one(role string) agentapi.Flow {
	g.w.t.Helper()
	flows := g.flows(role)
	if len(flows) != 1 {
		g.w.t.Fatalf("%s: %d flows in role %s, want one: %+v", g.ns.Name, len(flows), role, flows)
	}
	return flows[0]
}

// awaitFlow waits until the only flow in a role is as wanted.
func (g *gateway) awaitFlow(role, what string, ok func(agentapi.Flow) bool) {
	g.w.t.Helper()
	g.w.eventually(what, func() bool {
		flows := g.flows(role)
		return len(flows) == 1 && ok(flows[0])
	})
}

// TestReconfiguration: profiles change under a stream on a path that loses nothing. Each change that concerns the protocol goes by PARAM_UPDATE to the
// running flow; a file that is wrong changes nothing and is reported; a domain that is gone closes its flows (reason 5), which pass unprotected. From the
// first packet to the last none is lost and none out of order, so no receiver had a reason for a NAK.
func TestReconfiguration(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: `{k: 32, delivery: InOrder}`})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 10_000})
	w.awaitProtecting(1)
	first := w.a.one("csf")

	for _, step := range []struct {
		spec    string
		updated bool // by PARAM_UPDATE
		ok      func(csf, crf agentapi.Flow) bool
	}{
		{`{k: 16, maxRepairSymbols: 4, delivery: InOrder}`, true, func(csf, crf agentapi.Flow) bool { return csf.K == 16 && crf.K == 16 }},
		{`{k: 16, maxRepairSymbols: 12, epsilon: "1e-2", delivery: InOrder}`, true, func(_, crf agentapi.Flow) bool { return crf.M == 12 }},
		{`{k: 16, maxRepairSymbols: 12, epsilon: "1e-2", delivery: Immediate}`, false, nil},
		{`{k: 64, delivery: InOrder}`, true, func(csf, crf agentapi.Flow) bool { return csf.K == 64 && crf.K == 64 }},
	} {
		before, applied := w.a.one("csf").Counters["param_updates"], w.b.status().AppliedGeneration
		immediate := w.b.status().Counters["kernel_immediate"]
		for _, g := range []*gateway{w.b, w.a} {
			g.writeProfile(step.spec)
			g.signal(syscall.SIGHUP)
		}
		if step.updated {
			w.eventually("PARAM_UPDATE and its answer for "+step.spec, func() bool {
				f := w.a.one("csf")
				return f.Counters["param_updates"] > before && step.ok(f, w.b.one("crf"))
			})
		} else {
			w.b.awaitDelivery("Immediate", applied, immediate)
		}
		s.moves(3000)
		if f := w.a.one("csf"); f.FlowID != first.FlowID || f.State != "Protecting" {
			t.Errorf("%s: the flow was %d and is %d, state %s: %s", step.spec, first.FlowID, f.FlowID, f.State, f.Why)
		}
	}

	k := w.a.one("csf").K
	w.a.writeProfile(`{k: many}`)
	w.a.signal(syscall.SIGHUP)
	w.eventually("the broken file is reported", func() bool { st, ok := w.a.ask(); return ok && strings.Contains(st.ConfigStale, "profile.yaml") })
	s.moves(3000)
	if f := w.a.one("csf"); f.K != k || f.FlowID != first.FlowID || f.State != "Protecting" {
		t.Errorf("a broken file changed the flow: %+v", f)
	}
	t.Logf("reported: %s", w.a.status().ConfigStale)
	w.a.writeProfile(`{k: 64, delivery: InOrder}`)
	w.eventually("the good file is in force", func() bool { st, ok := w.a.ask(); return ok && st.ConfigStale == "" })

	w.a.writeDomain(false)
	w.a.signal(syscall.SIGHUP)
	w.a.awaitFlow("csf", "the flow is unprotected", func(f agentapi.Flow) bool { return f.State == "Unprotected" })
	w.eventually("the receiver's function was closed", func() bool { return len(w.b.flows("crf")) == 0 })
	s.moves(3000)
	if why := w.a.one("csf").Why; !strings.Contains(why, "no domain") {
		t.Errorf("the reason given is %q", why)
	}
	w.a.wantPrograms(1, "with another domain")

	sent, got := s.end()
	t.Logf("%d sent, %d arrived, %d twice, %d out of order", sent, got.distinct, got.twice, got.order)
	if got.distinct != sent || got.order > 0 {
		t.Errorf("%d packets lost (%v), %d out of order", sent-got.distinct, got.missing(sent), got.order)
	}
}

// awaitDelivery waits until packets pass in the given mode.
func (g *gateway) awaitDelivery(mode string, applied int64, before uint64) {
	g.w.t.Helper()
	g.w.eventually("delivery "+mode, func() bool {
		s, ok := g.ask()
		return ok && s.AppliedGeneration > applied && s.Counters["kernel_immediate"] > before
	})
}

// G08: neither a domain whose interface does not exist nor one whose uplink another domain has stops a third. Each is named with its reason, and the
// first is in force as soon as the interface is there.
func TestG08_OneBadDomain(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: `{k: 32, delivery: InOrder}`})
	w.discard(w.lab.HostB)
	good, err := os.ReadFile(w.a.domain)
	if err != nil {
		t.Fatal(err)
	}
	other := func(name, uplink string, n int) string {
		return fmt.Sprintf(`---
apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: %s}
spec:
  port: %d
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.%d.0.0/24], gateways: [%s]}
  - {name: west, cidrs: [10.%d.1.0/24]}
  nodes: {uplinks: [%s]}
  profileRef: {name: lab}
`, name, cremPort+n, 100+n, topology.GwA4, 100+n, uplink)
	}
	w.a.write(w.a.domain, string(good)+other("bad", "wan9", 1)+other("second", topology.Uplink, 2))
	w.a.signal(syscall.SIGHUP)
	w.stream(streamOptions{rate: 2000})
	w.awaitProtecting(1)
	domain := func(name string) agentapi.Domain {
		for _, d := range w.a.status().Domains {
			if d.Name == name {
				return d
			}
		}
		return agentapi.Domain{Problem: "not there"}
	}
	w.eventually("the bad domain is named", func() bool {
		return slices.ContainsFunc(w.a.status().Uplinks, func(u agentapi.Uplink) bool {
			return u.Name == "wan9" && !u.Attached && u.Reason == agentapi.ReasonInterfaceNotFound
		})
	})
	if d := domain("lab"); d.Problem != "" {
		t.Errorf("domain lab: %s", d.Problem)
	}
	if !slices.ContainsFunc(w.a.status().Problems, func(p agentapi.Problem) bool {
		return p.Object == "CREMDomain second" && p.Reason == "UplinkConflict" && strings.Contains(p.Message, "lab")
	}) {
		t.Errorf("problems: %+v", w.a.status().Problems)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wan9"}, PeerName: "far9"}
	if err := w.a.ns.Do(func() error { return errors.Join(netlink.LinkAdd(pair), netlink.LinkSetUp(pair)) }); err != nil {
		t.Fatal(err)
	}
	w.eventually("the interface that has come is an uplink", func() bool {
		return slices.ContainsFunc(w.a.status().Uplinks, func(u agentapi.Uplink) bool { return u.Name == "wan9" && u.Attached }) && domain("bad").Problem == ""
	})
	if f := w.a.protecting("csf"); len(f) != 1 {
		t.Errorf("%d flows protected", len(f))
	}
}

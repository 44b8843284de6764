// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/trial"
	"crem.dev/crem/test/lab/wan"
)

const (
	rate    = 200_000_000
	rtt     = 20 * time.Millisecond
	roceMTU = 4096
	// share of the link is what the flows send; the rival overfills it.
	share     = rate * 7 / 10
	rivalRate = rate * 35 / 100
)

// bdp is the bandwidth-delay product in octets.
const bdp = rate / 8 * int64(rtt) / int64(time.Second)

// phase is a part of a scenario with its own path.
type phase struct {
	name   string
	change string // of the WAN's settings
	length time.Duration
	rival  bool
}

// scenario is a transfer while the path changes.
type scenario struct {
	name        string
	model       string // loss model of the profile
	strategy    string // repair strategy of the profile
	domain      string // lines of the domain's spec
	unprotected bool
	flows       int // 0: one
	path        wan.Settings
	back        *wan.Settings
	phases      []phase
}

// steady is a scenario of one phase.
func steady(s scenario) scenario {
	s.phases = []phase{{name: "steady", length: 8 * time.Second}}
	return s
}

// rivalry is a scenario in which a rival overfills the bottleneck for a while.
func rivalry(s scenario) scenario {
	s.path.Loss = 0.001
	s.path.Queue = bdp
	s.phases = []phase{{name: "before", length: 5 * time.Second}, {name: "rival", length: 6 * time.Second, rival: true}, {name: "after", length: 4 * time.Second}}
	return s
}

// reports is a scenario in which the WAN begins to report what it lost. Without that nothing is repaired before it is asked for.
func reports(s scenario) scenario {
	on := fmt.Sprintf(`{"a_to_b":{"report_to":"%v","report_from":"%v"}}`, netip.AddrPortFrom(topology.GwA4, trial.CREMPort), topology.Reporter)
	s.phases = []phase{{name: "off", length: 6 * time.Second}, {name: "on", change: on, length: 6 * time.Second}}
	return s
}

func scenarios() []scenario {
	steps := scenario{name: "steps"}
	for _, loss := range []float64{0, 0.0001, 0.001, 0.01, 0.05, 0.001} {
		steps.phases = append(steps.phases, phase{name: fmt.Sprintf("%g %%", 100*loss), change: fmt.Sprintf(`{"a_to_b":{"loss":%g}}`, loss), length: 5 * time.Second})
	}
	bursts := wan.Settings{BurstLoss: 0.01, BurstLength: 5}
	return []scenario{
		steps,
		steady(scenario{name: "random 1 %", path: wan.Settings{Loss: 0.01}}),
		steady(scenario{name: "bursts 1 %", path: bursts}),
		steady(scenario{name: "bursts 1 %, Empirical", model: "Empirical", path: bursts}),
		rivalry(scenario{name: "congestion"}),
		rivalry(scenario{name: "congestion, CE", path: wan.Settings{CEThreshold: bdp / 4}}),
		rivalry(scenario{name: "congestion, tunnel", path: wan.Settings{EarlyThreshold: bdp / 16, CEThreshold: bdp / 4}, domain: "  wan: {mode: Normal, l4s: Absent}\n"}),
		rivalry(scenario{name: "congestion, plain", unprotected: true}),
		steady(scenario{name: "asymmetric", path: wan.Settings{Loss: 0.001}, back: &wan.Settings{Loss: 0.03}}),
		steady(scenario{name: "reordering", path: wan.Settings{Reorder: 0.01, ReorderDelay: wan.Duration(time.Millisecond)}}),
		steady(scenario{name: "repair path", path: wan.Settings{Loss: 0.005, CREMLoss: 0.2}}),
		reports(scenario{name: "reports", strategy: "OnDemand", path: wan.Settings{Loss: 0.001}}),
		steady(scenario{name: "200 flows", flows: 200, path: wan.Settings{Loss: 0.005}}),
		{name: "outage", path: wan.Settings{Loss: 0.001}, phases: []phase{
			{name: "before", length: 4 * time.Second},
			{name: "outage", change: `{"both":{"loss":1}}`, length: 10 * time.Second},
			{name: "after", change: `{"both":{"loss":0.001}}`, length: 16 * time.Second},
		}},
	}
}

// length is that of all phases.
func (s *scenario) length() (d time.Duration) {
	for i := range s.phases {
		d += s.phases[i].length
	}
	return d
}

func (s *scenario) profile() string {
	model, strategy := cmp.Or(s.model, "Independent"), cmp.Or(s.strategy, "Proactive")
	return fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: %s}
spec: {k: 32, maxRepairSymbols: 12, epsilon: "1e-4", lossModel: %s, repairStrategy: %s, maxHold: 100ms, maxRepairRatio: "0.4"}
`, trial.ProfileName, model, strategy)
}

// settings completes those of one direction.
func settings(w wan.Settings) wan.Settings {
	w.Rate, w.Delay, w.ProtectedOnly, w.Seed = rate, wan.Duration(rtt/2), true, 1
	if w.Queue == 0 {
		w.Queue = 4 * bdp
	}
	return w
}

// trial is the scenario as the lab runs it.
func (s *scenario) trial(w *watch) trial.Case {
	const lead, tail = time.Second, 2 * time.Second
	flows := max(s.flows, 1)
	t := endpoint.DefaultOptions()
	t.Op, t.Size, t.Connections, t.Duration, t.Drain = rc.Write, 256<<10, flows, lead+s.length()+tail, 2*time.Second
	t.Config.MTU, t.Config.Depth, t.Config.Retries, t.Config.Timeout = roceMTU, 8, -1, 134*time.Millisecond
	t.Config.Window = max(int(4*bdp/roceMTU)/flows, 64)
	t.Config.Rate = share / int64(flows)
	c := trial.Case{Name: s.name, Transfer: t, Path: settings(s.path), During: w.run, Domain: s.domain}
	if s.back != nil {
		b := settings(*s.back)
		c.Back = &b
	}
	if !s.unprotected {
		c.Profile = s.profile()
	}
	return c
}

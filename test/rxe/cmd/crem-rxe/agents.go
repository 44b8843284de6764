// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/trial"
)

// profile of the protected cases: the defaults, but for as many repair symbols as 5 % loss needs.
const profile = `apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: ` + trial.ProfileName + `}
spec:
  k: 32
  epsilon: "1e-4"
  maxRepairSymbols: 16
  delivery: InOrder
  maxHold: 100ms
  maxRepairRatio: "1"
`

// startAgents starts both agents, once.
func (w *world) startAgents(ctx context.Context) error {
	if w.agents != nil {
		return nil
	}
	dir := filepath.Join(w.dir, "agents")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	a, b, err := trial.StartAgents(ctx, w.lab, w.opt.agent, profile, "", dir)
	if err != nil {
		return err // whatever runs ends with the lab
	}
	w.agents = []*trial.Agent{a, b}
	return nil
}

// agentCounters adds up what both agents count, nil without agents.
func (w *world) agentCounters(ctx context.Context) (map[string]uint64, error) {
	if w.agents == nil {
		return nil, nil
	}
	sum := map[string]uint64{}
	for _, a := range w.agents {
		var s agentapi.Status
		if err := a.Get(ctx, "/v1/status", &s); err != nil {
			return nil, fmt.Errorf("agent: %w", err)
		}
		for _, m := range []map[string]uint64{s.Counters, s.Drops} {
			for name, n := range m {
				sum[name] += n
			}
		}
	}
	return sum, nil
}

// logFlows prints what the agents know of each flow.
func (w *world) logFlows(ctx context.Context) {
	if !w.opt.verbose {
		return
	}
	for i, a := range w.agents {
		flows, err := a.Flows(ctx)
		if err != nil {
			w.log("agents", err.Error())
			continue
		}
		for _, f := range flows {
			text, _ := json.Marshal(f)
			w.log([]string{"gwA", "gwB"}[i], string(text))
		}
	}
}

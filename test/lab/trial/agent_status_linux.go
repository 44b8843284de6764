// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"errors"
	"fmt"
	"time"

	"crem.dev/crem/internal/agentapi"
)

// attached waits until the agent has attached to its uplink.
func (a *Agent) attached(ctx context.Context) error {
	last := errors.New("no answer yet")
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-a.process.Done():
			_, err := a.process.Wait(stopTimeout)
			return fmt.Errorf("%s has ended: %w", a.process.Name, err)
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		var s agentapi.Status
		if last = a.Get(ctx, "/v1/status", &s); last != nil {
			continue
		}
		last = errors.New("no uplink is attached")
		for _, u := range s.Uplinks {
			if u.Attached {
				return nil
			}
			last = fmt.Errorf("uplink %s: %s", u.Name, u.Problem)
		}
	}
	return fmt.Errorf("%s is not ready: %w", a.process.Name, last)
}

// askAgents takes the agents' last word on the transfer.
func (t *run) askAgents(ctx context.Context) error {
	return errors.Join(
		t.now.AgentA.Get(ctx, "/v1/status", &t.out.StatusA), t.now.AgentB.Get(ctx, "/v1/status", &t.out.StatusB),
		t.now.AgentA.Get(ctx, "/v1/flows", &t.out.FlowsA), t.now.AgentB.Get(ctx, "/v1/flows", &t.out.FlowsB),
	)
}

// Flows returns the agent's flows.
func (a *Agent) Flows(ctx context.Context) (flows []agentapi.Flow, err error) {
	err = a.Get(ctx, "/v1/flows", &flows)
	return flows, err
}

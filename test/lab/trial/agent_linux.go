// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"crem.dev/crem/test/lab/topology"
)

// ProfileName is the name that the CREMProfile of a Case must have.
const ProfileName = "lab"

// domain is the CREMDomain of one site of the lab.
func domain(site string) string {
	return fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: lab}
spec:
  port: %d
  site: %s
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16, "fd00:1::/32"], gateways: [%s]}
  - {name: west, cidrs: [10.2.0.0/16, "fd00:2::/32"], gateways: [%s]}
  nodes: {uplinks: [%s]}
  profileRef: {name: %s}
`, CREMPort, site, topology.GwA4, topology.GwB4, topology.Uplink, ProfileName)
}

// Agent is a crem-agent in a gateway of the lab.
type Agent struct {
	lab     *topology.Lab
	ns      *topology.Namespace
	program string
	args    []string
	socket  string
	process *topology.Process
}

// startAgents starts both agents and waits until their data paths are attached.
func (t *run) startAgents(ctx context.Context) error {
	profile := filepath.Join(t.dir, "profile.yaml")
	if err := os.WriteFile(profile, []byte(t.c.Profile), 0o600); err != nil {
		return err
	}
	for _, side := range []struct {
		to   **Agent
		ns   *topology.Namespace
		site string
	}{{&t.now.AgentA, t.now.Lab.GwA, "east"}, {&t.now.AgentB, t.now.Lab.GwB, "west"}} {
		own := filepath.Join(t.dir, side.ns.Name)
		if err := os.Mkdir(own, 0o700); err != nil {
			return err
		}
		file := filepath.Join(own, "domain.yaml")
		if err := os.WriteFile(file, []byte(domain(side.site)), 0o600); err != nil {
			return err
		}
		a := &Agent{lab: t.now.Lab, ns: side.ns, program: t.programs.Agent, socket: filepath.Join(own, "agent.sock")}
		a.args = []string{"run", "-f", file, "-f", profile, "--node", side.ns.Name, "--socket", a.socket, "--state-dir", filepath.Join(own, "state")}
		if err := a.Start(); err != nil {
			return err
		}
		*side.to = a
	}
	for _, a := range []*Agent{t.now.AgentA, t.now.AgentB} {
		if err := a.attached(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Start starts the agent, anew if it ran before.
func (a *Agent) Start() (err error) {
	a.process, err = a.lab.Start(a.ns, a.program, a.args...)
	return err
}

// Process is the agent's present process.
func (a *Agent) Process() *topology.Process { return a.process }

// Stop ends the agent as an administrator does.
func (a *Agent) Stop() error {
	_, err := a.process.Stop(stopTimeout)
	return err
}

// Get asks the agent's local socket, as in Get(ctx, "/v1/flows", &flows).
func (a *Agent) Get(ctx context.Context, path string, v any) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", a.socket)
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s of %s: %s: %s", path, a.process.Name, answer.Status, text)
	}
	return json.Unmarshal(text, v)
}

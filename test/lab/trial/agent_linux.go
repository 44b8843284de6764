// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"encoding/json"
	"errors"
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

// domain is the CREMDomain of one site of the lab, with more lines of its spec.
func domain(site, more string) string {
	return fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: lab}
spec:
  port: %d
  site: %s
  reporters: [%s/32]
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16, "fd00:1::/32"], gateways: [%s]}
  - {name: west, cidrs: [10.2.0.0/16, "fd00:2::/32"], gateways: [%s]}
  nodes: {uplinks: [%s]}
  profileRef: {name: %s}
%s`, CREMPort, site, topology.Reporter, topology.GwA4, topology.GwB4, topology.Uplink, ProfileName, more)
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

// StartAgents starts an agent in both gateways of a lab and waits until their data paths are attached. They end with the lab. profile is the text of a
// CREMProfile with the name ProfileName, more has lines for the spec of the domain; dir is an empty folder for their files.
func StartAgents(ctx context.Context, lab *topology.Lab, program, profile, more, dir string) (a, b *Agent, err error) {
	name := filepath.Join(dir, "profile.yaml")
	if err := os.WriteFile(name, []byte(profile), 0o600); err != nil {
		return nil, nil, err
	}
	for _, side := range []struct {
		to   **Agent
		ns   *topology.Namespace
		site string
	}{{&a, lab.GwA, "east"}, {&b, lab.GwB, "west"}} {
		own := filepath.Join(dir, side.ns.Name)
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, nil, err
		}
		file := filepath.Join(own, "domain.yaml")
		if err := os.WriteFile(file, []byte(domain(side.site, more)), 0o600); err != nil {
			return nil, nil, err
		}
		g := &Agent{lab: lab, ns: side.ns, program: program, socket: filepath.Join(own, "agent.sock")}
		g.args = []string{"run", "-f", file, "-f", name, "--node", side.ns.Name, "--socket", g.socket, "--memory", "256Mi"}
		if err := g.Start(); err != nil {
			return nil, nil, err
		}
		*side.to = g
	}
	return a, b, errors.Join(a.attached(ctx), b.attached(ctx))
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
	if err := ask(ctx, a.socket, http.MethodGet, "http://agent"+path, nil, v); err != nil {
		return fmt.Errorf("%s: %w", a.process.Name, err)
	}
	return nil
}

// ask makes one request to a program that listens on a Unix socket, and reads the answer into v, unless that is nil.
func ask(ctx context.Context, socket, method, url string, body io.Reader, v any) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, answer.Status, text)
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(text, v)
}

// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/test/lab/bridge"
	"crem.dev/crem/test/lab/endpoint"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// CREMPort is the UDP port of CREM messages in the lab.
const CREMPort = 52000

// Programs are the paths of what runs in the lab.
type Programs struct{ WAN, RC, Agent string }

// Case is one transfer.
type Case struct {
	Name string
	// Path is each direction of the WAN; its Seed is that of the direction of the data, the other has the next.
	Path wan.Settings
	// Back, if given, is the direction of the answers.
	Back *wan.Settings
	// Profile is the text of a CREMProfile with the name ProfileName; empty: no agent runs.
	Profile string
	// Domain has lines for the spec of the CREMDomain, each indented by two spaces and ended.
	Domain string
	// Transfer says what the requester on host A does. Role, interface and addresses are filled in.
	Transfer endpoint.Options
	IPv6     bool
	// LANMTU and WANMTU are the largest IP packets; 0: enough for RoCE packets of MTU 4096, and for their repair symbols.
	LANMTU, WANMTU int
	// During, if given, runs once the transfer has begun and may disturb it. Its error ends the trial.
	During func(r *Running) error
}

// Running is what a Case's During may touch.
type Running struct {
	Lab              *topology.Lab
	AgentA, AgentB   *Agent
	WAN              *topology.Process
	Requester, Other *topology.Process

	control string // socket of the WAN
}

// Outcome is what came of a transfer.
type Outcome struct {
	Requester endpoint.Result
	Responder endpoint.Result
	WAN       bridge.Report
	// StatusA and StatusB, FlowsA and FlowsB are what the agents said at the end; empty without agents.
	StatusA, StatusB agentapi.Status
	FlowsA, FlowsB   []agentapi.Flow
}

// Corrupt returns the corrupt messages of both ends.
func (o *Outcome) Corrupt() uint64 {
	return o.Requester.Corrupt + o.Responder.Corrupt + min(1, o.Requester.CorruptOctets+o.Responder.CorruptOctets)
}

// Restored returns how many packets host B got back: WRITE and SEND restored by B's agent, READ responses by A's.
func (o *Outcome) Restored() (n uint64) {
	for _, flows := range [][]agentapi.Flow{o.FlowsA, o.FlowsB} {
		for _, f := range flows {
			if f.Role == "crf" { // a sender's flow repeats what its receiver reported
				n += f.Restored
			}
		}
	}
	return n
}

// RepairOverhead returns octets of CREM messages over octets of RoCEv2 data, both as they entered the WAN in the direction of the data.
func (o *Outcome) RepairOverhead() float64 {
	in := &o.WAN.AToB.In
	if in[wan.RoCEData].Octets == 0 {
		return 0
	}
	return float64(in[wan.CREM].Octets) / float64(in[wan.RoCEData].Octets)
}

// stallLimit is how long the machine may keep a program of the lab waiting before the measurement counts as disturbed.
const stallLimit = 20 * time.Millisecond

// Disturbed says what the machine, and not the path, did to the frames; empty if nothing.
func (o *Outcome) Disturbed() string {
	endpoints := time.Duration(max(o.Requester.StallMs, o.Responder.StallMs) * float64(time.Millisecond))
	stall := max(time.Duration(o.WAN.AToB.LateMax), time.Duration(o.WAN.BToA.LateMax), endpoints)
	lost := o.WAN.AToB.RingDropped + o.WAN.BToA.RingDropped + o.WAN.AToB.SendDropped + o.WAN.BToA.SendDropped +
		o.Requester.RingDropped + o.Requester.SendDropped + o.Responder.RingDropped + o.Responder.SendDropped
	switch {
	case lost > 0:
		return fmt.Sprintf("the machine was too busy and lost %d frames by itself", lost)
	case stall > stallLimit:
		return fmt.Sprintf("the machine was busy and kept the lab waiting for up to %d ms", stall.Milliseconds())
	}
	return ""
}

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
)

// Run runs a case, when no other trial runs on this machine. Whatever happens, nothing of it is left.
func Run(ctx context.Context, p Programs, c Case) (*Outcome, error) {
	if c.LANMTU == 0 {
		c.LANMTU = 4200
	}
	if c.WANMTU == 0 {
		c.WANMTU = 4300
	}
	release, err := takeTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, err := os.MkdirTemp("", "crem-lab-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	lab, err := topology.New(topology.Options{LANMTU: c.LANMTU, WANMTU: c.WANMTU})
	if err != nil {
		return nil, err
	}
	defer lab.Close()
	t := &run{programs: p, c: &c, dir: dir, now: Running{Lab: lab}}
	out, err := t.run(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return out, err
}

// run is a trial under way.
type run struct {
	programs Programs
	c        *Case
	dir      string
	now      Running
	out      Outcome
}

func (t *run) run(ctx context.Context) (_ *Outcome, err error) {
	// An interrupt must not wait for a program that has not ended: without its namespaces nothing of the lab goes on.
	stop := context.AfterFunc(ctx, t.now.Lab.Interrupt)
	defer stop()
	if err := t.startWAN(); err != nil {
		return nil, err
	}
	if t.c.Profile != "" {
		t.now.AgentA, t.now.AgentB, err = StartAgents(ctx, t.now.Lab, t.programs.Agent, t.c.Profile, t.c.Domain, t.dir)
		if err != nil {
			return nil, err
		}
	}
	if err := t.transfer(); err != nil {
		return nil, err
	}
	if t.c.Profile != "" {
		if err := t.askAgents(ctx); err != nil {
			return nil, err
		}
	}
	return &t.out, t.stopAll()
}

func (t *run) startWAN() (err error) {
	ways := [2]wan.Settings{t.c.Path, t.c.Path}
	if t.c.Back != nil {
		ways[1] = *t.c.Back
	}
	ways[1].Seed = t.c.Path.Seed + 1
	for i := range ways {
		ways[i].CREMPort = CREMPort
	}
	settings, err := json.Marshal(map[string]wan.Settings{"a_to_b": ways[0], "b_to_a": ways[1]})
	if err != nil {
		return err
	}
	t.now.control = filepath.Join(t.dir, "wan.sock")
	if t.now.WAN, err = t.now.Lab.Start(t.now.Lab.WAN, t.programs.WAN, "-a", topology.WANA, "-b", topology.WANB, "-settings", string(settings), "-control", t.now.control); err != nil {
		return err
	}
	return t.now.WAN.Ready("ready", startTimeout)
}

// transfer runs both endpoints until the requester ends.
func (t *run) transfer() (err error) {
	a, b := t.c.Transfer, t.c.Transfer
	a.Requester, b.Requester = true, false
	a.Device, b.Device = topology.Device, topology.Device
	a.Local, a.Remote = topology.HostA4, topology.HostB4
	if t.c.IPv6 {
		a.Local, a.Remote = topology.HostA6, topology.HostB6
	}
	b.Local, b.Remote = a.Remote, a.Local
	if t.now.Other, err = t.now.Lab.Start(t.now.Lab.HostB, t.programs.RC, b.Args()...); err != nil {
		return err
	}
	if err := t.now.Other.Ready("ready", startTimeout); err != nil {
		return err
	}
	if t.now.Requester, err = t.now.Lab.Start(t.now.Lab.HostA, t.programs.RC, a.Args()...); err != nil {
		return err
	}
	if err := t.now.Requester.Ready("ready", startTimeout); err != nil {
		return err
	}
	if t.c.During != nil {
		if err := t.c.During(&t.now); err != nil {
			return err
		}
	}
	if err := result(&t.out.Requester)(t.now.Requester.Wait(a.Warmup + a.Duration + a.Drain + startTimeout)); err != nil {
		return err
	}
	return result(&t.out.Responder)(t.now.Other.Stop(stopTimeout))
}

// result reads the JSON that a program printed.
func result(v any) func(out []byte, err error) error {
	return func(out []byte, err error) error {
		if err != nil {
			return err
		}
		return json.Unmarshal(out, v)
	}
}

func (t *run) stopAll() error {
	var errs []error
	for _, a := range []*Agent{t.now.AgentA, t.now.AgentB} {
		if a != nil {
			errs = append(errs, a.Stop())
		}
	}
	errs = append(errs, result(&t.out.WAN)(t.now.WAN.Stop(stopTimeout)))
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/topology"
)

const (
	streamQPN, backQPN = 0x11, 0x22
	accessMTU          = 4200
	uplinkMTU          = 4300 // room for repair symbols
	patience           = 20 * time.Second
	warm               = 400 * time.Millisecond
)

// way is a direction through the gateway of site A.
type way struct {
	name       string
	from, to   *topology.Namespace
	input, out string // the generator's and the sink's interface
	headers    frames.Headers
	role       string // of the gateway's agent
}

// gateway is one gateway on one core, and what surrounds it.
type gateway struct {
	lab         *topology.Lab
	agent       string // program
	dir, socket string
	far, uplink frames.MAC
	leaving     way // CSF
	arriving    way // CRF
	core        int
	threads     []int         // the kernel's on this core
	length      time.Duration // of one window
}

func newGateway(agent string, c cores, length time.Duration) (*gateway, error) {
	lab, err := topology.New(topology.Options{LANMTU: accessMTU, WANMTU: uplinkMTU})
	if err != nil {
		return nil, err
	}
	g := &gateway{lab: lab, agent: agent, core: c.gateway, length: length}
	if err := g.prepare(); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gateway) prepare() error {
	var err error
	if g.dir, err = os.MkdirTemp("", "crem-bench"); err != nil {
		return err
	}
	g.socket = filepath.Join(g.dir, "agent.sock")
	if err := os.WriteFile(filepath.Join(g.dir, "crem.yaml"), []byte(g.configuration()), 0o600); err != nil {
		return err
	}
	// The agent is started by the namespace's thread and stays on its core.
	if err := g.lab.GwA.Do(func() error { return pin(0, g.core) }); err != nil {
		return err
	}
	for _, device := range []string{topology.Access, topology.Uplink} {
		threads, err := ownThread(g.lab.GwA, device, g.core)
		if err != nil {
			return err
		}
		g.threads = append(g.threads, threads...)
	}
	// What the kernel puts off under load is the gateway's work too, the sink's included.
	late, err := kernelThreads(fmt.Sprintf("ksoftirqd/%d\n", g.core))
	if err != nil {
		return err
	}
	g.threads = slices.AppendSeq(g.threads, maps.Keys(late))
	var host, access frames.MAC
	for _, m := range []struct {
		to     *frames.MAC
		ns     *topology.Namespace
		device string
	}{
		{&host, g.lab.HostA, topology.Device}, {&access, g.lab.GwA, topology.Access}, {&g.uplink, g.lab.GwA, topology.Uplink}, {&g.far, g.lab.WAN, topology.WANA},
	} {
		err := m.ns.Do(func() error {
			i, err := net.InterfaceByName(m.device)
			if err == nil {
				copy(m.to[:], i.HardwareAddr)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	g.leaving = way{
		name: "leaving", from: g.lab.HostA, input: topology.Device, to: g.lab.WAN, out: topology.WANA, role: "csf",
		headers: frames.Headers{SrcMAC: host, DstMAC: access, Src: topology.HostA4, Dst: topology.HostB4, TOS: 2},
	}
	g.arriving = way{
		name: "arriving", from: g.lab.WAN, input: topology.WANA, to: g.lab.HostA, out: topology.Device, role: "crf",
		headers: frames.Headers{SrcMAC: g.far, DstMAC: g.uplink, Src: topology.HostB4, Dst: topology.HostA4, TOS: 2},
	}
	return nil
}

// configuration is that of site A: all defaults.
func (g *gateway) configuration() string {
	return fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: bench}
spec:
  port: %d
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [%s], gateways: [%s]}
  - {name: west, cidrs: [%s], gateways: [%s]}
  nodes: {uplinks: [%s]}
  profileRef: {name: bench}
---
apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: bench}
spec: {}
`, cremPort, site(topology.HostA4), topology.GwA4, site(topology.HostB4), topology.GwB4, topology.Uplink)
}

// site is the prefix of a host's site.
func site(host netip.Addr) netip.Prefix { return netip.PrefixFrom(host, 24).Masked() }

func (g *gateway) close() {
	g.lab.Close()
	_ = os.RemoveAll(g.dir)
}

// passage is what came through in one window.
type passage struct {
	seconds       float64
	packets       uint64
	refused       uint64        // packets that found the gateway's input queue full: it, and not the generator, was the limit
	coreTime      time.Duration // of the gateway: the kernel's threads and the agent
	agentTime     time.Duration // of this, the agent's
	before, after *agentView    // nil: no agent
}

// kpps is the rate that came through.
func (p *passage) kpps() float64 { return float64(p.packets) / p.seconds / 1000 }

// corePerPacket is the time of the gateway's core that a packet took, in nanoseconds: without what other programs took from it, and without
// its pauses.
func (p *passage) corePerPacket() float64 { return float64(p.coreTime) / float64(p.packets) }

// kernelTime is the processor time of the kernel's threads so far.
func (g *gateway) kernelTime() (total time.Duration, err error) {
	for _, tid := range g.threads {
		used, err := cpuTime(tid)
		if err != nil {
			return 0, err
		}
		total += used
	}
	return total, nil
}

// watch looks at the sink, the generator and the agent before and after a window.
func (g *gateway) watch(ctx context.Context, gen *generator, s *sink, a *agent) (p passage, err error) {
	select {
	case <-ctx.Done():
		return p, ctx.Err()
	case <-time.After(warm):
	}
	if p.before, err = a.view(ctx); err != nil {
		return p, err
	}
	first, err := g.look(gen, s, a)
	if err != nil {
		return p, err
	}
	select {
	case <-ctx.Done():
		return p, ctx.Err()
	case err := <-gen.ended:
		gen.ended <- err
		return p, fmt.Errorf("the generator has ended: %w", err)
	case <-time.After(g.length):
	}
	last, err := g.look(gen, s, a)
	if err != nil {
		return p, err
	}
	p.seconds, p.packets, p.refused = last.at.Sub(first.at).Seconds(), last.packets-first.packets, last.refused-first.refused
	p.agentTime = last.agent - first.agent
	p.coreTime = last.kernel - first.kernel + p.agentTime
	if p.packets == 0 {
		return p, errors.New("no packet has come through the gateway")
	}
	p.after, err = a.view(ctx)
	return p, err
}

// look is what a window begins and ends with.
type look struct {
	at               time.Time
	packets, refused uint64
	kernel, agent    time.Duration
}

func (g *gateway) look(gen *generator, s *sink, a *agent) (l look, err error) {
	if a != nil {
		if l.agent, err = cpuTime(a.process.Pid()); err != nil {
			return l, err
		}
	}
	if l.kernel, err = g.kernelTime(); err != nil {
		return l, err
	}
	l.at, l.refused = time.Now(), gen.refused.Load()
	l.packets, _, err = s.count()
	return l, err
}

// plain is one window without an agent.
func (g *gateway) plain(ctx context.Context, w *way, data int) (p passage, err error) {
	packets := newNumbered(w.headers, data)
	s, err := openSink(w.to, w.out, len(packets.model))
	if err != nil {
		return p, err
	}
	defer s.close()
	gen, err := startGenerator(w.from, w.input, packets, nil)
	if err != nil {
		return p, err
	}
	p, err = g.watch(ctx, gen, s, nil)
	return p, errors.Join(err, gen.end())
}

// sending is one window with an agent that protects what leaves.
func (g *gateway) sending(ctx context.Context, data int) (p passage, err error) {
	w := &g.leaving
	a, err := g.startAgent(ctx)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	packets := newNumbered(w.headers, data)
	s, err := openSink(w.to, w.out, len(packets.model))
	if err != nil {
		return p, err
	}
	defer s.close()
	gen, err := startGenerator(w.from, w.input, packets, nil)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, gen.end()) }()
	far, err := startReceiver(w.to, w.out, g.far, g.uplink, gen, s)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, far.end()) }()
	if err := eventually(ctx, "the flow is protected", far.configured.Load); err != nil {
		return p, fmt.Errorf("%w: %s", err, a.why(ctx))
	}
	return g.watch(ctx, gen, s, a)
}

// receiving is one window with an agent that receives a flow protected with m repair symbols a block.
func (g *gateway) receiving(ctx context.Context, data, m int) (p passage, err error) {
	w := &g.arriving
	a, err := g.startAgent(ctx)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	packets := newNumbered(w.headers, data)
	s, err := openSink(w.to, w.out, len(packets.model))
	if err != nil {
		return p, err
	}
	defer s.close()
	far, err := newSender(w.from, w.input, g.far, g.uplink, m)
	if err != nil {
		return p, err
	}
	defer far.close()
	gen, err := startGenerator(w.from, w.input, packets, far)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, gen.end()) }()
	if err := eventually(ctx, "the flow is protected", far.protecting.Load); err != nil {
		return p, fmt.Errorf("%w: %s", err, a.why(ctx))
	}
	return g.watch(ctx, gen, s, a)
}

// eventually waits until ok holds.
func eventually(ctx context.Context, what string, ok func() bool) error {
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// agent is a crem-agent in the gateway.
type agent struct {
	process *topology.Process
	client  *agentclient.Client
}

// agentView is what the agent says at one moment.
type agentView struct {
	status agentapi.Status
	flow   agentapi.Flow // the stream
}

// startAgent starts an agent whose programs end with it, and waits until they are attached.
func (g *gateway) startAgent(ctx context.Context) (*agent, error) {
	p, err := g.lab.Start(g.lab.GwA, g.agent, "run", "-f", filepath.Join(g.dir, "crem.yaml"), "--node", "gwA", "--socket", g.socket, "--pin-dir", "", "--metrics-addr", "", "--workers", "1")
	if err != nil {
		return nil, err
	}
	a := &agent{process: p, client: agentclient.New(g.socket)}
	err = eventually(ctx, "the agent is attached", func() bool {
		select {
		case <-p.Done():
			return true
		default:
		}
		s, err := a.client.Status(ctx)
		return err == nil && len(s.Uplinks) == 1 && s.Uplinks[0].Attached
	})
	select {
	case <-p.Done():
		err = errors.Join(err, errors.New("the agent has ended"))
	default:
	}
	if err != nil {
		p.Kill()
		return nil, fmt.Errorf("%w: %s", err, p.Said())
	}
	return a, nil
}

func (a *agent) stop() error {
	_, err := a.process.Stop(patience)
	return err
}

// view asks the agent; nil without one.
func (a *agent) view(ctx context.Context) (*agentView, error) {
	if a == nil {
		return nil, nil
	}
	var v agentView
	var err error
	if v.status, err = a.client.Status(ctx); err != nil {
		return nil, err
	}
	flows, err := a.client.Flows(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range flows {
		if f.QPN == streamQPN {
			v.flow = f
			return &v, nil
		}
	}
	return nil, errors.New("the agent does not know the flow")
}

// why is what the agent says about its flows, for an error.
func (a *agent) why(ctx context.Context) string {
	flows, err := a.client.Flows(ctx)
	if err != nil {
		return err.Error()
	}
	s := []string{fmt.Sprintf("%d flows", len(flows))}
	for _, f := range flows {
		s = append(s, fmt.Sprintf("%s is %s: %s", f.ID, f.State, f.Why))
	}
	return strings.Join(s, "; ")
}

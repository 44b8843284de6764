// SPDX-License-Identifier: Apache-2.0

package system

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/agentclient"
	"crem.dev/crem/test/lab/topology"
)

// gateway is a gateway of the lab with its agent.
type gateway struct {
	w         *world
	ns        *topology.Namespace
	site      string
	domain    string // file
	profile   string // file
	socket    string
	arguments []string // of crem-agent run, besides the files
	process   *topology.Process
	client    *agentclient.Client
}

func (w *world) newGateway(n *topology.Namespace, site string) *gateway {
	w.t.Helper()
	dir := filepath.Join(w.dir, n.Name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	g := &gateway{
		w: w, ns: n, site: site, socket: filepath.Join(dir, "agent.sock"),
		domain: filepath.Join(dir, "domain.yaml"), profile: filepath.Join(dir, "profile.yaml"),
	}
	g.arguments = append([]string{"--memory", "128Mi"}, w.o.arguments...)
	g.client = agentclient.New(g.socket)
	g.writeDomain(true)
	g.writeProfile(w.o.profile)
	return g
}

func (g *gateway) write(file, text string) {
	g.w.t.Helper()
	next := file + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		g.w.t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		g.w.t.Fatal(err)
	}
}

// writeProfile writes the CREMProfile that all flows have.
func (g *gateway) writeProfile(spec string) {
	g.w.t.Helper()
	g.write(g.profile, fmt.Sprintf("apiVersion: crem.dev/v1alpha1\nkind: CREMProfile\nmetadata: {name: lab}\nspec: %s\n", spec))
}

// writeDomain writes the CREMDomain of the lab's two sites, or one of other sites that leaves the lab's alone.
func (g *gateway) writeDomain(ours bool) {
	g.w.t.Helper()
	gateways := [2]string{topology.GwA4.String(), topology.GwB4.String()}
	if g.w.o.gateways[0] != "" {
		gateways = g.w.o.gateways
	}
	for i, a := range gateways {
		gateways[i] = fmt.Sprintf("gateways: [%s]", a)
		if a == noGateways {
			gateways[i] = "gateways: []"
		}
	}
	port, east, west := cremPort, `[10.1.0.0/16, "fd00:1::/32"]`, `[10.2.0.0/16, "fd00:2::/32"]`
	if !ours {
		port, east, west = cremPort+1, "[10.101.0.0/16]", "[10.102.0.0/16]"
	}
	g.write(g.domain, fmt.Sprintf(`apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: lab}
spec:
  port: %d
  site: %s
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: %s, %s}
  - {name: west, cidrs: %s, %s}
  nodes: {uplinks: [%s]}
  profileRef: {name: lab}
%s`, port, g.site, east, gateways[0], west, gateways[1], topology.Uplink, g.w.o.domain))
}

// start starts the agent as an operator does, anew if it ran before.
func (g *gateway) start() {
	g.w.t.Helper()
	args := append([]string{"run", "-f", g.domain, "-f", g.profile, "--node", g.ns.Name, "--socket", g.socket}, g.arguments...)
	g.process = g.w.start(g.ns, programs.agent, args...)
}

// kill ends the agent without a chance to do anything.
func (g *gateway) kill() { g.process.Kill() }

func (g *gateway) signal(s syscall.Signal) {
	g.w.t.Helper()
	if err := syscall.Kill(g.process.Pid(), s); err != nil {
		g.w.t.Fatal(err)
	}
}

// stop ends the agent as an administrator does.
func (g *gateway) stop() {
	g.w.t.Helper()
	if _, err := g.process.Stop(patience); err != nil {
		g.w.t.Error(err)
	}
}

// alive fails the test if the agent has ended.
func (g *gateway) alive() {
	g.w.t.Helper()
	select {
	case <-g.process.Done():
		g.w.t.Fatalf("%s has ended: %s", g.process.Name, g.process.Said())
	default:
	}
}

// ask returns the agent's status; ok is false while it does not answer.
func (g *gateway) ask() (s agentapi.Status, ok bool) {
	g.w.t.Helper()
	g.alive()
	s, err := g.client.Status(g.w.t.Context())
	return s, err == nil
}

// status returns the agent's status.
func (g *gateway) status() (s agentapi.Status) {
	g.w.t.Helper()
	g.w.eventually("status of "+g.ns.Name, func() (ok bool) { s, ok = g.ask(); return ok })
	return s
}

// flows returns the agent's flows in one role.
func (g *gateway) flows(role string) (flows []agentapi.Flow) {
	g.w.t.Helper()
	var all []agentapi.Flow
	g.w.eventually("flows of "+g.ns.Name, func() bool {
		g.alive()
		var err error
		all, err = g.client.Flows(g.w.t.Context())
		return err == nil
	})
	for _, f := range all {
		if f.Role == role {
			flows = append(flows, f)
		}
	}
	return flows
}

// protecting returns the flows in a role that are protected.
func (g *gateway) protecting(role string) (flows []agentapi.Flow) {
	g.w.t.Helper()
	for _, f := range g.flows(role) {
		if f.State == "Protecting" {
			flows = append(flows, f)
		}
	}
	return flows
}

// awaitAttached waits until the agent has its programs on the uplink.
func (g *gateway) awaitAttached() {
	g.w.t.Helper()
	g.w.eventually("attached in "+g.ns.Name, func() bool {
		s, ok := g.ask()
		return ok && s.AppliedGeneration > 0 && len(s.Uplinks) == 1 && s.Uplinks[0].Attached
	})
}

// awaitProtecting waits until n flows are protected at both ends: those that leave by a, arriving at b.
func (w *world) awaitProtecting(n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d flows protected", n), func() bool {
		return len(w.a.protecting("csf")) >= n && len(w.b.protecting("crf")) >= n
	})
}

// programsOn counts the programs of the product on both hooks of the uplink.
func (g *gateway) programsOn() (ingress, egress int) {
	g.w.t.Helper()
	g.w.do(g.ns, func() error {
		uplink, err := interfaceIndex(topology.Uplink)
		if err != nil {
			return err
		}
		if ingress, err = ours(uplink, ebpf.AttachTCXIngress, "crem_ingress"); err != nil {
			return err
		}
		egress, err = ours(uplink, ebpf.AttachTCXEgress, "crem_egress")
		return err
	})
	return ingress, egress
}

// wantPrograms demands so many programs of the product on each hook, and no others.
func (g *gateway) wantPrograms(n int, when string) {
	g.w.t.Helper()
	if ingress, egress := g.programsOn(); ingress != n || egress != n {
		g.w.t.Errorf("%s, %s: %d programs on ingress, %d on egress, want %d on each", g.ns.Name, when, ingress, egress, n)
	}
}

// ours counts the programs on a hook; one of another name is an error.
func ours(ifindex int, hook ebpf.AttachType, name string) (int, error) {
	names, err := programNames(ifindex, hook)
	for _, n := range names {
		if n != name {
			return 0, fmt.Errorf("a program %s is on the hook", n)
		}
	}
	return len(names), err
}

// programNames are those of the programs on a hook, in their order.
func programNames(ifindex int, hook ebpf.AttachType) (names []string, err error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
	if err != nil {
		return nil, err
	}
	for _, p := range on.Programs {
		program, err := ebpf.NewProgramFromID(p.ID)
		if err != nil {
			return nil, err
		}
		info, err := program.Info()
		program.Close()
		if err != nil {
			return nil, err
		}
		names = append(names, info.Name)
	}
	return names, nil
}

// pinned lists what is left in the gateway's BPF file system below the product's folder.
func (g *gateway) pinned() (names []string) {
	g.w.t.Helper()
	g.w.do(g.ns, func() error {
		names, _ = filepath.Glob("/sys/fs/bpf/crem/*")
		if _, err := os.Stat("/sys/fs/bpf/crem"); err == nil {
			names = append(names, "/sys/fs/bpf/crem")
		}
		return nil
	})
	return names
}

// details are all that the agent says about itself, for the log of a failed test.
func (g *gateway) details() string {
	var b strings.Builder
	s, err := g.client.Status(context.Background())
	if err != nil {
		return fmt.Sprintf("no answer: %v\n", err)
	}
	fmt.Fprintf(&b, "counters %s\ndrops %s\nworkers %+v\n", nonzero(s.Counters), nonzero(s.Drops), s.Workers)
	flows, err := g.client.Flows(context.Background())
	if err != nil {
		return b.String()
	}
	for _, f := range flows {
		fmt.Fprintf(&b, "%s %s, k %d, m %d, loss %.4f, SRTT %.4f: %s\n  %s\n  %s\n", f.ID, f.State, f.K, f.M, f.Loss, f.SRTT, f.Why, nonzero(f.Counters), nonzero(f.Drops))
	}
	return b.String()
}

// nonzero prints what was counted at all.
func nonzero(counters map[string]uint64) string {
	var words []string
	for name, n := range counters {
		if n > 0 {
			words = append(words, fmt.Sprintf("%s %d", name, n))
		}
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// interfaceIndex is that of an interface of the calling thread's namespace.
func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

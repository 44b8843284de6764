// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
)

// finding is one thing that a person should know, and what to do about it.
type finding struct {
	Says string `json:"says"`
	Next string `json:"next,omitempty"`
}

// explanation is the answer of explain.
type explanation struct {
	Subject  string    `json:"subject"`
	Verdict  string    `json:"verdict"`
	Findings []finding `json:"findings"`
	details  [][]string
}

func (p *program) explain() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "explain NODE|FLOW",
		Short: "Says why a flow has its redundancy or is not protected, or what keeps a node from being ready",
		Long: `Says why a flow has its number of repair symbols or is not protected, or what keeps a node from being ready, and what
to do next. A node is named as in kubectl crem nodes, or is the word node for the one where this runs. A flow is named by
its ID (kubectl crem top shows it) or any part of it that no other flow has, for instance an address or a queue
pair number; --node says on which node of a cluster.`,
		Example: `  kubectl crem explain gw1
  kubectl crem explain 10.2.0.7/4711 --node gw1
  kubectl crem explain node --watch
  kubectl crem explain csf/10.1.0.5/10.2.0.7/4711/request`,
		Args: arguments(1, 1, "a node or a flow"),
	}
	where, output := p.agentFlags(cmd), outputFlag(cmd, "table", "wide", "json")
	watchFlag(cmd, &follow)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return p.explainable(cmd.Context(), where), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		show := func(ctx context.Context, out io.Writer) error {
			e, err := p.explanationOf(ctx, where, args[0])
			if err != nil {
				return err
			}
			if format == "json" {
				return writeJSON(out, e)
			}
			return e.print(out, format == "wide")
		}
		return p.repeat(cmd.Context(), follow, cmd.OutOrStdout(), show)
	}
	return cmd
}

// explainable lists what can be explained, for the shell's completion.
func (p *program) explainable(ctx context.Context, where *where) []string {
	names := []string{"node"}
	if agent, err := where.agent(ctx); err == nil {
		if flows, err := agent.Flows(ctx); err == nil {
			for i := range flows {
				names = append(names, flows[i].ID)
			}
			return names
		}
	}
	return append(names, p.nodeNames(ctx, where.cluster)...)
}

// explanationOf explains what a person named: on the node where this runs, or on one of a cluster.
func (p *program) explanationOf(ctx context.Context, where *where, name string) (explanation, error) {
	agent, err := where.agent(ctx)
	if err != nil {
		return explanation{}, err
	}
	status, err := agent.Status(ctx)
	switch {
	case err != nil && where.node == "" && name != "node" && !strings.Contains(name, "/"):
		return p.explainInCluster(ctx, where, name, err)
	case err != nil:
		return explanation{}, err
	case name == "node" || name == status.Node || name == "node/"+status.Node:
		return explainNode(&status), nil
	}
	flows, err := agent.Flows(ctx)
	if err != nil {
		return explanation{}, err
	}
	flow, err := findFlow(flows, name)
	if err != nil {
		return explanation{}, err
	}
	return explainFlow(flow), nil
}

// explainInCluster explains a node from its CREMNode, and from what its agent says if that can be asked. here says why there was no agent to ask on this
// machine.
func (p *program) explainInCluster(ctx context.Context, where *where, name string, here error) (explanation, error) {
	kube, err := where.cluster.client()
	if err != nil {
		return explanation{}, errors.Join(here, err)
	}
	var n v1alpha1.CREMNode
	if err := kube.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
		if apierrors.IsNotFound(err) && !isKind(err) {
			return explanation{}, fmt.Errorf("there is no CREMNode %s: no domain chooses that node, see its labels and spec.nodes.selector of the domains; kubectl crem nodes lists those that take part", name)
		}
		return explanation{}, unreachable(err)
	}
	var lease coordinationv1.Lease
	found := &lease
	if err := kube.Get(ctx, client.ObjectKey{Namespace: where.cluster.namespace, Name: name}, &lease); err != nil {
		found = nil
	}
	state := stateOfNode(&n, found, p.now())
	e := explainCREMNode(&n, &state)
	remote := *where
	remote.node = name
	if agent, err := remote.agent(ctx); err == nil {
		if status, err := agent.Status(ctx); err == nil {
			e.merge(explainNode(&status))
		}
	}
	return e, nil
}

// findFlow finds the flow that a person means.
func findFlow(flows []agentapi.Flow, name string) (*agentapi.Flow, error) {
	var found []string
	var flow *agentapi.Flow
	for i := range flows {
		if flows[i].ID == name {
			return &flows[i], nil
		}
		if strings.Contains(flows[i].ID, name) {
			found = append(found, flows[i].ID)
			flow = &flows[i]
		}
	}
	switch {
	case len(found) == 1:
		return flow, nil
	case len(found) == 0:
		return nil, fmt.Errorf("no flow has %q in its ID: kubectl crem flows lists those that are seen here; a flow that is not among them does not cross an uplink of this node, or its NIC bypasses this kernel", name)
	}
	const most = 10
	more := ""
	if len(found) > most {
		more = fmt.Sprintf("\n  and %d more", len(found)-most)
	}
	return nil, usageError{fmt.Errorf("%d flows have %q in their ID, name one of them:\n  %s%s", len(found), name, strings.Join(found[:min(len(found), most)], "\n  "), more)}
}

// explainFlow says why a flow is as it is. The sentence is the agent's own.
func explainFlow(f *agentapi.Flow) explanation {
	e := explanation{Subject: "flow " + f.ID, Findings: []finding{}}
	switch {
	case f.Role == "crf":
		e.Verdict = "Arrives here, losses are restored (" + f.State + ")."
	case protected(f):
		e.Verdict = "Leaves here, protected."
	case f.State == "Suspended":
		e.Verdict = "Leaves here, protection is suspended."
	default:
		e.Verdict = "Leaves here, not protected (" + f.State + ")."
	}
	e.Verdict += " " + carries(f)
	if f.Why != "" {
		e.Findings = append(e.Findings, finding{Says: f.Why})
	}
	if n := f.Counters["restore_verify_failures"]; n > 0 {
		e.Findings = append(e.Findings, finding{
			Says: fmt.Sprintf("Decodes that were refused because the result did not verify: %d. Nothing of them was delivered.", n),
			Next: "A few are normal with retransmissions; if they go on, compare the versions of both agents and look for a device that changes packets on the way.",
		})
	}
	if n := f.Counters["given_up"]; n > 0 && f.Role == "crf" {
		e.Findings = append(e.Findings, finding{
			Says: fmt.Sprintf("Packets given up and left to the RDMA transport: %d.", n),
			Next: "If it goes on: raise maxRepairSymbols or maxRepairRatio in profile " + orDash(f.Profile) + " at the sending site.",
		})
	}
	if n := f.Counters["released_hold_time_over"]; n > 0 {
		e.Findings = append(e.Findings, finding{
			Says: fmt.Sprintf("Packets that went on with a gap before them because maxHold was over: %d.", n),
			Next: fmt.Sprintf("Set maxHold of profile %s to more than one round-trip time (now %s).", orDash(f.Profile), milliseconds(f.SRTT)),
		})
	}
	e.details = [][]string{
		{"Domain", orDash(f.Domain)}, {"Profile", orDash(f.Profile)}, {"Peer", orDash(f.Peer)},
		{"Code", fmt.Sprintf("k %d, m %d, T %d, scheme %s, digest %v", f.K, f.M, f.T, orDash(f.Scheme), f.Digest)},
		{"Path", fmt.Sprintf("loss %s before restoration, round trip %s", share(f.Loss), milliseconds(f.SRTT))},
		{"Packets", fmt.Sprintf("%d source, %d repair, %d restored, %d held", f.SourcePackets, f.RepairPackets, f.Restored, f.Held)},
		{"Overhead", share(ratio(float64(f.RepairOctets), float64(f.SourceOctets)))},
	}
	if f.Breaker == "open" {
		e.details = append(e.details, []string{"Breaker", "open"})
	}
	for _, name := range sorted(f.Drops) {
		e.details = append(e.details, []string{"Drop " + name, fmt.Sprint(f.Drops[name])})
	}
	return e
}

// carries says what the packets of a flow are: a queue pair has one flow for each of its PSN spaces (docs/protocol.md, Section 4.4).
func carries(f *agentapi.Flow) string {
	transport := f.Transport
	switch {
	case transport == roce.MRC.String():
		return "It is the WRITEs of an MRC queue pair, which has this PSN space alone."
	case f.Space == roce.Response.String() && transport == roce.VeRoCE.String():
		return "It is the READ responses and ATOMIC acknowledgements of a veRoCE queue pair, which have a PSN space of their own."
	case f.Space == roce.Response.String():
		return fmt.Sprintf("It is the READ responses and ATOMIC acknowledgements of a %s queue pair, with the PSNs of the requests that they answer.", transport)
	}
	return fmt.Sprintf("It is the requests of a %s queue pair: WRITE, SEND, READ and ATOMIC.", transport)
}

// explainNode walks the checks of a node, the one that hides the others first.
func explainNode(s *agentapi.Status) explanation {
	e := explanation{Subject: "node " + s.Node, Findings: []finding{}}
	add := func(next, format string, args ...any) {
		e.Findings = append(e.Findings, finding{Says: fmt.Sprintf(format, args...), Next: next})
	}
	for _, w := range s.Workers {
		if w.LastBeatAge > 1 {
			add("Look at the agent's log; a restart of the agent costs no packet.", "Packet worker %d has not moved for %.0f s; the kernel passes its packets unprotected.", w.ID, w.LastBeatAge)
		}
	}
	if s.ConfigStale != "" {
		add("Correct the files; they are read again at once.", "The newest configuration was refused, generation %d stays in force: %s", s.Generation, s.ConfigStale)
	}
	if s.Generation > 0 && s.AppliedGeneration != s.Generation && s.ConfigStale == "" {
		add("Wait a second and ask again; if it stays, look at the agent's log.", "Not all packet workers obey generation %d yet.", s.Generation)
	}
	for _, p := range s.Problems {
		add("", "%s (%s): %s", p.Object, p.Reason, p.Message)
	}
	for _, d := range s.Domains {
		if !d.Applied {
			add("crem-agent probe says what this node can do.", "Domain %s is not in force: %s", d.Name, d.Problem)
		}
	}
	attached := 0
	for _, u := range s.Uplinks {
		if u.Attached {
			attached++
		} else {
			add("It is tried again when interfaces change; name another in spec.nodes.uplinks of the domain, or create it.", "Uplink %s is not attached: %s", u.Name, u.Problem)
		}
	}
	if len(s.Domains) > 0 && attached == 0 && len(s.Uplinks) == 0 {
		add("Add routes to the other sites' prefixes, or name interfaces in spec.nodes.uplinks of the domain.", "No interface leads to another site.")
	}
	for _, t := range s.Tunnels {
		if t.Gateway && !t.Up { // the problem says what to do
			add("", "Flows to site %s of domain %s leave outside of tunnels, protected as before: %s.", t.Site, t.Domain, t.Problem)
		}
		if q := t.Queue; t.Up && q != nil && q.Problem != "" {
			add("It is tried again. To mark nothing by the queue remove spec.wan.queue of the domain.", "Before the tunnel to site %s of domain %s %s.", t.Site, t.Domain, q.Problem)
		}
	}
	for _, t := range s.Tunnels {
		if t.Measured != nil && t.Measured.Problem != "" { // it says what to do
			add("", "The tunnel to site %s of domain %s: %s.", t.Site, t.Domain, t.Measured.Problem)
		}
	}
	if n, reason := droppedInTunnels(s); n > 0 {
		add("See docs/runbooks/CREMTunnelPacketsDropped.md, which says for each reason who is at fault.", "Packets that arrived in a tunnel and were dropped: %d, most of them for the reason %s.", n, reason)
	}
	if m := s.MTUTooSmall; m.Flows > 0 {
		add("Raise the MTU of the uplink, or lower the RDMA MTU of the endpoints.", "Flows that are not protected because their repairs need an MTU of %d and the uplink has %d: %d.", m.Need, m.Have, m.Flows)
	}
	if m := s.Memory; m.Limit > 0 && m.InUse > m.Limit*9/10 {
		add("Give the agent more with --memory, or lower maxHold.", "Memory is nearly used up: %s of %s. The oldest blocks give way.", octets(m.InUse), octets(m.Limit))
	}
	if n := s.Drops["outside_domain"] + s.Counters["kernel_boundary_source"]; n > 0 {
		add("Filter the CREM port at the domain's boundary; if the sender is yours, add its address to the domain.", "Messages to the CREM port that came from outside the domain and were dropped: %d.", n)
	}
	if n := s.Counters["kernel_pass_gso"] + s.Drops["super_packet"]; n > 0 {
		add("Turn rx-udp-gro-forwarding off on the interfaces that RDMA comes in by.", "Super-packets, which the kernel joined of RDMA packets before the agent saw them, passed unprotected: %d.", n)
	}
	if n := s.Counters["kernel_open_stale"]; n > 0 {
		add("Give the agent the capability SYS_NICE, or a core of its own.", "Packets that passed unprotected because the packet workers were kept waiting: %d.", n)
	}
	unprotected := s.Flows.Sending - s.Flows.Protected
	switch {
	case len(s.Domains) == 0:
		e.Verdict = "Takes part in no domain."
	case len(e.Findings) == 0 && s.Flows.Sending+s.Flows.Receiving == 0:
		e.Verdict = "Ready; no RDMA flow was seen."
		add("If RDMA traffic should pass here: a NIC that bypasses the kernel (SR-IOV, hardware RoCE) hides it; protect it by a gateway on its path.", "No RDMA packet crossed an uplink.")
	case len(e.Findings) == 0:
		e.Verdict = "Ready."
	default:
		e.Verdict = fmt.Sprintf("Needs attention (%d).", len(e.Findings))
	}
	if unprotected > 0 {
		add("kubectl crem flows --unprotected -o wide says why for each.", "%d of %d leaving flows are not protected.", unprotected, s.Flows.Sending)
	}
	e.details = [][]string{
		{"Version", s.Version}, {"Generation", fmt.Sprintf("%d, in force %d", s.Generation, s.AppliedGeneration)},
		{"Workers", fmt.Sprint(len(s.Workers))}, {"Flows", fmt.Sprintf("%d leaving, %d protected, %d arriving", s.Flows.Sending, s.Flows.Protected, s.Flows.Receiving)},
		{"Memory", fmt.Sprintf("%s of %s, %s held", octets(s.Memory.InUse), octets(s.Memory.Limit), octets(s.Memory.Held))},
	}
	for _, d := range s.Domains {
		e.details = append(e.details, []string{"Domain " + d.Name, fmt.Sprintf("site %s, port %d", d.Site, d.Port)})
		if d.Reporter == agentapi.ReporterOwnDrops {
			e.details = append(e.details, []string{"Path Reporter", d.ReporterProblem})
		}
	}
	for _, u := range s.Uplinks {
		e.details = append(e.details, []string{"Uplink " + u.Name, strings.TrimSpace(fmt.Sprintf("MTU %d  %s", u.MTU, u.Why))})
	}
	for _, x := range s.Excluded {
		e.details = append(e.details, []string{"No uplink: " + x.Name, x.Why})
	}
	for _, t := range s.Tunnels {
		if t.Up {
			text := fmt.Sprintf("from %s to %s by %s, MTU %d", t.Local, t.Remote, t.Uplink, t.MTU)
			if m := t.Measured; m != nil {
				text += fmt.Sprintf(", %d packets measured, %d lost, delay %+.1f ms since the beginning", m.Packets, m.Lost, float64(m.DelayChange)/1000)
			}
			e.details = append(e.details, []string{"Tunnel to " + t.Domain + "/" + t.Site, text})
		}
		if q := t.Queue; t.Up && q != nil && q.Problem == "" {
			e.details = append(e.details, []string{"Queue before it", fmt.Sprintf("%d octets on average; the early warning is given over %d, CE over %d", q.Average, q.Early, q.Severe)})
		}
	}
	for _, name := range sorted(s.Drops) {
		if s.Drops[name] > 0 {
			e.details = append(e.details, []string{"Drop " + name, fmt.Sprint(s.Drops[name])})
		}
	}
	return e
}

// droppedInTunnels counts what arrived in tunnels and was dropped, and names the most frequent reason.
func droppedInTunnels(s *agentapi.Status) (sum uint64, reason string) {
	most := uint64(0)
	for _, name := range sorted(s.Counters) {
		why, of := strings.CutPrefix(name, "tunnel_in_")
		if !of {
			continue
		}
		n := s.Counters[name]
		sum += n
		if n > most {
			most, reason = n, "in_"+why
		}
	}
	return sum, reason
}

// print writes the verdict, what was found, and with details the numbers.
func (e *explanation) print(out io.Writer, details bool) error {
	rows := [][]string{{e.Subject + ": " + e.Verdict}}
	for _, f := range e.Findings {
		rows = append(rows, []string{"- " + f.Says})
		if f.Next != "" {
			rows = append(rows, []string{"  Next: " + f.Next})
		}
	}
	if details {
		rows = append(rows, []string{""})
		for _, d := range e.details {
			rows = append(rows, []string{d[0], d[1]})
		}
	}
	return table(out, rows)
}

func sorted(m map[string]uint64) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

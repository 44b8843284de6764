// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// nodeState is one CREMNode with what its Lease says.
type nodeState struct {
	Name       string   `json:"name"`
	Domains    []string `json:"domains"`
	Programmed string   `json:"programmed"`
	Ready      string   `json:"ready"`
	Degraded   string   `json:"degraded"`
	Reason     string   `json:"reason,omitempty"`
	Message    string   `json:"message,omitempty"`
	Generation int64    `json:"generation"`
	Applied    int64    `json:"appliedGeneration"`
	Agent      string   `json:"agentVersion,omitempty"`
	LastSeen   string   `json:"lastSeen,omitempty"` // how long ago the agent renewed its Lease
	Next       string   `json:"next,omitempty"`
}

func (p *program) nodes() *cobra.Command {
	var follow, failing bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Lists the nodes that take part, and why one is not ready",
		Long: `Lists the nodes that take part in a domain: whether the newest generation is in their data path, whether they are ready, and
if not, why. A node whose agent has not renewed its Lease is AgentNotReporting: what it last said may be old.`,
		Example: `  kubectl crem nodes
  kubectl crem nodes --failing -o wide
  kubectl crem nodes --watch`,
		Args: arguments(0, 0, ""),
	}
	where, output := clusterFlags(cmd), outputFlag(cmd, "table", "wide", "json")
	watchFlag(cmd, &follow)
	cmd.Flags().BoolVar(&failing, "failing", false, "only nodes that are not ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		format, err := output()
		if err != nil {
			return err
		}
		kube, err := where.client()
		if err != nil {
			return err
		}
		show := func(ctx context.Context) error {
			states, err := readNodes(ctx, kube, where.namespace, p.now())
			if err != nil {
				return err
			}
			all := len(states)
			if failing {
				states = slices.DeleteFunc(states, func(s nodeState) bool { return s.Ready == string(metav1.ConditionTrue) })
			}
			if format == "json" {
				return writeJSON(cmd.OutOrStdout(), states)
			}
			return printNodes(cmd.OutOrStdout(), states, all, format == "wide")
		}
		return p.show(cmd.Context(), kube, follow, cmd.OutOrStdout(), show, &v1alpha1.CREMNodeList{})
	}
	return cmd
}

func readNodes(ctx context.Context, kube client.Client, namespace string, now time.Time) ([]nodeState, error) {
	var nodes v1alpha1.CREMNodeList
	if err := kube.List(ctx, &nodes); err != nil {
		return nil, unreachable(err)
	}
	var leases coordinationv1.LeaseList
	if err := kube.List(ctx, &leases, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}); err != nil {
		return nil, unreachable(err)
	}
	byNode := map[string]*coordinationv1.Lease{}
	for i := range leases.Items {
		byNode[leases.Items[i].Name] = &leases.Items[i]
	}
	states := []nodeState{}
	for i := range nodes.Items {
		states = append(states, stateOfNode(&nodes.Items[i], byNode[nodes.Items[i].Name], now))
	}
	slices.SortFunc(states, func(a, b nodeState) int { return cmp.Compare(a.Name, b.Name) })
	return states, nil
}

// stateOfNode judges one node. Without a Lease that is in force, what the agent said last is not what is.
func stateOfNode(n *v1alpha1.CREMNode, lease *coordinationv1.Lease, now time.Time) nodeState {
	s := nodeState{
		Name: n.Name, Domains: []string{}, Generation: n.Generation, Applied: n.Status.AppliedGeneration, Agent: n.Status.AgentVersion,
		Programmed: condition(n, v1alpha1.ConditionProgrammed), Ready: condition(n, v1alpha1.ConditionReady), Degraded: condition(n, v1alpha1.ConditionDegraded),
	}
	for _, d := range n.Spec.Domains {
		s.Domains = append(s.Domains, string(d.Name))
	}
	if ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
		s.Reason, s.Message = ready.Reason, ready.Message
	}
	if n.Status.ObservedGeneration < n.Generation && s.Ready == string(metav1.ConditionTrue) {
		s.Ready, s.Reason, s.Message = string(metav1.ConditionUnknown), v1alpha1.ReasonPending, fmt.Sprintf("The agent has not said yet what became of generation %d.", n.Generation)
	}
	if age, expired := leaseAge(lease, now); expired {
		s.Ready, s.Reason = string(metav1.ConditionUnknown), v1alpha1.ReasonAgentNotReporting
		s.Message = "No agent has reported from this node."
		if age > 0 {
			s.Message = fmt.Sprintf("The agent has not reported for %s.", duration.HumanDuration(age))
			s.LastSeen = duration.HumanDuration(age)
		}
	} else {
		s.LastSeen = duration.HumanDuration(age)
	}
	if s.Ready != string(metav1.ConditionTrue) {
		s.Next = next(s.Reason, n.Name)
	}
	return s
}

func condition(n *v1alpha1.CREMNode, kind string) string {
	if c := meta.FindStatusCondition(n.Status.Conditions, kind); c != nil {
		return string(c.Status)
	}
	return string(metav1.ConditionUnknown)
}

// leaseAge gives how long ago a Lease was renewed, and whether it is over. A Lease that was never renewed is over, with age 0.
func leaseAge(lease *coordinationv1.Lease, now time.Time) (age time.Duration, expired bool) {
	if lease == nil || lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil {
		return 0, true
	}
	age = max(0, now.Sub(lease.Spec.RenewTime.Time))
	return age, age > time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second
}

func printNodes(out io.Writer, states []nodeState, all int, wide bool) error {
	if len(states) == 0 {
		says := "No node takes part. kubectl crem status says what the domains ask for."
		if all > 0 {
			says = fmt.Sprintf("All %d nodes are ready.", all)
		}
		_, err := fmt.Fprintln(out, says)
		return err
	}
	head := []string{"NODE", "DOMAINS", "GENERATION", "PROGRAMMED", "READY", "DEGRADED", "REASON", "SEEN"}
	if wide {
		head = append(head, "AGENT", "MESSAGE", "NEXT")
	}
	rows := [][]string{head}
	for i := range states {
		s := &states[i]
		row := []string{s.Name, orDash(strings.Join(s.Domains, ",")), fmt.Sprintf("%d/%d", s.Applied, s.Generation), s.Programmed, s.Ready, s.Degraded, orDash(s.Reason), orDash(s.LastSeen)}
		if wide {
			row = append(row, orDash(s.Agent), orDash(s.Message), orDash(s.Next))
		}
		rows = append(rows, row)
	}
	return table(out, rows)
}

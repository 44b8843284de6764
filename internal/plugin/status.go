// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// overview is the answer of status: what is asked for, and what came of it.
type overview struct {
	Domains  []domainState `json:"domains"`
	Profiles []objectState `json:"profilesNotReady"`
}

// objectState is one object that people wrote.
type objectState struct {
	Name    string `json:"name"`
	Ready   string `json:"ready"` // True, False, Unknown; Pending when the operator has not seen it
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
}

// domainState is one CREMDomain.
type domainState struct {
	objectState
	Site    string         `json:"site"`
	Port    int32          `json:"port"`
	IPsec   string         `json:"ipsec"`
	Profile string         `json:"profile,omitempty"`
	Nodes   string         `json:"nodes"` // ready/matched
	Failing []failingState `json:"failingNodes,omitempty"`
	Sites   []siteState    `json:"sites,omitempty"`
}

// failingState is one node that is not ready.
type failingState struct {
	Name    string `json:"name"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	Next    string `json:"next,omitempty"`
}

// siteState is the coarse view of another site.
type siteState struct {
	Name  string `json:"name"`
	Flows int32  `json:"flows"`
	Loss  string `json:"loss"`
	RTT   int32  `json:"rttMilliseconds"`
	// Suspended: flows to it are left to RDMA by the circuit breaker.
	Suspended bool `json:"repairsSuspended,omitempty"`
}

func (p *program) status() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Shows the domains of a cluster, how far they are in force, and what to do next",
		Long: `Shows the CREMDomains of a cluster and how far they are in force, the nodes that are not ready, the profiles that are not
used, and for each what to do next. With -o wide also the other sites: flows that are protected towards each, the class of loss before restoration and the
round-trip time, coarsely; they change at most once a minute.`,
		Example: `  kubectl crem status
  kubectl crem status --watch
  kubectl crem status --context west -o json`,
		Args: arguments(0, 0, ""),
	}
	where, output := clusterFlags(cmd), outputFlag(cmd, "table", "wide", "json")
	watchFlag(cmd, &follow)
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
			o, err := readOverview(ctx, kube)
			if err != nil {
				return err
			}
			if format == "json" {
				return writeJSON(cmd.OutOrStdout(), o)
			}
			return o.print(cmd.OutOrStdout(), format == "wide")
		}
		return p.show(cmd.Context(), kube, follow, cmd.OutOrStdout(), show, &v1alpha1.CREMDomainList{}, &v1alpha1.CREMProfileList{})
	}
	return cmd
}

func readOverview(ctx context.Context, kube client.Client) (*overview, error) {
	var domains v1alpha1.CREMDomainList
	var profiles v1alpha1.CREMProfileList
	for _, list := range []client.ObjectList{&domains, &profiles} {
		if err := kube.List(ctx, list); err != nil {
			return nil, unreachable(err)
		}
	}
	o := &overview{Domains: []domainState{}, Profiles: []objectState{}}
	for i := range domains.Items {
		o.Domains = append(o.Domains, stateOfDomain(&domains.Items[i]))
	}
	for i := range profiles.Items {
		x := &profiles.Items[i]
		if s := stateOf(x.Name, x.Generation, x.Status.ObservedGeneration, x.Status.Conditions); s.Ready != string(metav1.ConditionTrue) {
			o.Profiles = append(o.Profiles, s)
		}
	}
	slices.SortFunc(o.Domains, func(a, b domainState) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(o.Profiles, func(a, b objectState) int { return cmp.Compare(a.Name, b.Name) })
	return o, nil
}

// stateOf reads the Ready condition. One of an older generation says nothing of this one.
func stateOf(name string, generation, observed int64, conditions []metav1.Condition) objectState {
	s := objectState{Name: name, Ready: "Pending", Reason: v1alpha1.ReasonPending, Message: "The operator has not seen this generation yet."}
	if ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); ready != nil && observed >= generation {
		s.Ready, s.Reason, s.Message = string(ready.Status), ready.Reason, ready.Message
	}
	if s.Ready != string(metav1.ConditionTrue) || s.Reason == v1alpha1.ReasonNoMatchingNodes {
		s.Next = next(s.Reason, "")
	}
	return s
}

func siteStates(sites []v1alpha1.SiteHealth) (list []siteState) {
	for _, s := range sites {
		list = append(list, siteState{Name: string(s.Name), Flows: s.Flows, Loss: string(s.Loss), RTT: s.RTTMilliseconds, Suspended: s.RepairsSuspended})
	}
	return list
}

func stateOfDomain(d *v1alpha1.CREMDomain) domainState {
	s := domainState{
		objectState: stateOf(d.Name, d.Generation, d.Status.ObservedGeneration, d.Status.Conditions),
		Site:        string(d.Spec.Site), Port: d.Spec.Port, IPsec: string(d.Spec.IPsec.Mode), Nodes: "-",
	}
	if d.Spec.ProfileRef != nil {
		s.Profile = string(d.Spec.ProfileRef.Name)
	}
	if n := d.Status.Nodes; n != nil {
		s.Nodes = fmt.Sprintf("%d/%d", n.Ready, n.Matched)
	}
	for _, f := range d.Status.FailingNodes {
		s.Failing = append(s.Failing, failingState{Name: string(f.Name), Reason: f.Reason, Message: f.Message, Next: next(f.Reason, string(f.Name))})
	}
	s.Sites = siteStates(d.Status.Sites)
	return s
}

// String leaves out what is not known.
func (s *siteState) String() string {
	suspended := ""
	if s.Suspended {
		suspended = ", repairs suspended"
	}
	if s.Flows == 0 {
		return "no protected flow" + suspended
	}
	says := fmt.Sprintf("%d flows, loss %s", s.Flows, strings.ToLower(s.Loss))
	if s.RTT > 0 {
		says += fmt.Sprintf(", %d ms", s.RTT)
	}
	return says + suspended
}

func (o *overview) print(out io.Writer, wide bool) error {
	if len(o.Domains) == 0 {
		if _, err := fmt.Fprintln(out, "No CREMDomain. Write one: it says which sites there are and which port; kubectl crem render -f FILE shows what would come of it."); err != nil {
			return err
		}
	} else if err := table(out, o.rows(wide)); err != nil {
		return err
	}
	for _, line := range o.findings() {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

func (o *overview) rows(wide bool) [][]string {
	head := []string{"DOMAIN", "SITE", "PORT", "NODES", "READY", "REASON"}
	if wide {
		head = append(head, "IPSEC", "PROFILE", "SITES")
	}
	rows := [][]string{head}
	for i := range o.Domains {
		d := &o.Domains[i]
		row := []string{d.Name, d.Site, fmt.Sprint(d.Port), d.Nodes, d.Ready, orDash(d.Reason)}
		if wide {
			var sites []string
			for _, s := range d.Sites {
				sites = append(sites, s.Name+": "+s.String())
			}
			row = append(row, d.IPsec, orDash(d.Profile), orDash(strings.Join(sites, "; ")))
		}
		rows = append(rows, row)
	}
	return rows
}

// findings are what a person should know and do, a line each.
func (o *overview) findings() []string {
	var lines []string
	say := func(what, reason, message, step string) {
		lines = append(lines, strings.TrimRight(fmt.Sprintf("- %s (%s): %s", what, reason, message), ": "))
		if step != "" {
			lines = append(lines, "  Next: "+step)
		}
	}
	for i := range o.Domains {
		d := &o.Domains[i]
		if d.Next != "" || d.Ready != string(metav1.ConditionTrue) {
			say("Domain "+d.Name, d.Reason, d.Message, d.Next)
		}
		for _, s := range d.Sites {
			if s.Suspended {
				say("Domain "+d.Name+", site "+s.Name, v1alpha1.ReasonRepairsSuspended, "Flows are left to RDMA: over 10 % of their packets are lost or over 50 % marked",
					"repair the path or find what congests it; kubectl crem flows --node NODE shows which flows")
			}
		}
		for _, f := range d.Failing {
			say("Node "+f.Name, f.Reason, f.Message, f.Next)
		}
	}
	for _, s := range o.Profiles {
		say("Profile "+s.Name, s.Reason, s.Message, s.Next)
	}
	if len(lines) > 0 {
		lines = append([]string{""}, lines...)
	}
	return lines
}

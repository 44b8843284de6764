// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"crem.dev/crem/api/v1alpha1"
)

var someTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func conditions(list ...metav1.Condition) []metav1.Condition { return list }

func cond(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func leaseOf(age time.Duration) *coordinationv1.Lease {
	seconds, renewed := int32(40), metav1.NewMicroTime(someTime.Add(-age))
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &renewed}}
}

// healthyNode is a node on which everything is in force.
func healthyNode() *v1alpha1.CREMNode {
	n := &v1alpha1.CREMNode{}
	n.Name, n.Generation = "gw1", 7
	n.Spec.Domains = []v1alpha1.NodeDomain{{Name: "backbone", Port: 52000, Site: "east", IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecRequired}}}
	n.Status = v1alpha1.CREMNodeStatus{
		ObservedGeneration: 7, AppliedGeneration: 7, AgentVersion: "v0.2.0", BootID: "b", MemoryLimitBytes: 1 << 30,
		Conditions: conditions(cond("Programmed", "True", "Programmed", ""), cond("DataPathHealthy", "True", "Healthy", ""), cond("SecurityReady", "True", "Secured", ""),
			cond("Ready", "True", "Ready", ""), cond("Degraded", "False", "NotDegraded", "")),
		Domains:  []v1alpha1.NodeItemStatus{{Name: "backbone", Programmed: true, Reason: "Applied"}},
		Uplinks:  []v1alpha1.NodeUplinkStatus{{Name: "wan0", Attached: true, Reason: "Applied", MTU: 9000, Why: "It is named in the domain's uplinks."}},
		Excluded: []v1alpha1.NodeExcludedInterface{{Name: "wan1", Why: "It routes to 10.2.0.0/16. It is not named in the domain's uplinks."}},
	}
	return n
}

// TestStateOfNode: what a node said counts as long as its Lease does, and for the generation that it speaks of.
func TestStateOfNode(t *testing.T) {
	for _, tc := range []struct {
		name          string
		change        func(*v1alpha1.CREMNode)
		lease         *coordinationv1.Lease
		ready, reason string
		next          string
	}{
		{"all is well", func(*v1alpha1.CREMNode) {}, leaseOf(3 * time.Second), "True", "Ready", ""},
		{"its Lease is over", func(*v1alpha1.CREMNode) {}, leaseOf(41 * time.Second), "Unknown", "AgentNotReporting", "agent's pod on node gw1"},
		{"it never had one", func(*v1alpha1.CREMNode) {}, nil, "Unknown", "AgentNotReporting", "agent's pod on node gw1"},
		{"a newer spec", func(n *v1alpha1.CREMNode) { n.Generation = 8 }, leaseOf(time.Second), "Unknown", "Pending", "crem-operator"},
		{"no policy", func(n *v1alpha1.CREMNode) {
			meta.SetStatusCondition(&n.Status.Conditions, cond("Ready", "False", "PolicyMissing", "no policy covers 10.1.0.0/16 to 10.2.0.0/16"))
		}, leaseOf(time.Second), "False", "PolicyMissing", "IPsec policies"},
		{"no status yet", func(n *v1alpha1.CREMNode) { n.Status = v1alpha1.CREMNodeStatus{} }, leaseOf(time.Second), "Unknown", "", ""},
	} {
		n := healthyNode()
		tc.change(n)
		s := stateOfNode(n, tc.lease, someTime)
		if s.Ready != tc.ready || s.Reason != tc.reason || !strings.Contains(s.Next, tc.next) || (tc.next == "") != (s.Next == "") {
			t.Errorf("%s: %+v", tc.name, s)
		}
		if strings.Contains(s.Next, "%") {
			t.Errorf("%s: %s", tc.name, s.Next)
		}
	}
}

// TestNextSteps: every step is a sentence, and its reason exists in the API.
func TestNextSteps(t *testing.T) {
	for reason := range nextSteps {
		if step := next(reason, "gw1"); !strings.HasSuffix(step, ".") || strings.Contains(step, "%") {
			t.Errorf("%s: %q", reason, step)
		}
	}
}

func TestExplainCREMNode(t *testing.T) {
	healthy := healthyNode()
	failing := healthyNode()
	failing.Generation = 8
	failing.Status.Conditions = conditions(cond("Programmed", "False", "PartiallyProgrammed", "1 of 2 items failed"), cond("Ready", "False", "PartiallyProgrammed", "1 of 2 items failed"),
		cond("Degraded", "True", "MissingCapability", "SYS_NICE is missing"))
	failing.Status.Uplinks[0] = v1alpha1.NodeUplinkStatus{Name: "wan9", Reason: "InterfaceNotFound", Message: "There is no interface of this name."}
	idle := healthyNode()
	idle.Spec.Domains = nil
	healthy.Status.Domains = []v1alpha1.NodeItemStatus{{Name: "backbone", Programmed: true, Reason: v1alpha1.ReasonApplied,
		Sites: []v1alpha1.SiteHealth{{Name: "west", Flows: 12, Loss: v1alpha1.LossNone, RTTMilliseconds: 20}}}}
	for _, tc := range []struct {
		n    *v1alpha1.CREMNode
		says []string
	}{
		{healthy, []string{"node gw1: Ready.\n", "No uplink: wan1", "not named in the domain's uplinks", "Towards west of backbone", "12 flows, loss none, 20 ms"}},
		{failing, []string{
			"Not ready (PartiallyProgrammed).", "Generation 8 is asked for and generation 7 is in force.", "Degraded is True (MissingCapability): SYS_NICE is missing",
			"Uplink wan9 is not attached (InterfaceNotFound)", "Next: Create the interface", "crem-agent probe on node gw1",
		}},
		{idle, []string{"Takes part in no domain."}},
	} {
		state := stateOfNode(tc.n, leaseOf(time.Second), someTime)
		e := explainCREMNode(tc.n, &state)
		var out bytes.Buffer
		if err := e.print(&out, true); err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.says {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in\n%s", want, out.String())
			}
		}
	}
}

// TestOverview: domains that are not in force, nodes that fail and profiles that are not used are named with what to do.
func TestOverview(t *testing.T) {
	d := &v1alpha1.CREMDomain{}
	d.Name, d.Generation = "backbone", 2
	d.Spec = v1alpha1.CREMDomainSpec{Site: "east", Port: 52000, IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecBoundaryFiltered}}
	d.Status = v1alpha1.CREMDomainStatus{
		ObservedGeneration: 2, Conditions: conditions(cond("Ready", "False", "NodesFailed", "1 of 3 nodes is not ready")),
		Nodes:        &v1alpha1.DomainNodeCounts{Matched: 3, Programmed: 3, Ready: 2, Summary: "2/3"},
		FailingNodes: []v1alpha1.FailingNode{{Name: "gw2", Reason: "AgentNotReporting", Message: "The agent has not reported for 60s."}},
		Sites:        []v1alpha1.SiteHealth{{Name: "west", Flows: 12, Loss: v1alpha1.LossLow, RTTMilliseconds: 20}, {Name: "north", Loss: v1alpha1.LossUnknown}},
	}
	o := &overview{Domains: []domainState{stateOfDomain(d)}, Profiles: []objectState{stateOf("kv", 1, 1, conditions(cond("Ready", "False", "SiteNotFound", "no domain has a site named north")))}}
	var out bytes.Buffer
	if err := o.print(&out, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"backbone  east  52000  2/3    False  NodesFailed", "west: 12 flows, loss low, 20 ms; north: no protected flow", "- Domain backbone (NodesFailed): 1 of 3 nodes is not ready", "- Node gw2 (AgentNotReporting)",
		"agent's pod on node gw2", "- Profile kv (SiteNotFound): no domain has a site named north",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	// What the operator has not seen is no success.
	d.Generation = 3
	if s := stateOfDomain(d); s.Ready != "Pending" {
		t.Errorf("an old status speaks for a new generation: %+v", s)
	}
}

// TestUnreachable: what a person can do about an error of the API server.
func TestUnreachable(t *testing.T) {
	resource := schema.GroupResource{Group: "crem.dev", Resource: "cremdomains"}
	for _, tc := range []struct {
		err  error
		says string
	}{
		{&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "crem.dev", Kind: "CREMDomain"}}, "install the chart crem-crds"},
		{apierrors.NewGenericServerResponse(http.StatusNotFound, "list", resource, "", "the server could not find the requested resource", 0, true), "install the chart crem-crds"},
		{apierrors.NewForbidden(resource, "", errors.New("no")), "ClusterRole crem-viewer"},
		{apierrors.NewUnauthorized("no"), "log in again"},
		{errors.New("connection refused"), "ask the API server: connection refused"},
	} {
		if got := unreachable(tc.err).Error(); !strings.Contains(got, tc.says) {
			t.Errorf("%v: %s", tc.err, got)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// west is what a node says of the other site.
func west(flows int32, loss v1alpha1.LossClass, rtt int32) v1alpha1.SiteHealth {
	return v1alpha1.SiteHealth{Name: "west", Flows: flows, Loss: loss, RTTMilliseconds: rtt}
}

// sitesOf gives a domain's sites as text.
func sitesOf(t *testing.T, name string) string {
	t.Helper()
	var d v1alpha1.CREMDomain
	if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &d); err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, s := range d.Status.Sites {
		text += fmt.Sprintf("%s %d %s %d;", s.Name, s.Flows, s.Loss, s.RTTMilliseconds)
	}
	return text
}

func wantSites(t *testing.T, want string) func() error {
	return func() error {
		if got := sitesOf(t, "d"); got != want {
			return fmt.Errorf("sites %q, not %q", got, want)
		}
		return nil
	}
}

// TestSitesOfADomain: what the nodes say of the other site is summed up; it changes at most once in a period, not for noise, and not because other parts of the status
// do or another operator leads.
func TestSitesOfADomain(t *testing.T) {
	clean(t)
	o := quick()
	r := start(t, o)
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"), node("n2", "gw=1"), node("n3", "gw=1"))
	within(t, patience, wantSites(t, "west 0 Unknown 0;"))
	for i := range 3 {
		within(t, patience, wantDomains(t, fmt.Sprintf("n%d", i+1), "d"))
	}
	ready := func(name string, sites ...v1alpha1.SiteHealth) {
		t.Helper()
		heartbeatFor(t, name, time.Now(), time.Hour)
		state(t, name, metav1.ConditionTrue, v1alpha1.ReasonReady, sites...)
	}
	ready("n1", west(60, v1alpha1.LossLow, 20))
	ready("n2", west(45, v1alpha1.LossUnknown, 30))
	ready("n3")
	within(t, patience, wantSites(t, "west 110 Low 20;"))
	at := time.Now()

	// The loss is worse and a node fails: the one waits, the other does not, and takes nothing with it.
	ready("n1", west(60, v1alpha1.LossHigh, 20))
	state(t, "n3", metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "False/NodesFailed"}))
	if got := sitesOf(t, "d"); got != "west 110 Low 20;" && time.Since(at) < o.SitePeriod {
		t.Errorf("after %s: %s", time.Since(at), got)
	}
	within(t, patience, wantSites(t, "west 110 High 20;"))
	if took := time.Since(at); took < o.SitePeriod-time.Second {
		t.Errorf("rewritten after %s", took)
	}
	ready("n3")
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	r.settle(t)

	before := len(r.written())
	ready("n1", west(58, v1alpha1.LossHigh, 21)) // as much as makes no difference
	time.Sleep(o.SitePeriod + 3*time.Second)     // in which a write could come that must not
	if after := r.written(); len(after) > before {
		t.Errorf("written for nothing: %v", after[before:])
	}
	r.stop()
	again := start(t, o)
	again.settle(t)
	if n := again.written(); len(n) > 0 || sitesOf(t, "d") != "west 110 High 20;" {
		t.Errorf("an operator that starts writes %v, sites %s", n, sitesOf(t, "d"))
	}

	// A node whose agent does not report has no flows that anyone knows of.
	heartbeat(t, "n1", time.Now().Add(-time.Hour))
	ready("n3") // a Lease is looked at when it ends, which was in an hour; this has everything looked at
	within(t, patience, wantSites(t, "west 45 Unknown 30;"))
}

// TestSection10_SuspendedRepairsAreTold: that the flows to a site are left to RDMA is shown at once and told by an event, and so is its end; each once.
func TestSection10_SuspendedRepairsAreTold(t *testing.T) {
	clean(t)
	o := quick()
	r := start(t, o)
	about := domain("d", 52000, "wan0", labelled("gw", "1"))
	create(t, about, node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	heartbeatFor(t, "n1", time.Now(), time.Hour)
	says := func(suspended bool) {
		t.Helper()
		s := west(7, v1alpha1.LossHigh, 20)
		s.RepairsSuspended = suspended
		state(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady, s)
		within(t, patience, func() error {
			var d v1alpha1.CREMDomain
			if err := api.Get(t.Context(), client.ObjectKey{Name: "d"}, &d); err != nil {
				return err
			}
			if n := len(d.Status.Sites); n != 1 || d.Status.Sites[0].RepairsSuspended != suspended || d.Status.Sites[0].Flows != 7 {
				return fmt.Errorf("sites %+v", d.Status.Sites)
			}
			return nil
		})
	}
	says(false)
	at := time.Now()
	says(true)
	if took := time.Since(at); took >= o.SitePeriod {
		t.Errorf("shown after %s", took)
	}
	r.settle(t)
	says(false)
	within(t, patience, wantRepairEvents(t, about, "Normal RepairsResumed", "Warning RepairsSuspended"))
}

// wantRepairEvents: what was told about repairs to the sites of a domain.
func wantRepairEvents(t *testing.T, about client.Object, want ...string) func() error {
	return func() error {
		var events eventsv1.EventList
		if err := api.List(t.Context(), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		var told []string
		for _, e := range events.Items {
			if e.Regarding.UID == about.GetUID() && strings.Contains(e.Action, "Repairs") {
				told = append(told, e.Type+" "+e.Reason)
			}
		}
		slices.Sort(told)
		if !slices.Equal(told, want) {
			return fmt.Errorf("events %q, not %q", told, want)
		}
		return nil
	}
}

// TestSection10_SilentAgentsResumeNothing: when the only agent dies that left flows to RDMA, nobody knows of flows any more, and nothing says that repairs are sent again.
func TestSection10_SilentAgentsResumeNothing(t *testing.T) {
	clean(t)
	r := start(t, quick())
	about := domain("d", 52000, "wan0", labelled("gw", "1"))
	create(t, about, node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	heartbeatFor(t, "n1", time.Now(), time.Hour)
	s := west(7, v1alpha1.LossHigh, 20)
	s.RepairsSuspended = true
	state(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady, s)
	within(t, patience, wantRepairEvents(t, about, "Warning RepairsSuspended"))
	heartbeat(t, "n1", time.Now().Add(-time.Hour))
	create(t, node("n2", "gw=1")) // has everything looked at; a Lease alone is looked at when it ends, which was in an hour
	within(t, patience, wantSites(t, "west 0 Unknown 0;"))
	r.settle(t)
	if err := wantRepairEvents(t, about, "Warning RepairsSuspended")(); err != nil {
		t.Error(err)
	}
}

// TestSilentAgent: a CREMNode whose agent's Lease is over says so in Ready and keeps the rest; that costs one write, also when the agent writes without a Lease; and
// the agent takes it back.
func TestSilentAgent(t *testing.T) {
	clean(t)
	r := start(t, quick())
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady, west(7, v1alpha1.LossNone, 20))
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	r.settle(t)
	before := len(r.written())

	heartbeat(t, "n1", time.Now().Add(-v1alpha1.LeaseDuration))
	ready := func(want string) func() error {
		return func() error {
			var n v1alpha1.CREMNode
			if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n); err != nil {
				return err
			}
			if got := condition(n.Status.Conditions, v1alpha1.ConditionReady); got != want {
				return fmt.Errorf("Ready is %q, not %q", got, want)
			}
			if len(n.Status.Domains) != 1 || len(n.Status.Domains[0].Sites) != 1 || n.Status.AppliedGeneration != n.Generation {
				return fmt.Errorf("what the agent said is lost: %+v", n.Status)
			}
			return nil
		}
	}
	within(t, 2*patience, ready("Unknown/AgentNotReporting"))
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "False/AgentNotReporting"}))
	r.settle(t)
	if cost := r.written()[before:]; len(cost) > 3 { // the domain's conditions, its sites, the node
		t.Errorf("an agent that is silent costs %d writes: %v", len(cost), cost)
	}

	// An agent that can write everything but its Lease: nobody writes in turns.
	before = len(r.written())
	state(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady, west(7, v1alpha1.LossNone, 20))
	time.Sleep(4 * time.Second) // in which the operator could write against the agent
	within(t, patience, ready("True/Ready"))
	if cost := r.written()[before:]; len(cost) > 0 {
		t.Errorf("written against an agent: %v", cost)
	}

	// It is back, and silent once more.
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady, west(7, v1alpha1.LossNone, 20))
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	within(t, patience, ready("True/Ready"))
	heartbeat(t, "n1", time.Now().Add(-v1alpha1.LeaseDuration))
	within(t, 2*patience, ready("Unknown/AgentNotReporting"))
}

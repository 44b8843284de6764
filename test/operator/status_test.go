// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// TestStatusOfADomain follows a domain from its first visit to Ready and through what can happen to its nodes.
func TestStatusOfADomain(t *testing.T) {
	clean(t)
	o := quick()
	o.StatusQuiet = 2 * time.Second // long enough to see the first visit
	o.StatusMost = 4 * time.Second
	start(t, o)
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"}
	create(t, d)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "Unknown/Pending", v1alpha1.ConditionAccepted: ""}))
	within(t, patience, wantDomain(t, "d", map[string]string{
		v1alpha1.ConditionAccepted: "False/ProfileNotFound", v1alpha1.ConditionReady: "False/ProfileNotFound", v1alpha1.ConditionStalled: "True/ProfileNotFound"}))
	create(t, profile("standard"))
	within(t, patience, wantDomain(t, "d", map[string]string{
		v1alpha1.ConditionAccepted: "True/Accepted", v1alpha1.ConditionRendered: "True/NoMatchingNodes", v1alpha1.ConditionProgrammed: "True/NoMatchingNodes",
		v1alpha1.ConditionReady: "True/NoMatchingNodes", v1alpha1.ConditionStalled: ""}))
	create(t, node("n1", "gw=1"), node("n2", "gw=1"), node("n3"))
	within(t, patience, wantDomain(t, "d", map[string]string{
		v1alpha1.ConditionRendered: "True/Rendered", v1alpha1.ConditionProgrammed: "False/NodesPending", v1alpha1.ConditionReady: "False/NodesPending", v1alpha1.ConditionStalled: ""}))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	report(t, "n2", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionProgrammed: "True/Programmed", v1alpha1.ConditionReady: "True/Ready"}))
	within(t, patience, counts("2/2", 2, 2, 2))

	report(t, "n2", metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionProgrammed: "True/Programmed", v1alpha1.ConditionReady: "False/NodesFailed"}))
	within(t, patience, counts("1/2", 2, 2, 1, "n2/WorkersStalled"))
	report(t, "n2", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))

	heartbeat(t, "n1", time.Now().Add(-v1alpha1.LeaseDuration))
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "False/AgentNotReporting"}))
	within(t, patience, counts("1/2", 2, 1, 1, "n1/AgentNotReporting"))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady) // its agent takes Ready back
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))

	// A new generation is not ready because the one before was.
	change(t, d, func(d *v1alpha1.CREMDomain) { d.Spec.Port = 52001 })
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionRendered: "True/Rendered", v1alpha1.ConditionReady: "False/NodesPending"}))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	report(t, "n2", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))

	within(t, patience, func() error {
		var events eventsv1.EventList
		if err := api.List(t.Context(), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, e := range events.Items {
			if e.Regarding.UID == d.UID {
				seen[e.Type+" "+e.Action+" "+e.Reason] = true
			}
		}
		for _, want := range []string{"Warning NotAccepted ProfileNotFound", "Normal Ready Ready", "Warning NotReady NodesFailed", "Warning NotReady AgentNotReporting"} {
			if !seen[want] {
				return fmt.Errorf("no event %q in %v", want, seen)
			}
		}
		return nil
	})
}

func counts(summary string, matched, programmed, ready int32, failing ...string) func() error {
	return func() error {
		var d v1alpha1.CREMDomain
		if err := api.Get(context.Background(), client.ObjectKey{Name: "d"}, &d); err != nil {
			return err
		}
		var names []string
		for _, f := range d.Status.FailingNodes {
			names = append(names, string(f.Name)+"/"+f.Reason)
		}
		n := d.Status.Nodes
		if n == nil || n.Summary != summary || n.Matched != matched || n.Programmed != programmed || n.Ready != ready || strings.Join(names, " ") != strings.Join(failing, " ") {
			return fmt.Errorf("counts %+v failing %v", n, names)
		}
		return nil
	}
}

// TestStatusOfAProfile: a profile shows what keeps it from taking flows, and that it no longer does.
func TestStatusOfAProfile(t *testing.T) {
	clean(t)
	start(t, quick())
	p := profile("p")
	p.Spec.Selector = &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{"north"}}
	create(t, p, domain("d", 52000, "wan0", nil))
	want := func(want map[string]string) func() error {
		return func() error {
			var p v1alpha1.CREMProfile
			if err := api.Get(t.Context(), client.ObjectKey{Name: "p"}, &p); err != nil {
				return err
			}
			for kind, value := range want {
				if got := condition(p.Status.Conditions, kind); got != value || p.Status.ObservedGeneration != p.Generation {
					return fmt.Errorf("%s is %q, not %q", kind, got, value)
				}
			}
			return nil
		}
	}
	within(t, patience, want(map[string]string{v1alpha1.ConditionAccepted: "False/SiteNotFound", v1alpha1.ConditionReady: "False/SiteNotFound", v1alpha1.ConditionStalled: "True/SiteNotFound"}))
	change(t, p, func(p *v1alpha1.CREMProfile) { p.Spec.Selector.DestinationSites[0] = "west" })
	within(t, patience, want(map[string]string{v1alpha1.ConditionAccepted: "True/Accepted", v1alpha1.ConditionReady: "True/Ready", v1alpha1.ConditionStalled: ""}))
}

// TestG05NoWritesAtRest: agents renew their Leases, someone relabels nodes in ways that concern nobody, and the operator writes nothing.
func TestG05NoWritesAtRest(t *testing.T) {
	clean(t)
	r := start(t, quick())
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), profile("standard"))
	for i := range 5 {
		name := fmt.Sprintf("n%d", i)
		create(t, node(name, "gw=1"))
		within(t, patience, wantDomains(t, name, "d"))
		report(t, name, metav1.ConditionTrue, v1alpha1.ReasonReady)
	}
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	r.settle(t)
	before := len(r.written())
	rest := 8 * time.Second
	if long() {
		rest = time.Minute
	}
	for end, n := time.Now().Add(rest), 0; time.Now().Before(end); n++ {
		heartbeat(t, fmt.Sprintf("n%d", n%5), time.Now())
		change(t, node("n1"), func(node *corev1.Node) { node.Labels["other"] = fmt.Sprint(n) })
		time.Sleep(500 * time.Millisecond)
	}
	if after := r.written(); len(after) > before {
		t.Errorf("%d writes at rest: %v", len(after)-before, after[before:])
	}
}

// TestG05NoFlapping: a node whose health flips ten times a second costs a handful of writes, and ends as it is.
func TestG05NoFlapping(t *testing.T) {
	clean(t)
	o := quick()
	o.StatusQuiet, o.StatusMost, o.Hold = time.Second, 5*time.Second, 3*time.Second
	r := start(t, o)
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	r.settle(t)
	before := len(r.written())
	for n := range 100 {
		status, reason := metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled
		if n%2 == 1 {
			status, reason = metav1.ConditionTrue, v1alpha1.ReasonReady
		}
		report(t, "n1", status, reason)
		time.Sleep(50 * time.Millisecond)
	}
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	if cost := len(r.written()) - before; cost > 6 {
		t.Errorf("%d writes: %v", cost, r.written()[before:])
	}
}

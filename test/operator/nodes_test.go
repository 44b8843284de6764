// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// TestG09EventsReachNodes: every event that concerns a node is in its CREMNode within 5 s, with a resync that never comes.
func TestG09EventsReachNodes(t *testing.T) {
	clean(t)
	start(t, quick())
	const gateway = "crem.dev/gateway"
	limit := 5 * time.Second
	first, second := domain("first", 52000, "wan0", labelled(gateway, "")), domain("second", 52001, "wan1", labelled("zone", "a"))
	second.Spec.Sites[0].CIDRs[0], second.Spec.Sites[1].CIDRs[0] = "10.11.0.0/16", "10.12.0.0/16"
	standard := profile("standard")
	empty := func(name string) func() error { return wantDomains(t, name, "") }
	none := func(name string) func() error {
		return func() error {
			if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &v1alpha1.CREMNode{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("CREMNode %s: %v", name, err)
			}
			return nil
		}
	}
	profiles := func(name string, k int32) func() error {
		return func() error {
			var n v1alpha1.CREMNode
			if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
				return err
			}
			if len(n.Spec.Profiles) != 1 || n.Spec.Profiles[0].K != k || len(n.Spec.Domains[0].Rules) != 1 {
				return fmt.Errorf("%+v", n.Spec)
			}
			return nil
		}
	}
	relabel := func(name string, edit func(map[string]string)) func() {
		return func() { change(t, node(name), func(n *corev1.Node) { edit(n.Labels) }) }
	}
	for _, step := range []struct {
		name string
		do   func()
		want []func() error
	}{
		{"domain before any node", func() { create(t, first) }, []func() error{none("n1")}},
		{"node added", func() { create(t, node("n1", gateway+"="), node("n2")) }, []func() error{wantDomains(t, "n1", "first"), none("n2")}},
		{"label added", relabel("n2", func(l map[string]string) { l[gateway] = "" }), []func() error{wantDomains(t, "n2", "first")}},
		{"label that concerns nobody", relabel("n2", func(l map[string]string) { l["other"] = "x" }), []func() error{wantDomains(t, "n2", "first")}},
		{"second domain", func() { create(t, second) }, []func() error{wantDomains(t, "n1", "first")}},
		{"label of the second domain", relabel("n1", func(l map[string]string) { l["zone"] = "a" }), []func() error{wantDomains(t, "n1", "first,second")}},
		{"label value changed", relabel("n1", func(l map[string]string) { l["zone"] = "b" }), []func() error{wantDomains(t, "n1", "first")}},
		{"matchExpressions", func() {
			change(t, second, func(d *v1alpha1.CREMDomain) {
				d.Spec.Nodes.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"b", "c"}}, {Key: "other", Operator: metav1.LabelSelectorOpDoesNotExist}}}
			})
		}, []func() error{wantDomains(t, "n1", "first,second"), wantDomains(t, "n2", "first")}},
		{"empty selector", func() {
			change(t, second, func(d *v1alpha1.CREMDomain) { d.Spec.Nodes.Selector = &metav1.LabelSelector{} })
		}, []func() error{wantDomains(t, "n1", "first,second"), wantDomains(t, "n2", "first,second")}},
		{"domain removed", func() { remove(t, second) }, []func() error{wantDomains(t, "n1", "first"), wantDomains(t, "n2", "first")}},
		{"profile named", func() {
			create(t, standard)
			change(t, first, func(d *v1alpha1.CREMDomain) { d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"} })
		}, []func() error{profiles("n1", 32), profiles("n2", 32)}},
		{"profile changed", func() { change(t, standard, func(p *v1alpha1.CREMProfile) { p.Spec.K = 64 }) }, []func() error{profiles("n1", 64), profiles("n2", 64)}},
		{"last profile removed", func() { remove(t, standard) }, []func() error{func() error {
			var n v1alpha1.CREMNode
			if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n); err != nil || len(n.Spec.Profiles) != 0 || len(n.Spec.Domains[0].Rules) != 0 {
				return fmt.Errorf("%+v %v", n.Spec, err)
			}
			return nil
		}}},
		{"label removed", relabel("n2", func(l map[string]string) { delete(l, gateway) }), []func() error{empty("n2"), wantDomains(t, "n1", "first")}},
		{"CREMNode deleted by someone", func() { remove(t, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}) }, []func() error{wantDomains(t, "n1", "first")}},
		{"CREMNode changed by someone", func() {
			change(t, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, func(n *v1alpha1.CREMNode) { n.Spec.Domains = nil })
		}, []func() error{wantDomains(t, "n1", "first")}},
		{"last domain removed", func() { remove(t, first) }, []func() error{empty("n1")}},
	} {
		step.do()
		for _, want := range step.want {
			began := time.Now()
			within(t, patience, want)
			took := time.Since(began).Round(time.Millisecond)
			if t.Logf("%s: %v", step.name, took); took > limit && long() { // a machine that does other things is slow, not wrong
				t.Errorf("%s: %v", step.name, took)
			}
		}
	}
}

// TestSpecIsOwned: the CREMNode belongs to its Node and to the operator's field manager.
func TestSpecIsOwned(t *testing.T) {
	clean(t)
	r := start(t, quick())
	n := node("n1", "gw=1")
	create(t, n, domain("d", 52000, "wan0", labelled("gw", "1")))
	within(t, patience, wantDomains(t, "n1", "d"))
	var c v1alpha1.CREMNode
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != n.UID || c.OwnerReferences[0].Kind != "Node" {
		t.Errorf("owner %+v", c.OwnerReferences)
	}
	if len(c.ManagedFields) != 1 || c.ManagedFields[0].Manager != v1alpha1.FieldManagerOperator || c.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("managed by %+v", c.ManagedFields)
	}
	r.settle(t)
	// A node event costs one write of its CREMNode, and statuses of domains after it.
	before := len(r.written())
	create(t, node("n2", "gw=1"))
	within(t, patience, wantDomains(t, "n2", "d"))
	r.settle(t)
	if cost := len(r.written()) - before; cost > 3 {
		t.Errorf("a new node costs %d writes: %v", cost, r.written()[before:])
	}
}

// TestOrderDoesNotMatter: whatever comes first, the nodes are told the same.
func TestOrderDoesNotMatter(t *testing.T) {
	var want string
	for i, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			clean(t)
			start(t, quick())
			d := domain("d", 52000, "wan0", labelled("gw", "1"))
			d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"}
			selecting := profile("west")
			selecting.Spec.Selector = &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{"west"}}
			objs := []client.Object{node("n1", "gw=1"), d, profile("standard"), selecting}
			for _, n := range order {
				create(t, objs[n])
				time.Sleep(200 * time.Millisecond)
			}
			var got string
			within(t, patience, func() error {
				var c v1alpha1.CREMNode
				if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &c); err != nil {
					return err
				}
				if len(c.Spec.Profiles) != 2 {
					return errors.New("not all profiles yet")
				}
				got = fmt.Sprintf("%+v", c.Spec)
				return nil
			})
			if i == 0 {
				want = got
			} else if got != want {
				t.Errorf("%s\nnot\n%s", got, want)
			}
		})
	}
}

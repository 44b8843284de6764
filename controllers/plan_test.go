// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/api/v1alpha1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func testDomain(name string, port int32, selector *metav1.LabelSelector) v1alpha1.CREMDomain {
	return v1alpha1.CREMDomain{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}, Spec: v1alpha1.CREMDomainSpec{
		Port: port, Site: "east", IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecBoundaryFiltered},
		Sites: []v1alpha1.Site{{Name: "east", CIDRs: []v1alpha1.CIDR{"10.1.0.0/16"}}, {Name: "west", CIDRs: []v1alpha1.CIDR{"10.2.0.0/16"}}},
		Nodes: &v1alpha1.DomainNodes{Selector: selector, Uplinks: []v1alpha1.InterfaceName{"wan0"}},
	}}
}

func testNode(name, uid string, labels map[string]string) *metav1.PartialObjectMetadata {
	n := nodeMetadata()
	n.Name, n.UID, n.Labels = name, types.UID(uid), labels
	return n
}

func TestPlanNode(t *testing.T) {
	p := newPolicy([]v1alpha1.CREMDomain{testDomain("d", 52000, &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "1"}})}, nil)
	gateway := testNode("n", "u1", map[string]string{"gw": "1"})
	other := testNode("n", "u1", nil)
	set, _ := p.match(gateway.Labels)
	right := p.render(set, "n", gateway.Labels).Spec
	made := func(owner, mark string, spec v1alpha1.CREMNodeSpec) *v1alpha1.CREMNode {
		c := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "c1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: types.UID(owner)}}}, Spec: spec}
		if mark != "" {
			c.Annotations = map[string]string{v1alpha1.UnusedSinceAnnotation: mark}
		}
		return c
	}
	ago := func(d time.Duration) string { return noon.Add(-d).Format(time.RFC3339) }
	const delay = 30 * time.Minute
	for _, row := range []struct {
		name   string
		node   *metav1.PartialObjectMetadata
		have   *v1alpha1.CREMNode
		delay  time.Duration
		write  bool // and then what
		spec   int  // domains written
		mark   bool
		remove bool
		after  time.Duration
	}{
		{name: "new", node: gateway, delay: delay, write: true, spec: 1},
		{name: "as it should be", node: gateway, have: made("u1", "", right), delay: delay},
		{name: "recreated node", node: gateway, have: made("u0", "", right), delay: delay, write: true, spec: 1},
		{name: "needed again", node: gateway, have: made("u1", ago(time.Minute), right), delay: delay, write: true, spec: 1},
		{name: "needed again after its time", node: gateway, have: made("u1", ago(time.Hour), v1alpha1.CREMNodeSpec{}), delay: delay, write: true, spec: 1},
		{name: "nothing to do with us", node: other, delay: delay},
		{name: "neither node nor object", delay: delay},
		{name: "not chosen any more", node: other, have: made("u1", "", right), delay: delay, write: true, mark: true, after: delay},
		{name: "emptied and marked", node: other, have: made("u1", ago(10*time.Minute), v1alpha1.CREMNodeSpec{}), delay: delay, after: 20 * time.Minute},
		{name: "marked but not empty", node: other, have: made("u1", ago(time.Hour), right), delay: delay, write: true, mark: true, after: time.Second},
		{name: "empty and its time is over", node: other, have: made("u1", ago(time.Hour), v1alpha1.CREMNodeSpec{}), delay: delay, remove: true},
		{name: "node gone", have: made("u1", "", right), delay: delay, write: true, spec: 1, mark: true, after: delay},
		{name: "node gone, marked", have: made("u1", ago(time.Minute), right), delay: delay, after: 29 * time.Minute},
		{name: "node gone for long", have: made("u1", ago(delay), right), delay: delay, remove: true},
		{name: "a mark that can not be read", have: made("u1", "soon", right), delay: delay, write: true, spec: 1, mark: true, after: delay},
		{name: "a mark of a time to come", have: made("u1", ago(-time.Hour), right), delay: delay, write: true, spec: 1, mark: true, after: delay},
		{name: "node gone, collection off", have: made("u1", "", right)},
		{name: "not chosen, collection off", node: other, have: made("u1", "", right), write: true},
		{name: "collection was switched off", have: made("u1", ago(time.Hour), right), write: true, spec: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			plan := planNode(p, "n", row.node, row.have, row.delay, noon)
			if (plan.write != nil) != row.write || plan.remove != row.remove || plan.after != row.after {
				t.Fatalf("%+v", plan)
			}
			if plan.write == nil {
				return
			}
			if len(plan.write.spec.Domains) != row.spec || plan.write.unusedSince.IsZero() == row.mark {
				t.Fatalf("%+v", plan.write)
			}
			if row.node != nil && plan.write.owner != row.node.UID {
				t.Errorf("owner %s", plan.write.owner)
			}
		})
	}
	t.Run("being deleted", func(t *testing.T) {
		c := made("u0", "", right)
		c.DeletionTimestamp = &metav1.Time{Time: noon}
		if plan := planNode(p, "n", gateway, c, delay, noon); plan.write != nil || plan.remove {
			t.Errorf("%+v", plan)
		}
	})
}

func TestDebounce(t *testing.T) {
	d := debounce{quiet: time.Second, most: 5 * time.Second}
	if d.wait(noon) != 0 {
		t.Error("waits for nothing")
	}
	d.touch(noon)
	if got := d.wait(noon.Add(400 * time.Millisecond)); got != 600*time.Millisecond {
		t.Error(got)
	}
	for i := range 12 { // changes all the time
		d.touch(noon.Add(time.Duration(i) * 400 * time.Millisecond))
	}
	if got := d.wait(noon.Add(4500 * time.Millisecond)); got != 500*time.Millisecond {
		t.Error(got)
	}
	if got := d.wait(noon.Add(5 * time.Second)); got != 0 {
		t.Error(got)
	}
	if got := d.wait(noon.Add(5 * time.Second)); got != 0 {
		t.Error("taken changes wait again", got)
	}
}

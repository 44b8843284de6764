// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/api/v1alpha1"
)

func testLease(ago time.Duration) *coordinationv1.Lease {
	seconds, at := int32(40), metav1.NewMicroTime(noon.Add(-ago))
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &at}}
}

func TestJudge(t *testing.T) {
	share := func(edit func(*v1alpha1.CREMNodeStatus)) *v1alpha1.CREMNode {
		c := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Generation: 3, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
		c.Spec.Domains = []v1alpha1.NodeDomain{{Name: "d", Uplinks: []v1alpha1.InterfaceName{"wan0", "wan1"}}}
		c.Status = v1alpha1.CREMNodeStatus{ObservedGeneration: 3, AppliedGeneration: 3,
			Domains:    []v1alpha1.NodeItemStatus{{Name: "d", Programmed: true, Reason: v1alpha1.ReasonApplied}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady}}}
		edit(&c.Status)
		return c
	}
	ready := func(status metav1.ConditionStatus, reason string) func(*v1alpha1.CREMNodeStatus) {
		return func(s *v1alpha1.CREMNodeStatus) { s.Conditions[0].Status, s.Conditions[0].Reason = status, reason }
	}
	nothing := func(*v1alpha1.CREMNodeStatus) {}
	young := share(nothing)
	young.CreationTimestamp = metav1.NewTime(noon.Add(-10 * time.Second))
	for _, row := range []struct {
		name     string
		have     *v1alpha1.CREMNode
		rendered bool
		lease    *coordinationv1.Lease
		want     string // state programmed reason
		until    time.Duration
	}{
		{"no object yet", nil, false, testLease(0), "pending false ", 0},
		{"an older spec", share(nothing), false, testLease(0), "pending false ", 0},
		{"all is well", share(nothing), true, testLease(time.Second), "ready true ", 39 * time.Second},
		{"Lease just expired", share(nothing), true, testLease(40 * time.Second), "failing false AgentNotReporting", 0},
		{"no agent yet", young, true, nil, "pending false ", 30 * time.Second},
		{"no agent ever", share(nothing), true, nil, "failing false AgentNotReporting", 0},
		{"reports an older generation", share(func(s *v1alpha1.CREMNodeStatus) { s.ObservedGeneration = 2 }), true, testLease(0), "pending false ", 40 * time.Second},
		{"is applying", share(func(s *v1alpha1.CREMNodeStatus) { s.AppliedGeneration = 2 }), true, testLease(0), "pending false ", 40 * time.Second},
		{"can not apply", share(func(s *v1alpha1.CREMNodeStatus) {
			s.AppliedGeneration = 2
			s.Conditions = append(s.Conditions, metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonKernelUnsupported})
		}), true, testLease(0), "failing false KernelUnsupported", 40 * time.Second},
		{"its item failed", share(func(s *v1alpha1.CREMNodeStatus) {
			s.Domains[0].Programmed, s.Domains[0].Reason = false, v1alpha1.ReasonInterfaceNotFound
		}), true, testLease(0), "failing false InterfaceNotFound", 40 * time.Second},
		{"another domain's item failed", share(ready(metav1.ConditionFalse, v1alpha1.ReasonPartiallyProgrammed)), true, testLease(0), "ready true ", 40 * time.Second},
		{"its uplink failed", share(func(s *v1alpha1.CREMNodeStatus) {
			ready(metav1.ConditionFalse, v1alpha1.ReasonPartiallyProgrammed)(s)
			s.Uplinks = []v1alpha1.NodeUplinkStatus{{Name: "wan0", Attached: true}, {Name: "wan1", Reason: v1alpha1.ReasonInterfaceNotFound, Message: "there is none"}}
		}), true, testLease(0), "failing true InterfaceNotFound", 40 * time.Second},
		{"another domain's uplink failed", share(func(s *v1alpha1.CREMNodeStatus) {
			ready(metav1.ConditionFalse, v1alpha1.ReasonPartiallyProgrammed)(s)
			s.Uplinks = []v1alpha1.NodeUplinkStatus{{Name: "wan2", Reason: v1alpha1.ReasonInterfaceNotFound, Message: "there is none"}}
		}), true, testLease(0), "ready true ", 40 * time.Second},
		{"its item is on its way", share(func(s *v1alpha1.CREMNodeStatus) {
			s.Domains[0].Programmed, s.Domains[0].Reason = false, v1alpha1.ReasonPending
		}), true, testLease(0), "pending false ", 40 * time.Second},
		{"is starting", share(ready(metav1.ConditionFalse, v1alpha1.ReasonPending)), true, testLease(0), "pending true ", 40 * time.Second},
		{"not healthy", share(ready(metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled)), true, testLease(0), "failing true WorkersStalled", 40 * time.Second},
		{"does not know", share(ready(metav1.ConditionUnknown, v1alpha1.ReasonPending)), true, testLease(0), "pending true ", 40 * time.Second},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := judge("d", row.have, row.rendered, silenceOf(cmp.Or(row.have, share(nothing)), row.lease, noon))
			state := map[nodeState]string{nodePending: "pending", nodeFailing: "failing", nodeReady: "ready"}[v.state]
			if got := fmt.Sprintf("%s %t %s", state, v.programmed, v.reason); got != row.want {
				t.Errorf("%q, not %q", got, row.want)
			}
			if want := noon.Add(row.until); (row.until == 0) != v.until.IsZero() || (row.until != 0 && !v.until.Equal(want)) {
				t.Errorf("until %s, not %s", v.until, want)
			}
		})
	}
}

func TestSteady(t *testing.T) {
	s := &steady{hold: 5 * time.Second, failed: map[nodeInDomain]failure{}}
	key := nodeInDomain{"d", "n"}
	well, ill := verdict{state: nodeReady}, verdict{state: nodeFailing, reason: "X"}
	show := func(after time.Duration, v verdict) nodeState { return s.show(key, v, noon.Add(after), 1).state }
	for _, step := range []struct {
		after time.Duration
		v     verdict
		want  nodeState
	}{{0, well, nodeReady}, {1, ill, nodeFailing}, {time.Second, well, nodeFailing}, {2 * time.Second, ill, nodeFailing}, {6 * time.Second, well, nodeFailing}, {7 * time.Second, well, nodeReady}} {
		if got := show(step.after, step.v); got != step.want {
			t.Errorf("after %s: %v", step.after, got)
		}
	}
	show(0, ill)
	if v := s.show(key, well, noon.Add(time.Second), 2); v.reason != "X" || !v.until.Equal(noon.Add(5*time.Second)) {
		t.Errorf("%+v", v)
	}
	if s.forget(3); len(s.failed) != 0 {
		t.Error("remembers a node that is gone")
	}
}

// TestSurvey: the status of a domain over many nodes, the same in every order of everything.
func TestSurvey(t *testing.T) {
	build := func(shuffle func(int, func(i, j int))) (world, v1alpha1.CREMDomain) {
		d := testDomain("d", 52000, &metav1.LabelSelector{})
		d.Generation = 7
		domains := []v1alpha1.CREMDomain{d, testDomain("elsewhere", 52001, nil)}
		shuffle(len(domains), func(i, j int) { domains[i], domains[j] = domains[j], domains[i] })
		w := world{policy: newPolicy(domains, nil), cremNodes: map[string]*v1alpha1.CREMNode{}, leases: map[string]*coordinationv1.Lease{}, now: noon}
		set, _ := w.policy.match(nil)
		for i := range 40 {
			name, uid := fmt.Sprintf("n%02d", i), types.UID(fmt.Sprint("u", i))
			w.nodes = append(w.nodes, *testNode(name, string(uid), nil))
			if i < 2 {
				continue // not rendered yet
			}
			c := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", UID: uid}}}, Spec: w.policy.render(set, name, nil).Spec}
			c.Status = v1alpha1.CREMNodeStatus{ObservedGeneration: 1, AppliedGeneration: 1, Domains: []v1alpha1.NodeItemStatus{{Name: "d", Programmed: true}},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady}, {Type: v1alpha1.ConditionDegraded, Status: metav1.ConditionTrue}}}
			w.cremNodes[name], w.leases[name] = c, testLease(time.Second)
			if i < 20 {
				w.leases[name] = testLease(time.Minute)
			} else if i < 25 {
				c.Status.Conditions[0].Status, c.Status.Conditions[0].Reason, c.Status.Conditions[0].Message = metav1.ConditionFalse, v1alpha1.ReasonMTUTooSmall, strings.Repeat("é", 400)
			}
		}
		shuffle(len(w.nodes), func(i, j int) { w.nodes[i], w.nodes[j] = w.nodes[j], w.nodes[i] })
		return w, d
	}
	var want v1alpha1.CREMDomainStatus
	for seed := range uint64(50) {
		w, d := build(rand.New(rand.NewPCG(seed, 1)).Shuffle)
		s := look(w, &steady{failed: map[nodeInDomain]failure{}}, 1)
		status := domainStatus(&d, s.domains["d"], nil, nil, metav1.NewTime(noon))
		if seed == 0 {
			want = status
		} else if !equality.Semantic.DeepEqual(status, want) {
			t.Fatalf("seed %d: %+v\nnot %+v", seed, status, want)
		}
		if !s.next.Equal(noon.Add(39 * time.Second)) {
			t.Errorf("next look at %s", s.next)
		}
	}
	n := want.Nodes
	if n.Matched != 40 || n.Programmed != 20 || n.Ready != 15 || n.Degraded != 20 || n.Summary != "15/40" || len(want.FailingNodes) != 10 || want.FailingNodes[0].Name != "n02" {
		t.Errorf("%+v %d", n, len(want.FailingNodes))
	}
	got := map[string]string{}
	for _, c := range want.Conditions {
		got[c.Type] = string(c.Status) + "/" + c.Reason
		if c.ObservedGeneration != 7 || c.LastTransitionTime.IsZero() || c.Message == "" {
			t.Errorf("%+v", c)
		}
	}
	for kind, value := range map[string]string{v1alpha1.ConditionAccepted: "True/Accepted", v1alpha1.ConditionRendered: "False/RenderPending", v1alpha1.ConditionProgrammed: "False/NodesFailed", v1alpha1.ConditionReady: "False/RenderPending"} {
		if got[kind] != value {
			t.Errorf("%s is %s, not %s", kind, got[kind], value)
		}
	}
}

// TestTransitionTimes: a time of transition stays as long as the status, and an unchanged status is equal to the one before.
func TestTransitionTimes(t *testing.T) {
	d := testDomain("d", 52000, nil)
	d.Status = domainStatus(&d, &tally{}, nil, nil, metav1.NewTime(noon))
	again := domainStatus(&d, &tally{}, nil, nil, metav1.NewTime(noon.Add(time.Hour)))
	if !equality.Semantic.DeepEqual(d.Status, again) {
		t.Errorf("%+v\n%+v", d.Status, again)
	}
	changed := domainStatus(&d, &tally{matched: 1, rendered: 1, programmed: 1}, nil, nil, metav1.NewTime(noon.Add(time.Hour)))
	for _, c := range changed.Conditions {
		moved := c.LastTransitionTime.Time.Equal(noon.Add(time.Hour))
		if moved != (c.Type == v1alpha1.ConditionReady) {
			t.Errorf("%+v", c)
		}
	}
}

func TestCut(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("é", 300), strings.Repeat("x", 256), strings.Repeat("x", 257)} {
		got := cut(text, 256)
		if len(got) > 256 || (len(text) <= 256 && got != text) || !strings.HasPrefix(text, strings.TrimSuffix(got, "…")) {
			t.Errorf("%d: %d %q", len(text), len(got), got)
		}
	}
}

func TestAddressesAreBounded(t *testing.T) {
	var ips []string
	for i := range 500 {
		ips = append(ips, fmt.Sprintf("%q", fmt.Sprintf("10.9.%d.%d", i/256, i%256)))
	}
	list := secondary(`[{"ips":[` + strings.Join(ips, ",") + `]}]`)
	if len(list) != 500 || slices.Contains(list, "") {
		t.Fatal(len(list))
	}
	if got := secondary(`{"not":"a list"}`); got != nil {
		t.Error(got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// TestG14OlderDomainWins: of two domains that exclude each other the older one works, the other names it, and works when it is gone.
func TestG14OlderDomainWins(t *testing.T) {
	for _, row := range []struct {
		reason string
		edit   func(*v1alpha1.CREMDomain)
	}{
		{v1alpha1.ReasonPortConflict, func(d *v1alpha1.CREMDomain) { d.Spec.Port = 52000 }},
		{v1alpha1.ReasonUplinkConflict, func(d *v1alpha1.CREMDomain) { d.Spec.Nodes.Uplinks[0] = "wan0" }},
		{v1alpha1.ReasonTransportConflict, func(d *v1alpha1.CREMDomain) {
			bit := v1alpha1.RetransmissionBit(3)
			d.Spec.Transports.MRC.RetransmissionBit = &bit
		}},
		{v1alpha1.ReasonPrefixConflict, func(d *v1alpha1.CREMDomain) { d.Spec.Sites[1].CIDRs[0] = "10.2.3.0/24" }},
	} {
		t.Run(row.reason, func(t *testing.T) {
			clean(t)
			start(t, quick())
			older, younger := domain("zebra", 52000, "wan0", labelled("gw", "1")), domain("ant", 52001, "wan1", labelled("gw", "1"))
			younger.Spec.Sites[0].CIDRs[0], younger.Spec.Sites[1].CIDRs[0] = "10.11.0.0/16", "10.12.0.0/16"
			for _, d := range []*v1alpha1.CREMDomain{older, younger} {
				d.Spec.Transports = &v1alpha1.Transports{MRC: &v1alpha1.MRC{}}
			}
			row.edit(younger)
			create(t, node("n1", "gw=1"), older)
			time.Sleep(1100 * time.Millisecond) // creation times have seconds
			create(t, younger)
			within(t, patience, wantDomain(t, "ant", map[string]string{
				v1alpha1.ConditionAccepted: "False/" + row.reason, v1alpha1.ConditionReady: "False/" + row.reason, v1alpha1.ConditionStalled: "True/" + row.reason}))
			within(t, patience, wantDomains(t, "n1", "zebra"))
			var d v1alpha1.CREMDomain
			if err := api.Get(t.Context(), client.ObjectKey{Name: "ant"}, &d); err != nil {
				t.Fatal(err)
			}
			for _, c := range d.Status.Conditions {
				if c.Type == v1alpha1.ConditionStalled && (!strings.Contains(c.Message, "zebra") || !strings.Contains(c.Message, ": ")) {
					t.Errorf("says %q", c.Message)
				}
			}
			report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
			within(t, patience, wantDomain(t, "zebra", map[string]string{v1alpha1.ConditionAccepted: "True/Accepted", v1alpha1.ConditionReady: "True/Ready", v1alpha1.ConditionStalled: ""}))
			remove(t, older)
			within(t, patience, wantDomains(t, "n1", "ant"))
			report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
			within(t, patience, wantDomain(t, "ant", map[string]string{v1alpha1.ConditionAccepted: "True/Accepted", v1alpha1.ConditionReady: "True/Ready", v1alpha1.ConditionStalled: ""}))
		})
	}
}

// TestTwoDomainsShareANode: two domains that go together are on one node, and one's trouble is not the other's.
func TestTwoDomainsShareANode(t *testing.T) {
	clean(t)
	start(t, quick())
	a, b := domain("a", 52000, "wan0", labelled("gw", "1")), domain("b", 52001, "wan1", labelled("gw", "1"))
	b.Spec.Sites[0].CIDRs[0], b.Spec.Sites[1].CIDRs[0] = "10.11.0.0/16", "10.12.0.0/16"
	b.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "absent"}
	create(t, a, b, node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "a,b"))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "a", map[string]string{v1alpha1.ConditionReady: "True/Ready", v1alpha1.ConditionStalled: ""}))
	within(t, patience, wantDomain(t, "b", map[string]string{v1alpha1.ConditionReady: "False/ProfileNotFound", v1alpha1.ConditionStalled: "True/ProfileNotFound"}))
}

// TestNoForeignWrites: the operator writes its own kinds and statuses, and nothing of anybody else.
func TestNoForeignWrites(t *testing.T) {
	clean(t)
	o := quick()
	o.CollectAfter = time.Second
	r := start(t, o)
	p := profile("pods")
	p.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "rdma")}
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	create(t, p, d, node("n1", "gw=1"))
	pods(t, "default", "foreign", 3, map[string]string{"app": "rdma"})
	within(t, patience, wantDomains(t, "n1", "d"))
	within(t, patience, wantAddresses(t, "pods", 3))
	remove(t, d)
	within(t, patience, func() error {
		if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &v1alpha1.CREMNode{}); err == nil {
			return fmt.Errorf("not collected yet")
		}
		return nil
	})
	for _, q := range r.written() {
		own := false
		for _, path := range []string{"/apis/crem.dev/v1alpha1/cremnodes/", "/apis/crem.dev/v1alpha1/cremendpointslices/"} {
			own = own || (strings.HasPrefix(q.path, path) && !strings.HasSuffix(q.path, "/status"))
		}
		for _, path := range []string{"/apis/crem.dev/v1alpha1/cremdomains/", "/apis/crem.dev/v1alpha1/cremprofiles/"} {
			own = own || (strings.HasPrefix(q.path, path) && strings.HasSuffix(q.path, "/status"))
		}
		if !own {
			t.Errorf("%s %s", q.method, q.path)
		}
	}
}

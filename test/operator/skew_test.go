// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/test/oldercrds"
)

// TestG11_OlderCRDs (G11): on an API server whose definitions are those of an older release the operator works as ever, without what they lack, and is at rest
// when nothing changes.
func TestG11_OlderCRDs(t *testing.T) {
	clean(t)
	o := quick()
	o.Served, _ = oldercrds.Serve(t, server, "CREMDomain status.sites", "CREMProfile status.observedGeneration", "CREMNode spec.domains.wan", "CREMNode status.domains.sites")
	r := start(t, o)
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"),
		&v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	within(t, patience, wantDomains(t, "n1", "d"))
	heartbeatFor(t, "n1", time.Now(), time.Hour)
	state(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, func() error {
		var d v1alpha1.CREMDomain
		var p v1alpha1.CREMProfile
		if err := api.Get(t.Context(), client.ObjectKey{Name: "d"}, &d); err != nil {
			return err
		}
		if err := api.Get(t.Context(), client.ObjectKey{Name: "p"}, &p); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.ConditionReady) || len(p.Status.Conditions) == 0 {
			return fmt.Errorf("%+v, %+v", d.Status, p.Status)
		}
		return nil
	})
	r.settle(t)
	before := len(r.written())
	heartbeatFor(t, "n1", time.Now(), time.Hour)
	create(t, node("n2")) // no domain chooses it; everything is looked at
	r.settle(t)
	if list := r.written(); len(list) != before {
		t.Errorf("written at rest: %v", list[before:])
	}
}

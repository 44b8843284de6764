// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// TestG10_PeopleWorkWhileTheOperatorIsAway (G10): nothing of ours has a finalizer, so that with the operator and every agent gone objects of all kinds, those
// that an operator worked on and new ones, are created, changed and deleted at once.
func TestG10_PeopleWorkWhileTheOperatorIsAway(t *testing.T) {
	clean(t)
	p := profile("pods")
	p.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "rdma")}
	r := start(t, quick())
	create(t, p, domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	pods(t, "default", "away", 3, map[string]string{"app": "rdma"})
	within(t, patience, wantDomains(t, "n1", "d"))
	within(t, patience, wantAddresses(t, "pods", 3))
	report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
	within(t, patience, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))
	r.stop()

	slices, _, err := slicesOf(t, "pods")
	if err != nil || len(slices) == 0 {
		t.Fatal(slices, err)
	}
	worked := []client.Object{domain("d", 52000, "wan0", nil), profile("pods"), &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&v1alpha1.CREMEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: slices[0].Name}}}
	fresh := []client.Object{domain("new", 52001, "wan1", nil), profile("new"), &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
		&v1alpha1.CREMEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "new"}, Profile: "new"}}
	create(t, fresh...)
	for _, o := range append(worked, fresh...) {
		what := fmt.Sprintf("%T %s", o, o.GetName())
		if err := api.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"by":"a-person"}}}`))); err != nil {
			t.Errorf("change %s: %v", what, err)
		}
		if len(o.GetFinalizers()) > 0 {
			t.Errorf("%s waits for %v", what, o.GetFinalizers())
		}
		remove(t, o)
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%s is still there: %v, %v", what, o.GetDeletionTimestamp(), err)
		}
	}
}

// TestEventsAreTransitions: each time that a domain becomes ready or is no longer is one event. What else changes in its status is none, nor is an
// operator that starts again.
func TestEventsAreTransitions(t *testing.T) {
	clean(t)
	r := start(t, quick())
	d := domain("eventful", 52000, "wan0", labelled("gw", "1"))
	create(t, d, node("n1", "gw=1"), node("n2", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "eventful"))
	within(t, patience, wantDomains(t, "n2", "eventful"))
	become := func(n2 metav1.ConditionStatus, reason, want string) {
		t.Helper()
		report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
		report(t, "n2", n2, reason)
		within(t, patience, wantDomain(t, "eventful", map[string]string{v1alpha1.ConditionReady: want}))
		r.settle(t)
	}
	become(metav1.ConditionTrue, v1alpha1.ReasonReady, "True/Ready")
	become(metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled, "False/NodesFailed")
	become(metav1.ConditionFalse, v1alpha1.ReasonMTUTooSmall, "False/NodesFailed") // another reason of the same state
	become(metav1.ConditionTrue, v1alpha1.ReasonReady, "True/Ready")
	r.stop()
	r = start(t, quick())
	r.settle(t)
	become(metav1.ConditionFalse, v1alpha1.ReasonWorkersStalled, "False/NodesFailed") // events are written in their order: one too many would come before this one's
	within(t, patience, func() error {
		n, err := eventsOf(t, d.UID)
		if n >= 4 { // Ready, NotReady, Ready, NotReady
			return nil
		}
		return errors.Join(fmt.Errorf("%d events of four transitions", n), err)
	})
	if n, err := eventsOf(t, d.UID); n != 4 {
		t.Errorf("%d events of four transitions, %v", n, err)
	}
}

// eventsOf counts the events about an object, a series as often as it was seen.
func eventsOf(t *testing.T, uid types.UID) (int, error) {
	var list eventsv1.EventList
	if err := api.List(t.Context(), &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return 0, err
	}
	n := 0
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.UID == uid {
			n++
			if e.Series != nil {
				n += int(e.Series.Count) - 1
			}
		}
	}
	return n, nil
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// TestG07CollectsInTwoPasses: what becomes of the CREMNode of a node that went, before and after the delay.
func TestG07CollectsInTwoPasses(t *testing.T) {
	const delay = 6 * time.Second
	type state struct {
		uid    types.UID
		marked bool
		owner  types.UID
	}
	look := func() (state, error) {
		var n v1alpha1.CREMNode
		err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n)
		s := state{uid: n.UID, marked: n.Annotations[v1alpha1.UnusedSinceAnnotation] != ""}
		if len(n.OwnerReferences) == 1 {
			s.owner = n.OwnerReferences[0].UID
		}
		return s, err
	}
	for _, row := range []struct {
		name                      string
		back, writing, relabelled bool
		off                       bool
		stays, leaseStays         bool
	}{
		{name: "node gone"},
		{name: "node gone, agent still writing", writing: true},
		{name: "node gone, collection off", off: true, stays: true, leaseStays: true},
		{name: "node back with a new UID", back: true, stays: true, leaseStays: true},
		{name: "node lives, no domain chooses it", relabelled: true, leaseStays: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			clean(t)
			o := quick()
			if o.CollectAfter = delay; row.off {
				o.CollectAfter = 0
			}
			start(t, o)
			d, n := domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1")
			create(t, d, n)
			within(t, patience, wantDomains(t, "n1", "d"))
			report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
			first, err := look()
			if err != nil || first.marked || first.owner != n.UID {
				t.Fatalf("%+v %v", first, err)
			}
			began := time.Now()
			if row.relabelled {
				remove(t, d)
				within(t, patience, wantDomains(t, "n1", "")) // emptied at once, so that the agent frees its uplinks
			} else {
				remove(t, n)
			}
			if !row.off {
				within(t, delay/2, func() error {
					if s, err := look(); err != nil || !s.marked || s.uid != first.uid {
						return errors.Join(fmt.Errorf("not marked: %+v", s), err)
					}
					return nil
				})
			}
			if !row.relabelled {
				within(t, time.Second, wantDomains(t, "n1", "d")) // the share of a node that may come back stays
			}
			if row.back {
				again := node("n1", "gw=1")
				create(t, again)
				within(t, patience, func() error {
					if s, err := look(); err != nil || s.marked || s.owner != again.UID {
						return errors.Join(fmt.Errorf("no fresh share: %+v", s), err)
					}
					return wantDomains(t, "n1", "d")()
				})
			}
			for time.Since(began) < delay-2*time.Second {
				if _, err := look(); err != nil {
					t.Fatalf("gone before its time: %v", err)
				}
				if row.writing {
					report(t, "n1", metav1.ConditionTrue, v1alpha1.ReasonReady)
				}
				time.Sleep(200 * time.Millisecond)
			}
			if row.stays {
				time.Sleep(time.Until(began.Add(delay + 3*time.Second)))
				if _, err := look(); err != nil {
					t.Fatalf("collected: %v", err)
				}
			} else {
				within(t, patience, func() error {
					if _, err := look(); !apierrors.IsNotFound(err) {
						return errors.Join(errors.New("still there"), err)
					}
					return nil
				})
			}
			lease := &coordinationv1.Lease{}
			within(t, patience, func() error {
				if err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "n1"}, lease); row.leaseStays != (err == nil) {
					return errors.Join(errors.New("the agent's Lease"), err)
				}
				return nil
			})
		})
	}
}

// TestG07ReturnsInTime: a node that comes back before the delay loses its mark and nothing else.
func TestG07ReturnsInTime(t *testing.T) {
	clean(t)
	o := quick()
	o.CollectAfter = 5 * time.Second
	start(t, o)
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	create(t, d, node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	var was v1alpha1.CREMNode
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &was); err != nil {
		t.Fatal(err)
	}
	remove(t, d)
	within(t, patience, wantDomains(t, "n1", ""))
	create(t, domain("d", 52000, "wan0", labelled("gw", "1")))
	within(t, patience, wantDomains(t, "n1", "d"))
	time.Sleep(7 * time.Second)
	var is v1alpha1.CREMNode
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n1"}, &is); err != nil || is.UID != was.UID || len(is.Annotations) > 0 {
		t.Fatalf("%+v %v", is.ObjectMeta, err)
	}
}

// TestG07WhileTheOperatorIsAway: what happened while no operator ran is put right by the next one, and nothing is removed early.
func TestG07WhileTheOperatorIsAway(t *testing.T) {
	clean(t)
	o := quick()
	first := start(t, o)
	d, n := domain("d", 52000, "wan0", labelled("gw", "1")), node("n1", "gw=1")
	create(t, d, n, node("n2", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "d"))
	within(t, patience, wantDomains(t, "n2", "d"))
	first.stop()
	remove(t, d, n)
	create(t, node("n3", "gw=2"), domain("e", 52000, "wan0", labelled("gw", "2")))
	o.CollectAfter = time.Hour
	start(t, o)
	within(t, patience, wantDomains(t, "n3", "e"))
	within(t, patience, wantDomains(t, "n2", ""))
	within(t, patience, func() error {
		for _, name := range []string{"n1", "n2"} {
			var c v1alpha1.CREMNode
			if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &c); err != nil || c.Annotations[v1alpha1.UnusedSinceAnnotation] == "" {
				return errors.Join(fmt.Errorf("%s: %v", name, c.Annotations), err)
			}
		}
		return nil
	})
}

// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/api/v1alpha1"
)

// nodePlan is what has to happen to one CREMNode; the zero plan: nothing.
type nodePlan struct {
	write  *nodeIntent
	remove bool
	after  time.Duration // look again then; 0: no need
}

// nodeIntent is what the operator wants a CREMNode to say.
type nodeIntent struct {
	spec        *v1alpha1.CREMNodeSpec
	owner       types.UID // of the Node
	present     types.UID // of the object that is changed, empty for one that may be created
	unusedSince time.Time // zero: the object is needed
}

// planNode decides on one CREMNode. Node is nil when it is gone, have is nil when there is no CREMNode. A CREMNode that nothing needs any more
// is marked first and removed collectAfter later (never, if that is 0): a node that comes back in time finds its object. The spec of a
// CREMNode whose node lives is emptied with the mark, so that its agent frees the uplinks.
func planNode(p *policy, name string, node *metav1.PartialObjectMetadata, have *v1alpha1.CREMNode, collectAfter time.Duration, now time.Time) nodePlan {
	if have != nil && have.DeletionTimestamp != nil {
		return nodePlan{} // its removal brings us here again
	}
	if node != nil {
		if set, found := p.match(node.Labels); found {
			want := nodeIntent{spec: &p.render(set, name, node.Labels).Spec, owner: node.UID}
			return nodePlan{write: differs(have, want)}
		}
	}
	if have == nil {
		return nodePlan{}
	}
	want := nodeIntent{spec: &have.Spec, owner: ownerNode(have.OwnerReferences), present: have.UID}
	if node != nil {
		want.spec, want.owner = &v1alpha1.CREMNodeSpec{}, node.UID
	}
	if collectAfter == 0 {
		return nodePlan{write: differs(have, want)}
	}
	if since, marked := unusedSince(have, now); marked {
		want.unusedSince = since
	} else {
		want.unusedSince = now.Truncate(time.Second)
	}
	plan := nodePlan{write: differs(have, want)}
	left := want.unusedSince.Add(collectAfter).Sub(now)
	if plan.write == nil && left <= 0 {
		return nodePlan{remove: true}
	}
	plan.after = max(left, time.Second)
	return plan
}

// unusedSince reads the mark. One that can not be read, or of a time to come, is none: it is written anew.
func unusedSince(have *v1alpha1.CREMNode, now time.Time) (time.Time, bool) {
	since, err := time.Parse(time.RFC3339, have.Annotations[v1alpha1.UnusedSinceAnnotation])
	return since, err == nil && !since.After(now.Add(time.Minute))
}

// differs gives the intent when the object does not say it already.
func differs(have *v1alpha1.CREMNode, want nodeIntent) *nodeIntent {
	if have == nil {
		return &want
	}
	mark := ""
	if !want.unusedSince.IsZero() {
		mark = want.unusedSince.UTC().Format(time.RFC3339)
	}
	if ownerNode(have.OwnerReferences) == want.owner && have.Annotations[v1alpha1.UnusedSinceAnnotation] == mark && equalSpecs(&have.Spec, want.spec) {
		return nil
	}
	return &want
}

// equalSpecs says whether two specs say the same.
func equalSpecs(a, b *v1alpha1.CREMNodeSpec) bool { return equality.Semantic.DeepEqual(a, b) }

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
)

// How often a status may be written.
const (
	writeGap      = 5 * time.Second // between two writes about one generation
	generationGap = time.Second     // before one about a new generation, seen or applied, which somebody waits for
	applyHold     = time.Second / 2 // that a generation may take to be applied: one write about it then, and not two
	betterHold    = 5 * time.Second // that something must be better before it is said to be
)

// pacer decides when a status is written: what is worse at once, what is better when it has stayed so, and neither more often than the gaps allow.
type pacer struct {
	last   time.Time // of the last write
	seen   time.Time // since when a new generation has been seen and not applied; zero: none
	better time.Time // since when the wanted status has been better, and nothing worse, than the reported one; zero: it is not
}

// due says when to write wanted over reported; false: there is nothing to write. It must be asked whenever wanted changes.
func (p *pacer) due(now time.Time, reported, wanted *v1alpha1.CREMNodeStatus) (time.Time, bool) {
	if same(reported, wanted) {
		p.better, p.seen = time.Time{}, time.Time{}
		return time.Time{}, false
	}
	if reported.ObservedGeneration != wanted.ObservedGeneration || reported.AppliedGeneration != wanted.AppliedGeneration {
		p.better = time.Time{}
		return p.generation(now, wanted), true
	}
	at := later(now, p.last.Add(writeGap))
	if change(reported, wanted) != better {
		p.better = time.Time{}
		return at, true
	}
	if p.better.IsZero() {
		p.better = now
	}
	return later(at, p.better.Add(betterHold)), true
}

// generation says when something is written about a new one: once it is applied, or when that takes long.
func (p *pacer) generation(now time.Time, wanted *v1alpha1.CREMNodeStatus) time.Time {
	at := later(now, p.last.Add(generationGap))
	if wanted.AppliedGeneration == wanted.ObservedGeneration {
		return at
	}
	if p.seen.IsZero() {
		p.seen = now
	}
	return later(at, p.seen.Add(applyHold))
}

func (p *pacer) wrote(now time.Time) { *p = pacer{last: now} }

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// same compares all but times.
func same(a, b *v1alpha1.CREMNodeStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, s := range []*v1alpha1.CREMNodeStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	return equality.Semantic.DeepEqual(x, y)
}

// direction of a change.
type direction int

const (
	other direction = iota
	worse
	better
)

// change says whether conditions that were good are bad now (worse), or some that were bad are good and none is worse (better).
func change(from, to *v1alpha1.CREMNodeStatus) direction {
	result := other
	for i := range to.Conditions {
		c := &to.Conditions[i]
		was := meta.FindStatusCondition(from.Conditions, c.Type)
		if was == nil {
			continue
		}
		a, b := rank(was), rank(c)
		if b < a {
			return worse
		}
		if a == 0 && b > a {
			result = better
		}
	}
	return result
}

// rank is 0 for bad, 1 for unknown, 2 for good.
func rank(c *metav1.Condition) int {
	bad := metav1.ConditionFalse
	if c.Type == v1alpha1.ConditionDegraded {
		bad = metav1.ConditionTrue
	}
	switch c.Status {
	case metav1.ConditionUnknown:
		return 1
	case bad:
		return 0
	default:
		return 2
	}
}

// withTimes gives the conditions the times of their last transitions: those that did not change keep theirs.
func withTimes(s v1alpha1.CREMNodeStatus, reported *v1alpha1.CREMNodeStatus, now time.Time) v1alpha1.CREMNodeStatus {
	out := *s.DeepCopy()
	for i := range out.Conditions {
		c := &out.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		if was := meta.FindStatusCondition(reported.Conditions, c.Type); was != nil && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
			c.LastTransitionTime = was.LastTransitionTime
		}
	}
	return out
}

// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// maxMessage bounds a condition's message, which may quote what an agent wrote.
const maxMessage = 1024

// conditions builds the conditions of one object of one generation.
type conditions struct {
	old        []metav1.Condition
	generation int64
	now        metav1.Time
	list       []metav1.Condition
}

// set adds a condition. Its time of transition stays as long as its status does.
func (c *conditions) set(kind string, status metav1.ConditionStatus, reason, message string) {
	one := metav1.Condition{Type: kind, Status: status, ObservedGeneration: c.generation, LastTransitionTime: c.now, Reason: reason, Message: cut(message, maxMessage)}
	if old := meta.FindStatusCondition(c.old, kind); old != nil && old.Status == status {
		one.LastTransitionTime = old.LastTransitionTime
	}
	c.list = append(c.list, one)
}

// first gives the conditions of the first visit: an object without Ready looks finished to tools that wait for it.
func (c *conditions) first() []metav1.Condition {
	c.set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonPending, "The operator has seen the object and is working on it.")
	return c.list
}

// cut shortens text to at most n octets, at the end of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	end := 0
	for i := range text {
		if i > n-len("…") {
			break
		}
		end = i
	}
	return text[:end] + "…"
}

// weight orders the reasons of problems: of several, the one that takes most away is shown.
var weight = map[string]int{
	v1alpha1.ReasonInvalidSpec:       1,
	v1alpha1.ReasonPortConflict:      2,
	v1alpha1.ReasonUplinkConflict:    3,
	v1alpha1.ReasonPrefixConflict:    4,
	v1alpha1.ReasonTransportConflict: 5,
	v1alpha1.ReasonTooMany:           6,
	v1alpha1.ReasonProfileNotFound:   7,
	v1alpha1.ReasonSiteNotFound:      8,
}

// worst gives the problem to show of one object; nil when there is none.
func worst(problems []render.Problem) *render.Problem {
	if len(problems) == 0 {
		return nil
	}
	p := slices.MinFunc(problems, func(a, b render.Problem) int {
		return cmp.Or(cmp.Compare(weight[a.Reason], weight[b.Reason]), cmp.Compare(a.Message, b.Message))
	})
	return &p
}

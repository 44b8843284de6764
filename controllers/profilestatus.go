// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// profileStatus is what the renderer says of one profile. A profile is configuration only: it is ready when it is accepted.
func profileStatus(p *v1alpha1.CREMProfile, problems []render.Problem, now metav1.Time) v1alpha1.CREMProfileStatus {
	c := conditions{old: p.Status.Conditions, generation: p.Generation, now: now}
	problem := worst(problems)
	acceptance(&c, problem)
	if problem == nil {
		c.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "Flows that the profile takes are protected as it says.")
	} else {
		c.set(v1alpha1.ConditionReady, metav1.ConditionFalse, problem.Reason, problem.Message)
		c.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, problem.Reason, problem.Message)
	}
	return v1alpha1.CREMProfileStatus{ObservedGeneration: p.Generation, Conditions: c.list}
}

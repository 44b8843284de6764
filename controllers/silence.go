// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	crem "crem.dev/crem/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// silence is what a Lease says of a node's agent.
type silence struct {
	heard bool      // the Lease is in force
	why   string    // the agent does not report: since when, and what to do; empty: it does, or it may still start
	until time.Time // when time alone changes that; zero: never
}

func silenceOf(have *v1alpha1.CREMNode, lease *coordinationv1.Lease, now time.Time) silence {
	if lease == nil {
		if until := have.CreationTimestamp.Add(v1alpha1.LeaseDuration); now.Before(until) {
			return silence{until: until}
		}
		return silence{why: "no agent has reported from the node: see whether a crem-agent pod runs on it"}
	}
	if until := leaseEnd(lease); now.Before(until) {
		return silence{heard: true, until: until}
	}
	return silence{why: fmt.Sprintf("the agent has not reported since %s: see whether the node and its crem-agent pod run", renewed(lease).UTC().Format(time.RFC3339))}
}

// silentNode is a CREMNode whose agent does not report.
type silentNode struct {
	have *v1alpha1.CREMNode
	why  string
}

// said says whether the CREMNode shows it already.
func (n *silentNode) said() bool {
	ready := meta.FindStatusCondition(n.have.Status.Conditions, v1alpha1.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionUnknown && ready.Reason == v1alpha1.ReasonAgentNotReporting
}

// maxSilenced bounds how many CREMNodes are written after one look: when the API server was away, all agents seem silent for a moment.
const maxSilenced = 100

// silences remembers whose silence was said. While an agent's Lease is in force Ready is the agent's to say, afterwards the operator's; it says it once for each end
// of a Lease, so that an agent whose clock is wrong, or that can write everything but its Lease, and the operator do not write in turns. It belongs to one goroutine.
type silences struct{ said map[string]bool }

// news gives the nodes of which it must be said now, and whether some are left for the next look.
func (s *silences) news(silent []silentNode) (list []silentNode, more bool) {
	said := make(map[string]bool, len(silent))
	for i := range silent {
		n := &silent[i]
		switch uid := string(n.have.UID); {
		case s.said[uid] || n.said():
			said[uid] = true
		case len(list) == maxSilenced:
			more = true
		default:
			list = append(list, *n)
		}
	}
	s.said = said // who was heard again is forgotten
	return list, more
}

// renewed is when the agent last reported.
func renewed(lease *coordinationv1.Lease) time.Time {
	if lease.Spec.RenewTime == nil {
		return lease.CreationTimestamp.Time
	}
	return lease.Spec.RenewTime.Time
}

// leaseEnd is when the agent counts as not reporting.
func leaseEnd(lease *coordinationv1.Lease) time.Time {
	duration := v1alpha1.LeaseDuration
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		duration = time.Duration(*s) * time.Second
	}
	return renewed(lease).Add(duration)
}

// tellSilence sets Ready of CREMNodes whose agents do not report. Nothing else of their statuses is touched: it is what the agents said last.
func (r *statusReconciler) tellSilence(ctx context.Context, silent []silentNode, now metav1.Time) (more bool, err error) {
	list, more := r.silences.news(silent)
	for i := range list {
		n := &list[i]
		c := conditions{old: n.have.Status.Conditions, generation: n.have.Generation, now: now}
		c.set(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotReporting, n.why)
		ready, err := configuration[metav1ac.ConditionApplyConfiguration](c.list[0])
		if err != nil {
			return false, err
		}
		status := crem.CREMNode(n.have.Name).WithUID(n.have.UID).WithStatus(crem.CREMNodeStatus().WithConditions(ready))
		switch err := r.client.Status().Apply(ctx, status, asOperator, client.ForceOwnership); {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // it is gone or another one; the cache will tell
		case count("CREMNode status", err) != nil:
			return false, fmt.Errorf("say that the agent of node %s does not report: %w", n.have.Name, err)
		}
		r.silences.said[string(n.have.UID)] = true
	}
	return more, nil
}

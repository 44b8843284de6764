// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// domainStatus is what a survey says of one domain. Ready copies the first of the others that is not True, so that one column answers why.
func domainStatus(d *v1alpha1.CREMDomain, t *tally, problems []render.Problem, sites []v1alpha1.SiteHealth, now metav1.Time) v1alpha1.CREMDomainStatus {
	c := conditions{old: d.Status.Conditions, generation: d.Generation, now: now}
	problem := worst(problems)
	acceptance(&c, problem)
	progress(&c, v1alpha1.ConditionRendered, v1alpha1.ReasonRendered, t.rendered, t.matched, v1alpha1.ReasonRenderPending, "have this generation in their CREMNode")
	switch {
	case t.matched > 0 && t.programmed < t.matched && t.failing > 0:
		c.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, nodesReason(t), nodesMessage(t))
	default:
		progress(&c, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed, t.programmed, t.matched, v1alpha1.ReasonNodesPending, "obey this generation")
	}
	domainReady(&c, t)
	if problem != nil {
		c.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, problem.Reason, problem.Message)
	}
	return v1alpha1.CREMDomainStatus{
		ObservedGeneration: d.Generation,
		Conditions:         c.list,
		Nodes: &v1alpha1.DomainNodeCounts{Matched: t.matched, Programmed: t.programmed, Ready: t.ready, Degraded: t.degraded,
			Summary: fmt.Sprintf("%d/%d", t.ready, t.matched)},
		FailingNodes: t.failingNodes,
		Sites:        sites,
	}
}

// acceptance sets Accepted from the problem to show, if any.
func acceptance(c *conditions, problem *render.Problem) {
	if problem == nil {
		c.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The object is used as it stands.")
		return
	}
	c.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, problem.Reason, problem.Message)
}

// progress sets a condition that is True when all nodes have come so far.
func progress(c *conditions, kind, done string, n, all int32, pending, what string) {
	switch {
	case all == 0:
		c.set(kind, metav1.ConditionTrue, v1alpha1.ReasonNoMatchingNodes, noNodes)
	case n == all:
		c.set(kind, metav1.ConditionTrue, done, fmt.Sprintf("%s %s.", nodes(all), what))
	default:
		c.set(kind, metav1.ConditionFalse, pending, fmt.Sprintf("%d of %s %s.", n, nodes(all), what))
	}
}

const noNodes = "No node of this cluster is chosen by spec.nodes.selector; label a node or change the selector if there should be one."

func nodes(n int32) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func domainReady(c *conditions, t *tally) {
	for _, one := range c.list {
		if one.Status != metav1.ConditionTrue {
			c.set(v1alpha1.ConditionReady, metav1.ConditionFalse, one.Reason, one.Message)
			return
		}
	}
	switch {
	case t.matched == 0:
		c.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonNoMatchingNodes, noNodes)
	case t.failing > 0:
		c.set(v1alpha1.ConditionReady, metav1.ConditionFalse, nodesReason(t), nodesMessage(t))
	default:
		progress(c, v1alpha1.ConditionReady, v1alpha1.ReasonReady, t.ready, t.matched, v1alpha1.ReasonNodesPending, "protect traffic")
	}
}

// nodesReason is AgentNotReporting when that is all that is wrong.
func nodesReason(t *tally) string {
	if t.notReporting == t.failing {
		return v1alpha1.ReasonAgentNotReporting
	}
	return v1alpha1.ReasonNodesFailed
}

// nodesMessage names one failing node; status.failingNodes has more.
func nodesMessage(t *tally) string {
	if len(t.failingNodes) == 0 {
		return ""
	}
	f := t.failingNodes[0]
	return fmt.Sprintf("%d of %s failed, see status.failingNodes; %s: %s: %s", t.failing, nodes(t.matched), f.Name, f.Reason, f.Message)
}

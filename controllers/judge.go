// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
)

// nodeState is how a node does for one domain.
type nodeState int

const (
	nodePending nodeState = iota // on its way
	nodeFailing
	nodeReady
)

// verdict is how one node does for one domain.
type verdict struct {
	state                          nodeState
	rendered, programmed, degraded bool
	reason, message                string    // of nodeFailing
	until                          time.Time // when time alone changes the verdict; zero: never
}

func failing(v verdict, reason, format string, args ...any) verdict {
	v.state, v.reason, v.message = nodeFailing, reason, fmt.Sprintf(format, args...)
	return v
}

// judge says how a node does for a domain that is part of its share. Rendered: its CREMNode says what it should.
func judge(domain string, have *v1alpha1.CREMNode, rendered bool, agent silence) verdict {
	v := verdict{rendered: rendered}
	if have == nil || !rendered {
		return v
	}
	v.until = agent.until
	if agent.why != "" {
		return failing(v, v1alpha1.ReasonAgentNotReporting, "%s", agent.why)
	}
	if !agent.heard {
		return v
	}
	status := &have.Status
	if status.ObservedGeneration != have.Generation {
		return v
	}
	v.degraded = meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionDegraded)
	item := domainItem(status, domain)
	if item != nil && !item.Programmed {
		if item.Reason == v1alpha1.ReasonPending {
			return v
		}
		return failing(v, item.Reason, "%s", item.Message)
	}
	if item == nil || status.AppliedGeneration != have.Generation {
		if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed); c != nil && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonPending {
			return failing(v, c.Reason, "%s", c.Message)
		}
		return v
	}
	v.programmed = true
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown || ready.Reason == v1alpha1.ReasonPending:
	case ready.Status == metav1.ConditionTrue:
		v.state = nodeReady
	case ready.Reason == v1alpha1.ReasonPartiallyProgrammed:
		if u := failedUplink(have, domain); u != nil {
			return failing(v, u.Reason, "uplink %s: %s", u.Name, u.Message)
		}
		v.state = nodeReady // what failed is another domain's
	default:
		return failing(v, ready.Reason, "%s", ready.Message)
	}
	return v
}

func domainItem(status *v1alpha1.CREMNodeStatus, domain string) *v1alpha1.NodeItemStatus {
	for i := range status.Domains {
		if string(status.Domains[i].Name) == domain {
			return &status.Domains[i]
		}
	}
	return nil
}

// failedUplink gives an uplink of the domain that the agent could not take. A domain that names none may have any.
func failedUplink(have *v1alpha1.CREMNode, domain string) *v1alpha1.NodeUplinkStatus {
	var named []v1alpha1.InterfaceName
	for i := range have.Spec.Domains {
		if string(have.Spec.Domains[i].Name) == domain {
			named = have.Spec.Domains[i].Uplinks
		}
	}
	for i := range have.Status.Uplinks {
		u := &have.Status.Uplinks[i]
		if (!u.Attached || u.Message != "") && (len(named) == 0 || slices.Contains(named, u.Name)) {
			return u
		}
	}
	return nil
}

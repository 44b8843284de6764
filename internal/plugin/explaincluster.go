// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
)

// explainCREMNode says what the API server knows of a node. state is what stateOfNode made of it.
func explainCREMNode(n *v1alpha1.CREMNode, state *nodeState) explanation {
	e := explanation{Subject: "node " + n.Name, Findings: []finding{}}
	add := func(says, step string) { e.Findings = append(e.Findings, finding{Says: says, Next: step}) }
	if state.Reason == v1alpha1.ReasonAgentNotReporting {
		add(state.Message, state.Next)
	}
	if n.Status.AppliedGeneration != n.Generation {
		add(fmt.Sprintf("Generation %d is asked for and generation %d is in force.", n.Generation, n.Status.AppliedGeneration), "Wait a few seconds; if it stays, the conditions below say why.")
	}
	for _, c := range n.Status.Conditions {
		bad := c.Status != metav1.ConditionTrue
		if c.Type == v1alpha1.ConditionDegraded {
			bad = c.Status != metav1.ConditionFalse
		}
		if bad && c.Type != v1alpha1.ConditionReady {
			add(fmt.Sprintf("%s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message), next(c.Reason, n.Name))
		}
	}
	for _, d := range n.Status.Domains {
		if !d.Programmed {
			add(fmt.Sprintf("Domain %s is not in force (%s): %s", d.Name, d.Reason, d.Message), next(d.Reason, n.Name))
		}
	}
	for _, u := range n.Status.Uplinks {
		if !u.Attached {
			add(fmt.Sprintf("Uplink %s is not attached (%s): %s", u.Name, u.Reason, u.Message), next(u.Reason, n.Name))
		}
	}
	switch {
	case len(n.Spec.Domains) == 0:
		e.Verdict = "Takes part in no domain."
	case state.Ready == string(metav1.ConditionTrue) && len(e.Findings) == 0:
		e.Verdict = "Ready."
	case state.Ready == string(metav1.ConditionTrue):
		e.Verdict = fmt.Sprintf("Ready; worth knowing (%d).", len(e.Findings))
	default:
		e.Verdict = fmt.Sprintf("Not ready (%s).", orDash(state.Reason))
		if len(e.Findings) == 0 {
			add(state.Message, state.Next)
		}
	}
	e.details = [][]string{
		{"Agent", orDash(n.Status.AgentVersion)}, {"Last seen", orDash(state.LastSeen)}, {"Generation", fmt.Sprintf("%d, in force %d", n.Generation, n.Status.AppliedGeneration)},
		{"Boot ID", orDash(n.Status.BootID)}, {"Memory limit", octets(n.Status.MemoryLimitBytes)},
	}
	for _, d := range n.Spec.Domains {
		e.details = append(e.details, []string{"Domain " + string(d.Name), fmt.Sprintf("site %s, port %d, IPsec %s", d.Site, d.Port, d.IPsec.Mode)})
	}
	for _, d := range n.Status.Domains {
		for _, s := range siteStates(d.Sites) {
			e.details = append(e.details, []string{fmt.Sprintf("Towards %s of %s", s.Name, d.Name), s.String()})
		}
	}
	for _, u := range n.Status.Uplinks {
		e.details = append(e.details, []string{"Uplink " + string(u.Name), strings.TrimSpace(fmt.Sprintf("MTU %d  %s", u.MTU, u.Why))})
	}
	for _, x := range n.Status.Excluded {
		e.details = append(e.details, []string{"No uplink: " + x.Name, x.Why})
	}
	if c := n.Status.Capabilities; c != nil {
		e.details = append(e.details, []string{"Kernel", orDash(c.Kernel)})
		for _, missing := range c.Missing {
			e.details = append(e.details, []string{"Missing", missing})
		}
	}
	return e
}

// merge adds what the node's own agent says to what the API server knows.
func (e *explanation) merge(own explanation) {
	e.Findings = append(e.Findings, own.Findings...)
	e.details = append(e.details, own.details...)
	if len(own.Findings) > 0 && e.Verdict == "Ready." {
		e.Verdict = own.Verdict
	}
}

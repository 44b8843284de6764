// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/agent/probe"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/render"
)

// stalledAfter is the age in seconds of a worker's heartbeat at which the node is said to be unhealthy.
const stalledAfter = 1

// facts are all that a status says.
type facts struct {
	desired  *Desired         // what was given to the data path last
	problems []render.Problem // of its items
	failure  error            // why it could not be given; nil when it could
	path     agentapi.Status
	probe    *probe.Report // nil: not done yet
	hidden   bool          // RDMA traffic passes by the agent
	sites    siteView      // what is shown of other sites
	bootID   string
	version  string
}

// status is what the agent reports. It depends on the facts alone: no time, no count of packets. Transition times are filled in by the reporter.
func (f *facts) status() v1alpha1.CREMNodeStatus {
	s := v1alpha1.CREMNodeStatus{
		ObservedGeneration: f.desired.Generation, MemoryLimitBytes: f.path.Memory.Limit, BootID: cut(f.bootID, 36), AgentVersion: cut(f.version, 64),
		Domains: f.domains(), Uplinks: f.uplinks(), Excluded: f.excluded(), Capabilities: f.capabilities(),
	}
	if f.failure == nil {
		s.AppliedGeneration = f.path.AppliedGeneration
	}
	set := func(kind string, v verdict) {
		s.Conditions = append(s.Conditions, metav1.Condition{
			Type: kind, Status: v.status, Reason: v.reason, Message: cut(v.message, 32768), ObservedGeneration: f.desired.Generation,
		})
	}
	programmed, healthy, secure := f.programmed(&s), f.healthy(), f.secure()
	set(v1alpha1.ConditionProgrammed, programmed)
	set(v1alpha1.ConditionDataPathHealthy, healthy)
	set(v1alpha1.ConditionSecurityReady, secure)
	set(v1alpha1.ConditionReady, ready(programmed, healthy, secure))
	set(v1alpha1.ConditionDegraded, f.degraded())
	return s
}

// verdict is one condition before it has a time.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

func yes(reason, message string) verdict { return verdict{metav1.ConditionTrue, reason, message} }
func no(reason, message string) verdict  { return verdict{metav1.ConditionFalse, reason, message} }

// domains are the results of the domains of the spec, by name.
func (f *facts) domains() []v1alpha1.NodeItemStatus {
	var list []v1alpha1.NodeItemStatus
	for i := range f.desired.Spec.Domains {
		name := f.desired.Spec.Domains[i].Name
		item := v1alpha1.NodeItemStatus{Name: name, Programmed: true, Reason: v1alpha1.ReasonApplied, Sites: f.sites.of(&f.desired.Spec.Domains[i])}
		fail := func(reason, message string) {
			item.Programmed, item.Reason, item.Message = false, reason, cut(message, 1024)
		}
		at := slices.IndexFunc(f.path.Domains, func(d agentapi.Domain) bool { return d.Name == string(name) })
		problem := slices.IndexFunc(f.problems, func(p render.Problem) bool {
			return p.Object.Kind == v1alpha1.KindDomain && p.Object.Name == string(name)
		})
		switch {
		case problem >= 0:
			fail(f.problems[problem].Reason, f.problems[problem].Message)
		case f.failure != nil:
			fail(failureReason(f.failure), f.failure.Error())
		case at < 0:
			fail(v1alpha1.ReasonPending, "the data path has not taken it up yet")
		case !f.path.Domains[at].Applied:
			fail(cmp.Or(f.path.Domains[at].Reason, v1alpha1.ReasonAttachFailed), f.path.Domains[at].Problem)
		}
		list = append(list, item)
	}
	slices.SortFunc(list, func(a, b v1alpha1.NodeItemStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// uplinks are the results of the interfaces, by name, each once: with its problem if there is one.
func (f *facts) uplinks() []v1alpha1.NodeUplinkStatus {
	list := make([]v1alpha1.NodeUplinkStatus, 0, len(f.path.Uplinks))
	for _, u := range f.path.Uplinks {
		out := v1alpha1.NodeUplinkStatus{
			Name: v1alpha1.InterfaceName(u.Name), Why: cut(u.Why, 256), Attached: u.Attached, MTU: int32(min(u.MTU, 1<<20)),
			Reason: cmp.Or(u.Reason, v1alpha1.ReasonApplied), Message: cut(u.Problem, 1024),
		}
		at := slices.IndexFunc(list, func(x v1alpha1.NodeUplinkStatus) bool { return x.Name == out.Name })
		switch {
		case at < 0:
			list = append(list, out)
		case list[at].Message == "" && out.Message != "":
			list[at].Reason, list[at].Message = out.Reason, out.Message
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.NodeUplinkStatus) int { return cmp.Compare(a.Name, b.Name) })
	return list[:min(len(list), 64)]
}

// excluded are the interfaces that might have been uplinks, by name.
func (f *facts) excluded() []v1alpha1.NodeExcludedInterface {
	var list []v1alpha1.NodeExcludedInterface
	for _, x := range f.path.Excluded {
		list = append(list, v1alpha1.NodeExcludedInterface{Name: cut(x.Name, 15), Why: cut(x.Why, 256)})
	}
	slices.SortFunc(list, func(a, b v1alpha1.NodeExcludedInterface) int { return cmp.Compare(a.Name, b.Name) })
	return list[:min(len(list), 64)]
}

// programmed says whether the data path obeys every item. That policies of somebody else are missing is said by SecurityReady.
func (f *facts) programmed(s *v1alpha1.CREMNodeStatus) verdict {
	if f.failure != nil {
		return no(failureReason(f.failure), f.failure.Error())
	}
	if s.AppliedGeneration != f.desired.Generation {
		return no(v1alpha1.ReasonPending, fmt.Sprintf("generation %d is not in the data path yet", f.desired.Generation))
	}
	var bad []string
	reason, good := "", 0
	note := func(what, why, message string) {
		bad = append(bad, what+": "+message)
		reason = cmp.Or(reason, why)
	}
	for _, d := range s.Domains {
		if d.Programmed || d.Reason == v1alpha1.ReasonPolicyMissing {
			good++
		} else {
			note("domain "+string(d.Name), d.Reason, d.Message)
		}
	}
	for _, u := range s.Uplinks {
		if u.Message == "" {
			good++
		} else {
			note("uplink "+string(u.Name), u.Reason, u.Message)
		}
	}
	switch {
	case len(bad) == 0:
		return yes(v1alpha1.ReasonProgrammed, "")
	case good > 0:
		reason = v1alpha1.ReasonPartiallyProgrammed
	}
	return no(reason, strings.Join(bad, "; "))
}

// healthy says whether packets pass and are seen. Messages hold no number that changes by itself.
func (f *facts) healthy() verdict {
	if f.failure != nil && len(f.path.Workers) == 0 {
		return verdict{metav1.ConditionUnknown, v1alpha1.ReasonPending, "the data path has not started"}
	}
	for _, w := range f.path.Workers {
		if w.LastBeatAge > stalledAfter {
			return no(v1alpha1.ReasonWorkersStalled, fmt.Sprintf("packet worker %d does not move; packets pass unprotected. If it stays so, look at the agent's log and restart it", w.ID))
		}
	}
	if m := f.path.MTUTooSmall; m.Flows > 0 {
		return no(v1alpha1.ReasonMTUTooSmall, fmt.Sprintf("repairs of some flows need an MTU of %d octets and the uplink has %d: raise it, or lower the RDMA MTU; such flows pass unprotected", m.Need, m.Have))
	}
	if f.hidden && len(f.desired.Spec.Domains) > 0 {
		return no(v1alpha1.ReasonTrafficNotVisible, "RDMA ports of this node carry packets and none passes its kernel: their NIC bypasses it. Protect these flows by a gateway on their path")
	}
	return yes(v1alpha1.ReasonHealthy, "")
}

// secure says whether IPsec covers the domains that require it.
func (f *facts) secure() verdict {
	var missing []string
	required := false
	for _, d := range f.path.Domains {
		required = required || d.Security != v1alpha1.ReasonNotRequired
		if d.Security == v1alpha1.ReasonPolicyMissing {
			missing = append(missing, "domain "+d.Name+": "+d.SecurityProblem)
		}
	}
	switch {
	case len(missing) > 0:
		return no(v1alpha1.ReasonPolicyMissing, strings.Join(missing, "; "))
	case required:
		return yes(v1alpha1.ReasonSecured, "")
	}
	return yes(v1alpha1.ReasonNotRequired, "")
}

// ready is the first of the others that is not true.
func ready(others ...verdict) verdict {
	for _, v := range others {
		if v.status != metav1.ConditionTrue {
			return v
		}
	}
	return yes(v1alpha1.ReasonReady, "")
}

// degrading are optional features of the kernel whose lack is worth a person's look. The others, real-time priority and vector instructions, are a matter
// of speed, and many good nodes lack them.
var degrading = []string{"BPF file system", "UDP_SEGMENT"}

func (f *facts) degraded() verdict {
	if f.probe != nil {
		for _, c := range f.probe.Features {
			if c.State == probe.Missing && !c.Required && slices.Contains(degrading, c.Name) {
				return yes(v1alpha1.ReasonKernelUnsupported, c.Name+": "+c.Without)
			}
		}
	}
	return no(v1alpha1.ReasonNotDegraded, "")
}

func (f *facts) capabilities() *v1alpha1.NodeCapabilities {
	if f.probe == nil {
		return nil
	}
	c := &v1alpha1.NodeCapabilities{Kernel: cut(f.probe.Kernel, 128)}
	for _, x := range slices.Concat(f.probe.Capabilities, f.probe.Features) {
		if say := cut(x.Name+": "+x.Without, 256); x.State != probe.OK && !slices.Contains(c.Missing, say) {
			c.Missing = append(c.Missing, say)
		}
	}
	return c
}

// cut shortens a text to the octets that its field allows, between characters.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}

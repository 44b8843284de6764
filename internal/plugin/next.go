// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"

	"crem.dev/crem/api/v1alpha1"
)

// nextSteps say what to do about a reason whose message does not say it already. %s is the node.
var nextSteps = map[string]string{
	v1alpha1.ReasonPending:             "Wait a few seconds; if it stays, look at the log of crem-operator.",
	v1alpha1.ReasonRenderPending:       "Wait a few seconds; if it stays, look at the log of crem-operator.",
	v1alpha1.ReasonNodesPending:        "kubectl crem nodes shows which; kubectl crem explain NODE says why.",
	v1alpha1.ReasonNodesFailed:         "kubectl crem nodes shows which; kubectl crem explain NODE says why.",
	v1alpha1.ReasonPartiallyProgrammed: "kubectl crem explain NODE names the items that failed.",
	v1alpha1.ReasonNoMatchingNodes:     "Label the gateway nodes as spec.nodes.selector of the domain asks.",
	v1alpha1.ReasonAgentNotReporting:   "See whether the agent's pod on node %s runs, and its log; traffic passes meanwhile, with what it was last told.",
	v1alpha1.ReasonInterfaceNotFound:   "Create the interface, or name another in spec.nodes.uplinks of the domain; it is taken as soon as it is there.",
	v1alpha1.ReasonNoRoute:             "Add routes to the other sites' prefixes, or name interfaces in spec.nodes.uplinks of the domain.",
	v1alpha1.ReasonKernelUnsupported:   "crem-agent probe on node %s says what the kernel lacks.",
	v1alpha1.ReasonMissingCapability:   "Give the agent's container the capability; crem-agent probe on node %s names each with its reason.",
	v1alpha1.ReasonAttachFailed:        "Look at the agent's log on node %s: it holds the kernel's words.",
	v1alpha1.ReasonMTUTooSmall:         "Raise the MTU of the uplink, or lower the RDMA MTU of the endpoints.",
	v1alpha1.ReasonWorkersStalled:      "Look at the agent's log on node %s; a restart of the agent costs no packet.",
	v1alpha1.ReasonTrafficNotVisible:   "Protect this traffic by a gateway node or a DPU on its path: the NIC bypasses the kernel of node %s.",
	v1alpha1.ReasonPolicyMissing:       "Install the IPsec policies that the message names, or write BoundaryFiltered if the domain's boundary keeps strangers out.",
	v1alpha1.ReasonProfileNotFound:     "Create the CREMProfile, or name another in spec.profileRef.",
}

// next gives the next step for a reason, empty when the message has said it.
func next(reason, node string) string {
	step := nextSteps[reason]
	for i := 0; i+1 < len(step); i++ {
		if step[i] == '%' {
			return fmt.Sprintf(step, node)
		}
	}
	return step
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types. Every condition carries observedGeneration and one of the reasons below; both are part of the API.
const (
	// ConditionAccepted (CREMDomain, CREMProfile): the object is consistent in itself and with others.
	ConditionAccepted = "Accepted"
	// ConditionRendered (CREMDomain): the spec of every matched node's CREMNode holds this generation.
	ConditionRendered = "Rendered"
	// ConditionProgrammed (CREMDomain, CREMNode): the data path of every matched node, or of this node, obeys this generation.
	ConditionProgrammed = "Programmed"
	// ConditionDataPathHealthy (CREMNode): packets pass and workers keep up.
	ConditionDataPathHealthy = "DataPathHealthy"
	// ConditionSecurityReady (CREMNode): where IPsec is required, kernel XFRM policies cover what they must.
	ConditionSecurityReady = "SecurityReady"
	// ConditionReady (all kinds): the object does what it says. Unknown until the first visit.
	ConditionReady = "Ready"
	// ConditionDegraded (CREMNode): it works, with less than it could. True is the abnormal state.
	ConditionDegraded = "Degraded"
	// ConditionStalled (CREMDomain, CREMProfile): nothing more happens until a person acts. Present only while True.
	ConditionStalled = "Stalled"
)

// Reasons of Accepted, and of Stalled beside it.
const (
	// ReasonAccepted: the object is used as it stands.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSpec: a rule of the schema is broken, as an object stored before that rule existed may do.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonPortConflict: an older domain on the same node has the same port.
	ReasonPortConflict = "PortConflict"
	// ReasonUplinkConflict: an older domain on the same node has one of the same uplinks.
	ReasonUplinkConflict = "UplinkConflict"
	// ReasonPrefixConflict: another site of an older domain on the same node holds one of the same addresses.
	ReasonPrefixConflict = "PrefixConflict"
	// ReasonTransportConflict: an older domain on the same node says otherwise how a transport is read.
	ReasonTransportConflict = "TransportConflict"
	// ReasonProfileNotFound: profileRef names no CREMProfile. Flows that a selector takes are protected all the same.
	ReasonProfileNotFound = "ProfileNotFound"
	// ReasonSiteNotFound: no domain has any of the destination sites that the profile names.
	ReasonSiteNotFound = "SiteNotFound"
	// ReasonPodsNotVisible: the profile selects pods, and there is no Kubernetes to ask for them.
	ReasonPodsNotVisible = "PodsNotVisible"
	// ReasonTooMany: the node has more domains, profiles or rules than a CREMNode can hold; the newest are left out.
	ReasonTooMany = "TooMany"
)

// Reasons of Rendered, Programmed and Ready.
const (
	// ReasonPending: the first visit has not ended.
	ReasonPending = "Pending"
	// ReasonRendered: every matched node's spec holds this generation.
	ReasonRendered = "Rendered"
	// ReasonRenderPending: at least one matched node's spec is older.
	ReasonRenderPending = "RenderPending"
	// ReasonProgrammed: the data path obeys this generation.
	ReasonProgrammed = "Programmed"
	// ReasonNodesPending: at least one node has not reported this generation yet.
	ReasonNodesPending = "NodesPending"
	// ReasonNodesFailed: at least one node could not apply this generation.
	ReasonNodesFailed = "NodesFailed"
	// ReasonPartiallyProgrammed: at least one item of the node failed, the others are in effect.
	ReasonPartiallyProgrammed = "PartiallyProgrammed"
	// ReasonNoMatchingNodes: no node is chosen, which is no failure: Ready is True with it.
	ReasonNoMatchingNodes = "NoMatchingNodes"
	// ReasonReady: everything asked for is in effect.
	ReasonReady = "Ready"
	// ReasonAgentNotReporting: the node's Lease has expired. On a CREMNode the operator sets it, with Ready Unknown.
	ReasonAgentNotReporting = "AgentNotReporting"
)

// Reasons of events that are about no condition.
const (
	// ReasonRepairsSuspended (CREMDomain): flows towards another site are left to RDMA, see status.sites.
	ReasonRepairsSuspended = "RepairsSuspended"
	// ReasonRepairsResumed (CREMDomain): no flow towards the site is left to RDMA any more.
	ReasonRepairsResumed = "RepairsResumed"
	// ReasonDriftRepaired (CREMNode): somebody else took a program off an interface of the node or changed entries of its maps, and they are as they were.
	ReasonDriftRepaired = "DriftRepaired"
)

// Reasons of items of a CREMNode, and of its DataPathHealthy, SecurityReady and Degraded.
const (
	// ReasonApplied: the item is in effect.
	ReasonApplied = "Applied"
	// ReasonInterfaceNotFound: no interface has this name; it is taken when it appears.
	ReasonInterfaceNotFound = "InterfaceNotFound"
	// ReasonNoRoute: no interface routes to another site's prefixes.
	ReasonNoRoute = "NoRoute"
	// ReasonKernelUnsupported: the kernel lacks what the item needs.
	ReasonKernelUnsupported = "KernelUnsupported"
	// ReasonMissingCapability: the agent lacks a Linux capability that the item needs.
	ReasonMissingCapability = "MissingCapability"
	// ReasonAttachFailed: the kernel refused to attach a program.
	ReasonAttachFailed = "AttachFailed"
	// ReasonMTUTooSmall: a repair of the flow's packets does not fit the uplink.
	ReasonMTUTooSmall = "MTUTooSmall"
	// ReasonHealthy: packets pass and workers keep up.
	ReasonHealthy = "Healthy"
	// ReasonWorkersStalled: a packet worker has stopped; the kernel passes packets by it, unprotected.
	ReasonWorkersStalled = "WorkersStalled"
	// ReasonTrafficNotVisible: the RDMA port's counters rise and the agent sees no packet: the NIC bypasses this kernel, so
	// flows must be protected by a gateway on their path.
	ReasonTrafficNotVisible = "TrafficNotVisible"
	// ReasonSecured: kernel XFRM policies cover the CREM port and the protected flows.
	ReasonSecured = "Secured"
	// ReasonNotRequired: the domain does not require IPsec.
	ReasonNotRequired = "NotRequired"
	// ReasonPolicyMissing: an XFRM policy is missing; the message names its selector.
	ReasonPolicyMissing = "PolicyMissing"
	// ReasonNotDegraded: nothing is missing.
	ReasonNotDegraded = "NotDegraded"
)

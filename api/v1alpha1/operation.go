// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Field managers of server-side apply. They never change: what a manager once applied is removed only by the same manager.
const (
	// FieldManagerOperator applies specs of CREMNode, CREMEndpointSlice, the statuses of CREMDomain and CREMProfile, and Ready of a CREMNode whose agent's
	// Lease is over.
	FieldManagerOperator = "crem-operator"
	// FieldManagerAgent applies the status of its own CREMNode.
	FieldManagerAgent = "crem-agent"
)

// The heartbeat of an agent is a Lease in the namespace of the operator, named as the node and labelled ComponentLabel=ComponentAgent. The
// agent renews it every LeaseRenewPeriod with spec.leaseDurationSeconds of LeaseDuration; a Lease older than its duration means that the
// agent does not report.
const (
	LeaseRenewPeriod = 10 * time.Second
	LeaseDuration    = 40 * time.Second
)

// ComponentLabel says which program of CREM an object of another group, such as a Lease, belongs to.
const ComponentLabel = GroupName + "/component"

// ComponentAgent is the value of ComponentLabel for objects of agents.
const ComponentAgent = "agent"

// UnusedSinceAnnotation marks a CREMNode that nothing needs any more, because its node is gone or no domain matches it, with the time since
// when (RFC 3339). The operator removes the object some time later, or the mark when the object is needed again.
const UnusedSinceAnnotation = GroupName + "/unused-since"

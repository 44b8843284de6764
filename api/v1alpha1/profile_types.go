// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CREMProfile says how flows are protected, and optionally which.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cprof,categories=crem
// +kubebuilder:printcolumn:name="K",type=integer,JSONPath=`.spec.k`
// +kubebuilder:printcolumn:name="Epsilon",type=string,JSONPath=`.spec.epsilon`
// +kubebuilder:printcolumn:name="MaxM",type=integer,JSONPath=`.spec.maxRepairSymbols`
// +kubebuilder:printcolumn:name="Delivery",type=string,JSONPath=`.spec.delivery`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CREMProfile struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the profile asks for. Every field has a default: an empty spec is a good start for multi-millisecond paths.
	// +required
	Spec CREMProfileSpec `json:"spec"`
	// status is what the operator found.
	// +optional
	Status CREMProfileStatus `json:"status,omitzero"`
}

// CREMProfileSpec holds the parameters of protection.
//
// +kubebuilder:validation:XValidation:rule="self.k + self.maxRepairSymbols <= 255",message="added to k is over 255, the size of the code: write k and maxRepairSymbols so that their sum is at most 255",fieldPath=".maxRepairSymbols"
// +kubebuilder:validation:XValidation:rule="self.schemes != ['XOR'] || self.maxRepairSymbols <= 1",message="is over 1 with XOR alone, which repairs one loss a block: write maxRepairSymbols 1, or add CauchyReedSolomon to schemes",fieldPath=".maxRepairSymbols"
type CREMProfileSpec struct {
	// k is the number of consecutive packets that make a block. A larger k needs less overhead for the same protection, and
	// waits longer for the repair. A burst that ends earlier closes its block earlier.
	// +optional
	// +default=32
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	K int32 `json:"k,omitempty"`

	// maxRepairSymbols is Max m: the most ordinary repair symbols of a block. How many are sent follows the measured loss.
	// +optional
	// +default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	MaxRepairSymbols int32 `json:"maxRepairSymbols,omitempty"`

	// epsilon is the target for the share of blocks that stay incomplete at the first decoding attempt, as a decimal string
	// over 0 and below 1 (no floating point in an API). With messageSize it is the target for messages.
	// +optional
	// +default="1e-4"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]{1,3})?$') || (double(self) > 0.0 && double(self) < 1.0)",message="is not over 0 and below 1: write the share of blocks that may stay incomplete, for instance \"1e-4\""
	Epsilon string `json:"epsilon,omitempty"`

	// messageSize makes epsilon the target per message of this size, as a whole number of octets with an optional suffix Ki,
	// Mi or Gi (128Mi is 134,217,728). Absent: epsilon is per block.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$') || quantity(self).compareTo(quantity('1024Gi')) <= 0",message="is over 1024Gi: write the size of one message, for instance 128Mi"
	MessageSize *string `json:"messageSize,omitempty"`

	// schemes in order of preference. The copy of single packets (Source Copy) is always there and is not listed. Scheme 1 of
	// the protocol, CauchyReedSolomon, is the one that every implementation has.
	// +optional
	// +default=["CauchyReedSolomon"]
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, t == s))",message="names a scheme twice: write each scheme once, the preferred one first"
	Schemes []Scheme `json:"schemes,omitempty"`

	// delivery is InOrder (packets after a gap wait until it is filled, at most maxHold) for receivers that answer a gap with a
	// NAK, or Immediate for receivers that take packets in any order.
	// +optional
	// +default="InOrder"
	Delivery Delivery `json:"delivery,omitempty"`

	// maxHold is the longest time that a packet waits for a gap before it, from 1ms to 2s. A little over one round trip allows
	// for one coded retransmission.
	// +optional
	// +default="50ms"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m))+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(ns|us|ms|s|m))+$') || (duration(self) >= duration('1ms') && duration(self) <= duration('2s'))",message="is not from 1ms to 2s: write a little over one round-trip time, for instance 50ms"
	MaxHold *metav1.Duration `json:"maxHold,omitempty"`

	// repairStrategy is Proactive (repair symbols are sent ahead of any loss) or OnDemand (only on request, for as long as that
	// meets epsilon: no overhead on a fairly clean path, one round trip for each loss).
	// +optional
	// +default="Proactive"
	RepairStrategy RepairStrategy `json:"repairStrategy,omitempty"`

	// lossModel is Independent (losses are independent of each other) or Empirical (the observed distribution of losses per
	// block; better on paths that lose in bursts).
	// +optional
	// +default="Independent"
	LossModel LossModel `json:"lossModel,omitempty"`

	// maxRepairRatio bounds the octets of repair of all kinds over the octets of source in any round-trip time, as a decimal
	// string over 0 and at most 1.
	// +optional
	// +default="0.25"
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[0-9]+([.][0-9]+)?([eE][-+]?[0-9]{1,3})?$') || (double(self) > 0.0 && double(self) <= 1.0)",message="is not over 0 and at most 1: write repair octets over source octets, for instance \"0.25\""
	MaxRepairRatio string `json:"maxRepairRatio,omitempty"`

	// spread sends the repair symbols of a block among the packets of the next one instead of all at once, so that one burst of
	// loss does not take a block and its repair.
	// +optional
	// +default=true
	Spread *bool `json:"spread,omitempty"`

	// selector chooses the flows that this profile takes, in every domain. Absent: only flows of domains that name this profile
	// in profileRef. Empty: every flow that no other profile's selector takes.
	// +optional
	Selector *FlowSelector `json:"selector,omitempty"`
}

// Scheme is a coding scheme.
//
// +kubebuilder:validation:Enum=CauchyReedSolomon;XOR
type Scheme string

// Coding schemes that a profile may name.
const (
	SchemeCauchyReedSolomon Scheme = "CauchyReedSolomon" // scheme 1 of the protocol
	SchemeXOR               Scheme = "XOR"               // scheme 2 of the protocol: one repair symbol a block
)

// Delivery says whether packets wait for a gap before them.
//
// +kubebuilder:validation:Enum=InOrder;Immediate
type Delivery string

// Ways of delivery.
const (
	DeliveryInOrder   Delivery = "InOrder"
	DeliveryImmediate Delivery = "Immediate"
)

// RepairStrategy says when repair symbols are sent.
//
// +kubebuilder:validation:Enum=Proactive;OnDemand
type RepairStrategy string

// Strategies of repair.
const (
	RepairProactive RepairStrategy = "Proactive"
	RepairOnDemand  RepairStrategy = "OnDemand"
)

// LossModel says how the number of repair symbols follows from the measured loss.
//
// +kubebuilder:validation:Enum=Independent;Empirical
type LossModel string

// Models of loss.
const (
	LossIndependent LossModel = "Independent"
	LossEmpirical   LossModel = "Empirical"
)

// FlowSelector chooses flows by their source and destination. All given criteria must hold. When several profiles take a flow,
// the most specific one wins: one that selects pods, then the one with the longest matching source prefix, then one that names
// destination sites, then the first by name.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podSelector) || ((!has(self.podSelector.matchLabels) || size(self.podSelector.matchLabels) <= 16) && (!has(self.podSelector.matchExpressions) || size(self.podSelector.matchExpressions) <= 16))",message="has more than 16 labels or expressions: write at most 16 of each",fieldPath=".podSelector"
// +kubebuilder:validation:XValidation:rule="!has(self.namespaceSelector) || ((!has(self.namespaceSelector.matchLabels) || size(self.namespaceSelector.matchLabels) <= 16) && (!has(self.namespaceSelector.matchExpressions) || size(self.namespaceSelector.matchExpressions) <= 16))",message="has more than 16 labels or expressions: write at most 16 of each",fieldPath=".namespaceSelector"
type FlowSelector struct {
	// podSelector takes flows whose source is a pod with these labels. An empty selector takes those of all pods.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// namespaceSelector takes flows whose source is a pod in a namespace with these labels. An empty selector takes those of all
	// namespaces.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// sourceCIDRs take flows whose source address is in one of these prefixes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	SourceCIDRs []CIDR `json:"sourceCIDRs,omitempty"`

	// destinationSites take flows to these sites.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	DestinationSites []SiteName `json:"destinationSites,omitempty"`
}

// CREMProfileStatus is what the operator found.
type CREMProfileStatus struct {
	// observedGeneration is the generation of spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Accepted, Ready, and Stalled while a person is needed.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CREMProfileList is a list of CREMProfile.
//
// +kubebuilder:object:root=true
type CREMProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CREMProfile `json:"items"`
}

// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CREMNode is one node's share of the domains, named as the node. The operator writes its spec, that node's agent its status;
// people read it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cnode,categories=crem
// +kubebuilder:printcolumn:name="Domains",type=string,JSONPath=`.spec.domains[*].name`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Agent",type=string,priority=1,JSONPath=`.status.agentVersion`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CREMNode struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the node should do, with every default and reference resolved. It has one writer and is one value to server-side apply.
	// +required
	// +structType=atomic
	Spec CREMNodeSpec `json:"spec"`
	// status is what the node's agent programmed. It holds no counter: those are metrics.
	// +optional
	Status CREMNodeStatus `json:"status,omitzero"`
}

// CREMNodeSpec is what internal/render makes of domains and profiles for one node. Every list is sorted where its order has no
// meaning, so that equal input gives equal text.
type CREMNodeSpec struct {
	// domains that the node takes part in.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Domains []NodeDomain `json:"domains,omitempty"`

	// profiles that the rules of the domains name, each once.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Profiles []NodeProfile `json:"profiles,omitempty"`
}

// NodeDomain is one domain as it concerns one node.
type NodeDomain struct {
	// name of the CREMDomain.
	// +required
	Name ObjectName `json:"name"`
	// port is the CREM port.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// site is the node's own entry in sites.
	// +required
	Site SiteName `json:"site"`
	// sites are all sites of the domain.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=16
	Sites []NodeSite `json:"sites"`
	// ipsec is the domain's protection against forged messages. An agent that does not know the mode protects nothing.
	// +required
	IPsec IPsec `json:"ipsec"`
	// reporters are the only senders whose PATH_REPORT messages are believed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Reporters []NodePrefix `json:"reporters,omitempty"`
	// reporter is what the node reports; absent: nothing. An agent that does not know the mode reports nothing.
	// +optional
	Reporter ReporterMode `json:"reporter,omitempty"`
	// transports are those whose flows are protected beside RoCEv2's, the port of veRoCE always written.
	// +optional
	Transports *Transports `json:"transports,omitempty"`
	// wan says which flows travel in tunnels; absent: none.
	// +optional
	WAN *NodeWAN `json:"wan,omitempty"`
	// uplinks are the interfaces that lead to the other sites; empty: the agent finds them by the routes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Uplinks []InterfaceName `json:"uplinks,omitempty"`
	// maxRepairBitsPerSecond bounds the node's repair traffic for this domain; 0: no bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000000000000
	MaxRepairBitsPerSecond int64 `json:"maxRepairBitsPerSecond,omitempty"`
	// rules in order: the first one that takes a flow names its profile. A flow that no rule takes is not protected.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Rules []NodeRule `json:"rules,omitempty"`
}

// NodeWAN is the tunnels of one domain.
type NodeWAN struct {
	// mode is how outer headers get their ECN field. An agent that does not know the mode makes no tunnel.
	// +required
	Mode WANMode `json:"mode"`
	// sites are the other sites that tunnels lead to.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Sites []SiteName `json:"sites"`
	// pathMTU is the largest IP packet that the paths between the gateways carry, in octets; 0: the MTU of the uplink.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9216
	PathMTU int32 `json:"pathMTU,omitempty"`
	// minBitsPerSecond is what congestion leaves every flow.
	// +required
	// +kubebuilder:validation:Minimum=1000000
	// +kubebuilder:validation:Maximum=1000000000000
	MinBitsPerSecond int64 `json:"minBitsPerSecond"`
	// queue is the thresholds of the uplink's queue by which outer headers are marked. Absent: none are.
	// +optional
	Queue *NodeWANQueue `json:"queue,omitempty"`
	// measurement is how the tunnels are measured; absent: they are not. An agent that does not know it measures nothing.
	// +optional
	Measurement WANMeasurement `json:"measurement,omitempty"`
}

// NodeWANQueue is the two thresholds of a queue, in octets.
//
// +kubebuilder:validation:XValidation:rule="self.severeOctets > self.earlyOctets",message="is not over earlyOctets",fieldPath=".severeOctets"
type NodeWANQueue struct {
	// earlyOctets is the average queue over which outer headers carry the early warning.
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=1073741824
	EarlyOctets int64 `json:"earlyOctets"`
	// severeOctets is the average queue over which they carry CE.
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=1073741824
	SevereOctets int64 `json:"severeOctets"`
}

// NodePrefix is a prefix in its canonical text. The operator writes it, so that the API server need not check it again.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=43
type NodePrefix string

// NodeAddress is an address in its canonical text.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=39
type NodeAddress string

// NodeSite is one site as a node knows it.
type NodeSite struct {
	// name of the site.
	// +required
	Name SiteName `json:"name"`
	// cidrs are the prefixes of the site's RDMA endpoints.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	CIDRs []NodePrefix `json:"cidrs"`
	// gateways are the addresses of the site's gateway nodes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Gateways []NodeAddress `json:"gateways,omitempty"`
}

// SourceKind says what the source of a flow is compared with.
//
// +kubebuilder:validation:Enum=Any;CIDRs;Pods
type SourceKind string

// Kinds of source.
const (
	SourceAny   SourceKind = "Any"   // every address of the own site
	SourceCIDRs SourceKind = "CIDRs" // the rule's own prefixes
	SourcePods  SourceKind = "Pods"  // the pods that the profile selects, within the rule's prefixes if it has any
)

// NodeRule takes flows for a profile.
type NodeRule struct {
	// profile is the name of an entry of spec.profiles.
	// +required
	Profile ObjectName `json:"profile"`
	// source says what the flow's source address is compared with.
	// +required
	Source SourceKind `json:"source"`
	// cidrs are the source prefixes of this rule.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	CIDRs []NodePrefix `json:"cidrs,omitempty"`
	// destinationSites are names of sites; empty: every other site.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	DestinationSites []SiteName `json:"destinationSites,omitempty"`
}

// NodeProfile is a CREMProfile with every value given.
type NodeProfile struct {
	// name of the CREMProfile.
	// +required
	Name ObjectName `json:"name"`
	// k is the number of packets that make a block.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	K int32 `json:"k"`
	// maxRepairSymbols is the most ordinary repair symbols of a block.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	MaxRepairSymbols int32 `json:"maxRepairSymbols"`
	// epsilon is the target for incomplete blocks or messages, as a decimal string.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	Epsilon string `json:"epsilon"`
	// messageOctets is the message size that epsilon is meant for; 0: epsilon is per block.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MessageOctets int64 `json:"messageOctets,omitempty"`
	// schemes in order of preference.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Schemes []Scheme `json:"schemes"`
	// delivery says whether packets wait for a gap before them.
	// +required
	Delivery Delivery `json:"delivery"`
	// maxHoldMicroseconds is the longest time that a packet waits.
	// +required
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=2000000
	MaxHoldMicroseconds int64 `json:"maxHoldMicroseconds"`
	// repairStrategy says when repair symbols are sent.
	// +required
	RepairStrategy RepairStrategy `json:"repairStrategy"`
	// lossModel says how the number of repair symbols follows from the measured loss.
	// +required
	LossModel LossModel `json:"lossModel"`
	// maxRepairRatio bounds repair octets over source octets, as a decimal string.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=20
	MaxRepairRatio string `json:"maxRepairRatio"`
	// spread sends repair symbols among the next block's packets.
	// +required
	Spread bool `json:"spread"`
}

// CREMNodeStatus is what the agent reports: what it programmed, never what it was told. Only when the agent's Lease is over, the operator sets the condition
// Ready to Unknown.
type CREMNodeStatus struct {
	// observedGeneration is the generation of spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// appliedGeneration is the generation that the data path obeys. It is read before applying.
	// +optional
	// +kubebuilder:validation:Minimum=0
	AppliedGeneration int64 `json:"appliedGeneration,omitempty"`
	// conditions: Programmed, DataPathHealthy, SecurityReady, Ready, Degraded.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// domains with their own results: one bad domain does not stop the others.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Domains []NodeItemStatus `json:"domains,omitempty"`
	// uplinks with their own results.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Uplinks []NodeUplinkStatus `json:"uplinks,omitempty"`
	// excluded are interfaces that lead to another site, that no domain names, and that are no uplinks, with the reason; the first 64 by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Excluded []NodeExcludedInterface `json:"excluded,omitempty"`
	// capabilities of the node's kernel, as the agent found them.
	// +optional
	Capabilities *NodeCapabilities `json:"capabilities,omitempty"`
	// memoryLimitBytes is the most that the packet path may hold.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemoryLimitBytes int64 `json:"memoryLimitBytes,omitempty"`
	// bootID of the node: another one means that the kernel's state is gone and everything was applied anew.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	BootID string `json:"bootID,omitempty"`
	// agentVersion of the agent that wrote this status.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	AgentVersion string `json:"agentVersion,omitempty"`
}

// NodeItemStatus is the result of one item of spec.
type NodeItemStatus struct {
	// name of the item.
	// +required
	Name ObjectName `json:"name"`
	// programmed says whether the data path obeys the item.
	// +required
	Programmed bool `json:"programmed"`
	// reason is one of the documented reasons.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// message says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// sites is a coarse view of the other sites towards which this node protects flows, rewritten at most once a minute. A site that is
	// not listed has no protected flow here.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Sites []SiteHealth `json:"sites,omitempty"`
}

// NodeUplinkStatus is the result of one uplink.
type NodeUplinkStatus struct {
	// name of the interface.
	// +required
	Name InterfaceName `json:"name"`
	// why this interface is an uplink.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Why string `json:"why,omitempty"`
	// attached says whether packets of this uplink are seen and restored.
	// +required
	Attached bool `json:"attached"`
	// reason is one of the documented reasons.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// message says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// mtu is the largest IP packet of the interface, in octets.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MTU int32 `json:"mtu,omitempty"`
}

// NodeExcludedInterface is an interface that might have been an uplink.
type NodeExcludedInterface struct {
	// name of the interface.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	Name string `json:"name"`
	// why it is no uplink, and what to write to take it, where that is possible.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Why string `json:"why"`
}

// NodeCapabilities says what the node's kernel can do for the data path.
type NodeCapabilities struct {
	// kernel release.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Kernel string `json:"kernel,omitempty"`
	// missing features and capabilities, each with its consequence.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=256
	Missing []string `json:"missing,omitempty"`
}

// CREMNodeList is a list of CREMNode.
//
// +kubebuilder:object:root=true
type CREMNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CREMNode `json:"items"`
}

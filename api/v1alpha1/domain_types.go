// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CREMDomain is one limited domain in the sense of RFC 8799: the sites of one operator, between which RDMA flows are protected.
// The same text is applied in the cluster of every site; only `site` differs.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cdom,categories=crem
// +kubebuilder:printcolumn:name="Site",type=string,JSONPath=`.spec.site`
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.spec.port`
// +kubebuilder:printcolumn:name="IPsec",type=string,JSONPath=`.spec.ipsec.mode`
// +kubebuilder:printcolumn:name="Nodes",type=string,description="Ready nodes of matched nodes",JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CREMDomain struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is what the domain should be.
	// +required
	Spec CREMDomainSpec `json:"spec"`
	// status is what the operator found. It holds no counter: those are metrics.
	// +optional
	Status CREMDomainStatus `json:"status,omitzero"`
}

// CREMDomainSpec describes the sites and how this cluster takes part.
//
// +kubebuilder:validation:XValidation:rule="self.sites.exists(s, s.name == self.site)",message="names no entry of spec.sites: write the name of this cluster's own site",fieldPath=".site"
// +kubebuilder:validation:XValidation:rule="!has(self.reporter) || self.reporter.mode != 'OwnDrops' || (has(self.reporters) && size(self.reporters) > 0)",message="reports to senders that believe nobody: write the addresses of the domain's nodes in spec.reporters",fieldPath=".reporter.mode"
// +kubebuilder:validation:XValidation:rule="!has(self.transports) || !has(self.transports.veroce) || (has(self.transports.veroce.port) ? self.transports.veroce.port : 4794) != self.port",message="is the port of veRoCE, too: write a free port from 49152 to 65535",fieldPath=".port"
// +kubebuilder:validation:XValidation:rule="!has(self.wan) || self.ipsec.mode != 'Required'",message="can not stand with ipsec.mode Required, which hides the flows from the tunnels: remove wan, or write BoundaryFiltered in spec.ipsec.mode",fieldPath=".wan"
// +kubebuilder:validation:XValidation:rule="!has(self.wan) || !has(self.wan.sites) || self.wan.sites.all(n, n != self.site && self.sites.exists(s, s.name == n))",message="names the own site, or none of spec.sites: write names of other sites",fieldPath=".wan.sites"
// +kubebuilder:validation:XValidation:rule="!has(self.wan) || self.sites.all(s, (has(s.gateways) && size(s.gateways) > 0) || (s.name != self.site && has(self.wan.sites) && size(self.wan.sites) > 0 && !self.wan.sites.exists(n, n == s.name)))",message="needs gateways at both ends of a tunnel: write gateways for the own site and for each site that wan leads to, or name in spec.wan.sites only sites that have some",fieldPath=".wan"
type CREMDomainSpec struct {
	// port is the CREM port: the UDP port of all CREM messages of the domain, the same at every site. There is no default, and
	// there must be no other service on it (Section 3 of the protocol). Choose one from 49152 to 65535; 4791 is RoCEv2 itself.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +kubebuilder:validation:XValidation:rule="self != 4791",message="is the port of RoCEv2 itself: write a free port from 49152 to 65535"
	Port int32 `json:"port"`

	// site is the name of this cluster's own entry in sites.
	// +required
	Site SiteName `json:"site"`

	// sites are all sites of the domain, the own one included. Flows between prefixes of two sites are protected.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=2
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="!self.all(s, s.cidrs.all(x, isCIDR(x))) || self.all(a, [a.cidrs.map(x, cidr(x))].all(ps, self.all(b, a.name >= b.name || !b.cidrs.exists(y, [cidr(y)].exists(q, ps.exists(p, p.containsCIDR(q) || q.containsCIDR(p)))))))",message="has a prefix of one site that overlaps a prefix of another: an address belongs to one site, write each prefix once and split the larger one"
	Sites []Site `json:"sites"`

	// ipsec says what protects the CREM messages and the protected flows from forgery (Section 11 of the protocol).
	// +required
	IPsec IPsec `json:"ipsec"`

	// reporters are the only senders whose PATH_REPORT messages are believed. Empty: none is.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Reporters []CIDR `json:"reporters,omitempty"`

	// reporter makes the nodes of the domain Path Reporters (Section 8.2 of the protocol). Absent: they report nothing.
	// +optional
	Reporter *Reporter `json:"reporter,omitempty"`

	// transports are those whose flows are protected beside RoCEv2's (Section 4.4 of the protocol). Absent: RoCEv2 alone. Write the same at every
	// site. What two domains on one node say of a transport must be the same.
	// +optional
	Transports *Transports `json:"transports,omitempty"`

	// wan carries the flows in tunnels between the gateways of the sites, whose outer headers tell two levels of congestion. Absent: the
	// flows leave as they are.
	// +optional
	WAN *WAN `json:"wan,omitempty"`

	// nodes says which nodes of this cluster stand on the paths between the sites. Absent: no node of the cluster. An agent
	// that runs without Kubernetes takes part in every domain that it is given.
	// +optional
	Nodes *DomainNodes `json:"nodes,omitempty"`

	// profileRef names the CREMProfile for flows that no profile's selector takes. Absent: such flows are not protected.
	// +optional
	ProfileRef *ProfileReference `json:"profileRef,omitempty"`
}

// Site is one data center.
type Site struct {
	// name of the site, the same in every cluster.
	// +required
	Name SiteName `json:"name"`

	// cidrs are the prefixes of the site's RDMA endpoints.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	CIDRs []CIDR `json:"cidrs"`

	// gateways are the addresses of the site's gateway nodes: a handshake goes to each of them, and the one on the flow's path
	// answers. Empty: the handshake goes to the flow's destination address and is taken on the path.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Gateways []Address `json:"gateways,omitempty"`
}

// IPsecMode says what protects a domain from forged messages.
//
// +kubebuilder:validation:Enum=Required;BoundaryFiltered
type IPsecMode string

const (
	// IPsecRequired means that no flow is protected, and no handshake sent or answered, unless kernel XFRM policies cover the CREM port
	// and the protected flow in both directions.
	IPsecRequired IPsecMode = "Required"
	// IPsecBoundaryFiltered means that the domain's boundary drops datagrams to the CREM port that come from outside; every agent does
	// so on its uplinks as well.
	IPsecBoundaryFiltered IPsecMode = "BoundaryFiltered"
)

// IPsec says what protects a domain from forged messages.
type IPsec struct {
	// mode is Required (IPsec ESP, checked by every agent) or BoundaryFiltered (the domain's boundary keeps foreign datagrams
	// out). There is no default: the protocol asks for one of the two, and which one is true is not for software to guess.
	// +required
	Mode IPsecMode `json:"mode"`
}

// ReporterMode says what the nodes of a domain report.
//
// +kubebuilder:validation:Enum=Off;OwnDrops
type ReporterMode string

const (
	// ReporterOff means that nodes report nothing.
	ReporterOff ReporterMode = "Off"
	// ReporterOwnDrops means that nodes report what their own uplinks dropped.
	ReporterOwnDrops ReporterMode = "OwnDrops"
)

// Reporter says what the nodes of a domain report to the senders of the protected flows.
type Reporter struct {
	// mode is OwnDrops (each node reports what the queues and interfaces of its uplinks dropped, as each flow's part of it, so that the
	// sender does not take congestion for a bad path) or Off. The nodes' own addresses must be in reporters.
	// +required
	Mode ReporterMode `json:"mode"`
}

// WANMode is how outer headers get their ECN field.
//
// +kubebuilder:validation:Enum=Normal;Compatibility
type WANMode string

const (
	// WANNormal means that the outer field follows the inner one (RFC 6040, normal mode).
	WANNormal WANMode = "Normal"
	// WANCompatibility means that outer headers are always Not-ECT (RFC 6040, compatibility mode): the WAN can not mark them.
	WANCompatibility WANMode = "Compatibility"
)

// L4S says whether L4S is in use.
//
// +kubebuilder:validation:Enum=Absent;Present
type L4S string

const (
	// L4SAbsent means that nothing on the paths sends or marks L4S traffic.
	L4SAbsent L4S = "Absent"
	// L4SPresent means that something does.
	L4SPresent L4S = "Present"
)

// WANMeasurement says how the tunnels are measured.
//
// +kubebuilder:validation:Enum=Off;AlternateMarking
type WANMeasurement string

const (
	// WANMeasurementOff means that the outer DSCP is the inner one, and nothing is counted.
	WANMeasurementOff WANMeasurement = "Off"
	// WANMeasurementAlternateMarking means that the lowest bit of the outer DSCP changes every second, and that both ends count by it (RFC 9341).
	WANMeasurementAlternateMarking WANMeasurement = "AlternateMarking"
)

// WAN says how the flows travel between the sites.
//
// +kubebuilder:validation:XValidation:rule="!has(self.queue) || self.mode != 'Compatibility'",message="can not stand with mode Compatibility, where outer headers can not be marked: write Normal in spec.wan.mode, or remove queue",fieldPath=".queue"
type WAN struct {
	// mode is Normal, where the WAN marks outer headers, or Compatibility, where it must not.
	// +required
	Mode WANMode `json:"mode"`

	// l4s says whether L4S traffic or L4S marking is on the paths between the sites. Only Absent is possible: ECT(1) is the early warning of
	// the tunnels, and the identifier of L4S. There is no default, because software can not see it.
	// +required
	// +kubebuilder:validation:XValidation:rule="self != 'Present'",message="excludes tunnels, since ECT(1) would mean two things: turn L4S off on the paths between the sites and write Absent, or remove spec.wan"
	L4S L4S `json:"l4s"`

	// sites are the other sites that tunnels lead to. Empty: every other site.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Sites []SiteName `json:"sites,omitempty"`

	// pathMTU is the largest IP packet that the paths between the gateways carry, in octets. A tunnel opens only after a packet of this size has
	// come through it; flows with packets that do not fit under their outer header stay outside. Absent: the MTU of the uplink.
	// +optional
	// +kubebuilder:validation:Minimum=1280
	// +kubebuilder:validation:Maximum=9216
	PathMTU *int32 `json:"pathMTU,omitempty"`

	// minRate is what congestion leaves every flow in its tunnel, in bits per second, as a whole number with an optional suffix k, M, G or T.
	// Absent: 8M.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,14}[kMGT]?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]{0,14}[kMGT]?$') || (quantity(self).compareTo(quantity('1M')) >= 0 && quantity(self).compareTo(quantity('1T')) <= 0)",message="is not from 1M to 1T: write the bits per second that every flow keeps, for instance 8M"
	MinRate *string `json:"minRate,omitempty"`

	// queue has gateways mark what they put into tunnels by the queue of their own uplink, which no router behind it can see. For an uplink that
	// shapes to the rate of the line. Absent: nothing is marked by it.
	// +optional
	Queue *WANQueue `json:"queue,omitempty"`

	// measurement is AlternateMarking, if the gateways should measure what each flow loses in the tunnels, and how the delay of each direction changes,
	// or Off. For it the lowest bit of the outer DSCP changes every second: the routers between the gateways must treat both values alike, and leave
	// the DSCP as it is. Write the same at every site. Absent: Off.
	// +optional
	Measurement WANMeasurement `json:"measurement,omitempty"`
}

// WANQueue is the two thresholds of an uplink's queue, averaged so that bursts do not count. Sizes are whole numbers of octets with an optional suffix
// Ki, Mi or Gi.
//
// +kubebuilder:validation:XValidation:rule="!self.early.matches('^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$') || !self.severe.matches('^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$') || quantity(self.severe).compareTo(quantity(self.early)) > 0",message="is not over early: write a longer queue than that of early, for instance four times it",fieldPath=".severe"
type WANQueue struct {
	// early is the average queue over which outer headers carry the early warning, which stays inside the domain: the more often the longer the
	// queue is. What waits is octets over rate: 256Ki are 2 ms at 1 Gbit/s.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$') || (quantity(self).compareTo(quantity('1Ki')) >= 0 && quantity(self).compareTo(quantity('1Gi')) <= 0)",message="is not from 1Ki to 1Gi: write the octets that may wait before anybody is warned, for instance 256Ki"
	Early string `json:"early"`

	// severe is the average queue over which outer headers carry CE, which reaches the endpoints. It is over early.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$') || (quantity(self).compareTo(quantity('1Ki')) >= 0 && quantity(self).compareTo(quantity('1Gi')) <= 0)",message="is not from 1Ki to 1Gi: write the octets that may wait before the endpoints are told, for instance 1Mi"
	Severe string `json:"severe"`
}

// DomainNodes says which nodes and interfaces take part.
//
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || ((!has(self.selector.matchLabels) || size(self.selector.matchLabels) <= 16) && (!has(self.selector.matchExpressions) || size(self.selector.matchExpressions) <= 16))",message="has more than 16 labels or expressions: write at most 16 of each",fieldPath=".selector"
type DomainNodes struct {
	// selector chooses nodes by label. An empty selector chooses all nodes, an absent one none.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// uplinks are the interfaces that lead to the other sites. Empty: the interfaces over which the node routes to the other
	// sites' prefixes.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	Uplinks []InterfaceName `json:"uplinks,omitempty"`

	// maxRepairBandwidth bounds the repair traffic of one node for this domain, in bits per second, as a whole number with an
	// optional suffix k, M, G or T (10G is 10,000,000,000). Absent: only each flow's own bounds apply.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,14}[kMGT]?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[1-9][0-9]{0,14}[kMGT]?$') || quantity(self).compareTo(quantity('100T')) <= 0",message="is over 100T: write the bits per second that repair traffic of one node may use, for instance 10G"
	MaxRepairBandwidth *string `json:"maxRepairBandwidth,omitempty"`
}

// ProfileReference names a CREMProfile.
type ProfileReference struct {
	// name of the CREMProfile.
	// +required
	Name ObjectName `json:"name"`
}

// CREMDomainStatus is the operator's summary over all nodes.
type CREMDomainStatus struct {
	// observedGeneration is the generation of spec that this status speaks of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Accepted, Rendered, Programmed, Ready, and Stalled while a person is needed.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// nodes counts the nodes of the domain by state.
	// +optional
	Nodes *DomainNodeCounts `json:"nodes,omitempty"`

	// failingNodes names at most 10 nodes that are not ready, and why.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=10
	FailingNodes []FailingNode `json:"failingNodes,omitempty"`

	// sites is a coarse view of each other site, rewritten at most once a minute.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Sites []SiteHealth `json:"sites,omitempty"`
}

// DomainNodeCounts counts the nodes of a domain. A node is counted in each state that it is in.
type DomainNodeCounts struct {
	// matched nodes are chosen by the selector.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Matched int32 `json:"matched"`
	// programmed nodes obey the newest generation.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Programmed int32 `json:"programmed"`
	// ready nodes protect traffic.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Ready int32 `json:"ready"`
	// degraded nodes work with less than they could.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Degraded int32 `json:"degraded"`
	// summary is ready/matched, for the table of kubectl get.
	// +optional
	// +kubebuilder:validation:MaxLength=23
	Summary string `json:"summary,omitempty"`
}

// FailingNode is one node that is not ready.
type FailingNode struct {
	// name of the node.
	// +required
	Name ObjectName `json:"name"`
	// reason is that of the node's Ready condition.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Reason string `json:"reason"`
	// message is that of the node's Ready condition, cut to 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// LossClass is a coarse class of packet loss before restoration.
//
// +kubebuilder:validation:Enum=None;Low;Medium;High;Unknown
type LossClass string

// Classes of loss.
const (
	LossNone    LossClass = "None"    // below 0.001 %
	LossLow     LossClass = "Low"     // below 0.1 %
	LossMedium  LossClass = "Medium"  // below 2 %
	LossHigh    LossClass = "High"    // 2 % and more
	LossUnknown LossClass = "Unknown" // no report yet
)

// SiteHealth is a coarse view of the path to one other site.
type SiteHealth struct {
	// name of the site.
	// +required
	Name SiteName `json:"name"`
	// flows that are protected towards the site, over all nodes of the domain or of one CREMNode, rounded to two significant digits. A change of
	// less than a tenth is not shown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Flows int32 `json:"flows"`
	// loss is the class of packet loss before restoration; of a domain, the worst of its nodes. It gets better when the loss is below half of the class's border.
	// +required
	Loss LossClass `json:"loss"`
	// rttMilliseconds is the smoothed round-trip time, of a domain the median over its flows, rounded up to at most two significant digits. A change of
	// less than a tenth or a millisecond is not shown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RTTMilliseconds int32 `json:"rttMilliseconds,omitempty"`
	// repairsSuspended says that flows towards the site are left to RDMA, because more than a tenth of their packets is lost or more than half is marked: no
	// repairs are sent for them until that has been over for ten seconds (Section 10 of the protocol). It is shown at once; that it is over, within a minute.
	// +optional
	RepairsSuspended bool `json:"repairsSuspended,omitempty"`
}

// CREMDomainList is a list of CREMDomain.
//
// +kubebuilder:object:root=true
type CREMDomainList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CREMDomain `json:"items"`
}

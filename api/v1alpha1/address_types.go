// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// CIDR is an IPv4 or IPv6 prefix in the form address/length, with no host bit set and a length of at least 1.
//
// IPv4-mapped IPv6 (::ffff:10.1.0.0/112) is refused: the data path compares packets of either family with the family that they
// are sent in, and such a prefix would match nothing while it seems to match IPv4.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="is not a prefix: write one such as 10.1.0.0/16 or fd00:1::/32; an IPv4-mapped prefix is written as plain IPv4"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).masked() == cidr(self)",message="has host bits set: write the network's own address, for instance 10.1.0.0/16 and not 10.1.2.3/16"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).prefixLength() > 0",message="takes every address: write the prefixes that the addresses really come from"
type CIDR string

// Address is a unicast IPv4 or IPv6 address without zone.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=39
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="is not an address: write one such as 192.0.2.1 or 2001:db8::1, without zone; an IPv4-mapped address is written as plain IPv4"
// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="can not be reached from another site: write a unicast address that is neither loopback nor link-local"
type Address string

// SiteName names one site of a domain.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
type SiteName string

// InterfaceName is the name of a network interface of the node.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=15
// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._@-]+$`
// +kubebuilder:validation:XValidation:rule="self != 'lo'",message="is the loopback interface, which leads to no other site: write the name of an uplink, or leave uplinks empty"
type InterfaceName string

// ObjectName is the name of another object of this group.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
type ObjectName string

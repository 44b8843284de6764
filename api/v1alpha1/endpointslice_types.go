// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProfileLabel is the label of a CREMEndpointSlice that names the CREMProfile whose selector chose its addresses. Agents watch slices by it.
const ProfileLabel = GroupName + "/profile"

// MaxSliceAddresses is the most addresses that one CREMEndpointSlice holds.
const MaxSliceAddresses = 500

// CREMEndpointSlice holds addresses of pods that one CREMProfile selects, those of secondary networks included. The operator writes it, agents
// read it, people seldom need it. A profile has as many slices as its addresses need.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=cslice,categories=crem
// +kubebuilder:printcolumn:name="Profile",type=string,JSONPath=`.profile`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CREMEndpointSlice struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// profile is the name of the CREMProfile whose selector chose the addresses.
	// +required
	Profile ObjectName `json:"profile"`
	// addresses of pods, in canonical text.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=500
	Addresses []NodeAddress `json:"addresses,omitempty"`
}

// CREMEndpointSliceList is a list of CREMEndpointSlice.
//
// +kubebuilder:object:root=true
type CREMEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []CREMEndpointSlice `json:"items"`
}

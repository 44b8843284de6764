// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"hash/fnv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProfileLabel is the label of a CREMEndpointSlice that names the CREMProfile whose selector chose its addresses, as ProfileLabelValue gives it.
// Agents watch slices by it.
const ProfileLabel = GroupName + "/profile"

// ProfileLabelValue gives the value of ProfileLabel for a profile: its name, or, as a label holds no more than 63 characters, the beginning of a
// long name with a digest of it.
func ProfileLabelValue(profile string) string {
	const most = 63
	if len(profile) <= most {
		return profile
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(profile))
	return fmt.Sprintf("%s-%016x", strings.TrimRight(profile[:most-17], "-."), h.Sum64())
}

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

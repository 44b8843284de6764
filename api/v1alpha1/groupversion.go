// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds of this group.
const (
	KindDomain        = "CREMDomain"
	KindProfile       = "CREMProfile"
	KindNode          = "CREMNode"
	KindEndpointSlice = "CREMEndpointSlice"
)

// GroupName is the group of this package's kinds.
const GroupName = "crem.dev"

// GroupVersion is the group and version of this package's kinds.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// SchemeGroupVersion is GroupVersion by the name that generated code has for it.
var SchemeGroupVersion = GroupVersion

var schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme registers this package's kinds, for clients that decode them by kind.
var AddToScheme = schemeBuilder.AddToScheme

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&CREMDomain{}, &CREMDomainList{},
		&CREMProfile{}, &CREMProfileList{},
		&CREMNode{}, &CREMNodeList{},
		&CREMEndpointSlice{}, &CREMEndpointSliceList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

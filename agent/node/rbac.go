// SPDX-License-Identifier: Apache-2.0

package node

// What an agent may do on the API server. A ValidatingAdmissionPolicy narrows writes to the objects of its own node.
//
// +kubebuilder:rbac:groups=crem.dev,resources=cremnodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=crem.dev,resources=cremnodes/status,verbs=get;patch
// +kubebuilder:rbac:groups=crem.dev,resources=cremendpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=crem-system,resources=leases,verbs=get;create;patch

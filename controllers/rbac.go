// SPDX-License-Identifier: Apache-2.0

package controllers

// What the operator reads and watches.
//
//+kubebuilder:rbac:groups="",resources=nodes;namespaces;pods,verbs=get;list;watch
//+kubebuilder:rbac:groups=crem.dev,resources=cremdomains;cremprofiles,verbs=get;list;watch
//
// What it writes: shares of nodes and addresses of pods, its own statuses, and that an agent does not report; never a spec that a person wrote. The subresource finalizers is
// what the admission plug-in OwnerReferencesPermissionEnforcement asks for where it is on.
//
//+kubebuilder:rbac:groups=crem.dev,resources=cremnodes;cremendpointslices,verbs=get;list;watch;create;patch;delete
//+kubebuilder:rbac:groups=crem.dev,resources=cremdomains/status;cremprofiles/status;cremnodes/status,verbs=get;patch
//+kubebuilder:rbac:groups=crem.dev,resources=cremprofiles/finalizers,verbs=update
//
// Events are about cluster-scoped objects, so they are written to the namespace default.
//
//+kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch,namespace=default
//
// In its own namespace: the Leases of the agents, which it reads and removes with the nodes, and its own for the election of a leader,
// whose events client-go writes in the old group.
//
//+kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;update;patch;delete,namespace=crem-system
//+kubebuilder:rbac:groups="";events.k8s.io,resources=events,verbs=create;patch,namespace=crem-system

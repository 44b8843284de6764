// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	crem "crem.dev/crem/api/v1alpha1/applyconfiguration/api/v1alpha1"
)

// asOperator applies as the operator's field manager. Force: these fields are the operator's, whoever wrote them before.
const asOperator = client.FieldOwner(v1alpha1.FieldManagerOperator)

// configuration turns a value of the API into its apply configuration. Both have the same JSON, and every field of ours without omitempty is meant
// to be written, zero or not.
func configuration[To any](from any) (*To, error) {
	raw, err := json.Marshal(from)
	if err != nil {
		return nil, fmt.Errorf("make an apply configuration: %w", err)
	}
	to := new(To)
	if err := json.Unmarshal(raw, to); err != nil {
		return nil, fmt.Errorf("make an apply configuration: %w", err)
	}
	return to, nil
}

// nodeConfiguration is everything that the operator says of a CREMNode. With the UID of a present object the API server refuses to create
// another one in its place.
func nodeConfiguration(name string, in *nodeIntent) (*crem.CREMNodeApplyConfiguration, error) {
	spec, err := configuration[crem.CREMNodeSpecApplyConfiguration](in.spec)
	if err != nil {
		return nil, err
	}
	c := crem.CREMNode(name).WithSpec(spec)
	if in.present != "" {
		c.WithUID(in.present)
	}
	if in.owner != "" {
		c.WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion("v1").WithKind("Node").WithName(name).WithUID(in.owner))
	}
	if !in.unusedSince.IsZero() {
		c.WithAnnotations(map[string]string{v1alpha1.UnusedSinceAnnotation: in.unusedSince.UTC().Format(time.RFC3339)})
	}
	return c, nil
}

// ownerNode gives the UID of the Node that owns the object, empty if none or several do.
func ownerNode(refs []metav1.OwnerReference) types.UID {
	var owner types.UID
	for _, ref := range refs {
		if ref.Kind != "Node" || ref.APIVersion != "v1" {
			continue
		}
		if owner != "" {
			return ""
		}
		owner = ref.UID
	}
	return owner
}

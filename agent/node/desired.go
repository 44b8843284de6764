// SPDX-License-Identifier: Apache-2.0

package node

import (
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/agent/engine"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// Desired is what one node should do, as it was read at one time: a copy, so that nothing that is read later can change what is reported as applied.
type Desired struct {
	Node       string                `json:"node"`
	UID        types.UID             `json:"uid,omitempty"`        // of the CREMNode; empty: there is none
	Generation int64                 `json:"generation,omitempty"` // of its spec
	Spec       v1alpha1.CREMNodeSpec `json:"spec"`
	// Pods are the addresses that the profiles of rules with pods select, each list sorted.
	Pods map[v1alpha1.ObjectName][]v1alpha1.NodeAddress `json:"pods,omitempty"`
}

// podProfiles are the profiles whose pods the rules of a spec ask for, sorted.
func podProfiles(spec *v1alpha1.CREMNodeSpec) []v1alpha1.ObjectName {
	var names []v1alpha1.ObjectName
	for i := range spec.Domains {
		for _, r := range spec.Domains[i].Rules {
			if r.Source == v1alpha1.SourcePods {
				names = append(names, r.Profile)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// desire joins a CREMNode, which may be nil, and the slices of its profiles.
func desire(name string, n *v1alpha1.CREMNode, endpoints []*v1alpha1.CREMEndpointSlice) *Desired {
	d := &Desired{Node: name}
	if n == nil {
		return d
	}
	d.UID, d.Generation, d.Spec = n.UID, n.Generation, *n.Spec.DeepCopy()
	for _, profile := range podProfiles(&d.Spec) {
		if d.Pods == nil {
			d.Pods = map[v1alpha1.ObjectName][]v1alpha1.NodeAddress{}
		}
		var list []v1alpha1.NodeAddress
		for _, s := range endpoints {
			if s.Profile == profile {
				list = append(list, s.Addresses...)
			}
		}
		slices.Sort(list)
		d.Pods[profile] = slices.Compact(list)
	}
	return d
}

// digest is equal for what asks for the same of the data path and is reported under the same generation.
func (d *Desired) digest() [sha256.Size]byte {
	raw, _ := json.Marshal(d) // plain values: it can not fail
	return sha256.Sum256(raw)
}

// config makes what packet workers obey.
func (d *Desired) config() (*engine.Config, []render.Problem) {
	pods := map[v1alpha1.ObjectName]*engine.Pods{}
	for profile, list := range d.Pods {
		addresses := make([]netip.Addr, 0, len(list))
		for _, text := range list {
			if a, err := netip.ParseAddr(string(text)); err == nil && a.Zone() == "" {
				addresses = append(addresses, a.Unmap())
			}
		}
		pods[profile] = engine.NewPods(addresses)
	}
	return convert(&d.Spec, d.Generation, pods)
}

// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
)

// ProfileDefaults is the spec of a CREMProfile that says nothing: the same values that the CRD sets (test/crd compares them).
func ProfileDefaults() v1alpha1.CREMProfileSpec {
	spread := true
	return v1alpha1.CREMProfileSpec{
		K:                32,
		MaxRepairSymbols: 8,
		Epsilon:          "1e-4",
		Schemes:          []v1alpha1.Scheme{v1alpha1.SchemeCauchyReedSolomon},
		Delivery:         v1alpha1.DeliveryInOrder,
		MaxHold:          &metav1.Duration{Duration: 50 * time.Millisecond},
		RepairStrategy:   v1alpha1.RepairProactive,
		LossModel:        v1alpha1.LossIndependent,
		MaxRepairRatio:   "0.25",
		Spread:           &spread,
	}
}

// defaultProfile sets every absent field of a profile's spec that has a default. It works on the tree, not on the type, because
// only there an absent field differs from one that is written as 0 or "".
func defaultProfile(tree map[string]any) {
	spec, ok := tree["spec"].(map[string]any)
	if !ok {
		return
	}
	raw, err := json.Marshal(ProfileDefaults())
	if err != nil {
		return
	}
	defaults, _ := parseJSON(raw).(map[string]any)
	for key, value := range defaults {
		if _, there := spec[key]; !there {
			spec[key] = value
		}
	}
}

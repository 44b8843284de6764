// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/controllers"
)

// ruleRow is one row of internal/render/testdata/rules.yaml.
type ruleRow struct {
	Rule, Kind string
	Spec       map[string]any
	Many       *struct {
		Field  string
		Count  int
		Format string
	}
	Field, Says, CRD string
}

// TestWrongManifestsAreRefused sends every manifest of the table of rules and some of its own to the real API server: each wrong one is refused with a
// sentence, or accepted and then shown with one in its conditions, and nothing else changes; each right one is taken. Every rule of the CRDs is seen to do both.
func TestWrongManifestsAreRefused(t *testing.T) {
	clean(t)
	r := start(t, quick())
	create(t, profile("bystander"), domain("bystander-domain", 50000, "wan0", labelled("gw", "1")), node("n1", "gw=1"))
	within(t, patience, wantDomains(t, "n1", "bystander-domain"))
	r.settle(t)
	before, writes := snapshot(t), len(r.written())

	raw, err := os.ReadFile(repository("internal", "render", "testdata", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Bases map[string]map[string]any
		Rows  []ruleRow
	}
	if err := yaml.UnmarshalStrict(raw, &table); err != nil {
		t.Fatal(err)
	}
	table.Rows = append(table.Rows, moreWrong()...)
	table.Bases[v1alpha1.KindNode] = wrongNode()
	cover := coverage{refusals: map[string]string{}, taken: map[string]bool{}}
	refused := 0
	for _, row := range table.Rows {
		obj := row.build(t, table.Bases)
		if row.Says == "" {
			cover.take(row.Kind, obj.Object)
			if err := api.Create(t.Context(), obj, client.FieldValidation(metav1.FieldValidationStrict), client.DryRunAll); err != nil {
				t.Errorf("%s: %v", row.Rule, err)
			}
			continue
		}
		if row.CRD == "accepts" {
			continue
		}
		err := api.Create(t.Context(), obj, client.FieldValidation(metav1.FieldValidationStrict))
		switch {
		case err == nil:
			t.Errorf("%s: accepted", row.Rule)
			_ = api.Delete(t.Context(), obj)
		case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
			t.Errorf("%s: %v", row.Rule, err)
		case row.CRD == "" && !strings.Contains(err.Error(), row.Says):
			t.Errorf("%s: says %v\nnot %s", row.Rule, err, row.Says)
		case !strings.Contains(err.Error(), "spec") && !strings.Contains(err.Error(), "metadata") && row.CRD != "schema":
			t.Errorf("%s: names no field: %v", row.Rule, err)
		}
		refused++
		cover.refusals[row.Kind] += fmt.Sprintln(err)
	}
	for _, uplink := range []string{"wan0", "lo"} { // the one rule of a status, which is written by itself
		status := map[string]any{"uplinks": []any{map[string]any{"name": uplink, "attached": true, "reason": v1alpha1.ReasonApplied}}}
		patch, _ := json.Marshal(map[string]any{"status": status})
		n := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		err := api.Status().Patch(t.Context(), n, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
		if (err == nil) != (uplink == "wan0") {
			t.Errorf("uplink %s of a status: %v", uplink, err)
		}
		if err == nil {
			cover.take(v1alpha1.KindNode+".status", status)
		}
	}
	cover.check(t)
	t.Logf("%d wrong manifests refused", refused)
	if refused < 40 {
		t.Errorf("only %d wrong manifests", refused)
	}
	r.settle(t)
	if after := snapshot(t); !maps.Equal(before, after) || len(r.written()) != writes {
		t.Errorf("something else changed: %v\n%v\n%v", before, after, r.written()[writes:])
	}

	// What no schema can refuse is accepted, and a condition says what to write: within 2 s, of which the operator's own delays take half.
	if d := controllers.Defaults(namespace); d.StatusQuiet > time.Second {
		t.Errorf("a condition is shown %v after the object", d.StatusQuiet)
	}
	for _, row := range table.Rows {
		if row.CRD != "accepts" {
			continue
		}
		obj := row.build(t, table.Bases)
		if err := api.Create(t.Context(), obj, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
			t.Errorf("%s: %v", row.Rule, err)
			continue
		}
		within(t, patience, func() error {
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
				return err
			}
			list, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
			text, _ := json.Marshal(list)
			if !strings.Contains(string(text), "InvalidSpec") || !strings.Contains(string(text), "Stalled") {
				return fmt.Errorf("%s: %s", row.Rule, text)
			}
			return nil
		})
		remove(t, obj)
	}
}

// snapshot gives everything that could change.
func snapshot(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, list := range []client.ObjectList{&v1alpha1.CREMDomainList{}, &v1alpha1.CREMProfileList{}, &v1alpha1.CREMNodeList{}, &v1alpha1.CREMEndpointSliceList{}} {
		if err := api.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		var with struct {
			Items []any `json:"items"`
		}
		if err := json.Unmarshal(raw, &with); err != nil {
			t.Fatal(err)
		}
		items, _ := json.Marshal(with.Items)
		all[fmt.Sprintf("%T", list)] = string(items)
	}
	return all
}

// build makes the manifest of a row: a merge of its patch into the base of its kind.
func (r ruleRow) build(t *testing.T, bases map[string]map[string]any) *unstructured.Unstructured {
	t.Helper()
	raw, err := json.Marshal(bases[r.Kind])
	if err != nil {
		t.Fatal(err)
	}
	obj := map[string]any{}
	if err := json.Unmarshal(raw, &obj); err != nil {
		t.Fatal(err)
	}
	spec, _ := obj["spec"].(map[string]any)
	merge(spec, r.Spec)
	if m := r.Many; m != nil {
		var list []any
		for i := range m.Count {
			list = append(list, fmt.Sprintf(m.Format, i))
		}
		spec[m.Field] = list
	}
	return &unstructured.Unstructured{Object: obj}
}

// merge is a JSON merge patch, but null stays: it must be refused as the API server does.
func merge(into, patch map[string]any) {
	for key, value := range patch {
		sub, isMap := value.(map[string]any)
		have, had := into[key].(map[string]any)
		if isMap && had {
			merge(have, sub)
		} else {
			into[key] = value
		}
	}
}

// wrongNode is a CREMNode as an operator might write it, without tunnels.
func wrongNode() map[string]any {
	domain := map[string]any{"name": "d", "port": 52000, "site": "east", "ipsec": map[string]any{"mode": "BoundaryFiltered"},
		"sites": []any{map[string]any{"name": "east", "cidrs": []any{"10.1.0.0/16"}}, map[string]any{"name": "west", "cidrs": []any{"10.2.0.0/16"}}}}
	return map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindNode, "metadata": map[string]any{"name": "gw1"}, "spec": map[string]any{"domains": []any{domain}}}
}

// moreWrong are manifests that only a real server can be asked about, and forms that people get wrong.
func moreWrong() []ruleRow {
	sites := func(cidrs ...any) map[string]any {
		return map[string]any{"sites": []any{map[string]any{"name": "east", "cidrs": cidrs}, map[string]any{"name": "west", "cidrs": []any{"10.2.0.0/16"}}}}
	}
	node := func(field string, value any) map[string]any {
		domain := maps.Clone(wrongNode()["spec"].(map[string]any)["domains"].([]any)[0].(map[string]any))
		domain[field] = value
		return map[string]any{"domains": []any{domain}}
	}
	tunnels := func(severe int) map[string]any {
		return node("wan", map[string]any{"mode": "Normal", "sites": []any{"west"}, "minBitsPerSecond": 8000000, "queue": map[string]any{"earlyOctets": 2048, "severeOctets": severe}})
	}
	// Every field of a node's share that has a rule, as it should be.
	whole := node("uplinks", []any{"wan0"})
	whole["domains"].([]any)[0].(map[string]any)["wan"] = tunnels(4096)["domains"].([]any)[0].(map[string]any)["wan"]
	whole["domains"].([]any)[0].(map[string]any)["transports"] = map[string]any{"veroce": map[string]any{"port": 4794, "sackOpcode": 24, "responseACKOpcode": 25, "responseSACKOpcode": 26}}
	return []ruleRow{
		{Rule: "a whole CREMNode", Kind: v1alpha1.KindNode, Spec: whole},
		{Rule: "severe of a CREMNode not over early", Kind: v1alpha1.KindNode, Spec: tunnels(2048), Says: "is not over earlyOctets"},
		{Rule: "uplink of a CREMNode is loopback", Kind: v1alpha1.KindNode, Spec: node("uplinks", []any{"lo"}), Says: "is the loopback interface"},
		{Rule: "veRoCE of a CREMNode on the port of RoCEv2", Kind: v1alpha1.KindNode, Spec: node("transports", map[string]any{"veroce": map[string]any{"port": 4791}}), Says: "is the port of RoCEv2"},
		{Rule: "opcode of a CREMNode that is taken", Kind: v1alpha1.KindNode, Spec: node("transports", map[string]any{"veroce": map[string]any{"port": 4794, "sackOpcode": 28}}), Says: "is taken by RoCEv2"},
		{Rule: "opcodes of a CREMNode twice", Kind: v1alpha1.KindNode, Spec: node("transports", map[string]any{"veroce": map[string]any{"port": 4794, "sackOpcode": 24, "responseACKOpcode": 24}}), Says: "has one opcode for two kinds"},
		{Rule: "full-width digits in a prefix", Kind: v1alpha1.KindDomain, Spec: sites("１0.1.0.0/16"), Says: "is not a prefix: write one"},
		{Rule: "Arabic digits in a prefix", Kind: v1alpha1.KindDomain, Spec: sites("10.1.0.0/١٦"), Says: "is not a prefix: write one"},
		{Rule: "a dot that is none", Kind: v1alpha1.KindDomain, Spec: sites("10.1。" + "0.0/16"), Says: "is not a prefix: write one"},
		{Rule: "a blank after a prefix", Kind: v1alpha1.KindDomain, Spec: sites("10.1.0.0/16 "), Says: "is not a prefix: write one"},
		{Rule: "mapped prefix in hexadecimal", Kind: v1alpha1.KindDomain, Spec: sites("::ffff:a01:0/112"), Says: "an IPv4-mapped prefix is written as plain IPv4"},
		{Rule: "prefix with zone", Kind: v1alpha1.KindDomain, Spec: sites("fe80::%eth0/64"), Says: "is not a prefix: write one"},
		{Rule: "the other sites' prefix in a longer form", Kind: v1alpha1.KindDomain, Spec: sites("10.2.0.0/15"), Says: "overlaps a prefix of another"},
		{Rule: "unknown field of the spec", Kind: v1alpha1.KindDomain, Spec: map[string]any{"prot": 52000}, Says: "unknown field \"spec.prot\""},
		{Rule: "unknown field far inside", Kind: v1alpha1.KindProfile, Spec: map[string]any{"selector": map[string]any{"podSelctor": map[string]any{}}}, Says: "unknown field \"spec.selector.podSelctor\""},
	}
}

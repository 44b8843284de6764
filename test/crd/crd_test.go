// SPDX-License-Identifier: Apache-2.0

// Package crd holds the generated CRDs against the API server's own validation: they are structural, every CEL rule compiles within
// its cost, and each row of internal/render's table of rules is accepted or refused, with the same sentence, by both.
//
// It is a module of its own because the API server's packages are many and the product needs none of them.
package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// server validates one kind as the API server does at creation.
type server struct {
	structural *schema.Structural
	openAPI    validation.SchemaValidator
	rules      *cel.Validator
}

func load(t *testing.T, file string) (string, server) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &v1); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil); err != nil {
		t.Fatal(err)
	}
	crd.Status.StoredVersions = []string{v1.Spec.Versions[0].Name}
	if errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), &crd); len(errs) > 0 {
		t.Fatalf("%s: %v", file, errs.ToAggregate())
	}
	props := crd.Spec.Validation
	if props == nil {
		props = crd.Spec.Versions[0].Schema
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	openAPI, _, err := validation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		t.Fatal(err)
	}
	return v1.Spec.Names.Kind, server{structural, openAPI, cel.NewValidator(structural, true, celconfig.PerCallLimit)}
}

func loadAll(t *testing.T) map[string]server {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("CRDs: %v %v", files, err)
	}
	servers := map[string]server{}
	for _, file := range files {
		kind, s := load(t, file)
		servers[kind] = s
	}
	return servers
}

// create sets defaults in obj and gives the sentences of refusal.
func (s server) create(obj map[string]any) []string {
	var says []string
	unknown := pruning.PruneWithOptions(obj, s.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown { // strict field validation, the default of kubectl
		says = append(says, fmt.Sprintf("unknown field %q", path))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structural)
	defaulting.Default(obj, s.structural)
	for _, err := range validation.ValidateCustomResource(nil, obj, s.openAPI) {
		says = append(says, err.Error())
	}
	for _, err := range listtype.ValidateListSetsAndMaps(nil, s.structural, obj) {
		says = append(says, err.Error())
	}
	if len(says) > 0 {
		return says // the API server runs CEL rules only on what fits the schema
	}
	errs, _ := s.rules.Validate(context.Background(), nil, s.structural, obj, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range errs {
		says = append(says, err.Error())
	}
	return says
}

type row struct {
	Rule, Kind string
	Spec       map[string]any
	Many       *struct {
		Field  string
		Count  int
		Format string
	}
	Field, Says, CRD string
}

func readTable(t *testing.T) (bases map[string]map[string]any, rows []row) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "internal/render/testdata/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct {
		Bases map[string]map[string]any
		Rows  []row
	}
	if err := yaml.UnmarshalStrict(raw, &table); err != nil {
		t.Fatal(err)
	}
	return table.Bases, table.Rows
}

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

// build merges a row into a copy of its base, with whole numbers as the API server's decoder makes them.
func build(t *testing.T, base map[string]any, r row) map[string]any {
	t.Helper()
	obj := clone(t, base)
	spec := obj["spec"].(map[string]any)
	merge(spec, r.Spec)
	if m := r.Many; m != nil {
		var list []any
		for i := range m.Count {
			list = append(list, fmt.Sprintf(m.Format, i))
		}
		spec[m.Field] = list
	}
	return clone(t, obj)
}

func clone(t *testing.T, obj map[string]any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return numbers(out).(map[string]any)
}

func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			v[key] = numbers(item)
		}
	case []any:
		for i, item := range v {
			v[i] = numbers(item)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}

func TestRulesAgreeWithRenderer(t *testing.T) {
	servers := loadAll(t)
	bases, rows := readTable(t)
	for _, r := range rows {
		t.Run(r.Rule, func(t *testing.T) {
			says := servers[r.Kind].create(build(t, bases[r.Kind], r))
			all := strings.Join(says, "\n")
			switch {
			case r.Says == "" || r.CRD == "accepts":
				if len(says) > 0 {
					t.Errorf("refused: %s", all)
				}
			case len(says) == 0:
				t.Error("accepted")
			case r.CRD == "" && !strings.Contains(all, r.Says):
				t.Errorf("want %s\ngot %s", r.Says, all)
			case r.CRD == "" && !strings.Contains(all, r.Field):
				t.Errorf("want field %s\ngot %s", r.Field, all)
			}
		})
	}
}

// TestLargestObjectsStayWithinCost proves that an object at every bound is not refused for the cost of the rules themselves.
func TestLargestObjectsStayWithinCost(t *testing.T) {
	servers := loadAll(t)
	bases, _ := readTable(t)
	domain := clone(t, bases["CREMDomain"])
	var sites []any
	for s := range 16 {
		var cidrs, gateways []any
		for c := range 16 {
			cidrs = append(cidrs, fmt.Sprintf("fd00:1111:2222:%02x%02x:aaaa:bbbb:cccc:0000/112", s, c))
		}
		for g := range 64 {
			gateways = append(gateways, fmt.Sprintf("2001:1111:2222:3333:4444:5555:6666:%04x", s*64+g))
		}
		sites = append(sites, map[string]any{"name": fmt.Sprintf("s%02d", s), "cidrs": cidrs, "gateways": gateways})
	}
	var prefixes, uplinks []any
	for i := range 64 {
		prefixes = append(prefixes, fmt.Sprintf("fd00:1111:2222:3333:aaaa:bbbb:%04x:0000/112", i))
	}
	for i := range 16 {
		uplinks = append(uplinks, fmt.Sprintf("interface%06d", i))
	}
	spec := domain["spec"].(map[string]any)
	maps.Copy(spec, map[string]any{"sites": sites, "site": "s15", "reporters": prefixes, "nodes": map[string]any{"uplinks": uplinks}})
	if says := servers["CREMDomain"].create(domain); len(says) > 0 {
		t.Errorf("CREMDomain: %s", strings.Join(says, "\n"))
	}

	profile := clone(t, bases["CREMProfile"])
	profile["spec"] = map[string]any{"selector": map[string]any{"sourceCIDRs": prefixes}}
	if says := servers["CREMProfile"].create(profile); len(says) > 0 {
		t.Errorf("CREMProfile: %s", strings.Join(says, "\n"))
	}
}

func TestDefaultsAgreeWithRenderer(t *testing.T) {
	servers := loadAll(t)
	bases, _ := readTable(t)
	profile := clone(t, bases["CREMProfile"])
	if says := servers["CREMProfile"].create(profile); len(says) > 0 {
		t.Fatal(says)
	}
	raw, err := os.ReadFile(filepath.Join(root, "internal/render/testdata/profile-defaults.json"))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(profile["spec"])
	wanted, _ := json.Marshal(want)
	if string(got) != string(wanted) {
		t.Errorf("defaults of the CRD %s\nof the renderer %s", got, wanted)
	}
}

// TestNoRuleLooksBack: a rule over the former value would make some status or spec impossible to correct.
func TestNoRuleLooksBack(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "oldSelf") {
			t.Errorf("%s compares with the former value", file)
		}
	}
}

// TestRenderedNodesAndSamples: what the renderer writes and what config/samples shows are accepted.
func TestRenderedNodesAndSamples(t *testing.T) {
	servers := loadAll(t)
	var files []string
	for _, pattern := range []string{"internal/render/testdata/golden/*.yaml", "config/samples/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range strings.Split(string(raw), "\n---\n") {
			var obj map[string]any
			if err := yaml.UnmarshalStrict([]byte(text), &obj); err != nil {
				t.Fatal(err)
			}
			kind, _ := obj["kind"].(string)
			if says := servers[kind].create(clone(t, obj)); len(says) > 0 {
				t.Errorf("%s, document %d (%s): %s", file, i+1, kind, strings.Join(says, "\n"))
			}
		}
	}
}

// TestNames: what people type and what kubectl get shows first.
func TestNames(t *testing.T) {
	want := map[string]struct {
		short   string
		columns string
	}{
		"CREMDomain":        {"cdom", "Site Port IPsec Nodes Ready Reason Age"},
		"CREMProfile":       {"cprof", "K Epsilon MaxM Delivery Ready Reason Age"},
		"CREMNode":          {"cnode", "Domains Programmed Ready Degraded Reason Agent Age"},
		"CREMEndpointSlice": {"cslice", "Profile Age"},
	}
	files, _ := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
			t.Fatal(err)
		}
		names, version := crd.Spec.Names, crd.Spec.Versions[0]
		w := want[names.Kind]
		status := version.Subresources != nil && version.Subresources.Status != nil
		var columns []string
		for _, c := range version.AdditionalPrinterColumns {
			columns = append(columns, c.Name)
			if strings.Contains(c.JSONPath, "[0]") {
				t.Errorf("%s: column %s shows whatever comes first", names.Kind, c.Name)
			}
		}
		if crd.Spec.Scope != apiextensionsv1.ClusterScoped || strings.Join(names.ShortNames, " ") != w.short || strings.Join(names.Categories, " ") != "crem" ||
			strings.Join(columns, " ") != w.columns || status != (names.Kind != "CREMEndpointSlice") { // which is data alone
			t.Errorf("%s: %v %v %v %v", names.Kind, crd.Spec.Scope, names.ShortNames, names.Categories, columns)
		}
	}
}

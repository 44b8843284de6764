// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
)

const page = "../../docs/configuration.md"

// schemaNode is the part of a CRD's schema that a reader wants to know.
type schemaNode struct {
	Type, Description, Pattern string
	Default                    any
	Enum                       []string
	Minimum, Maximum           *float64
	MinItems, MaxItems         *int
	MaxLength                  *int
	Required                   []string
	Properties                 map[string]*schemaNode
	Items                      *schemaNode
}

// specOf reads the schema of a kind's spec.
func specOf(t *testing.T, file string) *schemaNode {
	t.Helper()
	raw, err := os.ReadFile("../../config/crd/bases/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct{ OpenAPIV3Schema *schemaNode }
			}
		}
	}
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
}

// selectors of Kubernetes are documented there.
func isSelector(name string) bool { return strings.HasSuffix(name, "elector") && name != "selector" }

// rows documents the fields below a node.
func rows(n *schemaNode, path string, out *[][2]string) {
	for _, name := range sortedKeys(n.Properties) {
		p := n.Properties[name]
		at := strings.TrimPrefix(path+"."+name, ".")
		required := ""
		if slices.Contains(n.Required, name) {
			required = "**required**"
		}
		text := strings.Join(strings.Fields(p.Description), " ")
		*out = append(*out, [2]string{at, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", at, kind(p), defaultText(p, required), bounds(p), text)})
		switch {
		case isSelector(name) || at == "nodes.selector":
		case p.Items != nil:
			rows(p.Items, at+"[]", out)
		default:
			rows(p, at, out)
		}
	}
}

func kind(p *schemaNode) string {
	switch {
	case len(p.Enum) > 0:
		return "one of " + strings.Join(p.Enum, ", ")
	case p.Type == "array" && len(p.Items.Enum) > 0:
		return "list of " + strings.Join(p.Items.Enum, ", ")
	case p.Type == "array":
		return "list of " + p.Items.Type
	}
	return p.Type
}

func defaultText(p *schemaNode, required string) string {
	if p.Default == nil {
		return required
	}
	return fmt.Sprintf("`%v`", p.Default)
}

func bounds(p *schemaNode) string {
	var b []string
	if p.Minimum != nil && p.Maximum != nil {
		b = append(b, fmt.Sprintf("%.0f to %.0f", *p.Minimum, *p.Maximum))
	}
	if p.MaxItems != nil {
		least := 0
		if p.MinItems != nil {
			least = *p.MinItems
		}
		b = append(b, fmt.Sprintf("%d to %d entries", least, *p.MaxItems))
	}
	if p.MaxLength != nil && p.Default == nil {
		b = append(b, fmt.Sprintf("at most %d characters", *p.MaxLength))
	}
	return strings.Join(b, ", ")
}

// TestConfigurationPage: docs/configuration.md lists every field with its default and bounds, as the CRDs have them.
func TestConfigurationPage(t *testing.T) {
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for kind, file := range map[string]string{v1alpha1.KindDomain: "crem.dev_cremdomains.yaml", v1alpha1.KindProfile: "crem.dev_cremprofiles.yaml"} {
		var list [][2]string
		rows(specOf(t, file), "", &list)
		var b strings.Builder
		b.WriteString("\n| field of spec | type | default | bounds | meaning |\n|---|---|---|---|---|\n")
		for _, row := range list {
			b.WriteString(row[1] + "\n")
		}
		b.WriteString("\n")
		section := regexp.MustCompile(`(?s)(<!-- fields of ` + kind + `:[^\n]*-->\n).*?(<!-- end -->)`)
		if !section.MatchString(text) {
			t.Fatalf("%s has no section for %s", page, kind)
		}
		text = section.ReplaceAllStringFunc(text, func(s string) string {
			m := section.FindStringSubmatch(s)
			return m[1] + b.String() + m[2]
		})
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(raw), text); diff != "" && !*update {
		t.Errorf("docs/configuration.md is out of date, run go test ./internal/render -update:\n%s", diff)
	}
}

// TestCRDsHaveEveryFieldOfTheTypes: the CRDs were generated from the types as they are.
func TestCRDsHaveEveryFieldOfTheTypes(t *testing.T) {
	for _, tc := range []struct {
		file string
		t    reflect.Type
	}{
		{"crem.dev_cremdomains.yaml", reflect.TypeFor[v1alpha1.CREMDomainSpec]()},
		{"crem.dev_cremprofiles.yaml", reflect.TypeFor[v1alpha1.CREMProfileSpec]()},
		{"crem.dev_cremnodes.yaml", reflect.TypeFor[v1alpha1.CREMNodeSpec]()},
	} {
		sameFields(t, specOf(t, tc.file), tc.t, tc.t.Name())
	}
}

func sameFields(t *testing.T, n *schemaNode, typ reflect.Type, at string) {
	t.Helper()
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice {
			n = n.Items
		}
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[metav1.Duration]() {
		return
	}
	fields := map[string]jsonField{}
	jsonFields(typ, fields)
	if have, want := sortedKeys(n.Properties), sortedKeys(fields); !slices.Equal(have, want) {
		t.Errorf("%s: the CRD has %v, the type %v", at, have, want)
		return
	}
	for name, f := range fields {
		if f.required != slices.Contains(n.Required, name) {
			t.Errorf("%s.%s: required in the type %v, in the CRD %v", at, name, f.required, n.Required)
		}
		sameFields(t, n.Properties[name], f.t, at+"."+name)
	}
}

// TestExamplesOfThePage: the YAML that people copy is right.
func TestExamplesOfThePage(t *testing.T) {
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(raw), -1)
	if len(examples) < 2 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, e := range examples {
		if _, err := Decode([]File{{Name: fmt.Sprint("example ", i+1), Data: []byte(e[1])}}); err != nil {
			t.Error(err)
		}
	}
}

// TestSection3_NoDefaultPort: neither the CRD nor the renderer has a port to offer, and a domain without one is refused.
func TestSection3_NoDefaultPort(t *testing.T) {
	spec := specOf(t, "crem.dev_cremdomains.yaml")
	if spec.Properties["port"].Default != nil || !slices.Contains(spec.Required, "port") {
		t.Error("the CRD has a default for the CREM port, or does not require it")
	}
	_, err := Decode([]File{{Name: "a.yaml", Data: []byte(strings.Replace(goodDomain, "  port: 52000\n", "", 1))}})
	if err == nil || !strings.Contains(err.Error(), "spec.port is missing: write the UDP port of all CREM messages of the domain, a free one from 49152 to 65535") {
		t.Errorf("without a port: %v", err)
	}
}

// TestSection11_NoDefaultSecurity: which of the two protections is true is not for software to guess.
func TestSection11_NoDefaultSecurity(t *testing.T) {
	ipsec := specOf(t, "crem.dev_cremdomains.yaml").Properties["ipsec"]
	if ipsec.Default != nil || ipsec.Properties["mode"].Default != nil || !slices.Contains(ipsec.Required, "mode") {
		t.Error("the CRD has a default for ipsec.mode, or does not require it")
	}
}

// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	goodDomain = `apiVersion: crem.dev/v1alpha1
kind: CREMDomain
metadata: {name: backbone}
spec:
  port: 52000
  site: east
  ipsec: {mode: BoundaryFiltered}
  sites:
  - {name: east, cidrs: [10.1.0.0/16]}
  - {name: west, cidrs: [10.2.0.0/16]}
`
	goodProfile = `apiVersion: crem.dev/v1alpha1
kind: CREMProfile
metadata: {name: standard}
spec: {}
`
)

func TestDecodeAccepts(t *testing.T) {
	for _, tc := range []struct {
		name, text        string
		domains, profiles int
	}{
		{"one document", goodDomain, 1, 0},
		{"two documents", goodDomain + "---\n" + goodProfile, 1, 1},
		{"leading marker and comments", "# head\n---\n" + goodDomain + "--- # next\n" + goodProfile + "...\n", 1, 1},
		{"empty documents", "---\n---\n# nothing\n---\n" + goodDomain + "---\n", 1, 0},
		{"windows line ends", strings.ReplaceAll(goodDomain, "\n", "\r\n"), 1, 0},
		{"JSON", `{"apiVersion":"crem.dev/v1alpha1","kind":"CREMProfile","metadata":{"name":"a"},"spec":{"k":16}}`, 0, 1},
		{"as kubectl gives it", goodProfile + `status: {observedGeneration: 3, conditions: [{type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`, 0, 1},
		{"server-side metadata", strings.Replace(goodProfile, "{name: standard}", `{name: standard, uid: 1c1d, resourceVersion: "7", generation: 2, creationTimestamp: "2026-01-01T00:00:00Z", managedFields: [{manager: kubectl, operation: Apply, apiVersion: crem.dev/v1alpha1, fieldsType: FieldsV1, fieldsV1: {"f:spec": {}}}]}`, 1), 0, 1},
		{"nothing", "", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objs, err := Decode([]File{{Name: "a.yaml", Data: []byte(tc.text)}})
			if err != nil {
				t.Fatal(err)
			}
			if len(objs.Domains) != tc.domains || len(objs.Profiles) != tc.profiles {
				t.Errorf("%d domains, %d profiles", len(objs.Domains), len(objs.Profiles))
			}
		})
	}
}

// TestDecodeRefuses: one sentence that names file, document, object, field, and what to write instead.
func TestDecodeRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"kind unknown", strings.Replace(goodDomain, "CREMDomain", "CREMDomian", 1),
			`a.yaml, document 1 (CREMDomian backbone): kind "CREMDomian" is unknown: write CREMDomain or CREMProfile, did you mean CREMDomain?`},
		{"kind of Kubernetes", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
			`a.yaml, document 1 (ConfigMap x): kind "ConfigMap" is unknown: write CREMDomain or CREMProfile`},
		{"kind of the operator", "apiVersion: crem.dev/v1alpha1\nkind: CREMNode\nmetadata: {name: gw1}\n",
			`a.yaml, document 1 (CREMNode gw1): kind "CREMNode" is written by the operator: write CREMDomain and CREMProfile`},
		{"kind with a look-alike letter", strings.Replace(goodDomain, "CREMDomain", "CR\u0415MDomain", 1),
			`did you mean CREMDomain?`},
		{"kind missing", "metadata: {name: x}\n",
			`a.yaml, document 1 (x): kind "" is unknown: write CREMDomain or CREMProfile`},
		{"version", strings.Replace(goodDomain, "v1alpha1", "v1", 1),
			`a.yaml, document 1 (CREMDomain backbone): apiVersion "crem.dev/v1" is unknown: write crem.dev/v1alpha1`},
		{"second document", goodProfile + "---\n" + strings.Replace(goodDomain, "port: 52000", "port: 4791", 1),
			`a.yaml, document 2 (CREMDomain backbone): spec.port 4791 is the port of RoCEv2 itself: write a free port from 49152 to 65535`},
		{"name missing", strings.Replace(goodProfile, "{name: standard}", "{}", 1),
			`a.yaml, document 1 (CREMProfile): metadata.name is missing: write a name`},
		{"namespace", strings.Replace(goodProfile, "{name: standard}", "{name: standard, namespace: crem}", 1),
			`metadata.namespace "crem" does not belong here, the kind is cluster-scoped: remove it`},
		{"spec missing", strings.Replace(goodProfile, "spec: {}", "", 1),
			`a.yaml, document 1 (CREMProfile standard): spec is missing: write spec: {}`},
		{"field written twice", strings.Replace(goodDomain, "  site: east\n", "  site: east\n  port: 52001\n", 1),
			`a.yaml, document 1: is not YAML: line 7 of the file: key "port" is written twice: write it once`},
		{"field written twice further down", goodProfile + "---\n" + strings.Replace(goodDomain, "  site: east\n", "  site: east\n  port: 52001\n", 1),
			`a.yaml, document 2: is not YAML: line 12 of the file: key "port"`},
		{"no YAML", "spec: [\n", `a.yaml, document 1: is not YAML: `},
		{"tab", "apiVersion: crem.dev/v1alpha1\nkind: CREMDomain\nspec:\n\tport: 1\n", `a.yaml, document 1: is not YAML: line 4 of the file: `},
		{"a list", "- a\n- b\n", `a.yaml, document 1: is not an object: write apiVersion, kind, metadata and spec`},
		{"text", "hello\n", `is not an object`},
		{"object twice", goodDomain + "---\n" + goodDomain,
			`a.yaml, document 2 (CREMDomain backbone): is written a second time, first in a.yaml, document 1: write each object once`},
		{"too large", "# " + strings.Repeat("x", maxFileOctets), `a.yaml: is over 1 MiB: write one domain and its profiles a file`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Decode([]File{{Name: "a.yaml", Data: []byte(tc.text)}})
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("accepted, or no Faults: %v", err)
			}
			if len(faults) != 1 {
				t.Errorf("%d faults, want 1:\n%v", len(faults), err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("want %s\ngot  %s", tc.want, err)
			}
			if strings.ContainsAny(faults[0].Error(), "\n") {
				t.Errorf("more than one line: %q", faults[0].Error())
			}
		})
	}
}

func TestDecodeNamesEveryFault(t *testing.T) {
	bad := strings.NewReplacer("52000", "0", "site: east", "site: north").Replace(goodDomain)
	_, err := Decode([]File{{Name: "a.yaml", Data: []byte(bad)}, {Name: "b.yaml", Data: []byte("kind: X\n")}})
	var faults Faults
	if !errors.As(err, &faults) || len(faults) != 3 {
		t.Fatalf("want 3 faults: %v", err)
	}
	if faults[0].Field != "spec.port" || faults[1].Field != "spec.site" || faults[2].File != "b.yaml" {
		t.Errorf("faults: %v", err)
	}
}

// TestDefaults holds the renderer's defaults against the file that test/crd holds against the CRD.
func TestDefaults(t *testing.T) {
	raw, err := os.ReadFile("testdata/profile-defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	var want any
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	objs, err := Decode([]File{{Name: "a.yaml", Data: []byte(goodProfile)}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ProfileDefaults(), objs.Profiles[0].Spec); diff != "" {
		t.Errorf("decoded differs from ProfileDefaults: %s", diff)
	}
	spec, err := json.Marshal(objs.Profiles[0].Spec)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := json.Unmarshal(spec, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s\nwant %s", spec, raw)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(goodDomain + "---\n" + goodProfile))
	f.Add([]byte("kind: CREMDomain\nspec: {sites: [{cidrs: [1, null, {}]}]}\n"))
	f.Add([]byte("--- {a: &a [*a]}\n"))
	f.Add([]byte("apiVersion: crem.dev/v1alpha1\nkind: CREMProfile\nmetadata: {name: a, creationTimestamp: x}\nspec: {maxHold: 99999999999999ms}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objs, err := Decode([]File{{Name: "a.yaml", Data: data}})
		if err != nil {
			return
		}
		// What was accepted renders without a word about its form.
		for _, p := range Node(objs, NodeFacts{Name: "gw1", Standalone: true}).Problems {
			if p.Reason == "InvalidSpec" {
				t.Errorf("accepted, yet %s: %s", p.Object, p.Message)
			}
		}
	})
}

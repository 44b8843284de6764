// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apix "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// coverage knows which rules of the CRDs a real API server has been seen to apply.
type coverage struct {
	refusals map[string]string // everything that was said, by kind
	taken    map[string]bool   // fields of objects that were accepted, as KIND.spec.sites[].name
}

// take notes the fields of an accepted object.
func (c *coverage) take(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			c.take(path+"."+name, field)
		}
	case []any:
		for _, item := range v {
			c.take(path+"[]", item)
		}
	}
	if v != nil {
		c.taken[path] = true
	}
}

// check demands of every CEL rule in the CRDs that its sentence was heard, and that an object with a value of its field was accepted.
func (c *coverage) check(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(repository("config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	rules := 0
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apix.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			t.Fatal(err)
		}
		kind := crd.Spec.Names.Kind
		visit(kind, crd.Spec.Versions[0].Schema.OpenAPIV3Schema, func(path string, r apix.ValidationRule) {
			rules++
			if !strings.Contains(c.refusals[kind], r.Message) {
				t.Errorf("no manifest was refused with the rule of %s that says %q", path, r.Message)
			}
			if !c.taken[path+r.FieldPath] {
				t.Errorf("no accepted manifest has %s%s, whose rule says %q", path, r.FieldPath, r.Message)
			}
		})
	}
	t.Logf("%d CEL rules, each seen to refuse and to accept", rules)
	if rules < 40 {
		t.Errorf("only %d CEL rules were found", rules)
	}
}

func visit(path string, s *apix.JSONSchemaProps, rule func(string, apix.ValidationRule)) {
	for _, r := range s.XValidations {
		rule(path, r)
	}
	for name := range s.Properties {
		p := s.Properties[name]
		visit(path+"."+name, &p, rule)
	}
	if s.Items != nil && s.Items.Schema != nil {
		visit(path+"[]", s.Items.Schema, rule)
	}
}

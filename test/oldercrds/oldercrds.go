// SPDX-License-Identifier: Apache-2.0

// Package oldercrds has a test's API server serve the custom resource definitions of CREM as an older release may have had them.
package oldercrds

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/internal/served"
)

const patience = 30 * time.Second

// Serve takes fields from the definitions until the test ends or restore is called, each as served.Fields names it, for instance "CREMNode status.excluded".
func Serve(t *testing.T, cfg *rest.Config, fields ...string) (now *served.Fields, restore func()) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := apiextensions.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	var list apiextensions.CustomResourceDefinitionList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	before := list.DeepCopy()
	for _, field := range fields {
		kind, path, _ := strings.Cut(field, " ")
		i := slices.IndexFunc(list.Items, func(d apiextensions.CustomResourceDefinition) bool { return d.Spec.Names.Kind == kind })
		if i < 0 {
			t.Fatalf("there is no kind %s", kind)
		}
		if err := take(list.Items[i].Spec.Versions[0].Schema.OpenAPIV3Schema, strings.Split(path, ".")); err != nil {
			t.Fatalf("%s: %v", field, err)
		}
	}
	done := false
	restore = func() {
		if !done {
			done = true
			put(t, c, before.Items)
			await(t, cfg, nil)
		}
	}
	t.Cleanup(restore)
	put(t, c, list.Items)
	return await(t, cfg, fields), restore
}

// Description is what an API server says, as JSON, that has the definitions in a folder without some fields.
func Description(t *testing.T, folder string, without ...string) []byte {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %q, %v", folder, files, err)
	}
	schemas := map[string]any{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d apiextensions.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		kind := d.Spec.Names.Kind
		for _, field := range without {
			if of, path, _ := strings.Cut(field, " "); of != kind {
				continue
			} else if err := take(d.Spec.Versions[0].Schema.OpenAPIV3Schema, strings.Split(path, ".")); err != nil {
				t.Fatalf("%s: %v", field, err)
			}
		}
		schema := map[string]any{}
		if raw, err = json.Marshal(d.Spec.Versions[0].Schema.OpenAPIV3Schema); err == nil {
			err = json.Unmarshal(raw, &schema)
		}
		if err != nil {
			t.Fatal(err)
		}
		schema["x-kubernetes-group-version-kind"] = []any{map[string]any{"group": d.Spec.Group, "version": d.Spec.Versions[0].Name, "kind": kind}}
		schemas[kind] = schema
	}
	raw, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": schemas}})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// take removes a field from a schema.
func take(s *apiextensions.JSONSchemaProps, path []string) error {
	for s.Items != nil {
		s = s.Items.Schema
	}
	inner, has := s.Properties[path[0]]
	switch {
	case !has:
		return fmt.Errorf("there is no field %s", path[0])
	case len(path) > 1:
		if err := take(&inner, path[1:]); err != nil {
			return err
		}
		s.Properties[path[0]] = inner
	default:
		delete(s.Properties, path[0])
		s.Required = slices.DeleteFunc(s.Required, func(name string) bool { return name == path[0] })
	}
	s.XValidations = slices.DeleteFunc(s.XValidations, func(r apiextensions.ValidationRule) bool { return strings.Contains(r.Rule, path[len(path)-1]) })
	return nil
}

func put(t *testing.T, c client.Client, list []apiextensions.CustomResourceDefinition) {
	t.Helper()
	for i := range list {
		d := &apiextensions.CustomResourceDefinition{}
		err := c.Get(context.Background(), client.ObjectKeyFromObject(&list[i]), d)
		if err == nil {
			d.Spec = list[i].Spec
			err = c.Update(context.Background(), d)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// await waits until the API server says that it lacks exactly these fields.
func await(t *testing.T, cfg *rest.Config, fields []string) *served.Fields {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var now *served.Fields
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now, err = served.Read(context.Background(), d.RESTClient()); err == nil && slices.Equal(slices.Sorted(slices.Values(now.Missing())), slices.Sorted(slices.Values(fields))) {
			return now
		}
	}
	t.Fatalf("after %s the API server lacks %q (%v), not %q", patience, now.Missing(), err, fields)
	return nil
}

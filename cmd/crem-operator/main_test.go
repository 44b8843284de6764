// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/internal/clidoc"
)

var update = flag.Bool("update", false, "write docs/cli.md anew")

// TestCommandLinePage: docs/cli.md says what the program says.
func TestCommandLinePage(t *testing.T) { clidoc.Check(t, "../../docs/cli.md", newRoot(), *update) }

func TestCommandLine(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for _, row := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"version"}, exitOK, ""},
		{[]string{"--help"}, exitOK, "not on the data path"},
		{[]string{"walk"}, exitUsage, "walk"},
		{[]string{"run", "fast"}, exitUsage, "takes no argument"},
		{[]string{"run", "--speed", "1"}, exitUsage, "--help lists the flags"},
		{[]string{"run"}, exitUsage, "name it with --namespace"},
		{[]string{"run", "--namespace", "Crem System"}, exitUsage, "is no name of a namespace"},
		{[]string{"run", "--namespace", "crem-system", "--collect-after", "-1s"}, exitUsage, "write a time such as 30m"},
		{[]string{"run", "--namespace", "crem-system", "--log-format", "xml"}, exitUsage, "write text or json"},
		{[]string{"run", "--namespace", "crem-system"}, exitError, "no way to the API server"},
		{[]string{"run", "--namespace", "crem-system", "--kubeconfig", "/does/not/exist"}, exitError, "name a kubeconfig with --kubeconfig"},
	} {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			var out bytes.Buffer
			if code := execute(context.Background(), row.args, &out, &out); code != row.code || !strings.Contains(out.String(), row.says) {
				t.Errorf("code %d: %s", code, out.String())
			}
		})
	}
}

// openAPIOf describes the kinds of the repository's CRDs, as an API server that has them does.
func openAPIOf(t *testing.T) map[string]any {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/bases/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v %v", files, err)
	}
	schemas := map[string]any{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := yaml.Unmarshal(raw, &crd); err != nil {
			t.Fatal(err)
		}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		schema["x-kubernetes-group-version-kind"] = []any{map[string]any{"group": "crem.dev", "version": "v1alpha1", "kind": crd.Spec.Names.Kind}}
		schemas["dev.crem.v1alpha1."+crd.Spec.Names.Kind] = schema
	}
	return map[string]any{"components": map[string]any{"schemas": schemas}}
}

// TestMissingCRDs: what the operator says of an API server that lacks something.
func TestMissingCRDs(t *testing.T) {
	schemas := func(doc map[string]any) map[string]any {
		return doc["components"].(map[string]any)["schemas"].(map[string]any)
	}
	spec := func(doc map[string]any, kind string) map[string]any {
		properties := schemas(doc)["dev.crem.v1alpha1."+kind].(map[string]any)["properties"].(map[string]any)
		return properties["spec"].(map[string]any)["properties"].(map[string]any)
	}
	for _, row := range []struct {
		name string
		edit func(map[string]any)
		code int
		says string
	}{
		{"complete", func(map[string]any) {}, http.StatusOK, ""},
		{"a newer field", func(d map[string]any) { spec(d, "CREMNode")["later"] = map[string]any{} }, http.StatusOK, ""},
		{"none at all", func(map[string]any) {}, http.StatusNotFound, "knows no kind of crem.dev/v1alpha1: install the CRDs"},
		{"a kind is missing", func(d map[string]any) { delete(schemas(d), "dev.crem.v1alpha1.CREMEndpointSlice") }, http.StatusOK, "does not know the kind CREMEndpointSlice: install"},
		{"a field is missing", func(d map[string]any) { delete(spec(d, "CREMProfile"), "spread") }, http.StatusOK, "CREMProfile is too old, it has no spec.spread: install"},
		{"a field far inside", func(d map[string]any) {
			items := spec(d, "CREMNode")["domains"].(map[string]any)["items"].(map[string]any)
			delete(items["properties"].(map[string]any), "rules")
		}, http.StatusOK, "CREMNode is too old, it has no spec.domains.rules: install"},
		{"does not answer", func(map[string]any) {}, http.StatusForbidden, "lets this account in"},
	} {
		t.Run(row.name, func(t *testing.T) {
			doc := openAPIOf(t)
			row.edit(doc)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if row.code != http.StatusOK || r.URL.Path != "/openapi/v3/apis/crem.dev/v1alpha1" {
					http.Error(w, "no", row.code)
					return
				}
				_ = json.NewEncoder(w).Encode(doc)
			}))
			defer server.Close()
			got := missingCRDs(t.Context(), &rest.Config{Host: server.URL})
			if (row.says == "") != (got == "") || !strings.Contains(got, row.says) {
				t.Errorf("says %q", got)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	h, err := serveHealth("")
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		h.ready(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		return w.Code, w.Body.String()
	}
	h.set("the API server knows no kind")
	if code, body := ask(); code != http.StatusServiceUnavailable || !strings.Contains(body, "knows no kind") {
		t.Errorf("%d %s", code, body)
	}
	h.set("")
	if code, _ := ask(); code != http.StatusOK {
		t.Error(code)
	}
	if _, err := serveHealth("nowhere:-1"); err == nil || !strings.Contains(err.Error(), "--health-addr") {
		t.Error(err)
	}
}

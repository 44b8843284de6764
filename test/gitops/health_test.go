// SPDX-License-Identifier: Apache-2.0

// Package gitops proves what docs/gitops shows: Argo CD's health check by a Lua interpreter, Flux's objects by their fields.
package gitops

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const argocd = "../../docs/gitops/argocd/"

func read(t *testing.T, path string, into any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// literal writes a value as Lua has it.
func literal(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case string:
		return strconv.Quote(v)
	case map[string]any:
		var parts []string
		for key, inner := range v {
			parts = append(parts, fmt.Sprintf("[%q] = %s", key, literal(inner)))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, inner := range v {
			parts = append(parts, literal(inner))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return fmt.Sprint(v)
	}
}

func TestArgoCDHealth(t *testing.T) {
	lua := ""
	for _, name := range []string{"lua5.1", "lua5.4", "lua5.3", "lua"} { // Argo CD itself has the language of 5.1
		if path, err := exec.LookPath(name); err == nil {
			lua = path
			break
		}
	}
	if lua == "" {
		t.Skip("There is no Lua interpreter: apt-get install lua5.1.")
	}
	var table struct {
		Tests []struct {
			HealthStatus struct{ Status, Message string }
			InputPath    string
		}
	}
	read(t, argocd+"testdata/health_test.yaml", &table)
	check, err := os.ReadFile(argocd + "health.lua")
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Tests) < 10 {
		t.Errorf("%d cases", len(table.Tests))
	}
	used := map[string]bool{"health_test.yaml": true}
	for _, c := range table.Tests {
		used[filepath.Base(c.InputPath)] = true
		var object map[string]any
		read(t, argocd+c.InputPath, &object)
		script := "obj = " + literal(object) + "\nlocal function health()\n" + string(check) + "\nend\nlocal h = health()\nio.write(h.status, '|', h.message)\n"
		out, err := exec.Command(lua, "-e", script).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", c.InputPath, err, out)
			continue
		}
		if want := c.HealthStatus.Status + "|" + c.HealthStatus.Message; string(out) != want {
			t.Errorf("%s: %s, not %s", c.InputPath, out, want)
		}
	}
	files, err := os.ReadDir(argocd + "testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !used[f.Name()] {
			t.Errorf("testdata/%s is in no case", f.Name())
		}
	}
}

// TestArgoCDConfigMapHasTheCheck: the page's ConfigMap, made by kustomize from health.lua, names every kind.
func TestArgoCDConfigMapHasTheCheck(t *testing.T) {
	page, err := os.ReadFile("../../docs/gitops/argocd.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"CREMDomain", "CREMProfile", "CREMNode"} {
		if !strings.Contains(string(page), "resource.customizations.health.crem.dev_"+kind+"=docs/gitops/argocd/health.lua") {
			t.Errorf("docs/gitops/argocd.md does not say how the health of %s comes into argocd-cm", kind)
		}
	}
}

// TestFluxExample: the objects have the fields that Flux knows, and check the health of what they install.
func TestFluxExample(t *testing.T) {
	raw, err := os.ReadFile("../../docs/gitops/flux/crem.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]map[string]any{}
	for _, doc := range strings.Split(string(raw), "\n---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		kinds[fmt.Sprint(o["kind"])] = o
	}
	for kind, version := range map[string]string{"GitRepository": "source.toolkit.fluxcd.io/v1", "HelmRelease": "helm.toolkit.fluxcd.io/v2", "Kustomization": "kustomize.toolkit.fluxcd.io/v1"} {
		if kinds[kind]["apiVersion"] != version {
			t.Errorf("%s: %v", kind, kinds[kind]["apiVersion"])
		}
	}
	spec, _ := kinds["Kustomization"]["spec"].(map[string]any)
	checks, _ := spec["healthChecks"].([]any)
	if len(checks) == 0 || spec["wait"] == true {
		t.Errorf("healthChecks %v, wait %v: with wait Flux does not look at healthChecks", checks, spec["wait"])
	}
	for _, c := range checks {
		if c := c.(map[string]any); c["apiVersion"] != "crem.dev/v1alpha1" || c["kind"] != "CREMDomain" {
			t.Errorf("%v", c)
		}
	}
	if path := fmt.Sprint(spec["path"]); !strings.HasPrefix(path, "./config/samples/two-sites/") {
		t.Errorf("path %s", path)
	} else if _, err := os.Stat("../../" + path + "/kustomization.yaml"); err != nil {
		t.Error(err)
	}
}

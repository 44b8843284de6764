// SPDX-License-Identifier: Apache-2.0

// Package chart proves what the charts and config/ say: with the real helm and kustomize, and against a real API server.
package chart

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
)

const root = "../.."

// tool finds helm or kustomize, which hack/tools/kube/build.sh puts into the cache.
func tool(t testing.TB, name string) string {
	t.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(home, ".cache")
	}
	path := filepath.Join(cache, "crem", name)
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CREM_REQUIRE_HELM") == "1" {
			t.Fatalf("There is no %s: run hack/tools/kube/build.sh.", path)
		}
		t.Skipf("There is no %s: run hack/tools/kube/build.sh.", path)
	}
	return path
}

// run gives a program's standard output; its errors are in the error.
func run(program string, args ...string) (string, error) {
	var out, errOut bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), nil
}

// render gives what the chart makes of values that are set on the command line, with hooks.
func render(t testing.TB, set ...string) []*unstructured.Unstructured {
	t.Helper()
	text, err := template(t, set...)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text)
}

func template(t testing.TB, set ...string) (string, error) {
	t.Helper()
	args := []string{"template", "crem", root + "/charts/crem", "--namespace", "crem-system", "--kube-version", "1.37.2"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return run(tool(t, "helm"), args...)
}

func kustomize(t testing.TB, dir string) []*unstructured.Unstructured {
	t.Helper()
	text, err := run(tool(t, "kustomize"), "build", root+"/config/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, text)
}

func parse(t testing.TB, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(doc, &u.Object); err != nil {
			t.Fatalf("%v in:\n%s", err, doc)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
}

// find gives the one object of a kind and name.
func find(t testing.TB, all []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, u := range all {
		if u.GetKind() == kind && u.GetName() == name {
			return u
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// as decodes an object into its type.
func as[T any](t testing.TB, u *unstructured.Unstructured) *T {
	t.Helper()
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return into
}

// everything switches all on that is off by default.
var everything = []string{
	"agent.realtimeWorkers=true", "agent.logVerbosity=2", "operator.logVerbosity=1", "monitoring.podMonitor.enabled=true", "monitoring.rules.enabled=true",
	"monitoring.dashboard.enabled=true", "monitoring.dashboard.annotations.k=v", "imagePullSecrets[0].name=pull", "agent.podLabels.a=b", "agent.podAnnotations.c=d", "operator.podLabels.a=b",
	"operator.podAnnotations.c=d", "agent.seLinuxOptions.type=spc_t", "operator.tolerations[0].operator=Exists", "image.digest=sha256:" + strings.Repeat("a", 64),
	"monitoring.rules.labels.team=net", "monitoring.podMonitor.labels.team=net", "operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
	"operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key=x",
	"operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].operator=Exists",
}

// TestEveryObjectDecodesStrictly: no field is misspelt or at the wrong place.
func TestEveryObjectDecodesStrictly(t *testing.T) {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	for name, all := range map[string][]*unstructured.Unstructured{
		"chart": render(t), "chart with everything": render(t, everything...), "config/default": kustomize(t, "default"),
		"config/prometheus": kustomize(t, "prometheus"), "config/samples/two-sites/east": kustomize(t, "samples/two-sites/east"),
		"config/samples/two-sites/west": kustomize(t, "samples/two-sites/west"),
	} {
		if len(all) < 3 {
			t.Errorf("%s has %d objects", name, len(all))
		}
		for _, u := range all {
			if strings.HasPrefix(u.GetAPIVersion(), "monitoring.coreos.com/") {
				continue // TestMonitoringObjects
			}
			raw, err := u.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := decoder.Decode(raw, nil, nil); err != nil {
				t.Errorf("%s: %s %s: %v", name, u.GetKind(), u.GetName(), err)
			}
		}
	}
}

// TestTwoSitesDifferBySiteOnly: one text for all sites.
func TestTwoSitesDifferBySiteOnly(t *testing.T) {
	east, west := kustomize(t, "samples/two-sites/east"), kustomize(t, "samples/two-sites/west")
	for _, u := range append(east, west...) {
		if u.GetKind() == v1alpha1.KindDomain {
			unstructured.RemoveNestedField(u.Object, "spec", "site")
		}
	}
	a, b := text(t, east), text(t, west)
	if a != b {
		t.Errorf("east:\n%s\nwest:\n%s", a, b)
	}
}

func text(t testing.TB, all []*unstructured.Unstructured) string {
	t.Helper()
	var out strings.Builder
	for _, u := range all {
		raw, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "---\n%s", raw)
	}
	return out.String()
}

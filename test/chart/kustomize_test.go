// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func nested(object map[string]any, path ...string) (any, bool, error) {
	return unstructured.NestedFieldNoCopy(object, path...)
}

// TestChartAndKustomizeAgree: whoever installs with kustomize runs what helm installs. Labels by which helm keeps its books apart, every
// object of config/default is in the chart and says the same.
func TestChartAndKustomizeAgree(t *testing.T) {
	chart := map[string]map[string]any{}
	for _, u := range render(t) {
		if _, hook := u.GetAnnotations()["helm.sh/hook"]; !hook {
			chart[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()] = comparable(u)
		}
	}
	for _, u := range kustomize(t, "default") {
		if u.GetKind() == "Namespace" { // helm --create-namespace
			continue
		}
		key := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		want, ok := chart[key]
		if !ok {
			t.Errorf("%s is not in the chart", key)
			continue
		}
		delete(chart, key)
		if diff := cmp.Diff(want, comparable(u)); diff != "" {
			t.Errorf("%s (- chart, + config): %s", key, diff)
		}
	}
	for key := range chart {
		t.Errorf("%s is not in config/default", key)
	}
}

// TestMonitoringAgrees is the same for config/prometheus.
func TestMonitoringAgrees(t *testing.T) {
	chart := map[string]map[string]any{}
	for _, u := range render(t, "monitoring.podMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboard.enabled=true") {
		chart[u.GetKind()+" "+u.GetName()] = comparable(u)
	}
	for _, u := range kustomize(t, "prometheus") {
		if diff := cmp.Diff(chart[u.GetKind()+" "+u.GetName()], comparable(u)); diff != "" {
			t.Errorf("%s %s (- chart, + config): %s", u.GetKind(), u.GetName(), diff)
		}
	}
}

// comparable is an object without what helm adds or what is written in two ways.
func comparable(u *unstructured.Unstructured) map[string]any {
	o := u.DeepCopy().Object
	strip(o)
	return o
}

func strip(v any) {
	switch v := v.(type) {
	case map[string]any:
		meta, _ := v["metadata"].(map[string]any)
		spec, _ := v["spec"].(map[string]any)
		if _, pod := spec["containers"]; meta != nil && !pod { // an object's own labels are for people; a pod's are for selectors
			for _, label := range []string{"app.kubernetes.io/name", "app.kubernetes.io/component"} {
				unstructured.RemoveNestedField(meta, "labels", label)
			}
		}
		for _, name := range []string{"labels", "matchLabels", "annotations"} {
			set, ok := v[name].(map[string]any)
			if !ok {
				continue
			}
			for key := range set {
				if strings.HasPrefix(key, "helm.sh/") || slices.Contains([]string{"instance", "version", "part-of", "managed-by"}, strings.TrimPrefix(key, "app.kubernetes.io/")) {
					delete(set, key)
				}
			}
			if len(set) == 0 {
				delete(v, name)
			}
		}
		for _, inner := range v {
			strip(inner)
		}
	case []any:
		for _, inner := range v {
			strip(inner)
		}
	}
}

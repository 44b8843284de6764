// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWrongValuesAreRefused: the schema says no before anything is installed.
func TestWrongValuesAreRefused(t *testing.T) {
	for _, set := range []string{
		"agnet=1Gi", "agent.memory=lots", "agent.memory=1GB", "agent.workers=-1", "agent.workers=many", "agent.maxUnavailable=0", "agent.maxUnavailable=0%", "agent.maxUnavailable=110%",
		"agent.logFormat=xml", "agent.logVerbosity=3", "agent.metrics.port=80", "agent.metrics.address=0.0.0.0", "agent.paths.state=var/lib", "agent.paths.bpf=/", "agent.priviledged=true",
		"agent.seccompProfile.type=None", "agent.terminationGracePeriodSeconds=600", "agent.realtimeWorkers=yes", "operator.replicas=0", "operator.replicas=50", "image.digest=sha256:12", "image.tag=a b",
		"image.pullPolicy=Sometimes", "crds.enabled=maybe", "crds.kept=true", "monitoring.rules.runbookURL=ftp://x", "cleanup.deadlineSeconds=3600", "fullnameOverride=Up_per",
	} {
		if out, err := template(t, set); err == nil {
			t.Errorf("%s is accepted:\n%.200s", set, out)
		} else if field := set[strings.LastIndex(set[:strings.Index(set, "=")], ".")+1 : strings.Index(set, "=")]; !strings.Contains(err.Error(), field) {
			t.Errorf("%s: the error does not say where: %v", set, err)
		}
	}
	if _, err := template(t, "monitoring.podMonitor.enabled=true", "agent.metrics.address=Localhost"); err == nil || !strings.Contains(err.Error(), "needs agent.metrics.address Pod") {
		t.Errorf("a PodMonitor for agents that listen on localhost only: %v", err)
	}
}

// TestSchemaAndValuesAgree: every value has a schema, every schema a value and so a comment in values.yaml.
func TestSchemaAndValuesAgree(t *testing.T) {
	var values map[string]any
	raw, err := os.ReadFile(root + "/charts/crem/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(raw, &values); err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if raw, err = os.ReadFile(root + "/charts/crem/values.schema.json"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	compare(t, "", values, schema)
}

func compare(t *testing.T, path string, values, schema map[string]any) {
	t.Helper()
	properties, ok := schema["properties"].(map[string]any)
	if !ok || path == ".agent.resources" || path == ".operator.resources" || path == ".agent.seLinuxOptions" || strings.HasSuffix(path, "Profile") {
		return
	}
	for key := range values {
		if _, ok := properties[key]; !ok {
			t.Errorf("%s.%s is a value without a schema", path, key)
		}
	}
	for key, s := range properties {
		v, ok := values[key]
		if !ok {
			if key != "global" {
				t.Errorf("%s.%s is in the schema and not in values.yaml", path, key)
			}
			continue
		}
		if inner, ok := v.(map[string]any); ok {
			compare(t, path+"."+key, inner, s.(map[string]any))
		}
	}
}

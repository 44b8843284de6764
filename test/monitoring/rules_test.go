// SPDX-License-Identifier: Apache-2.0

// Package monitoring proves alerts, runbooks and the dashboard: with promtool, and against the metrics that the programs have.
package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../.."

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type groups struct {
	Groups []group `json:"groups"`
}

// alerts reads config/prometheus/rules.yaml, of which the chart has a copy.
func alerts(t *testing.T) groups {
	t.Helper()
	raw, err := os.ReadFile(root + "/config/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       groups         `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(raw, &object); err != nil {
		t.Fatal(err)
	}
	return object.Spec
}

// promtool runs it on files in a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("There is no promtool: apt-get install prometheus.")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func write(t *testing.T, path string, v any) {
	t.Helper()
	raw, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// scenario makes one alert fire and shows what does not.
type scenario struct {
	alert  string
	bad    []string // series by which it fires, each as name{labels} and its values, a minute apart
	good   []string // the same when all is well
	at     string   // when it fires
	before string   // when it does not yet; empty: it has no "for"
	labels map[string]string
	value  string // what the annotations say for $value
}

var gw1 = map[string]string{"node": "gw1", "instance": "a"}

func with(more ...string) map[string]string {
	out := map[string]string{"node": "gw1", "instance": "a"}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

const n = `node="gw1",instance="a"`

var scenarios = []scenario{
	{"CREMAgentDown", []string{`up{job="crem-agent",` + n + `}`, `1 0x20`}, []string{`up{job="crem-agent",` + n + `}`, `1x20`}, "7m", "4m", with("job", "crem-agent"), ""},
	{"CREMAgentNotReady", []string{`crem_agent_ready{` + n + `}`, `0x20`}, []string{`crem_agent_ready{` + n + `}`, `1x20`}, "6m", "4m", gw1, ""},
	{"CREMAgentRestarting", []string{`process_start_time_seconds{job="crem-agent",` + n + `}`, `1 2 3 4 5 5x20`}, []string{`process_start_time_seconds{job="crem-agent",` + n + `}`, `1 2 2x20`}, "10m", "", with("job", "crem-agent"), "4"},
	{"CREMWorkerStalled", []string{`crem_agent_worker_heartbeat_age_seconds{` + n + `}`, `90x10`}, []string{`crem_agent_worker_heartbeat_age_seconds{` + n + `}`, `0.002x10`}, "2m", "0m", gw1, "1m 30s"},
	{"CREMWorkersKeptWaiting", []string{`crem_agent_kernel_packets_total{reason="open_stale",` + n + `}`, `0+2000x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`},
		[]string{`crem_agent_kernel_packets_total{reason="open_stale",` + n + `}`, `0+60x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`}, "20m", "8m", gw1, ""},
	{"CREMMemoryNearLimit", []string{`crem_agent_memory_in_use_bytes{` + n + `}`, `1040187392x20`, `crem_agent_memory_limit_bytes{` + n + `}`, `1073741824x20`},
		[]string{`crem_agent_memory_in_use_bytes{` + n + `}`, `900000000x20`, `crem_agent_memory_limit_bytes{` + n + `}`, `1073741824x20`}, "6m", "4m", gw1, "992Mi"},
	{"CREMConfigStale", []string{`crem_agent_config_stale{` + n + `}`, `1x20`}, []string{`crem_agent_config_stale{` + n + `}`, `0x20`}, "6m", "4m", gw1, ""},
	{"CREMConfigNotApplied", []string{`crem_agent_config_generation{` + n + `}`, `3x20`, `crem_agent_config_applied_generation{` + n + `}`, `0x20`},
		[]string{`crem_agent_config_generation{` + n + `}`, `3x20`, `crem_agent_config_applied_generation{` + n + `}`, `3x20`}, "6m", "4m", gw1, ""},
	{"CREMAgentWithoutAPI", []string{`crem_agent_api_connected{` + n + `}`, `0x20`}, []string{`crem_agent_api_connected{` + n + `}`, `1x20`}, "11m", "9m", gw1, ""},
	{"CREMConfigProblems", []string{`crem_agent_config_problems{` + n + `}`, `2x30`}, []string{`crem_agent_config_problems{` + n + `}`, `0x30`}, "16m", "14m", gw1, "2"},
	{"CREMDomainNotApplied", []string{`crem_agent_domain_applied{domain="d",` + n + `}`, `0x20`}, []string{`crem_agent_domain_applied{domain="d",` + n + `}`, `1x20`}, "6m", "4m", with("domain", "d"), ""},
	{"CREMUplinkNotAttached", []string{`crem_agent_uplink_attached{interface="wan0",` + n + `}`, `0x20`}, []string{`crem_agent_uplink_attached{interface="wan0",` + n + `}`, `1x20`}, "3m", "1m", with("interface", "wan0"), ""},
	{"CREMTunnelDown", []string{`crem_agent_tunnels_wanted{` + n + `}`, `2x30`, `crem_agent_tunnels_up{` + n + `}`, `1x30`},
		[]string{`crem_agent_tunnels_wanted{` + n + `}`, `2x30`, `crem_agent_tunnels_up{` + n + `}`, `2x30`}, "11m", "9m", gw1, ""},
	{"CREMTunnelPacketsDropped", []string{`crem_agent_tunnel_packets_total{reason="in_foreign",` + n + `}`, `0+60x30`},
		[]string{`crem_agent_tunnel_packets_total{reason="in_foreign",` + n + `}`, `7x30`, `crem_agent_tunnel_packets_total{reason="plain_no_lease",` + n + `}`, `0+60x30`}, "10m", "4m", with("reason", "in_foreign"), ""},
	{"CREMMTUTooSmall", []string{`crem_agent_mtu_too_small_flows{` + n + `}`, `4x20`}, []string{`crem_agent_mtu_too_small_flows{` + n + `}`, `0x20`}, "6m", "4m", gw1, "4"},
	{"CREMFlowsUnprotected", []string{`crem_agent_flows{direction="sent",` + n + `}`, `7x20`, `crem_agent_flows_protected{` + n + `}`, `0x20`},
		[]string{`crem_agent_flows{direction="sent",` + n + `}`, `7x20`, `crem_agent_flows_protected{` + n + `}`, `1x20`}, "6m", "4m", gw1, "7"},
	{"CREMLossHigh", []string{`crem_agent_lost_packets_total{` + n + `}`, `0+6000x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`},
		[]string{`crem_agent_lost_packets_total{` + n + `}`, `0+600x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`}, "20m", "8m", gw1, ""},
	// When all is well one node loses half a percent, and another one so few packets that they prove nothing.
	{"CREMTunnelLossHigh", []string{`crem_agent_tunnel_lost_packets_total{` + n + `}`, `0+900x30`, `crem_agent_tunnel_measured_packets_total{` + n + `}`, `0+60000x30`},
		[]string{`crem_agent_tunnel_lost_packets_total{` + n + `}`, `0+300x30`, `crem_agent_tunnel_measured_packets_total{` + n + `}`, `0+60000x30`,
			`crem_agent_tunnel_lost_packets_total{node="gw2",instance="b"}`, `0+1x30`, `crem_agent_tunnel_measured_packets_total{node="gw2",instance="b"}`, `0+20x30`}, "20m", "8m", gw1, ""},
	{"CREMNotRestored", []string{`crem_agent_given_up_packets_total{` + n + `}`, `0+120x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`},
		[]string{`crem_agent_given_up_packets_total{` + n + `}`, `0+6x30`, `crem_agent_source_packets_total{direction="received",` + n + `}`, `0+60000x30`}, "20m", "8m", gw1, ""},
	{"CREMBreakerOpened", []string{`crem_agent_breaker_opened_total{` + n + `}`, `0 0 1x20`}, []string{`crem_agent_breaker_opened_total{` + n + `}`, `1x20`}, "5m", "", gw1, ""},
	{"CREMHoldTimeTooShort", []string{`crem_agent_released_packets_total{reason="hold_time_over",` + n + `}`, `0+60x30`, `crem_agent_held_packets_total{` + n + `}`, `0+600x30`},
		[]string{`crem_agent_released_packets_total{reason="hold_time_over",` + n + `}`, `0+6x30`, `crem_agent_held_packets_total{` + n + `}`, `0+600x30`}, "20m", "8m", gw1, ""},
	{"CREMRepairWithheld", []string{`crem_agent_repairs_withheld_total{` + n + `}`, `0+60x30`, `crem_agent_repairs_sent_total{reason="ordinary",` + n + `}`, `0+300x30`},
		[]string{`crem_agent_repairs_withheld_total{` + n + `}`, `0+6x30`, `crem_agent_repairs_sent_total{reason="ordinary",` + n + `}`, `0+300x30`}, "20m", "8m", gw1, ""},
	{"CREMRestoreVerifyFailures", []string{`crem_agent_restore_verify_failures_total{` + n + `}`, `0 0 1x20`}, []string{`crem_agent_restore_verify_failures_total{` + n + `}`, `0x20`}, "5m", "", gw1, ""},
	{"CREMTapFull", []string{`crem_agent_drops_total{direction="none",reason="tap_full",` + n + `}`, `0+60x30`}, []string{`crem_agent_drops_total{direction="none",reason="tap_full",` + n + `}`, `5x30`}, "10m", "4m", with("direction", "none", "reason", "tap_full"), ""},
	{"CREMOperatorDown", []string{`up{job="crem-operator",instance="a"}`, `0x30`}, []string{`up{job="crem-operator",instance="a"}`, `1x30`, `up{job="crem-operator",instance="b"}`, `0x30`}, "11m", "9m", map[string]string{}, ""},
	{"CREMNodesFailing", []string{`crem_operator_domain_nodes{domain="d",state="failing"}`, `3x30`}, []string{`crem_operator_domain_nodes{domain="d",state="failing"}`, `0x30`, `crem_operator_domain_nodes{domain="d",state="ready"}`, `3x30`}, "11m", "9m", map[string]string{"domain": "d", "state": "failing"}, "3"},
	{"CREMObjectStalled", []string{`crem_operator_stalled_objects{kind="CREMDomain"}`, `1x30`}, []string{`crem_operator_stalled_objects{kind="CREMDomain"}`, `0x30`}, "11m", "9m", map[string]string{"kind": "CREMDomain"}, "1"},
	{"CREMOperatorWritesFail", []string{`crem_operator_writes_total{kind="CREMNode",result="error"}`, `0+60x30`}, []string{`crem_operator_writes_total{kind="CREMNode",result="error"}`, `0x30`, `crem_operator_writes_total{kind="CREMNode",result="ok"}`, `0+60x30`}, "20m", "8m", map[string]string{"kind": "CREMNode"}, ""},
}

var templated = regexp.MustCompile(`\{\{ *\$(labels\.([a-z_]+)|value)[^}]*\}\}`)

// TestAlertsFireAndKeepQuiet runs every alert through promtool: it fires with what it says, not before its time, and not when all is well.
func TestAlertsFireAndKeepQuiet(t *testing.T) {
	all, dir := alerts(t), t.TempDir()
	write(t, filepath.Join(dir, "rules.yaml"), all)
	promtool(t, dir, "check", "rules", "rules.yaml")
	byName := map[string]rule{}
	for _, g := range all.Groups {
		for _, r := range g.Rules {
			byName[r.Alert] = r
		}
	}
	var tests []any
	for _, s := range scenarios {
		r, ok := byName[s.alert]
		if !ok {
			t.Errorf("there is no alert %s", s.alert)
			continue
		}
		delete(byName, s.alert)
		labels := map[string]string{"severity": r.Labels["severity"]}
		for k, v := range s.labels {
			labels[k] = v
		}
		annotations := map[string]string{}
		for k, v := range r.Annotations {
			annotations[k] = templated.ReplaceAllStringFunc(v, func(m string) string {
				if name := templated.FindStringSubmatch(m)[2]; name != "" {
					return s.labels[name]
				}
				return s.value
			})
		}
		fires := map[string]any{"eval_time": s.at, "alertname": s.alert, "exp_alerts": []any{map[string]any{"exp_labels": labels, "exp_annotations": annotations}}}
		checks := []any{fires}
		if s.before != "" {
			checks = append(checks, map[string]any{"eval_time": s.before, "alertname": s.alert, "exp_alerts": []any{}})
		} else if r.For != "" {
			t.Errorf("%s waits %s, and its scenario does not show that", s.alert, r.For)
		}
		tests = append(tests, map[string]any{"interval": "1m", "input_series": series(s.bad), "alert_rule_test": checks},
			map[string]any{"interval": "1m", "input_series": series(s.good), "alert_rule_test": []any{map[string]any{"eval_time": s.at, "alertname": s.alert, "exp_alerts": []any{}}}})
	}
	for name := range byName {
		t.Errorf("%s has no scenario", name)
	}
	write(t, filepath.Join(dir, "test.yaml"), map[string]any{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests})
	promtool(t, dir, "test", "rules", "test.yaml")
}

func series(list []string) []any {
	var out []any
	for i := 0; i < len(list); i += 2 {
		out = append(out, map[string]any{"series": list[i], "values": list[i+1]})
	}
	return out
}

// TestEveryAlertHasARunbook: a page with what a person needs at three in the morning, and no page without an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	pages := map[string]bool{"README.md": true}
	index, err := os.ReadFile(root + "/docs/runbooks/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			page := r.Alert + ".md"
			pages[page] = true
			if r.Annotations["runbook_url"] != "https://crem.dev/docs/runbooks/"+page || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: annotations %v", r.Alert, r.Annotations)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
			}
			raw, err := os.ReadFile(root + "/docs/runbooks/" + page)
			if err != nil {
				t.Error(err)
				continue
			}
			text := string(raw)
			for _, part := range []string{"# " + r.Alert + "\n", "\n## Symptom\n", "\n## What it means for traffic\n", "\n## What to check\n", "```\n"} {
				if !strings.Contains(text, part) {
					t.Errorf("%s has no %q", page, part)
				}
			}
			if !strings.Contains(string(index), fmt.Sprintf("[%s](%s)", r.Alert, page)) {
				t.Errorf("docs/runbooks/README.md does not link to %s", page)
			}
		}
	}
	entries, err := os.ReadDir(root + "/docs/runbooks")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !pages[e.Name()] {
			t.Errorf("docs/runbooks/%s belongs to no alert", e.Name())
		}
	}
}

func TestAlertsNameMetricsThatExist(t *testing.T) {
	known := metricNames(t)
	for _, g := range alerts(t).Groups {
		for _, r := range g.Rules {
			checkQuery(t, r.Alert, r.Expr, known)
		}
	}
}

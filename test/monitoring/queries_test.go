// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"crem.dev/crem/agent/metrics"
)

// metricNames gives every metric that queries may name, with its labels. Those of the operator are read from its source, so that this test
// does not link it.
func metricNames(t *testing.T) map[string][]string {
	t.Helper()
	known := map[string][]string{"up": nil, "process_start_time_seconds": nil, "process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil}
	for _, f := range metrics.Families() {
		known[f.Name] = f.Labels
	}
	files, err := filepath.Glob(root + "/controllers/*.go")
	if err != nil {
		t.Fatal(err)
	}
	definition := regexp.MustCompile(`Name: +"(crem_operator_[a-z_]+)"[^}]*\}(?:, \[\]string\{([^}]*)\})?`)
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range definition.FindAllStringSubmatch(string(raw), -1) {
			var labels []string
			for _, l := range strings.Split(m[2], ",") {
				labels = append(labels, strings.Trim(l, "\" "))
			}
			known[m[1]] = labels
		}
	}
	return known
}

var (
	selector = regexp.MustCompile(`([a-z_:][a-z0-9_:]*)\{([^}]*)\}`)
	metric   = regexp.MustCompile(`\b(crem_[a-z0-9_]+|process_[a-z_]+|up)\b`)
	matcher  = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)
	by       = regexp.MustCompile(`\b(?:by|on|ignoring) ?\(([^)]*)\)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
)

// checkQuery says which metric or label of a query does not exist.
func checkQuery(t *testing.T, where, expr string, known map[string][]string) {
	t.Helper()
	target := []string{"job", "instance", "node"} // what Prometheus adds
	var labels []string
	for _, name := range metric.FindAllString(quoted.ReplaceAllString(expr, `""`), -1) {
		l, ok := known[name]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, name)
		}
		labels = append(labels, l...)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known[m[1]], l[1]) && !slices.Contains(target, l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
	for _, m := range by.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(m[1], ",") {
			if l = strings.TrimSpace(l); !slices.Contains(labels, l) && !slices.Contains(target, l) {
				t.Errorf("%s: no metric in %q has the label %s", where, expr, l)
			}
		}
	}
}

type panel struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
}

func dashboard(t *testing.T) []panel {
	t.Helper()
	raw, err := os.ReadFile(root + "/config/prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string  `json:"uid"`
		Title  string  `json:"title"`
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != "crem" || d.Title != "CREM" {
		t.Errorf("dashboard %s %q", d.UID, d.Title)
	}
	return d.Panels
}

// TestDashboardQueries: each parses, and names only what exists.
func TestDashboardQueries(t *testing.T) {
	known := metricNames(t)
	fill := strings.NewReplacer("$__rate_interval", "1m", "$node", "gw.*")
	var rules []any
	for _, p := range dashboard(t) {
		for _, q := range p.Targets {
			expr := fill.Replace(q.Expr)
			if strings.Contains(expr, "$") {
				t.Errorf("%s: a variable is not known: %s", p.Title, q.Expr)
			}
			checkQuery(t, p.Title, expr, known)
			rules = append(rules, map[string]any{"record": "panel", "expr": expr})
		}
	}
	if len(rules) < 30 {
		t.Errorf("%d queries", len(rules))
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "queries.yaml"), map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	promtool(t, dir, "check", "rules", "--lint=none", "queries.yaml")
}

// TestDashboardIsReadable: titles, explanations, units and legends, and no panel over another.
func TestDashboardIsReadable(t *testing.T) {
	taken := map[[2]int]string{}
	titles := map[string]bool{}
	for _, p := range dashboard(t) {
		if p.Title == "" || titles[p.Type+p.Title] {
			t.Errorf("title %q is empty or there twice", p.Title)
		}
		titles[p.Type+p.Title] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%s: description %q, %d queries", p.Title, p.Description, len(p.Targets))
		}
		if p.Type == "timeseries" && p.FieldConfig.Defaults.Unit == "" {
			t.Errorf("%s has no unit", p.Title)
		}
		for _, q := range p.Targets {
			if p.Type == "timeseries" && q.LegendFormat == "" {
				t.Errorf("%s: a series has no name", p.Title)
			}
		}
	}
}

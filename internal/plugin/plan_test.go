// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/plan"
	"crem.dev/crem/internal/render"
)

var planArgs = []string{"plan", "--rtt", "10ms", "--bandwidth", "10G", "--loss", "0.1%", "--message", "4Mi", "--mtu", "9000", "--to", "west"}

func TestPlan(t *testing.T) {
	compare(t, "plan.txt", run(t, "", nil, append(planArgs, "--messages", "0")...).golden())
	compare(t, "plan-yaml.txt", run(t, "", nil, append(planArgs, "-o", "yaml")...).golden())
	r := run(t, "", nil, append(planArgs, "-o", "json", "--messages", "0")...)
	var made plan.Plan
	if err := json.Unmarshal([]byte(r.out), &made); err != nil || made.Input.Loss != 1e-3 || made.Input.Message != 4<<20 || len(made.Mechanisms) != 10 {
		t.Errorf("%v\n%s", err, r.out)
	}
	if _, err := render.Decode([]render.File{{Name: "plan", Data: []byte(run(t, "", nil, append(planArgs, "-o", "yaml")...).out)}}); err != nil {
		t.Error(err)
	}
}

// TestPlanWrongInput: one sentence that says what to write, and the exit code of wrong flags.
func TestPlanWrongInput(t *testing.T) {
	for _, tc := range []struct{ flag, value, says string }{
		{"--rtt", "0", "--rtt is missing: write the round-trip time between the sites, for instance --rtt 25ms"},
		{"--bandwidth", "", "--bandwidth is missing: write the rate of the link, for instance --bandwidth 100G"},
		{"--loss", "", "--loss is missing: write the share of packets that the link loses, for instance --loss 1e-4"},
		{"--message", "", "--message is missing: write the size of one message, for instance --message 128Mi"},
		{"--bandwidth", "100GB", `--bandwidth "100GB": write a whole number of bits per second with or without k, M, G or T, for instance 100G`},
		{"--message", "1MB", `--message "1MB": write a whole number of octets with or without Ki, Mi or Gi, for instance 128Mi`},
		{"--window", "x", `--window "x": write a whole number of octets with or without Ki, Mi or Gi, for instance 64Mi`},
		{"--loss", "some", `--loss "some": write the share of packets that the link loses, for instance 1e-4 or 0.01%`},
		{"--loss", "1", "--loss 1: write the share of packets that the link loses, from 0 to 0.3, for instance 1e-4 or 0.01%"},
		{"--transport", "tcp", `--transport "tcp": write go-back-n, selective-repeat, selective-repeat-timer, mrc or veroce`},
		{"--to", "West!", `--to "West!": write the name of a site: lower-case letters, digits and '-'`},
		{"--messages", "-7", "--messages -7: write how many messages to simulate, from 0 to 1000000, or -1"},
		{"--output", "pdf", `-o "pdf": write text, yaml, json or html`},
	} {
		r := run(t, "", nil, append(planArgs, tc.flag, tc.value)...)
		if want := "kubectl-crem: " + tc.says + "\n"; r.code != exitUsage || r.out != "" || r.err != want {
			t.Errorf("%s %q: exit code %d, %q, want %q", tc.flag, tc.value, r.code, r.err, want)
		}
	}
}

func health(site string, flows, rtt int32, loss v1alpha1.LossClass) v1alpha1.SiteHealth {
	return v1alpha1.SiteHealth{Name: v1alpha1.SiteName(site), Flows: flows, Loss: loss, RTTMilliseconds: rtt}
}

// TestPlanFindsSite: what a domain reports of a site.
func TestPlanFindsSite(t *testing.T) {
	var a, b v1alpha1.CREMDomain
	a.Name, b.Name = "a", "b"
	a.Status.Sites = []v1alpha1.SiteHealth{health("west", 12, 31, v1alpha1.LossLow), health("north", 1, 5, v1alpha1.LossNone)}
	b.Status.Sites = []v1alpha1.SiteHealth{health("west", 2, 70, v1alpha1.LossHigh)}
	both := []v1alpha1.CREMDomain{a, b}
	if name, s, err := findSite(both, "", "north"); err != nil || name != "a" || s.RTTMilliseconds != 5 {
		t.Error(name, s, err)
	}
	if name, s, err := findSite(both, "b", "west"); err != nil || name != "b" || s.Flows != 2 {
		t.Error(name, s, err)
	}
	if _, _, err := findSite(both, "", "west"); err == nil || err.Error() != "domains a and b both have a site west: choose one with --domain" {
		t.Error(err)
	}
	if _, _, err := findSite(both, "", "south"); err == nil || !strings.Contains(err.Error(), "write --rtt and --loss instead") {
		t.Error(err)
	}
	for _, class := range []v1alpha1.LossClass{v1alpha1.LossNone, v1alpha1.LossLow, v1alpha1.LossMedium, v1alpha1.LossHigh} {
		if lossOf[class] <= 0 {
			t.Errorf("class %s has no loss", class)
		}
	}
}

// TestPlanEndedEarly: Ctrl-C gives what there is, in every format, and so does the end of --time.
func TestPlanEndedEarly(t *testing.T) {
	for _, format := range []string{"text", "json", "html"} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := &program{now: func() time.Time { return time.Unix(0, 0) }}
		var out, errOut bytes.Buffer
		if code := p.execute(ctx, append(planArgs, "--messages", "100000", "-o", format), &out, &errOut); code != exitOK || out.Len() < 1000 {
			t.Errorf("%s: exit code %d\n%s%s", format, code, &out, &errOut)
		}
		if errOut.String() != "Ended early; this is what there is.\n" {
			t.Errorf("%s: %q", format, &errOut)
		}
	}
	now := time.Unix(0, 0)
	p := &program{now: func() time.Time { now = now.Add(3 * time.Second); return now }}
	var out, errOut bytes.Buffer
	if code := p.execute(t.Context(), append(planArgs, "--messages", "100000", "--time", "30s"), &out, &errOut); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(errOut.String(), "of 100003 messages\n"); n < 1 || n > 3 || !strings.Contains(out.String(), "was ended after") {
		t.Errorf("%d lines of progress\n%s%s", n, &out, &errOut)
	}
}

func TestPlanCompletion(t *testing.T) {
	if r := run(t, "", nil, "__complete", "plan", "--transport", ""); !strings.Contains(r.out, "selective-repeat-timer\n") {
		t.Error(r)
	}
	if r := run(t, "", nil, "__complete", "plan", "-o", ""); !strings.Contains(r.out, "html\n") {
		t.Error(r)
	}
}

// simulated matches what comes of the machines of the data path: it may change a little with each of them.
var simulated = regexp.MustCompile(`(?s)CREM, simulated[^\n]*|Simulation: .*`)

// TestPlanPage: the worked example of docs/plan.md is what the command says, and the simulation found what the text says of it.
func TestPlanPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/plan.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```\nkubectl crem (plan [^\n]*--to west)\n```\n```\n(.*?)```\n").FindSubmatch(page)
	if example == nil {
		t.Fatal("no worked example")
	}
	r := run(t, "", nil, strings.Fields(string(example[1]))...)
	if !strings.Contains(r.out, "off the analysis, with") {
		t.Errorf("the simulation does not show that the timer is too short:\n%s", r.out)
	}
	if !*update {
		if diff := cmp.Diff(simulated.ReplaceAllString(string(example[2]), ""), simulated.ReplaceAllString(r.out, "")); diff != "" {
			t.Errorf("the page says otherwise (-update writes it anew)\n%s", diff)
		}
		return
	}
	if err := os.WriteFile("../../docs/plan.md", bytes.Replace(page, example[2], []byte(r.out), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

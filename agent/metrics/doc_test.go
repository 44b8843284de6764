// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/reporter"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const page = "../../docs/metrics.md"

// TestDocumentation: docs/metrics.md is made of the metrics that are registered, and of the reasons that the code knows.
func TestDocumentation(t *testing.T) {
	got := document()
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/metrics.md is out of date, run go test ./agent/metrics -update:\n%s", diff)
	}
}

// reporterDrops are what can happen to reports of counters: those know of no single packet.
var reporterDrops = []reporter.DropReason{reporter.DropPending, reporter.DropEvicted}

func document() string {
	var b strings.Builder
	b.WriteString(`# Metrics of the agent

Served at ` + "`/metrics`" + ` of ` + "`crem-agent run --metrics-addr`" + ` (127.0.0.1:9464 unless told otherwise). This page is generated from the code
(` + "`go test ./agent/metrics -update`" + `) and kept true by a test.

A node has at most 300 series, whatever the number of peers and flows is: no label ever holds an address, a queue pair, a flow or the
text of an error. Flows one by one are shown by ` + "`kubectl-crem flows`" + `. Counters start at 0 when the agent starts. Besides these there are
the usual metrics of the Go runtime (` + "`go_*`" + `) and the process (` + "`process_*`" + `).

| metric | type | labels | meaning |
|---|---|---|---|
`)
	for _, f := range Families() {
		kind := "gauge"
		if f.Type == prometheus.CounterValue {
			kind = "counter"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, kind, strings.Join(f.Labels, ", "), f.Help)
	}
	b.WriteString(`
## Reasons

` + "`direction`" + ` is ` + "`sent`" + ` for the sending side (CSF), ` + "`received`" + ` for the receiving side (CRF), ` + "`none`" + ` for what is of both or was decided
before a flow was found.

`)
	reasons := func(title string, n int, name func(i int) string) {
		fmt.Fprintf(&b, "- %s:", title)
		for i := range n {
			sep := ","
			if i == 0 {
				sep = ""
			}
			fmt.Fprintf(&b, "%s `%s`", sep, name(i))
		}
		b.WriteString("\n")
	}
	reasons("`crem_agent_drops_total{direction=\"sent\"}`", int(csf.DropReasons), func(i int) string { return csf.DropReason(i).String() })
	reasons("`crem_agent_drops_total{direction=\"received\"}`", crf.DropReasons, func(i int) string { return label(crf.DropReason(i).String()) })
	reasons("`crem_agent_drops_total{direction=\"none\"}` of the Path Reporter, each with `reporter_` before it", len(reporterDrops), func(i int) string { return reporterDrops[i].String() })
	reasons("`crem_agent_released_packets_total`", crf.ReleaseCauses, func(i int) string { return label(crf.ReleaseCause(i).String()) })
	reasons("`crem_agent_late_packets_total`", crf.LateCauses-1, func(i int) string { return label(crf.LateCause(i + 1).String()) })
	reasons("`crem_agent_kernel_packets_total`", bpf.Reasons, func(i int) string { return bpf.Reason(i).String() })
	reasons("`crem_agent_tunnel_packets_total`", bpf.Passages, func(i int) string { return bpf.Passage(i).String() })
	return b.String()
}

// label writes words as the engine does in names.
func label(words string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return '_'
	}, strings.ReplaceAll(words, "'", " ")), "_")
}

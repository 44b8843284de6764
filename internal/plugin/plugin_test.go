// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"crem.dev/crem/agent/local"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/clidoc"
)

var update = flag.Bool("update", false, "write the golden files anew")

// node is what an agent says, changed by tests between two readings.
type node struct {
	mu     sync.Mutex
	status agentapi.Status
	flows  []agentapi.Flow
}

func (n *node) Status(withFlows bool) (agentapi.Status, []agentapi.Flow) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !withFlows {
		return n.status, nil
	}
	return n.status, n.flows
}
func (n *node) Unready() []string { return nil }

func example() *node {
	return &node{
		status: agentapi.Status{
			Version: "v0.1.0", Node: "gw1", Generation: 3, AppliedGeneration: 3,
			Uplinks:  []agentapi.Uplink{{Name: "wan0", Index: 4, MTU: 9000, Why: "It routes to 10.2.0.0/16.", Attached: true}},
			Excluded: []agentapi.Exclusion{{Name: "mgmt0", Why: "It leads to 203.0.113.10, which this node itself needs; name it in the domain's uplinks to take it."}},
			Domains:  []agentapi.Domain{{Name: "backbone", Port: 52000, Site: "east", Applied: true, Reporter: agentapi.ReporterOwnDrops, ReporterProblem: "reports what this node's uplinks drop"}},
			Workers:  []agentapi.Worker{{ID: 0, LastBeatAge: 0.0004, Realtime: true}, {ID: 1, LastBeatAge: 0.0009, Realtime: true}},
			Counters: map[string]uint64{"csf_source_packets": 1000, "csf_source_octets": 4_000_000, "csf_repair_octets": 100_000, "crf_sources": 500,
				"crf_lost": 10, "crf_restored": 9, "crf_given_up": 0},
			Drops:  map[string]uint64{"csf_budget": 3, "crf_stale": 0},
			Memory: agentapi.Memory{InUse: 96 << 20, Limit: 1 << 30, Held: 12 << 10},
			Flows:  agentapi.FlowCount{Sending: 3, Protected: 2, Receiving: 1, ProtectedBy: map[string]int{"RoCEv2": 2, "veRoCE": 0, "MRC": 0}},
		},
		flows: []agentapi.Flow{
			{ID: "crf/10.2.0.7/10.1.0.5/17/request", Role: "crf", Domain: "backbone", Profile: "standard", Source: "10.2.0.7", Destination: "10.1.0.5", QPN: 17, Transport: "RoCEv2", Space: "request",
				FlowID: 0xbeef, Peer: "198.51.100.1:52000", State: "Protecting", Why: "Restores losses; nothing is missing.", K: 32, M: 3, T: 4136, Loss: 0.0125, SRTT: 0.0203, Digest: true,
				SourcePackets: 500, SourceOctets: 2_000_000, RepairPackets: 48, Restored: 9, Held: 40,
				Counters: map[string]uint64{"restore_verify_failures": 1, "given_up": 2, "released_hold_time_over": 4}, Drops: map[string]uint64{"block_too_old": 1}},
			{ID: "csf/10.1.0.5/10.2.0.7/4711/request", Role: "csf", Domain: "backbone", Profile: "kv-cache", Source: "10.1.0.5", Destination: "10.2.0.7", QPN: 4711, Transport: "RoCEv2", Space: "request",
				FlowID: 0x1234abcd, Peer: "198.51.100.1:52000", State: "Protecting", Why: "m = 3: at a loss of 0.012 it is the least that keeps blocks of 32 complete within 0.0001. Known: 2912 of 236600 packets of the site's flows lost, in runs of 1.1; SRTT 20.1ms, CE 0.0 %. Profile: Proactive, Independent, m up to 8, repairs up to 0.25 of the flow's octets.", Worker: 1,
				K: 32, M: 3, T: 4136, Scheme: "Cauchy", Loss: 0.0123, SRTT: 0.0201, Digest: true, Breaker: "closed", SourcePackets: 800, SourceOctets: 3_200_000, RepairPackets: 75, RepairOctets: 310_000},
			{ID: "csf/10.1.0.5/10.2.0.7/4711/response", Role: "csf", Domain: "backbone", Profile: "kv-cache", Source: "10.1.0.5", Destination: "10.2.0.7", QPN: 4711, Transport: "RoCEv2", Space: "response",
				FlowID: 0x11, Peer: "198.51.100.1:52000", State: "Suspended", Why: "m = 0: the circuit breaker is open, because loss is over 10 % or CE over 50 %; repairs start again ten seconds after that ends.",
				K: 32, T: 4136, Scheme: "Cauchy", Loss: 0.14, SRTT: 0.0201, Breaker: "open", SourcePackets: 100, SourceOctets: 400_000},
			{ID: "csf/fd00:1::5/fd00:2::7/99/request", Role: "csf", Domain: "backbone", Source: "fd00:1::5", Destination: "fd00:2::7", QPN: 99, Transport: "RoCEv2", Space: "request", State: "Unprotected",
				Why: "no profile of domain backbone takes the flow: name one in profileRef or widen a selector", SourcePackets: 100},
		},
	}
}

// broken is a node on which everything is wrong that can be.
func broken() *node {
	n := example()
	s := &n.status
	s.ConfigStale = "d.yaml, document 1 (CREMDomain backbone): spec.port 4791 is the port of RoCEv2 itself: write a free port from 49152 to 65535"
	s.AppliedGeneration = 0
	s.Problems = []agentapi.Problem{{Object: "CREMDomain second", Reason: "PortConflict", Message: "port 52000 on node gw1 belongs to the older domain backbone: write another port, or choose other nodes"}}
	s.Domains = append(s.Domains, agentapi.Domain{Name: "third", Port: 52001, Site: "east", Problem: "open CREM port 52001: address already in use; is another program using it?"})
	s.Uplinks = append(s.Uplinks, agentapi.Uplink{Name: "wan9", Problem: "There is no interface of this name."})
	s.Workers[1].LastBeatAge = 12
	s.MTUTooSmall = agentapi.MTUTooSmall{Flows: 2, Need: 4200, Have: 1500}
	s.Memory.InUse = 1000 << 20
	s.Drops["outside_domain"] = 7
	s.Counters["kernel_pass_gso"] = 5
	s.Counters["kernel_open_stale"] = 6
	s.Counters["tunnel_in_checksum"], s.Counters["tunnel_in_foreign"], s.Counters["tunnel_decapsulated"] = 1, 2, 100
	s.Tunnels = []agentapi.Tunnel{
		{
			Domain: "backbone", Site: "west", Gateway: true, Up: true, Local: "192.0.2.1", Remote: "198.51.100.1", Uplink: "wan0", MTU: 9000,
			Measured: &agentapi.Measured{Packets: 1000, Lost: 3, DelayChange: -1250, Problem: "the clocks differ: use NTP"},
			Queue:    &agentapi.Queue{Average: 300_000, Early: 262_144, Severe: 1_048_576},
		},
		{
			Domain: "backbone", Site: "east2", Gateway: true, Up: true, Local: "192.0.2.1", Remote: "198.51.100.9", Uplink: "wan1", MTU: 9000,
			Queue: &agentapi.Queue{Early: 262_144, Severe: 1_048_576, Problem: "nothing is marked by the own queue: uplink: interface 7 has no queue"},
		},
		{Domain: "backbone", Site: "north", Gateway: true, Problem: "no gateway of site north has answered: enable spec.wan there"},
		{Domain: "edge", Site: "south", Problem: "this node is no gateway"},
	}
	return n
}

// serve runs the agent's own server on a real socket.
func serve(t *testing.T, n *node) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	ln, err := local.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- local.Serve(ctx, ln, local.Handler(n)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return path
}

// result is what a command did.
type result struct {
	code     int
	out, err string
}

// golden gives the whole result as text.
func (r result) golden() string {
	return fmt.Sprintf("exit code %d\n--- standard output\n%s--- error output\n%s", r.code, r.out, r.err)
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew)\n%s", file, diff)
	}
}

// run runs a command line with a clock that moves only when the program sleeps. between is called while it sleeps.
func run(t *testing.T, stdin string, between func(), args ...string) result {
	t.Helper()
	now := time.Unix(0, 0)
	p := &program{in: strings.NewReader(stdin), now: func() time.Time { return now }, sleep: func(_ context.Context, d time.Duration) {
		now = now.Add(d)
		if between != nil {
			between()
		}
	}}
	var out, errOut bytes.Buffer
	code := p.execute(t.Context(), args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

func TestGoldenOutputs(t *testing.T) {
	for _, tc := range []struct {
		name string
		node *node
		args []string
	}{
		{"flows", example(), []string{"flows"}},
		{"flows-wide", example(), []string{"flows", "-o", "wide"}},
		{"flows-json", example(), []string{"flows", "-o", "json", "--role", "crf"}},
		{"flows-unprotected", example(), []string{"flows", "--unprotected", "--domain", "backbone"}},
		{"flows-none", &node{}, []string{"flows"}},
		{"flows-none-json", &node{}, []string{"flows", "-o", "json"}},
		{"flows-bad-role", example(), []string{"flows", "--role", "sender"}},
		{"flows-bad-output", example(), []string{"flows", "-o", "yaml"}},
		{"explain-node", example(), []string{"explain", "node"}},
		{"explain-node-by-name", example(), []string{"explain", "gw1", "-o", "wide"}},
		{"explain-node-broken", broken(), []string{"explain", "node", "-o", "wide"}},
		{"explain-node-idle", &node{status: agentapi.Status{Node: "gw1", Domains: []agentapi.Domain{{Name: "d", Applied: true}}, Uplinks: []agentapi.Uplink{{Name: "wan0", Attached: true}}}}, []string{"explain", "node"}},
		{"explain-node-empty", &node{status: agentapi.Status{Node: "gw1"}}, []string{"explain", "node"}},
		{"explain-flow", example(), []string{"explain", "csf/10.1.0.5/10.2.0.7/4711/request", "-o", "wide"}},
		{"explain-flow-by-part", example(), []string{"explain", "fd00:2::7"}},
		{"explain-flow-receiving", example(), []string{"explain", "crf/", "-o", "wide"}},
		{"explain-flow-suspended", example(), []string{"explain", "4711/response"}},
		{"explain-flow-json", example(), []string{"explain", "4711/response", "-o", "json"}},
		{"explain-flow-ambiguous", example(), []string{"explain", "4711"}},
		{"explain-flow-unknown", example(), []string{"explain", "10.9.9.9"}},
		{"explain-nothing", example(), []string{"explain"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, "", nil, append(tc.args, "--socket", serve(t, tc.node))...)
			compare(t, tc.name+".txt", r.golden())
		})
	}
}

// TestTop: rates are between two readings.
// A flow is one PSN space of a queue pair of some transport, and explain says of which.
func TestExplainNamesTransportAndSpace(t *testing.T) {
	for _, c := range []struct{ transport, space, want string }{
		{"RoCEv2", "request", "the requests of a RoCEv2 queue pair"},
		{"RoCEv2", "response", "READ responses and ATOMIC acknowledgements of a RoCEv2 queue pair, with the PSNs of the requests"},
		{"veRoCE", "request", "the requests of a veRoCE queue pair"},
		{"veRoCE", "response", "of a veRoCE queue pair, which have a PSN space of their own"},
		{"MRC", "request", "the WRITEs of an MRC queue pair, which has this PSN space alone"},
	} {
		for role, verdict := range map[string]string{"csf": "Leaves here, protected. ", "crf": "Arrives here, losses are restored (Protecting). "} {
			e := explainFlow(&agentapi.Flow{Role: role, State: "Protecting", Transport: c.transport, Space: c.space})
			if !strings.HasPrefix(e.Verdict, verdict) || !strings.Contains(e.Verdict, c.want) {
				t.Errorf("%s %s, %s: %s", c.transport, c.space, role, e.Verdict)
			}
		}
	}
}

func TestTop(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
	}{
		{"top", []string{"--once"}},
		{"top-wide", []string{"--once", "-o", "wide", "--interval", "2s", "--flows", "2"}},
		{"top-json", []string{"-o", "json"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := example()
			step := func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				c := map[string]uint64{}
				for name, v := range n.status.Counters {
					c[name] = v * 3
				}
				n.status.Counters = c
				flows := append([]agentapi.Flow(nil), n.flows...)
				flows[0].Restored, flows[0].SourcePackets, flows[0].SourceOctets = 19, 1500, 6_000_000
				flows[1].SourcePackets, flows[1].SourceOctets, flows[1].RepairPackets, flows[1].RepairOctets = 200_800, 800_000_000, 19_000, 79_000_000
				flows[3].SourcePackets = 50 // the agent was started again
				n.flows = flows
			}
			compare(t, tc.name+".txt", run(t, "", step, append(append([]string{"top"}, tc.args...), "--socket", serve(t, n))...).golden())
		})
	}
	t.Run("goes on until it is ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		rounds := 0
		now := time.Unix(0, 0)
		p := &program{now: func() time.Time { return now }, sleep: func(_ context.Context, d time.Duration) {
			now = now.Add(d)
			if rounds++; rounds == 4 {
				cancel()
			}
		}}
		var out, errOut bytes.Buffer
		if code := p.execute(ctx, []string{"top", "--socket", serve(t, example())}, &out, &errOut); code != 0 || errOut.Len() > 0 {
			t.Errorf("exit code %d, %s", code, &errOut)
		}
		if n := strings.Count(out.String(), "FLOW "); n != 3 {
			t.Errorf("%d tables, want 3", n)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Error("terminal codes in what is no terminal")
		}
	})
	t.Run("bad interval", func(t *testing.T) {
		if r := run(t, "", nil, "top", "--interval", "1ms"); r.code != exitUsage || !strings.Contains(r.err, "write a time from 100ms to 1h") {
			t.Error(r)
		}
	})
}

func TestRender(t *testing.T) {
	samples := "../../config/samples"
	domain, err := os.ReadFile(samples + "/domain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, stdin string
		args        []string
	}{
		{"render", "", []string{"-f", samples, "--node", "gw1"}},
		{"render-table", "", []string{"-f", samples + "/domain.yaml", "-f", samples + "/profiles.yaml", "-o", "table"}},
		{"render-wide", "", []string{"-f", samples, "-o", "wide"}},
		{"render-json", "", []string{"-f", samples, "-o", "json", "--labels", "crem.dev/gateway="}},
		{"render-other-node", "", []string{"-f", samples, "-o", "table", "--labels", "a=b"}},
		{"render-stdin-problem", string(domain), []string{"-f", "-", "-o", "table"}},
		{"render-fault", strings.Replace(string(domain), "52000", "4791", 1) + "---\nkind: CREMDomian\n", []string{"-f", "-"}},
		{"render-no-file", "", nil},
		{"render-missing-file", "", []string{"-f", "no-such.yaml"}},
		{"render-bad-labels", "", []string{"-f", samples, "--labels", "a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compare(t, tc.name+".txt", run(t, tc.stdin, nil, append([]string{"render"}, tc.args...)...).golden())
		})
	}
}

func TestDecode(t *testing.T) {
	capture := "../../agent/roce/testdata/roce-v4-read.pcap"
	r := run(t, "", nil, "decode", capture)
	if r.code != 0 || strings.Count(r.out, "\n") < 5 || !strings.Contains(r.err, "RoCE") {
		t.Errorf("%d\n%.300s\n%s", r.code, r.out, r.err)
	}
	raw, err := os.ReadFile(capture)
	if err != nil {
		t.Fatal(err)
	}
	if again := run(t, string(raw), nil, "decode", "-"); again.out != r.out {
		t.Error("the standard input gives another output than the file")
	}
	if j := run(t, "", nil, "decode", capture, "-o", "json"); !strings.HasPrefix(j.out, "{") {
		t.Errorf("%.100s", j.out)
	}
	if none := run(t, "", nil, "decode", "no-such.pcap"); none.code != exitUsage || !strings.Contains(none.err, "name a file that tcpdump -w wrote") {
		t.Error(none)
	}
	if no := run(t, "no capture", nil, "decode", "-"); no.code != exitError || no.err == "" {
		t.Error(no)
	}
}

func TestVersion(t *testing.T) {
	if r := run(t, "", nil, "version", "--socket", serve(t, example())); r.code != 0 || !strings.Contains(r.out, "agent        v0.1.0") {
		t.Error(r)
	}
	if r := run(t, "", nil, "version", "--socket", "/nowhere/a.sock"); r.code != 0 || !strings.Contains(r.out, "agent        not reachable") {
		t.Error(r)
	}
}

// TestNoAgent: every command that needs one says what to do.
func TestNoAgent(t *testing.T) {
	for _, args := range [][]string{{"flows"}, {"top", "--once"}, {"explain", "node"}, {"explain", "10.2.0.7/4711"}} {
		r := run(t, "", nil, append(args, "--socket", "/nowhere/a.sock")...)
		if r.code != exitError || r.out != "" || r.err != "kubectl-crem: there is no socket /nowhere/a.sock: is crem-agent running on this node? Name its socket with --socket\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

func TestWrongCommandLines(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"flow"}, `there is no command "flow": kubectl crem --help lists them`},
		{[]string{"flows", "x"}, `kubectl crem flows has an argument too many, "x"`},
		{[]string{"flows", "--sokcet", "x"}, "unknown flag: --sokcet: kubectl crem flows --help lists the flags"},
		{[]string{"decode"}, "kubectl crem decode needs a capture"},
		{[]string{"decode", "x", "--port", "70000"}, "--port"},
	} {
		if r := run(t, "", nil, tc.args...); r.code != exitUsage || !strings.Contains(r.err, tc.says) {
			t.Errorf("%v: %+v", tc.args, r)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := run(t, "", nil, "completion", shell); r.code != 0 || len(r.out) < 500 {
			t.Errorf("%s: %d", shell, r.code)
		}
	}
	r := run(t, "", nil, "__complete", "explain", "--socket", serve(t, example()), "")
	if !strings.Contains(r.out, "csf/10.1.0.5/10.2.0.7/4711/request\n") || !strings.Contains(r.out, "node\n") {
		t.Errorf("flows are not completed:\n%s", r.out)
	}
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte("{apiVersion: v1, kind: Config, contexts: [{name: west, context: {cluster: w}}, {name: east, context: {cluster: e}}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run(t, "", nil, "__complete", "status", "--kubeconfig", config, "--context", ""); !strings.HasPrefix(r.out, "east\nwest\n") {
		t.Errorf("contexts are not completed:\n%s", r.out)
	}
	if r := run(t, "", nil, "__complete", "flows", "-o", ""); !strings.Contains(r.out, "wide\n") {
		t.Errorf("output formats are not completed:\n%s", r.out)
	}
}

// TestWatch: flows and explain are shown again when they read otherwise, and only then.
func TestWatch(t *testing.T) {
	for _, args := range [][]string{{"flows", "--watch"}, {"explain", "csf/10.1.0.5/10.2.0.7/4711/request", "-w"}, {"flows", "-w", "-o", "json"}} {
		n, looks := example(), 0
		args = append(args, "--socket", serve(t, n))
		ctx, cancel := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		p := &program{now: time.Now, sleep: func(_ context.Context, d time.Duration) {
			if d != time.Second {
				t.Errorf("%v: it looks again after %v", args, d)
			}
			n.mu.Lock()
			defer n.mu.Unlock()
			switch looks++; looks {
			case 2:
				flows := slices.Clone(n.flows)
				flows[1].State, flows[1].Why = "Suspended", "m = 0: the circuit breaker is open."
				n.flows = flows
			case 5:
				cancel()
			}
		}}
		once := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-w" || a == "--watch" })
		want := run(t, "", nil, once...).out
		if code := p.execute(ctx, args, &out, &errOut); code != 0 || errOut.Len() > 0 || looks != 5 {
			t.Errorf("%v: exit code %d after %d looks, %s", args, code, looks, errOut.String())
		}
		want += run(t, "", nil, once...).out
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%v (-want +got)\n%s", args, diff)
		}
	}
	if r := run(t, "", nil, "flows", "--watch", "--socket", "/nowhere"); r.code != exitError {
		t.Errorf("without an agent: %+v", r)
	}
}

// TestHelp: every command says what it does, shows an example and documents every flag.
func TestHelp(t *testing.T) {
	walk((&program{}).root(), func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q is no short help", cmd.CommandPath(), cmd.Short)
		}
		if cmd.HasSubCommands() || cmd.Name() == "version" {
			return
		}
		if cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no long help or no example", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s says nothing", cmd.CommandPath(), f.Name)
			}
		})
		for _, line := range strings.Split(cmd.Example, "\n") {
			if !regexp.MustCompile(`kubectl crem ` + cmd.Name() + `\b`).MatchString(line) {
				t.Errorf("%s: example %q is of another command", cmd.CommandPath(), line)
			}
		}
	})
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

func TestFormats(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{count(0), "0"}, {count(9999), "9999"}, {count(10000), "10.0k"}, {count(123456), "123k"}, {count(1.5e6), "1.5M"}, {count(2e9), "2.0G"}, {count(3e12), "3.0T"},
		{octets(1023), "1023 B"}, {octets(1536), "1.5 KiB"}, {octets(96 << 20), "96.0 MiB"}, {octets(3 << 30), "3.0 GiB"},
		{share(0), "0%"}, {share(0.0000001), "<0.001%"}, {share(0.0005), "0.050%"}, {share(0.0123), "1.23%"}, {share(0.5), "50%"},
		{milliseconds(0), "-"}, {milliseconds(0.0004), "400us"}, {milliseconds(0.0203), "20.3ms"}, {milliseconds(1.5), "1500ms"},
		{bits(125000), "1.0Mbit/s"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s, want %s", tc.got, tc.want)
		}
	}
	if ratio(1, 0) != 0 {
		t.Error("ratio without a whole")
	}
}

// TestCommandLinePage: docs/cli.md says what the program does.
func TestCommandLinePage(t *testing.T) {
	clidoc.Check(t, "../../docs/cli.md", (&program{}).root(), *update)
}

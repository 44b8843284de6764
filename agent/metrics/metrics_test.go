// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/internal/agentapi"
)

// node is a Source with a fixed answer.
type node struct {
	status  agentapi.Status
	unready []string
}

func (n *node) Status(bool) (agentapi.Status, []agentapi.Flow) { return n.status, nil }
func (n *node) Unready() []string                              { return n.unready }

// busy is the status of a node on which everything that the code can count was counted, with so many peers.
func busy(peers int) *node {
	s := agentapi.Status{
		Version: "v1.2.3", Node: "gw1", Generation: 8, AppliedGeneration: 7, ConfigStale: "a fault",
		Problems:    []agentapi.Problem{{Object: "CREMDomain x"}},
		Domains:     []agentapi.Domain{{Name: "backbone", Applied: true}, {Name: "second"}},
		Uplinks:     []agentapi.Uplink{{Name: "wan0", MTU: 9000, Attached: true}, {Name: "wan9", Problem: "There is no interface of this name."}},
		Sites:       []agentapi.Site{{Domain: "backbone", Name: "west", Protected: peers, SRTT: 0.02, Loss: 0.01}, {Domain: "backbone", Name: "north"}},
		Workers:     []agentapi.Worker{{LastBeatAge: 0.001}, {LastBeatAge: 0.004}},
		Memory:      agentapi.Memory{InUse: 10, Limit: 100, Held: 5},
		Flows:       agentapi.FlowCount{Sending: 3 * peers, Protected: 2 * peers, Receiving: peers, ProtectedBy: map[string]int{"RoCEv2": peers, "veRoCE": peers, "MRC": 0}},
		MTUTooSmall: agentapi.MTUTooSmall{Flows: 1, Need: 4216, Have: 1500},
		Counters:    map[string]uint64{}, Drops: map[string]uint64{},
	}
	n := uint64(100)
	count := func(m map[string]uint64, name string) { n++; m[name] = n * uint64(peers) }
	(&csf.Stats{}).Each(func(name string, _ uint64) { count(s.Counters, "csf_"+name) })
	for name := range crfCounters() {
		count(s.Counters, "crf_"+name)
	}
	for i := range bpf.Reasons {
		count(s.Counters, "kernel_"+bpf.Reason(i).String())
	}
	for _, name := range []string{"unprotected_source_packets", "passed_on_packets", "flows_handed_back", "messages", "messages_forwarded", "closes_for_unknown_flows",
		"tap_frames", "socket_received", "socket_sent", "socket_segmented", "injected", "inject_retries", "ring_missed",
		"reporter_reports", "reporter_attributed"} {
		count(s.Counters, name)
	}
	for _, i := range reporterDrops {
		count(s.Drops, "reporter_"+i.String())
	}
	for i := range csf.DropReasons {
		count(s.Drops, "csf_"+i.String())
	}
	for i := range crf.DropReasons {
		count(s.Drops, "crf_"+label(crf.DropReason(i).String()))
	}
	for i := range 39 { // of the engine, the taps and the sockets
		count(s.Drops, fmt.Sprintf("engine_reason_%d", i))
	}
	return &node{status: s}
}

// crfCounters are the counters of the receiving machine, named as the engine names them.
func crfCounters() map[string]bool {
	names := map[string]bool{}
	t := reflect.TypeFor[crf.Stats]()
	words := regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	for i := range t.NumField() {
		f := t.Field(i)
		name := strings.ToLower(words.ReplaceAllString(f.Name, "${1}${3}_${2}${4}"))
		switch {
		case f.Type.Kind() == reflect.Uint64:
			names[name] = true
		case f.Type.Kind() == reflect.Array && f.Name != "Drops":
			for j := range f.Type.Len() {
				names[fmt.Sprintf("%s_%d", name, j)] = true
			}
		}
	}
	return names
}

func gather(t *testing.T, n *node) map[string][]string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := Register(reg, n); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string][]string{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			series[f.GetName()] = append(series[f.GetName()], strings.Join(labels, ","))
		}
	}
	return series
}

func size(series map[string][]string) int {
	n := 0
	for _, s := range series {
		n += len(s)
	}
	return n
}

// TestSeriesAreBounded: as many series at 1 peer as at 1,000, and never more than 300 with those of the Go runtime.
func TestSeriesAreBounded(t *testing.T) {
	many, one := gather(t, busy(1000)), gather(t, busy(1))
	if size(one) != size(many) {
		t.Errorf("%d series at 1 peer, %d at 1,000", size(one), size(many))
	}
	if n := size(many); n > 300 {
		t.Errorf("%d series, at most 300 are allowed", n)
	}
	large := busy(1)
	for i := range 16 {
		large.status.Domains = append(large.status.Domains, agentapi.Domain{Name: fmt.Sprint("d", i)})
		large.status.Uplinks = append(large.status.Uplinks, agentapi.Uplink{Name: fmt.Sprint("e", i), MTU: 1})
		for j := range 15 {
			large.status.Sites = append(large.status.Sites, agentapi.Site{Domain: fmt.Sprint("d", i), Name: fmt.Sprint("s", j), Protected: 1, SRTT: 1, Loss: 1})
		}
	}
	if n := size(gather(t, large)); n > 300 {
		t.Errorf("%d series with as many domains and uplinks as a node can have, at most 300 are allowed", n)
	}
	sites := busy(1)
	sites.status.Sites = large.status.Sites
	if n := size(gather(t, sites)); n > 300 || n < 290 {
		t.Errorf("%d series with as many sites as a node can have: at most 300 are allowed, and most of them should show sites", n)
	}
	large.tunnels()
	if n := size(gather(t, large)); n > 300 {
		t.Errorf("%d series with tunnels besides, at most 300 are allowed", n)
	}
	t.Logf("%d series, %d with all domains and uplinks", size(many), size(gather(t, large)))
	wild := busy(1)
	for i := range 1000 { // a mistake elsewhere must not become a flood here
		wild.status.Counters[fmt.Sprintf("csf_peer_%d", i)] = 1
		wild.status.Counters[fmt.Sprintf("kernel_peer_%d", i)] = 1
		wild.status.Drops[fmt.Sprintf("peer_%d", i)] = 1
		wild.status.Domains = append(wild.status.Domains, agentapi.Domain{Name: fmt.Sprint("d", i)})
		wild.status.Uplinks = append(wild.status.Uplinks, agentapi.Uplink{Name: fmt.Sprint("e", i), MTU: 1})
	}
	if n := size(gather(t, wild)); n > 300 {
		t.Errorf("%d series of a status without bounds", n)
	}
	own := prometheus.NewPedanticRegistry()
	own.MustRegister(NewCollector(busy(1)))
	if n, err := testutil.GatherAndCount(own); err != nil || size(many)-n > runtimeSeries {
		t.Errorf("%d series of the process and the runtime, %d are provided for (%v)", size(many)-n, runtimeSeries, err)
	}
}

// tunnels adds what a node with tunnels counts.
func (n *node) tunnels() {
	n.status.Tunnels = append(n.status.Tunnels, agentapi.Tunnel{Gateway: true, Up: true}, agentapi.Tunnel{Gateway: true}, agentapi.Tunnel{})
	names := []string{"cnp_sent_early", "cnp_sent_severe", "cnp_received_early", "cnp_received_severe", "cnp_own_early", "cnp_own_severe", "measured_packets", "measured_lost", "readings_sent", "readings_received"}
	for i := range bpf.Passages {
		names = append(names, "tunnel_"+bpf.Passage(i).String())
	}
	for i, name := range names {
		n.status.Counters[name] = uint64(1e6 + i)
	}
	n.status.Drops["readings_unused"] = 1
}

// TestLabels: only these, each with its reason in families.go.
func TestLabels(t *testing.T) {
	for _, f := range Families() {
		for _, l := range f.Labels {
			if !slices.Contains([]string{labelDomain, labelInterface, labelDirection, labelReason, labelSite, labelTransport, labelVersion}, l) {
				t.Errorf("%s has label %s", f.Name, l)
			}
		}
	}
}

// TestEveryCounterIsShownOnce: nothing that the machines count is lost on its way, and the table names nothing that is gone.
func TestEveryCounterIsShownOnce(t *testing.T) {
	n := busy(1)
	n.tunnels()
	var out strings.Builder
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(n))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[float64]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if c := m.GetCounter(); c != nil {
				shown[c.GetValue()]++
				fmt.Fprintln(&out, f.GetName(), m.GetLabel(), c.GetValue())
			}
		}
	}
	for name, v := range n.status.Counters {
		if shown[float64(v)] != 1 {
			t.Errorf("counter %s is shown %d times", name, shown[float64(v)])
		}
	}
	for name, v := range n.status.Drops {
		if shown[float64(v)] != 1 {
			t.Errorf("drop %s is shown %d times", name, shown[float64(v)])
		}
	}
	for _, c := range counters {
		found := false
		for name := range n.status.Counters {
			k, _, ok := find(name)
			found = found || ok && k.name == c.name
		}
		if !found {
			t.Errorf("the table names %s, which nobody counts", c.name)
		}
	}
}

func TestValues(t *testing.T) {
	n := busy(1)
	n.status.Counters = map[string]uint64{"csf_source_packets": 5, "crf_sources": 6, "crf_restored": 7, "crf_restore_verify_failures": 1, "kernel_held": 3, "crf_released_gap_filled": 2, "csf_hellos": 9, "messages": 4}
	n.status.Drops = map[string]uint64{"csf_budget": 8, "crf_stale": 2, "outside_domain": 1}
	n.unready = []string{"x"}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(n))
	want := `
# HELP crem_agent_config_stale 1 when the newest configuration was refused and an older one is in force.
# TYPE crem_agent_config_stale gauge
crem_agent_config_stale 1
# HELP crem_agent_domain_applied 1 when the domain is in force.
# TYPE crem_agent_domain_applied gauge
crem_agent_domain_applied{domain="backbone"} 1
crem_agent_domain_applied{domain="second"} 0
# HELP crem_agent_drops_total What was not used, by why: packets not coded or messages refused on the sending side (sent), the receiving side (received), or before a flow was found (direction none). No reason here loses a packet of RDMA.
# TYPE crem_agent_drops_total counter
crem_agent_drops_total{direction="none",reason="outside_domain"} 1
crem_agent_drops_total{direction="received",reason="stale"} 2
crem_agent_drops_total{direction="sent",reason="budget"} 8
# HELP crem_agent_events_total Everything else that is counted, by what it is: of the sending side (sent), the receiving side (received), or of both (direction none).
# TYPE crem_agent_events_total counter
crem_agent_events_total{direction="none",reason="messages"} 4
crem_agent_events_total{direction="sent",reason="hellos"} 9
# HELP crem_agent_mtu_too_small_available_bytes MTU that this flow has; 0 without any.
# TYPE crem_agent_mtu_too_small_available_bytes gauge
crem_agent_mtu_too_small_available_bytes 1500
# HELP crem_agent_mtu_too_small_needed_bytes MTU that the largest of these flows needs; 0 without any.
# TYPE crem_agent_mtu_too_small_needed_bytes gauge
crem_agent_mtu_too_small_needed_bytes 4216
# HELP crem_agent_ready 1 when /readyz says so.
# TYPE crem_agent_ready gauge
crem_agent_ready 0
# HELP crem_agent_released_packets_total Held packets by why they went on.
# TYPE crem_agent_released_packets_total counter
crem_agent_released_packets_total{reason="gap_filled"} 2
# HELP crem_agent_restored_packets_total Packets restored, verified and delivered.
# TYPE crem_agent_restored_packets_total counter
crem_agent_restored_packets_total 7
# HELP crem_agent_site_flows_protected Leaving flows to the site whose peer has acknowledged a configuration.
# TYPE crem_agent_site_flows_protected gauge
crem_agent_site_flows_protected{domain="backbone",site="north"} 0
crem_agent_site_flows_protected{domain="backbone",site="west"} 1
# HELP crem_agent_site_loss_ratio Mean of these flows' estimates of packet loss, before restoration; not there without flows.
# TYPE crem_agent_site_loss_ratio gauge
crem_agent_site_loss_ratio{domain="backbone",site="west"} 0.01
# HELP crem_agent_site_rtt_seconds Mean of these flows' smoothed round-trip times; not there until one is measured.
# TYPE crem_agent_site_rtt_seconds gauge
crem_agent_site_rtt_seconds{domain="backbone",site="west"} 0.02
# HELP crem_agent_source_packets_total Source packets: leaving ones with a new PSN (sent), arriving ones of every kind (received).
# TYPE crem_agent_source_packets_total counter
crem_agent_source_packets_total{direction="received"} 6
crem_agent_source_packets_total{direction="sent"} 5
# HELP crem_agent_uplink_attached 1 when packets of the uplink are seen and restored.
# TYPE crem_agent_uplink_attached gauge
crem_agent_uplink_attached{interface="wan0"} 1
crem_agent_uplink_attached{interface="wan9"} 0
# HELP crem_agent_uplink_mtu_bytes Largest IP packet of the uplink.
# TYPE crem_agent_uplink_mtu_bytes gauge
crem_agent_uplink_mtu_bytes{interface="wan0"} 9000
# HELP crem_agent_worker_heartbeat_age_seconds Age of the oldest heartbeat of a packet worker. Over 0.01 the kernel passes its packets unprotected.
# TYPE crem_agent_worker_heartbeat_age_seconds gauge
crem_agent_worker_heartbeat_age_seconds 0.004
`
	names := []string{"config_stale", "domain_applied", "drops_total", "events_total", "mtu_too_small_available_bytes", "mtu_too_small_needed_bytes", "ready", "released_packets_total", "restored_packets_total", "site_flows_protected", "site_loss_ratio", "site_rtt_seconds", "source_packets_total", "uplink_attached", "uplink_mtu_bytes", "worker_heartbeat_age_seconds"}
	for i := range names {
		names[i] = prefix + names[i]
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// TestSeriesVanish: what is no longer configured has no series.
func TestSeriesVanish(t *testing.T) {
	n := busy(1)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(n))
	count := func() int { return testutil.CollectAndCount(NewCollector(n), prefix+"domain_applied") }
	if got := count(); got != 2 {
		t.Fatalf("%d domains", got)
	}
	n.status.Domains = n.status.Domains[:1]
	if got := count(); got != 1 {
		t.Errorf("%d domains", got)
	}
}

// TestNames: the conventions of Prometheus.
func TestNames(t *testing.T) {
	if problems, err := testutil.CollectAndLint(NewCollector(busy(1))); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestTunnels: a site counts as wanted on its gateways only.
func TestTunnels(t *testing.T) {
	n := busy(1)
	n.tunnels()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewCollector(n))
	want := `# HELP crem_agent_tunnels_up Of these, those whose tunnel flows go into. To the others they leave outside of it.
# TYPE crem_agent_tunnels_up gauge
crem_agent_tunnels_up 1
# HELP crem_agent_tunnels_wanted Other sites towards which flows should travel in a tunnel; 0 on a node that is no gateway.
# TYPE crem_agent_tunnels_wanted gauge
crem_agent_tunnels_wanted 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), prefix+"tunnels_up", prefix+"tunnels_wanted"); err != nil {
		t.Error(err)
	}
}

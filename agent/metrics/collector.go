// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"crem.dev/crem/internal/agentapi"
)

// Bounds of what a configuration or the code can name; what is beyond them is left out. They hold the number of series even if
// someone should count by something that is not bounded.
const (
	maxSeries     = 300 // of an agent
	runtimeSeries = 18  // of them, those of the process and the Go runtime
	maxDomains    = 16
	maxInterfaces = 16
	maxTransports = 3
	maxReasons    = 48 // of one family
	maxDrops      = 90
	maxEvents     = 70
)

// Source tells the status of the node and which checks keep it from being ready.
type Source interface {
	Status(withFlows bool) (agentapi.Status, []agentapi.Flow)
	Unready() []string
}

// Collector makes metrics of a status, at each scrape. It is safe for concurrent use.
type Collector struct {
	source Source
	descs  map[string]*prometheus.Desc
}

// NewCollector makes a collector, to be registered once.
func NewCollector(source Source) *Collector {
	c := &Collector{source: source, descs: map[string]*prometheus.Desc{}}
	for _, f := range Families() {
		c.descs[f.Name] = prometheus.NewDesc(f.Name, f.Help, f.Labels, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// scrape is one collection: what is counted comes first, and what a configuration names shares the series that are left.
type scrape struct {
	*Collector
	out  chan<- prometheus.Metric
	left int
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	status, _ := c.source.Status(false)
	s := &scrape{Collector: c, out: out, left: maxSeries - runtimeSeries}
	s.node(&status)
	s.counters(status.Counters)
	s.drops(status.Drops)
	s.domains(status.Domains)
	s.uplinks(status.Uplinks)
	s.sites(status.Sites)
}

// node shows what every agent has.
func (c *scrape) node(s *agentapi.Status) {
	set := func(which int, value float64, labels ...string) { c.emit(gauges[which], value, labels...) }
	set(buildInfo, 1, s.Version)
	set(configGeneration, float64(s.Generation))
	set(configAppliedGeneration, float64(s.AppliedGeneration))
	set(configStale, oneIf(s.ConfigStale != ""))
	set(configProblems, float64(len(s.Problems)))
	set(flowsSeen, float64(s.Flows.Sending), sent)
	set(flowsSeen, float64(s.Flows.Receiving), received)
	for i, transport := range sortedNames(s.Flows.ProtectedBy) {
		if i < maxTransports {
			set(flowsProtected, float64(s.Flows.ProtectedBy[transport]), transport)
		}
	}
	set(workers, float64(len(s.Workers)))
	age, realtime := 0.0, 0.0
	for _, w := range s.Workers {
		age = max(age, w.LastBeatAge)
		realtime += oneIf(w.Realtime)
	}
	set(workersRealtime, realtime)
	set(heartbeatAge, age)
	set(memoryInUse, float64(s.Memory.InUse))
	set(memoryLimit, float64(s.Memory.Limit))
	set(memoryHeld, float64(s.Memory.Held))
	set(mtuTooSmall, float64(s.MTUTooSmall.Flows))
	set(mtuNeeded, float64(s.MTUTooSmall.Need))
	set(mtuAvailable, float64(s.MTUTooSmall.Have))
	if len(s.Tunnels) > 0 {
		wanted, up := 0.0, 0.0
		for _, t := range s.Tunnels {
			wanted += oneIf(t.Gateway)
			up += oneIf(t.Up)
		}
		set(tunnelsWanted, wanted)
		set(tunnelsUp, up)
	}
	set(ready, oneIf(len(c.source.Unready()) == 0))
	if s.APIConnected != nil {
		set(apiConnected, oneIf(*s.APIConnected))
	}
}

func (c *scrape) domains(list []agentapi.Domain) {
	for _, d := range list[:min(len(list), maxDomains)] {
		c.emit(gauges[domainApplied], oneIf(d.Applied), d.Name)
	}
}

// uplinks shows each interface once, by name: a named one that is not there has no MTU.
func (c *scrape) uplinks(list []agentapi.Uplink) {
	shown := map[string]bool{}
	for _, u := range list {
		if shown[u.Name] || len(shown) == maxInterfaces || c.left < 2 {
			continue
		}
		shown[u.Name] = true
		c.emit(gauges[uplinkAttached], oneIf(u.Attached), u.Name)
		if u.MTU > 0 {
			c.emit(gauges[uplinkMTU], float64(u.MTU), u.Name)
		}
	}
}

// sites shows as many sites as fit, none by half.
func (c *scrape) sites(list []agentapi.Site) {
	for _, s := range list {
		if c.left < 3 {
			return
		}
		c.emit(gauges[siteFlows], float64(s.Protected), s.Domain, s.Name)
		if s.SRTT > 0 {
			c.emit(gauges[siteRTT], s.SRTT, s.Domain, s.Name)
		}
		if s.Protected > 0 {
			c.emit(gauges[siteLoss], s.Loss, s.Domain, s.Name)
		}
	}
}

// counters shows every counter once: under its own metric, or as an event.
func (c *scrape) counters(all map[string]uint64) {
	reasons := map[string]int{}
	other := 0
	for _, name := range sortedNames(all) {
		if k, rest, ok := find(name); ok {
			labels := k.labels
			if rest != "" {
				if reasons[k.family.Name]++; reasons[k.family.Name] > maxReasons {
					continue
				}
				labels = append(slices.Clone(labels), rest)
			}
			c.emit(k.family, float64(all[name]), labels...)
		} else if other++; other <= maxEvents {
			direction, reason := side(name)
			c.emit(events, float64(all[name]), direction, reason)
		}
	}
}

func (c *scrape) drops(all map[string]uint64) {
	for i, name := range sortedNames(all) {
		if i == maxDrops {
			return
		}
		direction, reason := side(name)
		c.emit(drops, float64(all[name]), direction, reason)
	}
}

func (c *scrape) emit(f Family, value float64, labels ...string) {
	if c.left--; c.left < 0 {
		return
	}
	c.out <- prometheus.MustNewConstMetric(c.descs[f.Name], f.Type, value, labels...)
}

// find looks a counter up in the table; rest is what its * stands for.
func find(name string) (k counter, rest string, ok bool) {
	for _, k := range counters {
		if stem, star := strings.CutSuffix(k.name, "*"); star {
			if rest, ok := strings.CutPrefix(name, stem); ok && rest != "" {
				return k, rest, true
			}
		} else if name == k.name {
			return k, "", true
		}
	}
	return counter{}, "", false
}

// side splits the machine off a counter's name.
func side(name string) (direction, reason string) {
	if rest, ok := strings.CutPrefix(name, "csf_"); ok {
		return sent, rest
	}
	if rest, ok := strings.CutPrefix(name, "crf_"); ok {
		return received, rest
	}
	return "none", name
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sortedNames[N any](m map[string]N) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Register puts the node's metrics, and those of the process and the Go runtime that people ask for, into a registry.
func Register(reg prometheus.Registerer, source Source) error {
	// Without its memory statistics, which are a tenth of the budget; process_resident_memory_bytes says most of it.
	runtime := collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled())
	for _, c := range []prometheus.Collector{NewCollector(source), runtime, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

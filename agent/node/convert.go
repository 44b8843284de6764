// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/engine"
	"crem.dev/crem/agent/fec"
	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// Limits of the receiving side that no profile sets: what this implementation can do, not what it wants. Policy is the sender's.
const (
	maxOpenBlocks = 4096 // of one flow: 100 ms of 10 Gbit/s in blocks of 32 packets of 1 KiB, four times over
	maxBlock      = 255  // k and m, the octet that carries them
	maxSymbol     = 9216 // T: the largest jumbo frame
)

// Convert makes the configuration that packet workers obey. The spec may come from anywhere, so everything is checked again; what
// is not understood is left out, never guessed, with a problem that says so. Without any problem, everything is in the result.
func Convert(spec *v1alpha1.CREMNodeSpec, generation int64) (*engine.Config, []render.Problem) {
	return convert(spec, generation, nil)
}

// convert knows the pods that profiles select; nil: nobody can tell.
func convert(spec *v1alpha1.CREMNodeSpec, generation int64, pods map[v1alpha1.ObjectName]*engine.Pods) (*engine.Config, []render.Problem) {
	c := conversion{profiles: map[v1alpha1.ObjectName]*engine.Profile{}, pods: pods}
	for i := range spec.Profiles {
		c.profile(&spec.Profiles[i])
	}
	cfg := &engine.Config{Generation: generation}
	for i := range spec.Domains {
		if d, ok := c.domain(&spec.Domains[i]); ok {
			cfg.Domains = append(cfg.Domains, d)
		}
	}
	return cfg, c.problems
}

type conversion struct {
	profiles map[v1alpha1.ObjectName]*engine.Profile
	pods     map[v1alpha1.ObjectName]*engine.Pods
	problems []render.Problem
}

func (c *conversion) problem(kind string, name v1alpha1.ObjectName, format string, args ...any) {
	c.problems = append(c.problems, render.Problem{
		Object: render.Ref{Kind: kind, Name: string(name)}, Reason: v1alpha1.ReasonInvalidSpec, Message: fmt.Sprintf(format, args...),
	})
}

// domain converts one domain, whole or not at all: half of its sites would be another boundary than the one that was meant.
func (c *conversion) domain(d *v1alpha1.NodeDomain) (engine.Domain, bool) {
	bad := func(format string, args ...any) (engine.Domain, bool) {
		c.problem(v1alpha1.KindDomain, d.Name, format, args...)
		return engine.Domain{}, false
	}
	out := engine.Domain{Name: string(d.Name), Site: string(d.Site), MaxRepairBandwidth: d.MaxRepairBitsPerSecond}
	if d.Port < 1 || d.Port > 65535 {
		return bad("port %d is no UDP port", d.Port)
	}
	out.Port = uint16(d.Port)
	switch d.IPsec.Mode {
	case v1alpha1.IPsecRequired:
		out.RequireIPsec = true
	case v1alpha1.IPsecBoundaryFiltered:
	default:
		return bad("ipsec mode %q is not known to this agent, so the domain is not protected: upgrade the agent, or write Required or BoundaryFiltered", d.IPsec.Mode)
	}
	own := false
	for i := range d.Sites {
		site, err := convertSite(&d.Sites[i])
		if err != nil {
			return bad("site %s: %v", d.Sites[i].Name, err)
		}
		own = own || site.Name == out.Site
		out.Sites = append(out.Sites, site)
	}
	if !own {
		return bad("site %s is none of the domain's sites", d.Site)
	}
	var err error
	if out.Reporters, err = prefixes(d.Reporters); err != nil {
		return bad("reporters: %v", err)
	}
	switch d.Reporter {
	case v1alpha1.ReporterOwnDrops:
		out.ReportDrops = true
	case "", v1alpha1.ReporterOff:
	default:
		c.problem(v1alpha1.KindDomain, d.Name, "reporter mode %q is not known to this agent, which reports nothing: upgrade the agent, or write Off or OwnDrops", d.Reporter)
	}
	if out.Transports, err = convertTransports(d.Transports); err != nil {
		return bad("transports: %v", err)
	}
	if v := &out.Transports.VeRoCE; v.Enabled && v.Port == out.Port {
		return bad("port %d is that of CREM messages and that of veRoCE", v.Port)
	}
	out.WAN = c.wan(d)
	for _, name := range d.Uplinks {
		out.Uplinks = append(out.Uplinks, string(name))
	}
	out.Rules = c.rules(d)
	return out, true
}

// wan converts the tunnels of a domain; with a mode that this agent does not know there is none, which costs nothing but the marks.
func (c *conversion) wan(d *v1alpha1.NodeDomain) *engine.WAN {
	if d.WAN == nil {
		return nil
	}
	out := &engine.WAN{PathMTU: int(d.WAN.PathMTU), LeastRate: d.WAN.MinBitsPerSecond / 8}
	switch d.WAN.Mode {
	case v1alpha1.WANNormal:
	case v1alpha1.WANCompatibility:
		out.Compatibility = true
	default:
		c.problem(v1alpha1.KindDomain, d.Name, "wan mode %q is not known to this agent, which makes no tunnel: upgrade the agent, or write Normal or Compatibility", d.WAN.Mode)
		return nil
	}
	if q := d.WAN.Queue; q != nil {
		out.Queue = engine.Queue{Early: q.EarlyOctets, Severe: q.SevereOctets}
	}
	switch d.WAN.Measurement {
	case "", v1alpha1.WANMeasurementOff:
	case v1alpha1.WANMeasurementAlternateMarking:
		out.Measure = true
	default:
		c.problem(v1alpha1.KindDomain, d.Name, "wan measurement %q is not known to this agent, which measures no tunnel: upgrade the agent, or write Off or AlternateMarking", d.WAN.Measurement)
	}
	for _, name := range d.WAN.Sites {
		out.Sites = append(out.Sites, string(name))
	}
	return out
}

// rules converts the rules that can be; one that can not leaves its flows to the next one.
func (c *conversion) rules(d *v1alpha1.NodeDomain) []engine.Rule {
	var rules []engine.Rule
	for _, r := range d.Rules {
		profile := c.profiles[r.Profile]
		if profile == nil {
			c.problem(v1alpha1.KindDomain, d.Name, "a rule names profile %s, which is not there or not usable", r.Profile)
			continue
		}
		sources, err := prefixes(r.CIDRs)
		if err != nil {
			c.problem(v1alpha1.KindDomain, d.Name, "the rule of profile %s: %v", r.Profile, err)
			continue
		}
		pods := c.pods[r.Profile]
		known := r.Source == v1alpha1.SourceAny || (r.Source == v1alpha1.SourceCIDRs && len(sources) > 0) || (r.Source == v1alpha1.SourcePods && pods != nil)
		if !known {
			c.problem(v1alpha1.KindDomain, d.Name, "the rule of profile %s compares the source with %q, which this agent can not: it takes no flow", r.Profile, r.Source)
			continue
		}
		rule := engine.Rule{Profile: profile, Sources: sources}
		if r.Source == v1alpha1.SourcePods {
			rule.Pods = pods
		}
		for _, site := range r.DestinationSites {
			rule.Destinations = append(rule.Destinations, string(site))
		}
		rules = append(rules, rule)
	}
	return rules
}

func convertSite(s *v1alpha1.NodeSite) (engine.Site, error) {
	out := engine.Site{Name: string(s.Name)}
	var err error
	if out.Prefixes, err = prefixes(s.CIDRs); err != nil {
		return out, err
	}
	for _, text := range s.Gateways {
		a, err := netip.ParseAddr(string(text))
		if err != nil || a.Is4In6() || a.Zone() != "" {
			return out, fmt.Errorf("gateway %q is not an address", text)
		}
		out.Gateways = append(out.Gateways, a)
	}
	return out, nil
}

func prefixes(list []v1alpha1.NodePrefix) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range list {
		p, err := netip.ParsePrefix(string(text))
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is not a prefix", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// profile converts one profile to the parameters of both machines. CSF.PathMTU is set by the engine, from the uplink, and the receiver's memory, from
// what a worker has.
func (c *conversion) profile(p *v1alpha1.NodeProfile) {
	bad := func(format string, args ...any) { c.problem(v1alpha1.KindProfile, p.Name, format, args...) }
	epsilon, ok := render.Decimal(p.Epsilon)
	if !ok || epsilon <= 0 || epsilon >= 1 {
		bad("epsilon %q is not over 0 and below 1", p.Epsilon)
		return
	}
	ratio, ok := render.Decimal(p.MaxRepairRatio)
	if !ok || ratio <= 0 || ratio > 1 {
		bad("maxRepairRatio %q is not over 0 and at most 1", p.MaxRepairRatio)
		return
	}
	if p.K < 1 || p.MaxRepairSymbols < 1 || p.K+p.MaxRepairSymbols > fec.MaxIndexSum {
		bad("k %d and maxRepairSymbols %d do not fit the code", p.K, p.MaxRepairSymbols)
		return
	}
	out := &engine.Profile{
		Name: string(p.Name),
		CSF: csf.Params{
			K: int(p.K), MaxM: int(p.MaxRepairSymbols), Epsilon: epsilon, MessageSize: p.MessageOctets,
			MaxRepairRatio: ratio, Spread: p.Spread, Digest: true, FixedM: -1,
		},
		CRF: crf.Params{
			MaxHold: time.Duration(p.MaxHoldMicroseconds) * time.Microsecond, MaxOpenBlocks: maxOpenBlocks,
			MaxK: maxBlock, MaxM: maxBlock, MaxT: maxSymbol, Schemes: 1<<fec.SourceCopy | 1<<fec.Cauchy, Digest: true,
		},
	}
	for _, s := range p.Schemes {
		switch s {
		case v1alpha1.SchemeCauchyReedSolomon:
			out.CSF.Schemes = append(out.CSF.Schemes, fec.Cauchy)
		case v1alpha1.SchemeXOR:
			out.CSF.Schemes = append(out.CSF.Schemes, fec.XOR)
			out.CRF.Schemes |= 1 << fec.XOR // off unless a profile names it (Section 6, consistency)
		default:
			bad("scheme %q is not known to this agent", s)
			return
		}
	}
	words := map[string]bool{
		string(v1alpha1.DeliveryInOrder): true, string(v1alpha1.DeliveryImmediate): true,
		string(v1alpha1.RepairProactive): true, string(v1alpha1.RepairOnDemand): true,
		string(v1alpha1.LossIndependent): true, string(v1alpha1.LossEmpirical): true,
	}
	for _, w := range []string{string(p.Delivery), string(p.RepairStrategy), string(p.LossModel)} {
		if !words[w] {
			bad("%q is not known to this agent", w)
			return
		}
	}
	if p.Delivery == v1alpha1.DeliveryImmediate {
		out.CRF.Delivery = crf.Immediate
	}
	if p.RepairStrategy == v1alpha1.RepairOnDemand {
		out.CSF.Strategy = csf.OnDemand
	}
	if p.LossModel == v1alpha1.LossEmpirical {
		out.CSF.LossModel = csf.Empirical
	}
	c.profiles[p.Name] = out
}

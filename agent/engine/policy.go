// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net/netip"
	"slices"

	"crem.dev/crem/agent/roce"
)

// verdict says what the configuration wants for one flow that leaves by an uplink.
type verdict struct {
	domain  *Domain
	profile *Profile
	site    *Site  // the destination's
	why     string // one sentence when profile is nil
}

// judge finds the domain and profile for a flow that leaves by the named uplink. Domains are asked in order; the first one whose own
// site holds the source and whose other sites hold the destination decides.
func (c *Config) judge(uplink string, key roce.FlowKey) verdict {
	v := verdict{why: "no domain on this uplink has the flow's source in its own site and its destination in another site"}
	for i := range c.Domains {
		d := &c.Domains[i]
		if !d.usesUplink(uplink) {
			continue
		}
		own := d.ownSite()
		dst := d.siteOf(key.Dst)
		if own == nil || dst == nil || dst == own || !own.contains(key.Src) {
			continue
		}
		v.domain, v.site = d, dst
		if !c.protects(d, key.Transport) {
			v.why = d.whyNot(key.Transport)
			return v
		}
		if d.barred() {
			v.why = fmt.Sprintf("domain %s requires IPsec: %s", d.Name, d.security.missing)
			return v
		}
		if r := d.sendingRule(key, dst); r != nil {
			v.profile, v.why = r.Profile, ""
			return v
		}
		v.why = fmt.Sprintf("no profile of domain %s takes the flow: name one in profileRef or widen a selector", d.Name)
		return v
	}
	return v
}

func (d *Domain) usesUplink(name string) bool {
	if len(d.Uplinks) == 0 {
		return true
	}
	for _, u := range d.Uplinks {
		if u == name {
			return true
		}
	}
	return false
}

func (d *Domain) ownSite() *Site {
	for i := range d.Sites {
		if d.Sites[i].Name == d.Site {
			return &d.Sites[i]
		}
	}
	return nil
}

func (d *Domain) siteOf(a netip.Addr) *Site {
	for i := range d.Sites {
		if d.Sites[i].contains(a) {
			return &d.Sites[i]
		}
	}
	return nil
}

// sendingRule finds the rule for a flow that leaves: its source is in the own site, so that pods are known.
func (d *Domain) sendingRule(key roce.FlowKey, dst *Site) *Rule {
	for i := range d.Rules {
		r := &d.Rules[i]
		if matchPrefix(r.Sources, key.Src) && matchName(r.Destinations, dst.Name) && (r.Pods == nil || r.Pods.Has(key.Src)) {
			return r
		}
	}
	return nil
}

// receivingRule finds the rule for a flow that arrives. The pods of its source are known in the other cluster only, so a rule with pods takes what
// goes to one of them here. What no rule takes that way is taken by the first one with pods whose prefixes and sites fit: whether a flow is protected is
// the sender's decision.
func (d *Domain) receivingRule(key roce.FlowKey, own *Site) *Rule {
	var last *Rule
	for i := range d.Rules {
		r := &d.Rules[i]
		if !matchPrefix(r.Sources, key.Src) || !matchName(r.Destinations, own.Name) {
			continue
		}
		if r.Pods == nil || r.Pods.Has(key.Dst) {
			return r
		}
		if last == nil {
			last = r
		}
	}
	return last
}

// isGateway reports whether a is a gateway address of any site.
func (d *Domain) isGateway(a netip.Addr) bool {
	for i := range d.Sites {
		for _, g := range d.Sites[i].Gateways {
			if g == a {
				return true
			}
		}
	}
	return false
}

// sends reports whether a may be the sender function of a flow: a gateway of the site from which it comes, or its source.
func (d *Domain) sends(a netip.Addr, key roce.FlowKey) bool {
	src := d.siteOf(key.Src)
	return a == key.Src || src != nil && slices.Contains(src.Gateways, a)
}

// isReporter reports whether a may send PATH_REPORT (Section 11).
func (d *Domain) isReporter(a netip.Addr) bool {
	return len(d.Reporters) > 0 && matchPrefix(d.Reporters, a)
}

// inside reports whether a belongs to the domain: the boundary of Section 11.
func (d *Domain) inside(a netip.Addr) bool {
	return d.isGateway(a) || d.siteOf(a) != nil || d.isReporter(a)
}

func (s *Site) contains(a netip.Addr) bool {
	for _, p := range s.Prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// matchPrefix: an empty list matches everything.
func matchPrefix(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return len(list) == 0
}

// matchName: an empty list matches everything.
func matchName(list []string, name string) bool {
	for _, n := range list {
		if n == name {
			return true
		}
	}
	return len(list) == 0
}

// domainByPort finds the domain whose CREM port it is; ports are unique on a node (the renderer's rule).
func (c *Config) domainByPort(port uint16) *Domain {
	for i := range c.Domains {
		if c.Domains[i].Port == port {
			return &c.Domains[i]
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"net/netip"
	"slices"

	"crem.dev/crem/api/v1alpha1"
)

// rules of a domain, the most specific first, so that the first one that takes a flow decides:
//
//  1. profiles that select pods before those that do not,
//  2. among them the longest source prefix (each prefix of a list counts for itself), a list before no list,
//  3. among them those that name destination sites,
//  4. among them the first by name,
//  5. last, the domain's own profileRef.
func (r *rendering) rules(d *v1alpha1.CREMDomain) []v1alpha1.NodeRule {
	var ranked []rankedRule
	for _, p := range r.selecting {
		if r.facts.Standalone && SelectsPods(p) {
			continue // no pods are known: it takes no flow (reported once, as PodsNotVisible)
		}
		ranked = append(ranked, rulesOf(p, d)...)
	}
	slices.SortStableFunc(ranked, func(a, b rankedRule) int {
		return cmp.Or(cmp.Compare(b.pods, a.pods), cmp.Compare(b.prefix, a.prefix), cmp.Compare(b.destinations, a.destinations), cmp.Compare(a.rule.Profile, b.rule.Profile))
	})
	var rules []v1alpha1.NodeRule
	for _, ranked := range ranked {
		rules = append(rules, ranked.rule)
	}
	if ref := d.Spec.ProfileRef; ref != nil && r.profiles[string(ref.Name)] != nil {
		rules = append(rules, v1alpha1.NodeRule{Profile: ref.Name, Source: v1alpha1.SourceAny})
	}
	for _, rule := range rules {
		r.used[string(rule.Profile)] = true
	}
	return rules
}

// rankedRule is a rule with what makes it specific; numbers compare, more is more specific.
type rankedRule struct {
	rule                       v1alpha1.NodeRule
	pods, prefix, destinations int
}

// rulesOf gives a profile's rules in one domain: one for each length of source prefix, none when it names destination sites of
// which the domain has none.
func rulesOf(p *v1alpha1.CREMProfile, d *v1alpha1.CREMDomain) []rankedRule {
	s := p.Spec.Selector
	base := rankedRule{rule: v1alpha1.NodeRule{Profile: v1alpha1.ObjectName(p.Name), Source: v1alpha1.SourceAny}, prefix: -1}
	if len(s.DestinationSites) > 0 {
		for _, name := range sorted(s.DestinationSites) {
			if name != d.Spec.Site && findSite(d.Spec.Sites, name) != nil {
				base.rule.DestinationSites = append(base.rule.DestinationSites, name)
			}
		}
		if len(base.rule.DestinationSites) == 0 {
			return nil
		}
		base.destinations = 1
	}
	if SelectsPods(p) {
		base.pods, base.rule.Source = 1, v1alpha1.SourcePods
	}
	if len(s.SourceCIDRs) == 0 {
		return []rankedRule{base}
	}
	if base.rule.Source == v1alpha1.SourceAny {
		base.rule.Source = v1alpha1.SourceCIDRs
	}
	byLength := map[int][]v1alpha1.NodePrefix{}
	for _, c := range canonical(s.SourceCIDRs) {
		if prefix, err := netip.ParsePrefix(string(c)); err == nil {
			byLength[prefix.Bits()] = append(byLength[prefix.Bits()], c)
		}
	}
	var rules []rankedRule
	for length, list := range byLength {
		one := base
		one.prefix, one.rule.CIDRs = length, list
		one.rule.DestinationSites = slices.Clone(base.rule.DestinationSites)
		rules = append(rules, one)
	}
	return rules
}

// SelectsPods says whether the profile's sources are pods.
func SelectsPods(p *v1alpha1.CREMProfile) bool {
	s := p.Spec.Selector
	return s != nil && (s.PodSelector != nil || s.NamespaceSelector != nil)
}

// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// policy is everything that people asked for at one moment. It is rendered once for each set of domains that some node is in, not once for each
// node: two nodes that the same domains choose get the same spec.
type policy struct {
	objs      render.Objects    // sorted by name
	selectors []labels.Selector // of objs.Domains, nothing for one that is invalid

	mu       sync.Mutex
	rendered map[domainSet]*render.Result
}

// domainSet says which domains of a policy choose a node: one octet a domain.
type domainSet string

func newPolicy(domains []v1alpha1.CREMDomain, profiles []v1alpha1.CREMProfile) *policy {
	p := &policy{objs: render.Objects{Domains: domains, Profiles: profiles}, rendered: map[domainSet]*render.Result{}}
	slices.SortFunc(p.objs.Domains, func(a, b v1alpha1.CREMDomain) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.objs.Profiles, func(a, b v1alpha1.CREMProfile) int { return cmp.Compare(a.Name, b.Name) })
	for i := range p.objs.Domains {
		selector := render.NodeSelector(&p.objs.Domains[i])
		if len(render.ValidateDomain(&p.objs.Domains[i])) > 0 {
			selector = labels.Nothing()
		}
		p.selectors = append(p.selectors, selector)
	}
	return p
}

// match gives the domains that choose a node with these labels, and whether there is any.
func (p *policy) match(nodeLabels map[string]string) (domainSet, bool) {
	set, found := make([]byte, len(p.selectors)), false
	for i, selector := range p.selectors {
		if selector.Matches(labels.Set(nodeLabels)) {
			set[i], found = 1, true
		}
	}
	return domainSet(set), found
}

// render gives what a node of the set should do; the spec is shared and must not be changed. Messages of problems name the node that was
// the first of its set to be rendered, as an example.
func (p *policy) render(set domainSet, node string, nodeLabels map[string]string) *render.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.rendered[set]; have != nil {
		return have
	}
	result := render.Node(p.objs, render.NodeFacts{Name: node, Labels: nodeLabels})
	p.rendered[set] = &result
	return &result
}

// policies keeps the newest policy of a cache.
type policies struct {
	reader client.Reader

	mu      sync.Mutex
	key     string
	current *policy
}

// get gives the policy that the cache holds. It is built anew only when an object came, went or got another generation.
func (p *policies) get(ctx context.Context) (*policy, error) {
	var domains v1alpha1.CREMDomainList
	if err := p.reader.List(ctx, &domains); err != nil {
		return nil, fmt.Errorf("list domains: %w", err)
	}
	var profiles v1alpha1.CREMProfileList
	if err := p.reader.List(ctx, &profiles); err != nil {
		return nil, fmt.Errorf("list profiles: %w", err)
	}
	// An object that waits for someone's finalizer is on its way out: nodes let go of it already.
	domains.Items = slices.DeleteFunc(domains.Items, func(d v1alpha1.CREMDomain) bool { return d.DeletionTimestamp != nil })
	profiles.Items = slices.DeleteFunc(profiles.Items, func(p v1alpha1.CREMProfile) bool { return p.DeletionTimestamp != nil })
	var versions []string
	for i := range domains.Items {
		versions = append(versions, fmt.Sprintf("d %s %d", domains.Items[i].UID, domains.Items[i].Generation))
	}
	for i := range profiles.Items {
		versions = append(versions, fmt.Sprintf("p %s %d", profiles.Items[i].UID, profiles.Items[i].Generation))
	}
	slices.Sort(versions)
	key := strings.Join(versions, "\n")

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == nil || p.key != key {
		p.key, p.current = key, newPolicy(domains.Items, profiles.Items)
	}
	return p.current, nil
}

// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// world is what the caches hold at one moment.
type world struct {
	policy    *policy
	nodes     []metav1.PartialObjectMetadata
	cremNodes map[string]*v1alpha1.CREMNode
	leases    map[string]*coordinationv1.Lease
	now       time.Time
}

// survey is what one look at all nodes found.
type survey struct {
	domains  map[string]*tally               // by name of the domain
	problems map[render.Ref][]render.Problem // by object
	next     time.Time                       // when time alone may change it; zero: never
	compared map[comparison]bool
	silent   []silentNode // whose agents do not report, by name of the node
}

// comparison is of a CREMNode's spec with the one that a set of domains asks for. The specs of thousands of CREMNodes are one in memory (see
// interner), so few comparisons are made.
type comparison struct {
	have *v1alpha1.NodeDomain
	set  domainSet
}

// says whether a CREMNode has the spec that it should have.
func (s *survey) says(have *v1alpha1.CREMNode, set domainSet, share *render.Result) bool {
	if len(have.Spec.Domains) == 0 {
		return equalSpecs(&have.Spec, &share.Spec)
	}
	key := comparison{&have.Spec.Domains[0], set}
	equal, known := s.compared[key]
	if !known {
		equal = equalSpecs(&have.Spec, &share.Spec)
		s.compared[key] = equal
	}
	return equal
}

// tally counts the nodes of one domain.
type tally struct {
	matched, rendered, programmed, ready, degraded, failing int32
	notReporting                                            int32 // of failing
	failingNodes                                            []v1alpha1.FailingNode
	sites                                                   map[v1alpha1.SiteName]*siteTotal
	heard                                                   bool // some node's agent reports
}

// maxFailingNodes is how many failing nodes a status names: no object grows with the number of nodes.
const maxFailingNodes = 10

// look judges every node once. The result does not depend on the order of anything.
func look(w world, hold *steady, round uint64) survey {
	s := survey{domains: map[string]*tally{}, problems: map[render.Ref][]render.Problem{}, compared: map[comparison]bool{}}
	for i := range w.policy.objs.Domains {
		s.domains[w.policy.objs.Domains[i].Name] = &tally{}
	}
	none, _ := w.policy.match(nil)
	s.collect(w.policy.render(domainSet(make([]byte, len(none))), "", nil).Problems)
	met := map[domainSet]bool{}
	slices.SortFunc(w.nodes, func(a, b metav1.PartialObjectMetadata) int { return cmp.Compare(a.Name, b.Name) })
	for i := range w.nodes {
		node := &w.nodes[i]
		set, found := w.policy.match(node.Labels)
		if !found {
			continue
		}
		share := w.policy.render(set, node.Name, node.Labels)
		if !met[set] {
			met[set] = true
			s.collect(share.Problems)
		}
		s.node(w, node, set, share, hold, round)
	}
	hold.forget(round)
	return s
}

// collect adds the problems of one set of domains, each once.
func (s *survey) collect(problems []render.Problem) {
	for _, p := range problems {
		known := slices.ContainsFunc(s.problems[p.Object], func(q render.Problem) bool { return q.Reason == p.Reason })
		if !known {
			s.problems[p.Object] = append(s.problems[p.Object], p)
		}
	}
}

// node adds one node to the tallies of its domains.
func (s *survey) node(w world, node *metav1.PartialObjectMetadata, set domainSet, share *render.Result, hold *steady, round uint64) {
	have := w.cremNodes[node.Name]
	mine := have != nil && have.DeletionTimestamp == nil && ownerNode(have.OwnerReferences) == node.UID
	rendered := mine && s.says(have, set, share)
	quiet := silence{}
	if mine {
		if quiet = silenceOf(have, w.leases[node.Name], w.now); quiet.why != "" {
			s.silent = append(s.silent, silentNode{have: have, why: quiet.why})
		}
	}
	for i := range w.policy.objs.Domains {
		if set[i] == 0 {
			continue
		}
		domain := w.policy.objs.Domains[i].Name
		var v verdict
		if problem := refused(share, domain); problem != nil {
			v = failing(verdict{rendered: rendered}, problem.Reason, "%s", problem.Message)
		} else {
			v = judge(domain, have, rendered, quiet)
		}
		if mine && quiet.heard {
			s.domains[domain].heard = true
			if item := domainItem(&have.Status, domain); item != nil {
				s.domains[domain].addSites(item)
			}
		}
		v = hold.show(nodeInDomain{domain, node.Name}, v, w.now, round)
		s.lookAgain(v.until)
		s.domains[domain].add(node.Name, v)
	}
}

// lookAgain has everything looked at again at a time, unless it is zero.
func (s *survey) lookAgain(at time.Time) {
	if !at.IsZero() && (s.next.IsZero() || at.Before(s.next)) {
		s.next = at
	}
}

// refused says why a domain that chooses a node has no part in it.
func refused(share *render.Result, domain string) *render.Problem {
	for i := range share.Spec.Domains {
		if string(share.Spec.Domains[i].Name) == domain {
			return nil
		}
	}
	var problems []render.Problem
	for _, p := range share.Problems {
		if p.Object == (render.Ref{Kind: v1alpha1.KindDomain, Name: domain}) && p.Reason != v1alpha1.ReasonProfileNotFound {
			problems = append(problems, p)
		}
	}
	return worst(problems)
}

func (t *tally) add(node string, v verdict) {
	t.matched++
	for _, one := range []struct {
		is bool
		n  *int32
	}{{v.rendered, &t.rendered}, {v.programmed, &t.programmed}, {v.degraded, &t.degraded}, {v.state == nodeReady, &t.ready}, {v.state == nodeFailing, &t.failing}} {
		if one.is {
			*one.n++
		}
	}
	if v.state != nodeFailing {
		return
	}
	if v.reason == v1alpha1.ReasonAgentNotReporting {
		t.notReporting++
	}
	if len(t.failingNodes) < maxFailingNodes { // nodes come by name, so these are always the same ones
		t.failingNodes = append(t.failingNodes, v1alpha1.FailingNode{Name: v1alpha1.ObjectName(node), Reason: cut(v.reason, 128), Message: cut(v.message, 256)})
	}
}

// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"crem.dev/crem/api/v1alpha1"
)

// Bounds of a CREMNode's spec.
const (
	maxDomains  = 16
	maxProfiles = 64
)

// NodeFacts are what rendering must know of a node.
type NodeFacts struct {
	Name   string
	Labels map[string]string
	// Standalone: the node takes part in every domain, whatever its selector, unless Labels are given. There is no Kubernetes
	// to ask for pods.
	Standalone bool
}

// Result is one node's share.
type Result struct {
	Spec     v1alpha1.CREMNodeSpec `json:"spec"`
	Problems []Problem             `json:"problems,omitempty"` // sorted by object and reason
}

// Node renders one node's share of the objects. Objects must have their defaults set; one that breaks a rule, as an object stored
// before the rule existed may do, is left out with a Problem. Among objects that exclude each other the older one wins
// (creationTimestamp, then name), and the other's Problem names it. The result does not depend on the order of the objects and
// shares no memory with them.
func Node(objs Objects, facts NodeFacts) Result {
	r := rendering{facts: facts, profiles: map[string]*v1alpha1.CREMProfile{}, used: map[string]bool{}}
	r.acceptProfiles(objs.Profiles)
	r.acceptDomains(objs.Domains)
	for _, d := range r.domains {
		r.result.Spec.Domains = append(r.result.Spec.Domains, r.domain(d))
	}
	r.checkDestinations(objs.Domains)
	for _, name := range sortedKeys(r.used) {
		r.result.Spec.Profiles = append(r.result.Spec.Profiles, resolve(r.profiles[name]))
	}
	slices.SortFunc(r.result.Spec.Domains, func(a, b v1alpha1.NodeDomain) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.result.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Name, b.Object.Name), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return r.result
}

// rendering is the work on one node.
type rendering struct {
	facts     NodeFacts
	domains   []*v1alpha1.CREMDomain           // accepted, oldest first
	profiles  map[string]*v1alpha1.CREMProfile // accepted
	selecting []*v1alpha1.CREMProfile          // accepted and with a selector, by name
	used      map[string]bool                  // profiles that a rule names
	result    Result
}

func (r *rendering) problem(object Ref, reason string, other *Ref, format string, args ...any) {
	r.result.Problems = append(r.result.Problems, Problem{Object: object, Reason: reason, Other: other, Message: fmt.Sprintf(format, args...)})
}

// acceptProfiles keeps the profiles that are valid, the oldest ones if there are too many with a selector.
func (r *rendering) acceptProfiles(all []v1alpha1.CREMProfile) {
	for _, p := range byAge(all, func(p *v1alpha1.CREMProfile) *metav1.ObjectMeta { return &p.ObjectMeta }) {
		ref := Ref{Kind: v1alpha1.KindProfile, Name: p.Name}
		if faults := ValidateProfile(p); len(faults) > 0 {
			r.problem(ref, v1alpha1.ReasonInvalidSpec, nil, "%s", faults[0].Error())
			continue
		}
		if p.Spec.Selector != nil {
			if len(r.selecting) == maxProfiles-maxDomains { // every domain may name one more
				r.problem(ref, v1alpha1.ReasonTooMany, nil, "%d older profiles have a selector already: remove one, or the selector of this one", len(r.selecting))
				continue
			}
			r.selecting = append(r.selecting, p)
			if SelectsPods(p) && r.facts.Standalone {
				r.problem(ref, v1alpha1.ReasonPodsNotVisible, nil, "selects pods, which an agent without Kubernetes can not see, so it takes no flow: select by sourceCIDRs or destinationSites instead")
			}
		}
		r.profiles[p.Name] = p
	}
	slices.SortFunc(r.selecting, func(a, b *v1alpha1.CREMProfile) int { return cmp.Compare(a.Name, b.Name) })
}

// acceptDomains keeps the domains that concern the node, are valid, and are not excluded by an older one.
func (r *rendering) acceptDomains(all []v1alpha1.CREMDomain) {
	for _, d := range byAge(all, func(d *v1alpha1.CREMDomain) *metav1.ObjectMeta { return &d.ObjectMeta }) {
		ref := Ref{Kind: v1alpha1.KindDomain, Name: d.Name}
		if faults := ValidateDomain(d); len(faults) > 0 {
			r.problem(ref, v1alpha1.ReasonInvalidSpec, nil, "%s", faults[0].Error())
			continue
		}
		r.checkProfileRef(d)
		if !r.matches(d) {
			continue
		}
		if reason, other, message := r.conflict(d); reason != "" {
			r.problem(ref, reason, &Ref{Kind: v1alpha1.KindDomain, Name: other}, "%s", message)
			continue
		}
		if len(r.domains) == maxDomains {
			r.problem(ref, v1alpha1.ReasonTooMany, nil, "node %s has %d older domains already: choose other nodes for this one", r.facts.Name, maxDomains)
			continue
		}
		r.domains = append(r.domains, d)
	}
}

// matches says whether the node takes part in the domain.
func (r *rendering) matches(d *v1alpha1.CREMDomain) bool {
	if r.facts.Standalone && len(r.facts.Labels) == 0 {
		return true
	}
	if d.Spec.Nodes == nil || d.Spec.Nodes.Selector == nil {
		return r.facts.Standalone
	}
	return NodeSelector(d).Matches(labels.Set(r.facts.Labels))
}

// NodeSelector gives the selector by which a domain chooses nodes of a cluster: nothing when the domain names no node, or when it breaks
// a rule and so is left out.
func NodeSelector(d *v1alpha1.CREMDomain) labels.Selector {
	if d.Spec.Nodes == nil || d.Spec.Nodes.Selector == nil {
		return labels.Nothing()
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Nodes.Selector)
	if err != nil {
		return labels.Nothing() // ValidateDomain reports it
	}
	return selector
}

// checkProfileRef reports a profileRef that names nothing. It does not depend on the node: also a domain that no node takes part in shows it.
func (r *rendering) checkProfileRef(d *v1alpha1.CREMDomain) {
	ref := d.Spec.ProfileRef
	if ref == nil || r.profiles[string(ref.Name)] != nil {
		return
	}
	r.problem(Ref{Kind: v1alpha1.KindDomain, Name: d.Name}, v1alpha1.ReasonProfileNotFound, &Ref{Kind: v1alpha1.KindProfile, Name: string(ref.Name)},
		"there is no valid CREMProfile %s, so flows that no selector takes are not protected: create it, or name another in spec.profileRef", ref.Name)
}

// conflict finds an accepted domain, so an older one, that d can not share the node with.
func (r *rendering) conflict(d *v1alpha1.CREMDomain) (reason, other, message string) {
	for _, old := range r.domains {
		if old.Spec.Port == d.Spec.Port {
			return v1alpha1.ReasonPortConflict, old.Name, fmt.Sprintf("port %d on node %s belongs to the older domain %s: write another port, or choose other nodes", d.Spec.Port, r.facts.Name, old.Name)
		}
		if shared, ok := sharedUplink(old, d); ok {
			return v1alpha1.ReasonUplinkConflict, old.Name, fmt.Sprintf("on node %s %s: name different interfaces in spec.nodes.uplinks of this domain and of the older domain %s", r.facts.Name, shared, old.Name)
		}
		if reason, message := transportConflict(old, d, r.facts.Name); reason != "" {
			return reason, old.Name, message
		}
		for _, site := range old.Spec.Sites {
			if site.Name == old.Spec.Site {
				continue
			}
			for _, mine := range d.Spec.Sites {
				if mine.Name == d.Spec.Site {
					continue
				}
				if x, y, ok := overlap(site.CIDRs, mine.CIDRs); ok {
					return v1alpha1.ReasonPrefixConflict, old.Name, fmt.Sprintf("%s of site %s overlaps %s of site %s of the older domain %s on node %s: a flow can belong to one domain only, write each prefix in one", y, mine.Name, x, site.Name, old.Name, r.facts.Name)
				}
			}
		}
	}
	return "", "", ""
}

// sharedUplink says whether two domains may use one interface. A domain without a list uses the interfaces that its routes
// lead over, which may be any.
func sharedUplink(a, b *v1alpha1.CREMDomain) (string, bool) {
	x, y := uplinks(a), uplinks(b)
	if len(x) == 0 || len(y) == 0 {
		return "both domains may take the same uplink, as one of them names none", true
	}
	for _, name := range x {
		if slices.Contains(y, name) {
			return fmt.Sprintf("both domains take uplink %s", name), true
		}
	}
	return "", false
}

func uplinks(d *v1alpha1.CREMDomain) []v1alpha1.InterfaceName {
	if d.Spec.Nodes == nil {
		return nil
	}
	return sorted(d.Spec.Nodes.Uplinks)
}

// domain renders one accepted domain.
func (r *rendering) domain(d *v1alpha1.CREMDomain) v1alpha1.NodeDomain {
	s := &d.Spec
	out := v1alpha1.NodeDomain{
		Name:       v1alpha1.ObjectName(d.Name),
		Port:       s.Port,
		Site:       s.Site,
		IPsec:      s.IPsec,
		Reporters:  canonical(s.Reporters),
		Transports: transports(d),
		Uplinks:    uplinks(d),
		Rules:      r.rules(d),
	}
	for _, site := range s.Sites {
		out.Sites = append(out.Sites, v1alpha1.NodeSite{Name: site.Name, CIDRs: canonical(site.CIDRs), Gateways: addresses(site.Gateways)})
	}
	slices.SortFunc(out.Sites, func(a, b v1alpha1.NodeSite) int { return cmp.Compare(a.Name, b.Name) })
	if s.Nodes != nil && s.Nodes.MaxRepairBandwidth != nil {
		out.MaxRepairBitsPerSecond, _ = BitRate(*s.Nodes.MaxRepairBandwidth) // ValidateDomain refused what is no rate
	}
	if s.Reporter != nil && s.Reporter.Mode != v1alpha1.ReporterOff {
		out.Reporter = s.Reporter.Mode
	}
	out.WAN = wan(s)
	return out
}

// defaultMinRate is the bits per second that congestion leaves a flow in a tunnel where the domain says nothing.
const defaultMinRate = 8e6

// wan resolves which sites tunnels lead to.
func wan(s *v1alpha1.CREMDomainSpec) *v1alpha1.NodeWAN {
	if s.WAN == nil {
		return nil
	}
	out := &v1alpha1.NodeWAN{Mode: s.WAN.Mode, Sites: sorted(s.WAN.Sites), MinBitsPerSecond: defaultMinRate}
	if len(out.Sites) == 0 {
		for _, site := range s.Sites {
			if site.Name != s.Site {
				out.Sites = append(out.Sites, site.Name)
			}
		}
		slices.Sort(out.Sites)
	}
	if s.WAN.PathMTU != nil {
		out.PathMTU = *s.WAN.PathMTU
	}
	if s.WAN.MinRate != nil {
		out.MinBitsPerSecond, _ = BitRate(*s.WAN.MinRate) // ValidateDomain refused what is no rate
	}
	if q := s.WAN.Queue; q != nil {
		out.Queue = new(v1alpha1.NodeWANQueue)
		out.Queue.EarlyOctets, _ = Octets(q.Early) // ValidateDomain refused what is no size
		out.Queue.SevereOctets, _ = Octets(q.Severe)
	}
	if s.WAN.Measurement != v1alpha1.WANMeasurementOff {
		out.Measurement = s.WAN.Measurement
	}
	return out
}

// checkDestinations reports profiles that name only sites that no domain has. It looks at all domains, matched or not.
func (r *rendering) checkDestinations(all []v1alpha1.CREMDomain) {
	sites := map[v1alpha1.SiteName]bool{}
	for i := range all {
		for _, site := range all[i].Spec.Sites {
			sites[site.Name] = true
		}
	}
	for _, p := range r.selecting {
		var missing []string
		for _, name := range p.Spec.Selector.DestinationSites {
			if !sites[name] {
				missing = append(missing, string(name))
			}
		}
		if len(missing) > 0 && len(missing) == len(p.Spec.Selector.DestinationSites) {
			slices.Sort(missing)
			r.problem(Ref{Kind: v1alpha1.KindProfile, Name: p.Name}, v1alpha1.ReasonSiteNotFound, nil, "no domain has a site named %s, so it takes no flow: write names of spec.sites in destinationSites", strings.Join(missing, ", "))
		}
	}
}

// resolve gives a profile's numbers.
func resolve(p *v1alpha1.CREMProfile) v1alpha1.NodeProfile {
	s := &p.Spec
	out := v1alpha1.NodeProfile{
		Name:                v1alpha1.ObjectName(p.Name),
		K:                   s.K,
		MaxRepairSymbols:    s.MaxRepairSymbols,
		Epsilon:             s.Epsilon,
		Schemes:             slices.Clone(s.Schemes),
		Delivery:            s.Delivery,
		MaxHoldMicroseconds: s.MaxHold.Microseconds(),
		RepairStrategy:      s.RepairStrategy,
		LossModel:           s.LossModel,
		MaxRepairRatio:      s.MaxRepairRatio,
		Spread:              s.Spread == nil || *s.Spread,
	}
	if s.MessageSize != nil {
		out.MessageOctets, _ = Octets(*s.MessageSize) // ValidateProfile refused what is no size
	}
	return out
}

// byAge sorts objects by creationTimestamp, then name, without touching the list it is given.
func byAge[T any](all []T, meta func(*T) *metav1.ObjectMeta) []*T {
	list := make([]*T, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	slices.SortFunc(list, func(a, b *T) int {
		x, y := meta(a), meta(b)
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	return list
}

// sorted gives a sorted copy; nil for an empty list, so that equal content is equal.
func sorted[T cmp.Ordered](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return slices.Sorted(slices.Values(list))
}

// canonical gives prefixes in their canonical text, sorted, each once.
func canonical(list []v1alpha1.CIDR) []v1alpha1.NodePrefix {
	var out []v1alpha1.NodePrefix
	for _, c := range list {
		if p, ok := parseCIDR(c); ok {
			out = append(out, v1alpha1.NodePrefix(p.String()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addresses gives addresses in their canonical text, sorted, each once.
func addresses(list []v1alpha1.Address) []v1alpha1.NodeAddress {
	var out []v1alpha1.NodeAddress
	for _, a := range list {
		if ip, err := netip.ParseAddr(string(a)); err == nil {
			out = append(out, v1alpha1.NodeAddress(ip.String()))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

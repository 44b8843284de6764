// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"crem.dev/crem/api/v1alpha1"
)

// Bounds of lists, as in the CRDs.
const (
	maxSites      = 16
	maxSiteCIDRs  = 16
	maxGateways   = 64
	maxReporters  = 64
	maxUplinks    = 16
	maxCIDRs      = 64
	maxSelectors  = 16
	maxCodeLength = 255  // k + m of a code over GF(2^8)
	portRoCEv2    = 4791 // UDP
)

var (
	siteName      = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	interfaceName = regexp.MustCompile(`^[a-zA-Z0-9._@-]+$`)
	decimal       = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$`)
	bitRate       = regexp.MustCompile(`^[1-9][0-9]{0,14}[kMGT]?$`)
	octets        = regexp.MustCompile(`^[1-9][0-9]{0,12}(Ki|Mi|Gi)?$`)
)

// ValidateDomain gives every fault of one domain, nil without any. It is the Go twin of the rules of the CRD.
func ValidateDomain(d *v1alpha1.CREMDomain) []Fault {
	v := validator{}
	v.meta(&d.ObjectMeta)
	s := &d.Spec
	switch {
	case s.Port < 1 || s.Port > 65535:
		v.fault("spec.port", s.Port, "is no UDP port: write a free port from 49152 to 65535; there is no default")
	case s.Port == portRoCEv2:
		v.fault("spec.port", s.Port, "is the port of RoCEv2 itself: write a free port from 49152 to 65535")
	}
	v.sites(s.Sites)
	v.siteName("spec.site", s.Site)
	if findSite(s.Sites, s.Site) == nil {
		v.fault("spec.site", s.Site, "names no entry of spec.sites: write the name of this cluster's own site")
	}
	v.oneOf("spec.ipsec.mode", string(s.IPsec.Mode), string(v1alpha1.IPsecRequired), string(v1alpha1.IPsecBoundaryFiltered))
	v.cidrs("spec.reporters", s.Reporters, maxReporters)
	if s.Reporter != nil {
		v.oneOf("spec.reporter.mode", string(s.Reporter.Mode), string(v1alpha1.ReporterOff), string(v1alpha1.ReporterOwnDrops))
		if s.Reporter.Mode == v1alpha1.ReporterOwnDrops && len(s.Reporters) == 0 {
			v.fault("spec.reporter.mode", s.Reporter.Mode, "reports to senders that believe nobody: write the addresses of the domain's nodes in spec.reporters")
		}
	}
	v.transports(s)
	v.wan(s)
	if n := s.Nodes; n != nil {
		v.selector("spec.nodes.selector", n.Selector)
		v.uplinks("spec.nodes.uplinks", n.Uplinks)
		if n.MaxRepairBandwidth != nil {
			if rate, ok := BitRate(*n.MaxRepairBandwidth); !ok {
				v.fault("spec.nodes.maxRepairBandwidth", *n.MaxRepairBandwidth, "is no rate: write a whole number of bits per second with or without k, M, G or T, for instance 10G")
			} else if rate > 100e12 {
				v.fault("spec.nodes.maxRepairBandwidth", *n.MaxRepairBandwidth, "is over 100T: write the bits per second that repair traffic of one node may use, for instance 10G")
			}
		}
	}
	if s.ProfileRef != nil {
		v.objectName("spec.profileRef.name", string(s.ProfileRef.Name))
	}
	return v.faults
}

// ValidateProfile gives every fault of one profile whose defaults are set, nil without any.
func ValidateProfile(p *v1alpha1.CREMProfile) []Fault {
	v := validator{}
	v.meta(&p.ObjectMeta)
	s := &p.Spec
	v.between("spec.k", s.K, 1, maxCodeLength-1)
	v.between("spec.maxRepairSymbols", s.MaxRepairSymbols, 1, maxCodeLength-1)
	if s.K+s.MaxRepairSymbols > maxCodeLength && s.K < maxCodeLength {
		v.fault("spec.maxRepairSymbols", s.MaxRepairSymbols, fmt.Sprintf("added to k is over 255, the size of the code: write k and maxRepairSymbols so that their sum is at most 255, for instance maxRepairSymbols %d", maxCodeLength-s.K))
	}
	if e, ok := Decimal(s.Epsilon); !ok || e <= 0 || e >= 1 {
		v.fault("spec.epsilon", s.Epsilon, "is not over 0 and below 1: write the share of blocks that may stay incomplete, for instance \"1e-4\"")
	}
	if s.MessageSize != nil {
		if n, ok := Octets(*s.MessageSize); !ok {
			v.fault("spec.messageSize", *s.MessageSize, "is no size: write a whole number of octets with or without Ki, Mi or Gi, for instance 128Mi")
		} else if n > 1<<40 {
			v.fault("spec.messageSize", *s.MessageSize, "is over 1024Gi: write the size of one message, for instance 128Mi")
		}
	}
	v.schemes(s)
	v.oneOf("spec.delivery", string(s.Delivery), string(v1alpha1.DeliveryInOrder), string(v1alpha1.DeliveryImmediate))
	if s.MaxHold == nil || s.MaxHold.Duration < time.Millisecond || s.MaxHold.Duration > 2*time.Second {
		v.fault("spec.maxHold", holdText(s.MaxHold), "is not from 1ms to 2s: write a little over one round-trip time, for instance 50ms")
	}
	v.oneOf("spec.repairStrategy", string(s.RepairStrategy), string(v1alpha1.RepairProactive), string(v1alpha1.RepairOnDemand))
	v.oneOf("spec.lossModel", string(s.LossModel), string(v1alpha1.LossIndependent), string(v1alpha1.LossEmpirical))
	if r, ok := Decimal(s.MaxRepairRatio); !ok || r <= 0 || r > 1 {
		v.fault("spec.maxRepairRatio", s.MaxRepairRatio, "is not over 0 and at most 1: write repair octets over source octets, for instance \"0.25\"")
	}
	if sel := s.Selector; sel != nil {
		v.selector("spec.selector.podSelector", sel.PodSelector)
		v.selector("spec.selector.namespaceSelector", sel.NamespaceSelector)
		v.cidrs("spec.selector.sourceCIDRs", sel.SourceCIDRs, maxCIDRs)
		v.count("spec.selector.destinationSites", len(sel.DestinationSites), 0, maxSites)
		for i, site := range sel.DestinationSites {
			v.siteName(index("spec.selector.destinationSites", i), site)
		}
		unique(&v, "spec.selector.destinationSites", sel.DestinationSites)
	}
	return v.faults
}

// wan checks the tunnels of a domain, nil without any.
func (v *validator) wan(s *v1alpha1.CREMDomainSpec) {
	w := s.WAN
	if w == nil {
		return
	}
	v.oneOf("spec.wan.mode", string(w.Mode), string(v1alpha1.WANNormal), string(v1alpha1.WANCompatibility))
	if w.L4S == v1alpha1.L4SPresent {
		v.fault("spec.wan.l4s", string(w.L4S), "excludes tunnels, since ECT(1) would mean two things: turn L4S off on the paths between the sites and write Absent, or remove spec.wan")
	} else {
		v.oneOf("spec.wan.l4s", string(w.L4S), string(v1alpha1.L4SAbsent))
	}
	if s.IPsec.Mode == v1alpha1.IPsecRequired {
		v.fault("spec.wan", nil, "can not stand with ipsec.mode Required, which hides the flows from the tunnels: remove wan, or write BoundaryFiltered in spec.ipsec.mode")
	}
	v.count("spec.wan.sites", len(w.Sites), 0, maxSites)
	unique(v, "spec.wan.sites", w.Sites)
	for _, name := range w.Sites {
		if name == s.Site || findSite(s.Sites, name) == nil {
			v.fault("spec.wan.sites", string(name), "names the own site, or none of spec.sites: write names of other sites")
		}
	}
	for i := range s.Sites {
		site := &s.Sites[i]
		if named := site.Name == s.Site || len(w.Sites) == 0 || slices.Contains(w.Sites, site.Name); named && len(site.Gateways) == 0 {
			v.fault("spec.wan", nil, "needs gateways at both ends of a tunnel: write gateways for the own site and for each site that wan leads to, or name in spec.wan.sites only sites that have some")
			break
		}
	}
	if w.PathMTU != nil {
		v.between("spec.wan.pathMTU", *w.PathMTU, 1280, 9216)
	}
	if w.Measurement != "" {
		v.oneOf("spec.wan.measurement", string(w.Measurement), string(v1alpha1.WANMeasurementOff), string(v1alpha1.WANMeasurementAlternateMarking))
	}
	if w.MinRate != nil {
		if rate, ok := BitRate(*w.MinRate); !ok {
			v.fault("spec.wan.minRate", *w.MinRate, "is no rate: write a whole number of bits per second with or without k, M, G or T, for instance 8M")
		} else if rate < 1e6 || rate > 1e12 {
			v.fault("spec.wan.minRate", *w.MinRate, "is not from 1M to 1T: write the bits per second that every flow keeps, for instance 8M")
		}
	}
	v.queue(w)
}

// queue checks the thresholds of the uplink's queue, nil without any.
func (v *validator) queue(w *v1alpha1.WAN) {
	q := w.Queue
	if q == nil {
		return
	}
	if w.Mode == v1alpha1.WANCompatibility {
		v.fault("spec.wan.queue", nil, "can not stand with mode Compatibility, where outer headers can not be marked: write Normal in spec.wan.mode, or remove queue")
	}
	early, ok := v.threshold("spec.wan.queue.early", q.Early, "before anybody is warned, for instance 256Ki")
	severe, fine := v.threshold("spec.wan.queue.severe", q.Severe, "before the endpoints are told, for instance 1Mi")
	if ok && fine && severe <= early {
		v.fault("spec.wan.queue.severe", q.Severe, "is not over early: write a longer queue than that of early, for instance four times it")
	}
}

// threshold reads the length of a queue.
func (v *validator) threshold(field, value, what string) (octets int64, ok bool) {
	n, ok := Octets(value)
	switch {
	case !ok:
		v.fault(field, value, "is no size: write a whole number of octets with or without Ki, Mi or Gi that may wait "+what)
	case n < 1<<10 || n > 1<<30:
		v.fault(field, value, "is not from 1Ki to 1Gi: write the octets that may wait "+what)
	}
	return n, ok
}

// validator collects faults.
type validator struct{ faults []Fault }

func (v *validator) fault(field string, value any, says string) {
	shown := ""
	switch value := value.(type) {
	case nil:
	case string:
		shown = strconv.Quote(value)
	case fmt.Stringer:
		shown = value.String()
	case int32:
		shown = strconv.Itoa(int(value))
	default:
		shown = strconv.Quote(fmt.Sprint(value))
	}
	v.faults = append(v.faults, Fault{Field: field, Value: shown, Says: says})
}

func (v *validator) meta(m *metav1.ObjectMeta) {
	v.objectName("metadata.name", m.Name)
	if m.Namespace != "" {
		v.fault("metadata.namespace", m.Namespace, "does not belong here, the kind is cluster-scoped: remove it")
	}
}

func (v *validator) objectName(field, name string) {
	if name == "" {
		v.fault(field, nil, "is missing: write a name of lower-case letters, digits, '-' and '.'")
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		v.fault(field, name, "is no object name: write lower-case letters, digits, '-' and '.', a letter or digit first and last, at most 253")
	}
}

func (v *validator) siteName(field string, name v1alpha1.SiteName) {
	if !SiteName(string(name)) {
		v.fault(field, string(name), "is no site name: write lower-case letters, digits and '-', a letter or digit first and last, at most 63")
	}
}

func (v *validator) between(field string, n, lo, hi int32) {
	if n < lo || n > hi {
		v.fault(field, n, fmt.Sprintf("is out of range: write a number from %d to %d", lo, hi))
	}
}

func (v *validator) oneOf(field, value string, known ...string) {
	for _, k := range known {
		if value == k {
			return
		}
	}
	v.fault(field, value, "is unknown: write "+strings.Join(known, " or "))
}

func (v *validator) count(field string, n, lo, hi int) {
	if n < lo {
		v.fault(field, nil, fmt.Sprintf("has %d entries: write at least %d", n, lo))
	} else if n > hi {
		v.fault(field, nil, fmt.Sprintf("has %d entries: write at most %d", n, hi))
	}
}

func (v *validator) schemes(s *v1alpha1.CREMProfileSpec) {
	v.count("spec.schemes", len(s.Schemes), 1, 2)
	for i, scheme := range s.Schemes {
		if scheme == "SourceCopy" {
			v.fault(index("spec.schemes", i), string(scheme), "is always there: remove it")
			continue
		}
		v.oneOf(index("spec.schemes", i), string(scheme), string(v1alpha1.SchemeCauchyReedSolomon), string(v1alpha1.SchemeXOR))
	}
	if len(s.Schemes) == 2 && s.Schemes[0] == s.Schemes[1] {
		v.fault("spec.schemes", nil, "names a scheme twice: write each scheme once, the preferred one first")
	}
	if len(s.Schemes) == 1 && s.Schemes[0] == v1alpha1.SchemeXOR && s.MaxRepairSymbols > 1 {
		v.fault("spec.maxRepairSymbols", s.MaxRepairSymbols, "is over 1 with XOR alone, which repairs one loss a block: write maxRepairSymbols 1, or add CauchyReedSolomon to schemes")
	}
}

func (v *validator) sites(sites []v1alpha1.Site) {
	v.count("spec.sites", len(sites), 2, maxSites)
	names := make([]v1alpha1.SiteName, len(sites))
	for i := range sites {
		at := index("spec.sites", i)
		names[i] = sites[i].Name
		v.siteName(at+".name", sites[i].Name)
		v.count(at+".cidrs", len(sites[i].CIDRs), 1, maxSiteCIDRs)
		v.cidrs(at+".cidrs", sites[i].CIDRs, maxSiteCIDRs)
		v.count(at+".gateways", len(sites[i].Gateways), 0, maxGateways)
		for j, g := range sites[i].Gateways {
			v.address(index(at+".gateways", j), g)
		}
		unique(v, at+".gateways", sites[i].Gateways)
	}
	unique(v, "spec.sites", names)
	for i := range sites {
		for j := range sites[:i] {
			if x, y, ok := overlap(sites[j].CIDRs, sites[i].CIDRs); ok && sites[i].Name != sites[j].Name {
				v.fault("spec.sites", nil, fmt.Sprintf("has a prefix of one site that overlaps a prefix of another: an address belongs to one site, write each prefix once and split the larger one (%s of %s, %s of %s)", x, sites[j].Name, y, sites[i].Name))
			}
		}
	}
}

func (v *validator) cidrs(field string, list []v1alpha1.CIDR, most int) {
	v.count(field, len(list), 0, most)
	for i, c := range list {
		at := index(field, i)
		p, ok := parseCIDR(c)
		switch {
		case !ok:
			v.fault(at, string(c), "is not a prefix: write one such as 10.1.0.0/16 or fd00:1::/32; an IPv4-mapped prefix is written as plain IPv4")
		case p.Masked() != p:
			v.fault(at, string(c), "has host bits set: write "+p.Masked().String())
		case p.Bits() == 0:
			v.fault(at, string(c), "takes every address: write the prefixes that the addresses really come from")
		}
	}
	unique(v, field, list)
}

func (v *validator) address(field string, a v1alpha1.Address) {
	ip, err := netip.ParseAddr(string(a))
	switch {
	case err != nil || ip.Is4In6() || ip.Zone() != "" || len(a) > 39:
		v.fault(field, string(a), "is not an address: write one such as 192.0.2.1 or 2001:db8::1, without zone; an IPv4-mapped address is written as plain IPv4")
	case !ip.IsGlobalUnicast():
		v.fault(field, string(a), "can not be reached from another site: write a unicast address that is neither loopback nor link-local")
	}
}

func (v *validator) uplinks(field string, list []v1alpha1.InterfaceName) {
	v.count(field, len(list), 0, maxUplinks)
	for i, name := range list {
		switch {
		case name == "lo":
			v.fault(index(field, i), string(name), "is the loopback interface, which leads to no other site: write the name of an uplink, or leave uplinks empty")
		case len(name) > 15 || !interfaceName.MatchString(string(name)):
			v.fault(index(field, i), string(name), "is no interface name: write 1 to 15 letters, digits, '.', '_', '@' or '-'")
		}
	}
	unique(v, field, list)
}

// selector checks what a label selector holds. That its keys and values are labels is more than the CRD can check; a stored
// object that breaks it is skipped with the reason InvalidSpec.
func (v *validator) selector(field string, s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	if len(s.MatchLabels) > maxSelectors || len(s.MatchExpressions) > maxSelectors {
		v.fault(field, nil, "has more than 16 labels or expressions: write at most 16 of each")
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		v.fault(field, nil, "is no label selector: "+err.Error())
	}
}

// unique refuses an entry that is in the list already.
func unique[T ~string](v *validator, field string, list []T) {
	seen := map[T]bool{}
	for i, item := range list {
		if seen[item] {
			v.fault(index(field, i), string(item), "is there already: write it once")
		}
		seen[item] = true
	}
}

func index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

func holdText(d *metav1.Duration) any {
	if d == nil {
		return nil
	}
	return d.Duration
}

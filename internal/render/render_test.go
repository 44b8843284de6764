// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// nodeYAML gives a rendered node as the object that the operator applies.
func nodeYAML(t *testing.T, name string, spec v1alpha1.CREMNodeSpec) string {
	t.Helper()
	node := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindNode,
		"metadata": map[string]any{"name": name}, "spec": spec,
	}
	raw, err := yaml.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// golden compares got with a file of testdata/golden, which test/crd validates as well.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", "golden", file)
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
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", file, diff)
	}
}

func read(t *testing.T, paths ...string) Objects {
	t.Helper()
	var files []File
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{Name: path, Data: raw})
	}
	objs, err := Decode(files)
	if err != nil {
		t.Fatal(err)
	}
	return objs
}

func TestSamplesRender(t *testing.T) {
	objs := read(t, "../../config/samples/domain.yaml", "../../config/samples/profiles.yaml")
	got := Node(objs, NodeFacts{Name: "gw1", Standalone: true})
	if len(got.Problems) > 0 {
		t.Errorf("problems: %+v", got.Problems)
	}
	golden(t, "samples.yaml", nodeYAML(t, "gw1", got.Spec))
}

func TestGoldenNodes(t *testing.T) {
	inputs, err := filepath.Glob("testdata/nodes/*.yaml")
	if err != nil || len(inputs) < 2 {
		t.Fatalf("inputs: %v %v", inputs, err)
	}
	for _, input := range inputs {
		name := strings.TrimSuffix(filepath.Base(input), ".yaml")
		t.Run(name, func(t *testing.T) {
			got := Node(read(t, input), NodeFacts{Name: "gw1", Labels: map[string]string{"crem.dev/gateway": "", "zone": "a"}})
			golden(t, name+".yaml", nodeYAML(t, "gw1", got.Spec))
			var says strings.Builder
			for _, p := range got.Problems {
				fmt.Fprintf(&says, "%s: %s: %s\n", p.Object, p.Reason, p.Message)
			}
			golden(t, name+".problems.txt", says.String())
		})
	}
}

// newDomain makes a valid domain of two sites; n makes port, prefixes and uplink its own.
func newDomain(name string, n int, age time.Duration) v1alpha1.CREMDomain {
	return v1alpha1.CREMDomain{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
		Spec: v1alpha1.CREMDomainSpec{
			Port: int32(50000 + n), Site: "east",
			IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecRequired},
			Sites: []v1alpha1.Site{
				{Name: "east", CIDRs: []v1alpha1.CIDR{"10.0.0.0/16"}},
				{Name: "west", CIDRs: []v1alpha1.CIDR{v1alpha1.CIDR(fmt.Sprintf("10.%d.0.0/16", n+1))}},
			},
			Nodes: &v1alpha1.DomainNodes{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "yes"}},
				Uplinks:  []v1alpha1.InterfaceName{v1alpha1.InterfaceName(fmt.Sprintf("wan%d", n))},
			},
		},
	}
}

func newProfile(name string, selector *v1alpha1.FlowSelector) v1alpha1.CREMProfile {
	p := v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: ProfileDefaults()}
	p.Spec.Selector = selector
	return p
}

var gateway = NodeFacts{Name: "gw1", Labels: map[string]string{"gw": "yes", "zone": "a"}}

// TestWANECN_TunnelsAreOffUnlessAskedFor: no flow travels in a tunnel by default; towards which sites is written out, sorted, whatever the
// order of the sites.
func TestWANECN_TunnelsAreOffUnlessAskedFor(t *testing.T) {
	mtu, rate := int32(4200), "100M"
	for _, tc := range []struct {
		in   *v1alpha1.WAN
		want *v1alpha1.NodeWAN
	}{
		{nil, nil},
		{&v1alpha1.WAN{Mode: v1alpha1.WANNormal, L4S: v1alpha1.L4SAbsent, Measurement: v1alpha1.WANMeasurementOff}, &v1alpha1.NodeWAN{Mode: v1alpha1.WANNormal, Sites: []v1alpha1.SiteName{"north", "west"}, MinBitsPerSecond: 8e6}},
		{
			&v1alpha1.WAN{Mode: v1alpha1.WANCompatibility, L4S: v1alpha1.L4SAbsent, Sites: []v1alpha1.SiteName{"west", "north"}, PathMTU: &mtu, MinRate: &rate, Measurement: v1alpha1.WANMeasurementAlternateMarking},
			&v1alpha1.NodeWAN{Mode: v1alpha1.WANCompatibility, Sites: []v1alpha1.SiteName{"north", "west"}, PathMTU: 4200, MinBitsPerSecond: 1e8, Measurement: v1alpha1.WANMeasurementAlternateMarking},
		},
		{
			&v1alpha1.WAN{Mode: v1alpha1.WANNormal, L4S: v1alpha1.L4SAbsent, Sites: []v1alpha1.SiteName{"west"}, Queue: &v1alpha1.WANQueue{Early: "256Ki", Severe: "1Mi"}},
			&v1alpha1.NodeWAN{Mode: v1alpha1.WANNormal, Sites: []v1alpha1.SiteName{"west"}, MinBitsPerSecond: 8e6, Queue: &v1alpha1.NodeWANQueue{EarlyOctets: 256 << 10, SevereOctets: 1 << 20}},
		},
	} {
		for _, reversed := range []bool{false, true} {
			d := v1alpha1.CREMDomain{ObjectMeta: metav1.ObjectMeta{Name: "backbone"}, Spec: v1alpha1.CREMDomainSpec{Port: 52000, IPsec: v1alpha1.IPsec{Mode: v1alpha1.IPsecBoundaryFiltered}}}
			for i, name := range []v1alpha1.SiteName{"east", "north", "west"} {
				d.Spec.Sites = append(d.Spec.Sites, v1alpha1.Site{
					Name: name, CIDRs: []v1alpha1.CIDR{v1alpha1.CIDR(fmt.Sprintf("10.%d.0.0/16", i+1))}, Gateways: []v1alpha1.Address{v1alpha1.Address(fmt.Sprintf("192.0.2.%d", i+1))},
				})
			}
			d.Spec.Site, d.Spec.WAN = "east", tc.in
			if reversed {
				slices.Reverse(d.Spec.Sites)
			}
			got := Node(Objects{Domains: []v1alpha1.CREMDomain{d}}, NodeFacts{Name: "gw1", Standalone: true})
			if len(got.Problems) > 0 || !cmp.Equal(got.Spec.Domains[0].WAN, tc.want) {
				t.Errorf("%+v renders as %+v, problems %+v", tc.in, got.Spec.Domains[0].WAN, got.Problems)
			}
		}
	}
}

// TestReporterIsOffUnlessAskedFor: no node reports by default (Section 8.2).
func TestReporterIsOffUnlessAskedFor(t *testing.T) {
	for _, tc := range []struct {
		in   *v1alpha1.Reporter
		want v1alpha1.ReporterMode
	}{{nil, ""}, {&v1alpha1.Reporter{Mode: v1alpha1.ReporterOff}, ""}, {&v1alpha1.Reporter{Mode: v1alpha1.ReporterOwnDrops}, v1alpha1.ReporterOwnDrops}} {
		d := newDomain("a", 0, 0)
		d.Spec.Reporter, d.Spec.Reporters = tc.in, []v1alpha1.CIDR{"10.255.0.0/24"}
		got := Node(Objects{Domains: []v1alpha1.CREMDomain{d}}, gateway)
		if len(got.Problems) > 0 || got.Spec.Domains[0].Reporter != tc.want {
			t.Errorf("%+v renders as %q, problems %+v", tc.in, got.Spec.Domains[0].Reporter, got.Problems)
		}
	}
}

// TestTransportsAreResolved: the port of veRoCE is always written, what is not settled stays open, and two domains may say the same (Section 4.4, rule 5).
func TestTransportsAreResolved(t *testing.T) {
	bit, port := v1alpha1.RetransmissionBit(3), int32(4794)
	for _, tc := range []struct{ in, want *v1alpha1.Transports }{
		{nil, nil},
		{&v1alpha1.Transports{}, nil},
		{&v1alpha1.Transports{MRC: &v1alpha1.MRC{RetransmissionBit: &bit}}, &v1alpha1.Transports{MRC: &v1alpha1.MRC{RetransmissionBit: &bit}}},
		{&v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{}}, &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{Port: &port}}},
	} {
		a, b := newDomain("a", 1, time.Hour), newDomain("b", 2, 0)
		a.Spec.Transports = tc.in
		if tc.want != nil {
			b.Spec.Transports = tc.want.DeepCopy()
		}
		got := Node(Objects{Domains: []v1alpha1.CREMDomain{a, b}}, gateway)
		if len(got.Problems) > 0 || len(got.Spec.Domains) != 2 {
			t.Fatalf("%+v: problems %+v", tc.in, got.Problems)
		}
		for _, d := range got.Spec.Domains {
			if diff := cmp.Diff(tc.want, d.Transports); diff != "" {
				t.Errorf("domain %s (-want +got)\n%s", d.Name, diff)
			}
		}
	}
}

// TestConflicts: the older object wins, then the name; the problem names the other object; the rest is not touched.
func TestConflicts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(d *v1alpha1.CREMDomain)
		reason string
		says   string
	}{
		{"port", func(d *v1alpha1.CREMDomain) { d.Spec.Port = 50001 }, v1alpha1.ReasonPortConflict, "port 50001 on node gw1 belongs to the older domain first: write another port"},
		{"uplink", func(d *v1alpha1.CREMDomain) { d.Spec.Nodes.Uplinks = []v1alpha1.InterfaceName{"wan7", "wan1"} }, v1alpha1.ReasonUplinkConflict, "on node gw1 both domains take uplink wan1: name"},
		{"uplinks by route", func(d *v1alpha1.CREMDomain) { d.Spec.Nodes.Uplinks = nil }, v1alpha1.ReasonUplinkConflict, "name different interfaces in spec.nodes.uplinks of this domain and of the older domain first"},
		{"bit of MRC", func(d *v1alpha1.CREMDomain) {
			bit := v1alpha1.RetransmissionBit(4)
			d.Spec.Transports = &v1alpha1.Transports{MRC: &v1alpha1.MRC{RetransmissionBit: &bit}}
		}, v1alpha1.ReasonTransportConflict, "spec.transports.mrc differs on node gw1 from that of the older domain first: "},
		{"port of veRoCE", func(d *v1alpha1.CREMDomain) {
			port := int32(4795)
			d.Spec.Transports = &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{Port: &port}}
		}, v1alpha1.ReasonTransportConflict, "spec.transports.veroce differs on node gw1"},
		{"CREM port that is veRoCE's", func(d *v1alpha1.CREMDomain) { d.Spec.Port = 4794 }, v1alpha1.ReasonPortConflict, "than the older domain first's spec.transports.veroce.port"},
		{"veRoCE's port that is the CREM port", func(d *v1alpha1.CREMDomain) {
			port := int32(50001)
			d.Spec.Transports = &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{Port: &port}}
		}, v1alpha1.ReasonPortConflict, "what the other takes as that of veRoCE"},
		{"prefix", func(d *v1alpha1.CREMDomain) { d.Spec.Sites[1].CIDRs = []v1alpha1.CIDR{"10.2.3.0/24"} }, v1alpha1.ReasonPrefixConflict, "10.2.3.0/24 of site west overlaps 10.2.0.0/16 of site west of the older domain first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			first, second, third := newDomain("first", 1, 3*time.Hour), newDomain("second", 2, 2*time.Hour), newDomain("third", 3, time.Hour)
			first.Spec.Transports = &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{}, MRC: &v1alpha1.MRC{}}
			tc.change(&second)
			got := Node(Objects{Domains: []v1alpha1.CREMDomain{third, second, first}}, gateway)
			if len(got.Problems) == 0 {
				t.Fatal("no problem")
			}
			p := got.Problems[0]
			if p.Object.String() != "CREMDomain second" || p.Reason != tc.reason || p.Other == nil || p.Other.Name != "first" || !strings.Contains(p.Message, tc.says) {
				t.Errorf("problem %+v", p)
			}
			if names := domainNames(got.Spec); names != "first third" {
				t.Errorf("rendered %q", names)
			}
			// The loser recovers without an edit when the winner goes.
			if names := domainNames(Node(Objects{Domains: []v1alpha1.CREMDomain{second}}, gateway).Spec); names != "second" {
				t.Errorf("alone it renders %q", names)
			}
		})
	}
	t.Run("same age", func(t *testing.T) {
		a, b := newDomain("alpha", 1, time.Hour), newDomain("beta", 1, time.Hour)
		if names := domainNames(Node(Objects{Domains: []v1alpha1.CREMDomain{b, a}}, gateway).Spec); names != "alpha" {
			t.Errorf("rendered %q", names)
		}
	})
	t.Run("transports that one names alone", func(t *testing.T) {
		veroce, mrc := &v1alpha1.VeRoCE{}, &v1alpha1.MRC{}
		all := []*v1alpha1.Transports{nil, {VeRoCE: veroce}, {MRC: mrc}, {VeRoCE: veroce, MRC: mrc}}
		for _, old := range all {
			for _, young := range all {
				a, b := newDomain("alpha", 1, 2*time.Hour), newDomain("beta", 2, time.Hour)
				a.Spec.Transports, b.Spec.Transports = old, young
				got := Node(Objects{Domains: []v1alpha1.CREMDomain{a, b}}, gateway)
				if names := domainNames(got.Spec); names != "alpha beta" || len(got.Problems) > 0 {
					t.Errorf("%+v and %+v: rendered %q, problems %v", old, young, names, got.Problems)
				}
			}
		}
	})
	t.Run("not on this node", func(t *testing.T) {
		a, b := newDomain("alpha", 1, 2*time.Hour), newDomain("beta", 1, time.Hour)
		a.Spec.Nodes.Selector.MatchLabels = map[string]string{"gw": "other"}
		got := Node(Objects{Domains: []v1alpha1.CREMDomain{a, b}}, gateway)
		if names := domainNames(got.Spec); names != "beta" || len(got.Problems) > 0 {
			t.Errorf("rendered %q, problems %v", names, got.Problems)
		}
	})
}

func domainNames(spec v1alpha1.CREMNodeSpec) string {
	var names []string
	for _, d := range spec.Domains {
		names = append(names, string(d.Name))
	}
	return strings.Join(names, " ")
}

func TestWhichNodesMatch(t *testing.T) {
	in := []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpIn, Values: []string{"a", "b"}}}
	for _, tc := range []struct {
		name  string
		nodes *v1alpha1.DomainNodes
		facts NodeFacts
		want  bool
	}{
		{"labels among others", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "yes"}}}, gateway, true},
		{"another label", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "no"}}}, gateway, false},
		{"expressions", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{MatchExpressions: in}}, gateway, true},
		{"empty selector takes all", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{}}, NodeFacts{Name: "n"}, true},
		{"absent selector takes none", &v1alpha1.DomainNodes{}, gateway, false},
		{"absent nodes take none", nil, gateway, false},
		{"stand-alone takes all", nil, NodeFacts{Name: "n", Standalone: true}, true},
		{"stand-alone without labels ignores the selector", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "yes"}}}, NodeFacts{Name: "n", Standalone: true}, true},
		{"stand-alone with labels obeys it", &v1alpha1.DomainNodes{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"gw": "no"}}}, NodeFacts{Name: "n", Standalone: true, Labels: map[string]string{"gw": "yes"}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDomain("d", 1, 0)
			d.Spec.Nodes = tc.nodes
			if got := len(Node(Objects{Domains: []v1alpha1.CREMDomain{d}}, tc.facts).Spec.Domains) == 1; got != tc.want {
				t.Errorf("matches: %v", got)
			}
		})
	}
}

// TestRulesAreMostSpecificFirst: pods, then the longest prefix, then destinations, then the name, then profileRef.
func TestRulesAreMostSpecificFirst(t *testing.T) {
	pods := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	d := newDomain("d", 1, 0)
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "fallback"}
	objs := Objects{
		Domains: []v1alpha1.CREMDomain{d},
		Profiles: []v1alpha1.CREMProfile{
			newProfile("fallback", nil),
			newProfile("unused", nil),
			newProfile("everything", &v1alpha1.FlowSelector{}),
			newProfile("any-to-west", &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{"west", "nowhere"}}),
			newProfile("to-nowhere", &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{"nowhere"}}),
			newProfile("to-itself", &v1alpha1.FlowSelector{DestinationSites: []v1alpha1.SiteName{"east"}}),
			newProfile("wide", &v1alpha1.FlowSelector{SourceCIDRs: []v1alpha1.CIDR{"10.0.0.0/12", "10.0.5.0/24", "fd00::/24"}}),
			newProfile("narrow", &v1alpha1.FlowSelector{SourceCIDRs: []v1alpha1.CIDR{"10.0.0.0/20"}}),
			newProfile("narrow-to-west", &v1alpha1.FlowSelector{SourceCIDRs: []v1alpha1.CIDR{"10.0.0.0/20"}, DestinationSites: []v1alpha1.SiteName{"west"}}),
			newProfile("pods", &v1alpha1.FlowSelector{PodSelector: pods}),
			newProfile("pods-in-prefix", &v1alpha1.FlowSelector{NamespaceSelector: &metav1.LabelSelector{}, SourceCIDRs: []v1alpha1.CIDR{"10.0.0.0/30"}}),
		},
	}
	lines := func(spec v1alpha1.CREMNodeSpec) string {
		var b strings.Builder
		for _, r := range spec.Domains[0].Rules {
			fmt.Fprintln(&b, r.Profile, r.Source, r.CIDRs, r.DestinationSites)
		}
		return b.String()
	}
	got := Node(objs, gateway)
	if diff := cmp.Diff(`pods-in-prefix Pods [10.0.0.0/30] []
pods Pods [] []
wide CIDRs [10.0.5.0/24 fd00::/24] []
narrow-to-west CIDRs [10.0.0.0/20] [west]
narrow CIDRs [10.0.0.0/20] []
wide CIDRs [10.0.0.0/12] []
any-to-west Any [] [west]
everything Any [] []
fallback Any [] []
`, lines(got.Spec)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var profiles []string
	for _, p := range got.Spec.Profiles {
		profiles = append(profiles, string(p.Name))
	}
	if want := "any-to-west everything fallback narrow narrow-to-west pods pods-in-prefix wide"; strings.Join(profiles, " ") != want {
		t.Errorf("profiles %v, want %s", profiles, want)
	}
	if len(got.Problems) != 1 || got.Problems[0].Object.Name != "to-nowhere" || got.Problems[0].Reason != v1alpha1.ReasonSiteNotFound {
		t.Errorf("problems %+v", got.Problems)
	}

	alone := gateway
	alone.Standalone = true
	got = Node(objs, alone)
	if strings.Contains(lines(got.Spec), "Pods") {
		t.Errorf("pods are known to nobody, yet\n%s", lines(got.Spec))
	}
	reasons := map[string]string{}
	for _, p := range got.Problems {
		reasons[p.Object.Name] = p.Reason
	}
	if reasons["pods"] != v1alpha1.ReasonPodsNotVisible || reasons["pods-in-prefix"] != v1alpha1.ReasonPodsNotVisible {
		t.Errorf("problems %+v", got.Problems)
	}
}

// TestOneBadItemStopsNothingElse: objects that were stored before a rule existed, and references to nothing.
func TestOneBadItemStopsNothingElse(t *testing.T) {
	bad, good := newDomain("bad", 1, 2*time.Hour), newDomain("good", 2, time.Hour)
	bad.Spec.Port = 4791
	good.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "broken"}
	broken := newProfile("broken", &v1alpha1.FlowSelector{})
	broken.Spec.Epsilon = "2"
	fine := newProfile("fine", &v1alpha1.FlowSelector{})
	got := Node(Objects{Domains: []v1alpha1.CREMDomain{bad, good}, Profiles: []v1alpha1.CREMProfile{broken, fine}}, gateway)
	if names := domainNames(got.Spec); names != "good" {
		t.Errorf("rendered %q", names)
	}
	if rules := got.Spec.Domains[0].Rules; len(rules) != 1 || rules[0].Profile != "fine" {
		t.Errorf("rules %+v", rules)
	}
	want := []string{"CREMDomain bad InvalidSpec", "CREMDomain good ProfileNotFound", "CREMProfile broken InvalidSpec"}
	var have []string
	for _, p := range got.Problems {
		have = append(have, p.Object.String()+" "+p.Reason)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if p := got.Problems[1]; p.Other == nil || p.Other.Name != "broken" || !strings.Contains(p.Message, "CREMProfile broken") {
		t.Errorf("problem does not name the profile: %+v", p)
	}
}

func TestTooMany(t *testing.T) {
	var objs Objects
	for i := range 20 {
		objs.Domains = append(objs.Domains, newDomain(fmt.Sprintf("d%02d", i), i, time.Duration(i)*time.Hour))
	}
	for i := range 60 {
		p := newProfile(fmt.Sprintf("p%02d", i), &v1alpha1.FlowSelector{})
		p.CreationTimestamp = metav1.NewTime(time.Unix(1e9+int64(i), 0))
		objs.Profiles = append(objs.Profiles, p)
	}
	got := Node(objs, gateway)
	if len(got.Spec.Domains) != maxDomains || got.Spec.Domains[0].Name != "d04" {
		t.Errorf("%d domains, first %s: the oldest must stay", len(got.Spec.Domains), got.Spec.Domains[0].Name)
	}
	if len(got.Spec.Profiles) != 48 || got.Spec.Profiles[47].Name != "p47" {
		t.Errorf("%d profiles: the oldest must stay", len(got.Spec.Profiles))
	}
	count := 0
	for _, p := range got.Problems {
		if p.Reason == v1alpha1.ReasonTooMany {
			count++
		}
	}
	if count != 4+12 {
		t.Errorf("%d problems TooMany: %+v", count, got.Problems)
	}
}

// TestOrderOfObjectsDoesNotMatter: 1,000 permutations of objects that conflict in every way give one result.
func TestOrderOfObjectsDoesNotMatter(t *testing.T) {
	var objs Objects
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 24 {
		d := newDomain(fmt.Sprintf("d%02d", i), rng.IntN(12), time.Duration(rng.IntN(4))*time.Hour)
		switch rng.IntN(6) {
		case 0:
			d.Spec.Nodes.Uplinks = nil
		case 1:
			d.Spec.Port = 50000
		case 2:
			d.Spec.Sites[1].CIDRs = append(d.Spec.Sites[1].CIDRs, "fd00::/16")
		case 3:
			d.Spec.Site = "nowhere"
		case 4:
			bit := v1alpha1.RetransmissionBit(rng.IntN(7))
			d.Spec.Transports = &v1alpha1.Transports{MRC: &v1alpha1.MRC{RetransmissionBit: &bit}}
		}
		d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: v1alpha1.ObjectName(fmt.Sprintf("p%02d", rng.IntN(400)))}
		objs.Domains = append(objs.Domains, d)
	}
	for i := range 80 {
		var sel *v1alpha1.FlowSelector
		if i%6 != 0 {
			sel = &v1alpha1.FlowSelector{SourceCIDRs: []v1alpha1.CIDR{v1alpha1.CIDR(fmt.Sprintf("10.0.%d.0/24", i%7)), "10.0.0.0/8"}}
		}
		if i%5 == 1 && sel != nil {
			sel.DestinationSites = []v1alpha1.SiteName{"west", "north"}
		}
		if i%7 == 2 && sel != nil {
			sel.PodSelector = &metav1.LabelSelector{}
		}
		p := newProfile(fmt.Sprintf("p%02d", i), sel)
		if i%11 == 3 {
			p.Spec.K = 300
		}
		objs.Profiles = append(objs.Profiles, p)
	}
	canon := func(r Result) string {
		raw, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	want := canon(Node(objs, gateway))
	for _, reason := range []string{v1alpha1.ReasonPortConflict, v1alpha1.ReasonUplinkConflict, v1alpha1.ReasonPrefixConflict, v1alpha1.ReasonTransportConflict, v1alpha1.ReasonTooMany, v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonProfileNotFound} {
		if !strings.Contains(want, reason) {
			t.Fatalf("the objects bring about no %s: this test shows less than it should", reason)
		}
	}
	for i := range 1000 {
		rng.Shuffle(len(objs.Domains), func(i, j int) { objs.Domains[i], objs.Domains[j] = objs.Domains[j], objs.Domains[i] })
		rng.Shuffle(len(objs.Profiles), func(i, j int) { objs.Profiles[i], objs.Profiles[j] = objs.Profiles[j], objs.Profiles[i] })
		d := &objs.Domains[rng.IntN(len(objs.Domains))]
		rng.Shuffle(len(d.Spec.Sites), func(i, j int) { d.Spec.Sites[i], d.Spec.Sites[j] = d.Spec.Sites[j], d.Spec.Sites[i] })
		if got := canon(Node(objs, gateway)); got != want {
			t.Fatalf("permutation %d differs: %d octets instead of %d", i, len(got), len(want))
		}
	}
}

// TestResultSharesNoMemory: the caller may change what it gave.
func TestResultSharesNoMemory(t *testing.T) {
	d := newDomain("d", 1, 0)
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "p"}
	bit := v1alpha1.RetransmissionBit(3)
	d.Spec.Transports = &v1alpha1.Transports{VeRoCE: &v1alpha1.VeRoCE{}, MRC: &v1alpha1.MRC{RetransmissionBit: &bit}}
	objs := Objects{Domains: []v1alpha1.CREMDomain{d}, Profiles: []v1alpha1.CREMProfile{newProfile("p", &v1alpha1.FlowSelector{SourceCIDRs: []v1alpha1.CIDR{"10.0.0.0/24"}, DestinationSites: []v1alpha1.SiteName{"west"}})}}
	got := Node(objs, gateway)
	before, _ := json.Marshal(got)
	if d.Spec.Transports.VeRoCE.Port != nil {
		t.Error("the input was changed")
	}
	bit = 4
	s := &objs.Domains[0].Spec
	s.Sites[0].CIDRs[0], s.Sites[1].Name, s.Nodes.Uplinks[0] = "192.0.2.0/24", "x", "x"
	p := &objs.Profiles[0].Spec
	p.Schemes[0], p.Selector.SourceCIDRs[0], p.Selector.DestinationSites[0] = "x", "x", "x"
	if after, _ := json.Marshal(got); string(after) != string(before) {
		t.Errorf("changed with its input:\n%s\n%s", before, after)
	}
}

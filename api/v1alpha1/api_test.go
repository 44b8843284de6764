// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestSchemeKnowsEveryKind(t *testing.T) {
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{KindDomain, KindProfile, KindNode} {
		for _, k := range []string{kind, kind + "List"} {
			if _, err := s.New(GroupVersion.WithKind(k)); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReasonsAreDocumented: reasons and conditions are part of the API: CamelCase, each once, each with a sentence that begins with
// its name.
func TestReasonsAreDocumented(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "conditions.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			c := spec.(*ast.ValueSpec)
			name := c.Names[0].Name
			value, err := strconv.Unquote(c.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if word := strings.TrimPrefix(strings.TrimPrefix(name, "Condition"), "Reason"); word != value {
				t.Errorf("%s is %q", name, value)
			}
			if !regexp.MustCompile(`^[A-Z][A-Za-z]+$`).MatchString(value) {
				t.Errorf("%s: %q is not CamelCase", name, value)
			}
			if seen[name] {
				t.Errorf("%s twice", name)
			}
			seen[name] = true
			if doc := c.Doc.Text(); !strings.HasPrefix(doc, name) || !strings.HasSuffix(strings.TrimSpace(doc), ".") {
				t.Errorf("%s: the comment is not a sentence that begins with it: %q", name, doc)
			}
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d constants", len(seen))
	}
}

// TestDeepCopiesShareNothing: the generated functions were made for the types as they are.
func TestDeepCopiesShareNothing(t *testing.T) {
	rate, spread := "10G", true
	d := &CREMDomain{Spec: CREMDomainSpec{
		Sites: []Site{{Name: "east", CIDRs: []CIDR{"10.1.0.0/16"}, Gateways: []Address{"192.0.2.1"}}}, Reporters: []CIDR{"10.9.0.0/16"},
		Nodes:      &DomainNodes{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Uplinks: []InterfaceName{"wan0"}, MaxRepairBandwidth: &rate},
		ProfileRef: &ProfileReference{Name: "p"},
	}}
	c := d.DeepCopy()
	d.Spec.Sites[0].CIDRs[0], d.Spec.Sites[0].Gateways[0], d.Spec.Reporters[0], d.Spec.Nodes.Uplinks[0], d.Spec.ProfileRef.Name = "x", "x", "x", "x", "x"
	d.Spec.Nodes.Selector.MatchLabels["a"], *d.Spec.Nodes.MaxRepairBandwidth = "x", "x"
	if s := c.Spec; s.Sites[0].CIDRs[0] == "x" || s.Sites[0].Gateways[0] == "x" || s.Reporters[0] == "x" || s.Nodes.Uplinks[0] == "x" || s.ProfileRef.Name == "x" ||
		s.Nodes.Selector.MatchLabels["a"] == "x" || *s.Nodes.MaxRepairBandwidth == "x" {
		t.Errorf("the copy changed with its original: %+v", s)
	}
	p := &CREMProfile{Spec: CREMProfileSpec{Schemes: []Scheme{SchemeXOR}, Spread: &spread, MaxHold: &metav1.Duration{Duration: 1}, Selector: &FlowSelector{DestinationSites: []SiteName{"west"}}}}
	q := p.DeepCopy()
	p.Spec.Schemes[0], *p.Spec.Spread, p.Spec.MaxHold.Duration, p.Spec.Selector.DestinationSites[0] = "x", false, 2, "x"
	if s := q.Spec; s.Schemes[0] == "x" || !*s.Spread || s.MaxHold.Duration == 2 || s.Selector.DestinationSites[0] == "x" {
		t.Errorf("the copy changed with its original: %+v", s)
	}
}

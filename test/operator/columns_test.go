// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/plugin"
)

// TestColumns: what kubectl get shows of each kind is what the API server makes of its columns, names and category.
func TestColumns(t *testing.T) {
	clean(t)
	now := metav1.Now()
	ready := []metav1.Condition{
		{Type: v1alpha1.ConditionProgrammed, Status: "True", Reason: "Programmed", LastTransitionTime: now},
		{Type: v1alpha1.ConditionDegraded, Status: "False", Reason: "NotDegraded", LastTransitionTime: now},
		{Type: v1alpha1.ConditionReady, Status: "False", Reason: "MTUTooSmall", LastTransitionTime: now},
	}
	d, p := domain("d", 52000, "wan0", nil), profile("standard")
	n := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}
	n.Spec.Domains = []v1alpha1.NodeDomain{{Name: "d", Port: 52000, Site: "east", IPsec: d.Spec.IPsec, Sites: []v1alpha1.NodeSite{
		{Name: "east", CIDRs: []v1alpha1.NodePrefix{"10.1.0.0/16"}}, {Name: "west", CIDRs: []v1alpha1.NodePrefix{"10.2.0.0/16"}}}}}
	create(t, d, p, n, &v1alpha1.CREMEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "kv-0"}, Profile: "kv"})
	d.Status = v1alpha1.CREMDomainStatus{Conditions: ready, Nodes: &v1alpha1.DomainNodeCounts{Summary: "3/4"}}
	p.Status.Conditions = ready
	n.Status = v1alpha1.CREMNodeStatus{Conditions: ready, AgentVersion: "v0.1.0"}
	for _, o := range []client.Object{d, p, n} {
		if err := api.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	known, err := discovery.NewDiscoveryClientForConfigOrDie(server).ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	for short, want := range map[string]string{ // priority 1, which only -o wide shows, in parentheses
		"cdom":   "Name=d Site=east Port=52000 IPsec=BoundaryFiltered Nodes=3/4 Ready=False (Reason)=MTUTooSmall",
		"cprof":  "Name=standard K=32 Epsilon=1e-4 MaxM=8 Delivery=InOrder Ready=False (Reason)=MTUTooSmall",
		"cnode":  "Name=gw1 Domains=d Programmed=True Ready=False Degraded=False (Reason)=MTUTooSmall (Agent)=v0.1.0",
		"cslice": "Name=kv-0 Profile=kv",
	} {
		i := slices.IndexFunc(known.APIResources, func(r metav1.APIResource) bool { return slices.Contains(r.ShortNames, short) })
		if i < 0 || !slices.Contains(known.APIResources[i].Categories, "crem") {
			t.Errorf("%s is no short name, or its kind is not in the category crem", short)
			continue
		}
		if got := columns(t, known.APIResources[i].Name); got != want {
			t.Errorf("kubectl get %s shows\n%s, not\n%s", short, got, want)
		}
	}
}

// columns asks for a table as kubectl does, and gives its one row without the age.
func columns(t *testing.T, resource string) string {
	t.Helper()
	cfg := rest.CopyConfig(server)
	cfg.GroupVersion, cfg.APIPath, cfg.NegotiatedSerializer = &v1alpha1.GroupVersion, "/apis", scheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var table metav1.Table
	if err := c.Get().Resource(resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Into(&table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%s: %d rows", resource, len(table.Rows))
	}
	var cells []string
	for i, column := range table.ColumnDefinitions {
		name := column.Name
		if column.Priority > 0 {
			name = "(" + name + ")"
		}
		if name == "Age" {
			if age := fmt.Sprint(table.Rows[0].Cells[i]); !strings.HasSuffix(age, "s") {
				t.Errorf("%s: age %s", resource, age)
			}
			continue
		}
		cells = append(cells, fmt.Sprintf("%s=%v", name, table.Rows[0].Cells[i]))
	}
	return strings.Join(cells, " ")
}

// TestNodesAreCompleted: the shell asks the API server for the names of nodes.
func TestNodesAreCompleted(t *testing.T) {
	clean(t)
	create(t, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw2"}}, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}})
	heartbeat(t, "gw1", time.Now())
	for _, args := range [][]string{{"flows", "--node", ""}, {"top", "--node", ""}, {"explain", ""}} {
		var out, says bytes.Buffer
		all := append([]string{"__complete", args[0], "--kubeconfig", kubeconfig(t)}, args[1:]...)
		if code := plugin.Execute(t.Context(), all, nil, &out, &says); code != 0 || !strings.Contains(out.String(), "gw1\ngw2\n") {
			t.Errorf("%v: exit code %d, %s", args, code, out.String())
		}
	}
}

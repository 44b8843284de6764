// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/test/kubeassets"
)

// shared is one API server for the tests of this package.
var shared struct {
	sync.Mutex
	env *envtest.Environment
	cfg *rest.Config
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.env != nil {
		if err := shared.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// server gives a real API server with the CRDs and the namespace.
func server(t *testing.T) *rest.Config {
	t.Helper()
	dir := assets(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.cfg != nil {
		return shared.cfg
	}
	env := &envtest.Environment{BinaryAssetsDirectory: dir, CRDDirectoryPaths: []string{root + "/config/crd/bases"}, ErrorIfCRDPathMissing: true}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	shared.env, shared.cfg = env, cfg
	if err := admin(t).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crem-system"}}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func types(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func admin(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(shared.cfg, client.Options{Scheme: types(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// apply does what kubectl apply --server-side --validate=strict does.
func apply(ctx context.Context, c client.Client, u *unstructured.Unstructured, options ...client.ApplyOption) error {
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), append([]client.ApplyOption{client.FieldOwner("test"), client.ForceOwnership}, options...)...)
}

// TestServerSideDryRun: a real API server takes every object of the chart and of config/, with strict fields.
func TestServerSideDryRun(t *testing.T) {
	server(t)
	c := client.WithFieldValidation(admin(t), metav1.FieldValidationStrict)
	for name, all := range map[string][]*unstructured.Unstructured{
		"chart": render(t), "chart with everything": render(t, everything...), "config/default": kustomize(t, "default"), "config/prometheus": kustomize(t, "prometheus"),
		"two-sites/east": kustomize(t, "samples/two-sites/east"), "two-sites/west": kustomize(t, "samples/two-sites/west"),
	} {
		for _, u := range all {
			if strings.HasPrefix(u.GetAPIVersion(), "monitoring.coreos.com/") {
				continue // its CRDs are not ours: TestMonitoringObjects
			}
			if err := apply(t.Context(), c, u, client.DryRunAll); err != nil {
				t.Errorf("%s: %s %s: %v", name, u.GetKind(), u.GetName(), err)
			}
		}
	}
}

// TestAgentTouchesOnlyItsOwnNode: RBAC and policy as the chart installs them, and tokens as the kubelet gets them for pods.
func TestAgentTouchesOnlyItsOwnNode(t *testing.T) {
	cfg := server(t)
	ctx, c := t.Context(), admin(t)
	for _, u := range render(t) {
		switch u.GetKind() {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			if err := apply(ctx, c, u); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"gw1", "gw2"} {
		for _, o := range []client.Object{
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + name, Namespace: "crem-system"}, Spec: corev1.PodSpec{
				NodeName: name, ServiceAccountName: "crem-agent", Containers: []corev1.Container{{Name: "agent", Image: "x"}}}},
		} {
			if err := c.Create(ctx, o); err != nil {
				t.Fatal(err)
			}
		}
	}
	gw1 := agentClient(t, cfg, "agent-gw1")
	status := func(name string) error {
		n := &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return gw1.Status().Patch(ctx, n, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"agentVersion":"v1"}}`)))
	}
	lease := func(name string) error {
		return gw1.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "crem-system"}})
	}
	eventually(t, "the policy is in force", func() error { // an API server notices new policies after a moment
		if err := status("gw2"); err == nil {
			return errors.New("the status of another node was written")
		}
		return nil
	})
	refused(t, "the status of another node", status("gw2"), "the agent of node gw1 may not write cremnodes gw2")
	refused(t, "the Lease of another node", lease("gw2"), "the agent of node gw1 may not write leases gw2")
	eventually(t, "its own status", func() error { return status("gw1") })
	if err := lease("gw1"); err != nil {
		t.Errorf("its own Lease: %v", err)
	}
	own := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "gw1", Namespace: "crem-system"}}
	if err := gw1.Patch(ctx, own, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"holderIdentity":"gw1"}}`))); err != nil {
		t.Errorf("renew its own Lease: %v", err)
	}
	// What RBAC refuses already.
	for what, err := range map[string]error{
		"create a CREMNode":     gw1.Create(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "new"}}),
		"delete its CREMNode":   gw1.Delete(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}),
		"change its spec":       gw1.Patch(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"domains":[]}}`))),
		"create a CREMProfile":  gw1.Create(ctx, &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "p"}}),
		"delete its Lease":      gw1.Delete(ctx, own),
		"read pods":             gw1.List(ctx, &corev1.PodList{}),
		"read secrets":          gw1.List(ctx, &corev1.SecretList{}),
		"a Lease in default":    gw1.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "gw1", Namespace: "default"}}),
		"a Lease without name":  gw1.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "gw1", Namespace: "crem-system"}}),
		"read CREMDomains":      gw1.List(ctx, &v1alpha1.CREMDomainList{}),
		"delete all CREMNodes":  gw1.DeleteAllOf(ctx, &v1alpha1.CREMNode{}),
		"write its node object": gw1.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`))),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused(t, "a token without a node", agentClient(t, cfg, "").Status().Patch(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}},
		client.RawPatch("application/merge-patch+json", []byte(`{"status":{"agentVersion":"v2"}}`))), "names no node")

	// The policy holds without RBAC's help too: with rights to everything an agent still writes its own node's status only.
	if err := apply(ctx, c, parse(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: too-much}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: crem-agent, namespace: crem-system}]
`)[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rights to everything", func() error { return gw1.List(ctx, &corev1.SecretList{}) })
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}, EventTime: metav1.NowMicro(), ReportingController: "crem-agent", ReportingInstance: "gw1",
		Action: "RepairDrift", Reason: "DriftRepaired", Type: "Warning", Regarding: corev1.ObjectReference{Kind: "CREMNode", Name: "gw2"},
	}
	refused(t, "an event about another node", gw1.Create(ctx, event), "about the CREMNode of its own node only")
	event.Regarding = corev1.ObjectReference{Kind: "Pod", Name: "gw1"}
	refused(t, "an event about another kind", gw1.Create(ctx, event), "about the CREMNode of its own node only")
	event.Regarding = corev1.ObjectReference{Kind: "CREMNode", Name: "gw1"}
	elsewhere, other, lies := event.DeepCopy(), event.DeepCopy(), event.DeepCopy()
	elsewhere.Namespace, elsewhere.Regarding.Namespace = "kube-system", "kube-system"
	refused(t, "an event in another namespace", gw1.Create(ctx, elsewhere), "about the CREMNode of its own node only")
	other.Related = &corev1.ObjectReference{Kind: "Pod", Name: "victim", Namespace: "kube-system"}
	refused(t, "an event that is about something else too", gw1.Create(ctx, other), "about the CREMNode of its own node only")
	lies.ReportingController = "crem-operator"
	refused(t, "an event in the name of another", gw1.Create(ctx, lies), "about the CREMNode of its own node only")
	if err := gw1.Create(ctx, event); err != nil {
		t.Errorf("an event about its own node: %v", err)
	}
	refused(t, "an event of the core group", gw1.Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "core", Namespace: "default"}, Reason: "X", InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "gw1"},
	}), "about the CREMNode of its own node only")
	refused(t, "delete an event", gw1.Delete(ctx, event), "about the CREMNode of its own node only")
	refused(t, "create a profile", gw1.Create(ctx, &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "p"}}), "writes only the status of its CREMNode")
	refused(t, "delete its CREMNode", gw1.Delete(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}), "writes only the status of its CREMNode")
	refused(t, "delete its Lease", gw1.Delete(ctx, own), "does not delete its Lease")
	if err := c.Delete(ctx, parse(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: too-much}}")[0]); err != nil {
		t.Fatal(err)
	}
}

// TestPortOutsideTheRangeIsAWarning: it is stored, and the person is told.
func TestPortOutsideTheRangeIsAWarning(t *testing.T) {
	cfg := rest.CopyConfig(server(t))
	for _, u := range render(t) {
		if strings.HasPrefix(u.GetKind(), "ValidatingAdmissionPolicy") {
			if err := apply(t.Context(), admin(t), u); err != nil {
				t.Fatal(err)
			}
		}
	}
	var warned warnings
	cfg.WarningHandler = &warned
	c, err := client.New(cfg, client.Options{Scheme: types(t)})
	if err != nil {
		t.Fatal(err)
	}
	var domain *unstructured.Unstructured
	for _, u := range kustomize(t, "samples/two-sites/east") {
		if u.GetKind() == v1alpha1.KindDomain {
			domain = u
		}
	}
	dryRun := func(port int64) string {
		if err := unstructured.SetNestedField(domain.Object, port, "spec", "port"); err != nil {
			t.Fatal(err)
		}
		warned.take()
		if err := apply(t.Context(), c, domain.DeepCopy(), client.DryRunAll); err != nil {
			t.Fatalf("port %d: %v", port, err)
		}
		return warned.take()
	}
	eventually(t, "the policy is in force", func() error {
		if got := dryRun(4000); !strings.Contains(got, "spec.port 4000 is outside 49152 to 65535") {
			return fmt.Errorf("port 4000: %q", got)
		}
		return nil
	})
	for _, port := range []int64{49152, 52000, 65535} {
		if got := dryRun(port); got != "" {
			t.Errorf("port %d: %q", port, got)
		}
	}
	if got := dryRun(49151); !strings.Contains(got, "49151") {
		t.Errorf("port 49151: %q", got)
	}
}

func assets(t *testing.T) string {
	t.Helper()
	dir, err := kubeassets.Dir()
	switch {
	case err != nil && kubeassets.Required():
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return dir
}

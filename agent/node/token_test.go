// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/served"
)

// manifests applies all objects of the files.
func (k kubernetes) manifests(patterns ...string) {
	k.t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			k.t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				k.t.Fatal(err)
			}
			for _, doc := range strings.Split(string(raw), "\n---\n") {
				o := new(unstructured.Unstructured)
				if err := yaml.Unmarshal([]byte(doc), &o.Object); err != nil {
					k.t.Fatalf("%s: %v", file, err)
				}
				if o.GetKind() == "" || o.GetKind() == "Kustomization" {
					continue
				}
				if err := k.Create(k.t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
					k.t.Fatalf("%s: %v", file, err)
				}
			}
		}
	}
}

// tokenOf makes a Node with an agent's pod, and gives the configuration of a client with that pod's token.
func (k kubernetes) tokenOf(cfg *rest.Config, node string) *rest.Config {
	k.t.Helper()
	k.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "crem-system", Name: "crem-agent-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "crem-agent", Containers: []corev1.Container{{Name: "agent", Image: "crem"}}},
	}
	k.create(pod)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "crem-system", Name: "crem-agent"}}
	if err := k.SubResource("token").Create(k.t.Context(), account, request); err != nil {
		k.t.Fatal(err)
	}
	c := rest.AnonymousClientConfig(cfg)
	c.BearerToken = request.Status.Token
	return c
}

// drifts are the events about repairs of a node's data path.
func (k kubernetes) drifts(node string) (list []eventsv1.Event) {
	k.t.Helper()
	var all eventsv1.EventList
	if err := k.List(k.t.Context(), &all, ctrl.InNamespace(metav1.NamespaceDefault)); err != nil {
		k.t.Fatal(err)
	}
	for _, e := range all.Items {
		if e.Reason == v1alpha1.ReasonDriftRepaired && e.Regarding.Name == node {
			list = append(list, e)
		}
	}
	return list
}

// TestLongestEvent: the longest name that a node can have and a long list of changes make an event that an API server takes.
func TestLongestEvent(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	label := strings.Repeat("n", 59)
	name := strings.Repeat(label+".", 4) + strings.Repeat("x", 253-4*60)
	all, err := newClient(cfg, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1 << 40, 1 << 44, 1 << 48} { // cut after a letter, after a dot, and before it
		if err := all.driftEvent(t.Context(), name, "uid", slices.Repeat([]string{"the programs of wän0 were away"}, 100), time.Unix(0, at)); err != nil {
			t.Error(err)
		}
	}
	if n := len(k.drifts(name)); n != 3 {
		t.Errorf("%d events", n)
	}
}

// TestTokenIsForItsOwnNode: with the rights and the policy that are installed, an agent does its work, and its token can not touch what is another node's.
func TestTokenIsForItsOwnNode(t *testing.T) {
	cfg := apiServer(t)
	k := kubernetes{t, admin(t, cfg)}
	if err := k.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crem-system"}}); err != nil {
		t.Fatal(err)
	}
	k.manifests("../../config/rbac/service_accounts.yaml", "../../config/rbac/agent/*.yaml", "../../config/rbac/operator/*.yaml", "../../config/rbac/bindings.yaml", "../../config/policies/agent_own_node.yaml")
	one, two := k.tokenOf(cfg, "gw-one"), k.tokenOf(cfg, "gw-two")
	k.create(nodeOf("gw-one"))
	k.create(nodeOf("gw-two"))

	r := startCluster(t, one, "gw-one", t.TempDir(), &dataPath{}, inNamespace("crem-system"))
	soon(t, "the agent reports with its own token", k.ready("gw-one", 1))
	soon(t, "the agent renews its Lease with its own token", func() bool {
		return k.Get(t.Context(), types.NamespacedName{Namespace: "crem-system", Name: "gw-one"}, new(coordinationv1.Lease)) == nil
	})
	// G04: what was repaired is told by an event about the node.
	r.agent.Drifted([]string{"the program on the ingress of wan0 had been taken off"})
	soon(t, "an event about what was repaired", func() bool { return len(k.drifts("gw-one")) > 0 })
	if e := k.drifts("gw-one")[0]; e.Type != corev1.EventTypeWarning || e.Regarding.UID != k.node("gw-one").UID || !strings.Contains(e.Note, "ingress of wan0 had been taken off") {
		t.Errorf("%+v", e)
	}
	r.stop()

	mine, err := newClient(one, "test")
	if err != nil {
		t.Fatal(err)
	}
	// A policy is in force some time after it was made.
	soon(t, "the policy is in force", func() bool {
		_, err := mine.applyStatus(t.Context(), "gw-two", "", &v1alpha1.CREMNodeStatus{AgentVersion: "forged"}, nil)
		return err != nil
	})
	refused := func(what string, err error, says string) {
		t.Helper()
		if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
			return
		}
		t.Logf("%s: %v", what, err)
	}
	_, err = mine.applyStatus(t.Context(), "gw-two", "", &v1alpha1.CREMNodeStatus{AgentVersion: "forged"}, nil)
	refused("status of another node", err, "the agent of node gw-one may not write")
	refused("Lease of another node", mine.renewLease(t.Context(), "crem-system", "gw-two", time.Now()), "the agent of node gw-one may not write")
	theirs := admin(t, one)
	refused("own spec", theirs.Patch(t.Context(), k.node("gw-one"), ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"domains":null}}`))), "")
	refused("delete another node's object", theirs.Delete(t.Context(), k.node("gw-two")), "")
	refused("delete the own Lease", theirs.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "crem-system", Name: "gw-one"}}), "")
	refused("read pods", theirs.List(t.Context(), &corev1.PodList{}), "")
	refused("an event about another node", mine.driftEvent(t.Context(), "gw-two", k.node("gw-two").UID, []string{"forged"}, time.Now()), "about the CREMNode of its own node only")
	refused("a Lease elsewhere", mine.renewLease(t.Context(), "default", "gw-one", time.Now()), "")

	// G11: which fields the API server knows is no secret.
	if _, err := served.Read(t.Context(), mine.crem); err != nil {
		t.Error(err)
	}

	other, err := newClient(two, "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.applyStatus(t.Context(), "gw-two", "", &v1alpha1.CREMNodeStatus{AgentVersion: "true"}, nil); err != nil {
		t.Errorf("the other node's own agent: %v", err)
	}
	if v := k.node("gw-two").Status.AgentVersion; v != "true" {
		t.Errorf("the status of gw-two says %q", v)
	}
}

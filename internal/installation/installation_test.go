// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/test/kubeassets"
)

const namespace = "crem-system"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// start gives a real API server, with or without our CRDs.
func start(t *testing.T, crds bool) client.Client {
	t.Helper()
	env := &envtest.Environment{BinaryAssetsDirectory: assets(t)}
	if crds {
		env.CRDDirectoryPaths = []string{"../../config/crd/bases"}
	}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	types := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(types); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(types); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: types})
	if err != nil {
		t.Fatal(err)
	}
	create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return c
}

func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

var agentLabels = map[string]string{"app.kubernetes.io/name": "crem", "app.kubernetes.io/component": "agent"}

// install makes what the chart makes, with an agent's pod on each node; there is no kubelet and no controller but the test.
func install(t *testing.T, c client.Client, nodes ...string) {
	t.Helper()
	pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: agentLabels}, Spec: corev1.PodSpec{
		HostNetwork: true, NodeSelector: map[string]string{"a": "b"},
		Containers: []corev1.Container{{
			Name: "agent", Image: "crem", Command: []string{"/crem-agent"}, Args: []string{"run", "--pin-dir=/sys/fs/bpf/x", "--socket=/run/x.sock", "--state-dir=/var/lib/x", "--memory=1Gi"},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}},
		}},
	}}
	operator := *pod.DeepCopy()
	operator.Labels = map[string]string{"app.kubernetes.io/component": "operator"}
	create(t, c,
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "crem-agent", Namespace: namespace}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: agentLabels}, Template: pod}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "crem-operator", Namespace: namespace}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: operator.Labels}, Template: operator}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "crem-operator", Namespace: namespace}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "somebody-else", Namespace: namespace}},
	)
	for _, n := range nodes {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + n, Namespace: namespace, Labels: agentLabels}, Spec: *pod.Spec.DeepCopy()}
		p.Spec.NodeName = n
		create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, p, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: n, Namespace: namespace, Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}}})
	}
}

// kubelet ends the agents of living nodes when their DaemonSet is gone, and runs the pods that clean them. It gives the arguments they had.
func kubelet(ctx context.Context, t *testing.T, c client.Client, alive ...string) <-chan map[string][]string {
	ran := make(chan map[string][]string, 1)
	go func() {
		args := map[string][]string{}
		defer func() { ran <- args }()
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			stopped := apierrors.IsNotFound(c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "crem-agent"}, &appsv1.DaemonSet{}))
			pods := &corev1.PodList{}
			if !stopped || c.List(ctx, pods, client.InNamespace(namespace)) != nil {
				continue
			}
			for i := range pods.Items {
				p := &pods.Items[i]
				for _, node := range alive {
					switch {
					case p.Spec.NodeName != node || p.Status.Phase == corev1.PodSucceeded:
					case p.Labels[componentLabel] == "agent":
						_ = c.Delete(ctx, p, client.GracePeriodSeconds(0))
					case p.Labels[componentLabel] == cleanupPods:
						if p.Spec.Containers[0].LivenessProbe != nil || p.Spec.RestartPolicy != corev1.RestartPolicyOnFailure || p.Spec.NodeSelector != nil {
							t.Errorf("a pod that cleans: %+v", p.Spec)
						}
						args[node] = p.Spec.Containers[0].Args
						p.Status.Phase = corev1.PodSucceeded
						_ = c.Status().Update(ctx, p)
					}
				}
			}
		}
	}()
	return ran
}

func TestUninstall(t *testing.T) {
	c := start(t, true)
	install(t, c, "gw1", "gw2", "dead")
	create(t, c, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}}, &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "standard"}})
	ctx, cancel := context.WithCancel(t.Context())
	ran := kubelet(ctx, t, c, "gw1", "gw2")
	var out bytes.Buffer
	o := UninstallOptions{Namespace: namespace, DaemonSet: "crem-agent", Deployment: "crem-operator", Deadline: 12 * time.Second}
	began := time.Now()
	Uninstall(t.Context(), c, o, &out)
	if took := time.Since(began); took > o.Deadline+time.Second {
		t.Errorf("it took %v with a dead node, at most %v are allowed", took, o.Deadline)
	}
	cancel()
	want := []string{"uninstall", "--pin-dir=/sys/fs/bpf/x", "--socket=/run/x.sock", "--state-dir=/var/lib/x"}
	if diff := cmp.Diff(map[string][]string{"gw1": want, "gw2": want}, <-ran); diff != "" {
		t.Error(diff)
	}
	for _, sentence := range []string{"Agents are stopped on 3 nodes.", "2 of 3 nodes are clean. Not reached: dead. Run crem-agent uninstall there"} {
		if !strings.Contains(out.String(), sentence) {
			t.Errorf("%q is missing in:\n%s", sentence, out.String())
		}
	}
	count(t, c, &appsv1.DeploymentList{}, 0)
	count(t, c, &appsv1.DaemonSetList{}, 0)
	count(t, c, &v1alpha1.CREMNodeList{}, 0)
	count(t, c, &v1alpha1.CREMProfileList{}, 1) // the person's
	count(t, c, &coordinationv1.LeaseList{}, 1, client.InNamespace(namespace))
	count(t, c, &corev1.PodList{}, 1) // the dead node's agent, which Kubernetes removes with the node

	// Again: nothing to do, no error, no wait.
	out.Reset()
	began = time.Now()
	Uninstall(t.Context(), c, o, &out)
	if took := time.Since(began); took > 3*time.Second || !strings.Contains(out.String(), "no node is cleaned") {
		t.Errorf("again, %v: %s", took, out.String())
	}
}

// TestUninstallWithoutCRDs: they may be gone already.
func TestUninstallWithoutCRDs(t *testing.T) {
	c := start(t, false)
	install(t, c)
	var out bytes.Buffer
	Uninstall(t.Context(), c, UninstallOptions{Namespace: namespace, DaemonSet: "crem-agent", Deployment: "crem-operator", Deadline: 20 * time.Second}, &out)
	if strings.Contains(out.String(), "not deleted") || !strings.Contains(out.String(), "0 of 0 nodes are clean") {
		t.Error(out.String())
	}
	count(t, c, &appsv1.DaemonSetList{}, 0)
}

func count(t *testing.T, c client.Client, list client.ObjectList, want int, options ...client.ListOption) {
	t.Helper()
	if err := c.List(t.Context(), list, options...); err != nil {
		t.Fatal(err)
	}
	items, err := runtime.DefaultUnstructuredConverter.ToUnstructured(list)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := items["items"].([]any); len(got) != want {
		t.Errorf("%d objects in %T, not %d", len(got), list, want)
	}
}

func TestVerify(t *testing.T) {
	c := start(t, true)
	says := func(sentence string, well bool) {
		t.Helper()
		timeout := 5 * time.Second
		if well { // it returns at once, but for a new API server that has not opened the CRDs yet
			timeout = 30 * time.Second
		}
		var out bytes.Buffer
		if err := Verify(t.Context(), c, namespace, timeout, &out); !strings.Contains(out.String(), sentence) || (err == nil) != well {
			t.Errorf("%q, error %v, not %q", out.String(), err, sentence)
		}
	}
	says("There is no CREMDomain yet", true)
	profile := &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "standard"}}
	create(t, c, profile)
	says("CREMProfile standard was not looked at yet: does the operator run?", false)
	ready := func(status metav1.ConditionStatus) {
		t.Helper()
		profile.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: status, Reason: "Because", Message: "write another.", ObservedGeneration: profile.Generation, LastTransitionTime: metav1.Now()}}
		if err := c.Status().Update(t.Context(), profile); err != nil {
			t.Fatal(err)
		}
	}
	ready(metav1.ConditionFalse)
	says("CREMProfile standard is not ready (Because): write another.", false)
	real := c
	c = &silent{Client: real, after: 4} // one look
	says("CREMProfile standard is not ready (Because): write another.", false)
	c = &silent{Client: real}
	if err := Verify(t.Context(), c, namespace, time.Second, io.Discard); err == nil || errors.Is(err, ErrNotWell) {
		t.Errorf("an API server that never answered: %v", err)
	}
	c = real
	ready(metav1.ConditionTrue)
	says("0 agents report", true)
	old, seconds := metav1.NewMicroTime(time.Now().Add(-time.Minute)), int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "gw1", Namespace: namespace, Labels: map[string]string{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent}},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &old, LeaseDurationSeconds: &seconds},
	}
	create(t, c, lease)
	says("The agent of node gw1 does not report", false)
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	if err := c.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	says("1 agents report", true)
}

// silent is an API server that answers no list after so many.
type silent struct {
	client.Client
	after int
}

func (s *silent) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if s.after--; s.after < 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Client.List(ctx, list, options...)
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

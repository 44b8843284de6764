// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/internal/installation"
)

// TestHooksHaveTheirRights: what helm uninstall and helm test run can do its work with the account that the chart gives it.
func TestHooksHaveTheirRights(t *testing.T) {
	cfg := server(t)
	ctx, c := t.Context(), admin(t)
	for _, u := range render(t) {
		if u.GetKind() == "Job" || u.GetKind() == "Pod" || u.GetKind() == "CustomResourceDefinition" || strings.HasPrefix(u.GetKind(), "ValidatingAdmission") {
			continue
		}
		if err := apply(ctx, c, u); err != nil {
			t.Fatal(err)
		}
	}
	ds := &appsv1.DaemonSet{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "crem-system", Name: "crem-agent"}, ds); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{ // a node without a kubelet: its agent never ends
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-hooks", Namespace: "crem-system", Labels: ds.Spec.Template.Labels}, Spec: corev1.PodSpec{NodeName: "hooks", Containers: []corev1.Container{{Name: "agent", Image: "x"}}}},
	} {
		if err := c.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	err := installation.Verify(ctx, clientOf(t, cfg, "crem-operator", ""), "crem-system", 5*time.Second, &out)
	if err != nil && (strings.Contains(err.Error(), "forbidden") || out.Len() == 0) {
		t.Errorf("verify: %v %s", err, out.String())
	}

	out.Reset()
	o := installation.UninstallOptions{Namespace: "crem-system", DaemonSet: "crem-agent", Deployment: "crem-operator", Deadline: 12 * time.Second}
	cleaner := clientOf(t, cfg, "crem-cleanup", "")
	gone := make(chan error, 1)
	go func() { // the agent ends after a moment, and its node can be cleaned: a pod for that is made
		time.Sleep(2 * time.Second)
		gone <- c.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-hooks", Namespace: "crem-system"}}, client.GracePeriodSeconds(0))
	}()
	installation.Uninstall(ctx, cleaner, o, &out)
	if err := <-gone; err != nil {
		t.Error(err)
	}
	for _, refused := range []string{"forbidden", "was not", "were not", "is not cleaned yet"} {
		if strings.Contains(out.String(), refused) {
			t.Errorf("uninstall:\n%s", out.String())
			break
		}
	}
	if !strings.Contains(out.String(), "Not reached: hooks") { // no kubelet ran the pod
		t.Errorf("uninstall:\n%s", out.String())
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(ds), ds); !apierrors.IsNotFound(err) {
		t.Errorf("the agents' DaemonSet: %v", err)
	}
}

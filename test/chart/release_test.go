// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"crem.dev/crem/api/v1alpha1"
)

// TestG11_OneCommandInstallsAndUpgrades (G11): the real helm on a real API server. An older release is upgraded with its CRDs by one command, policy
// that is stored stays, and so it does when the release is uninstalled.
func TestG11_OneCommandInstallsAndUpgrades(t *testing.T) {
	helm := tool(t, "helm")
	env := &envtest.Environment{BinaryAssetsDirectory: assets(t)}
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	user, err := env.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	scheme := types(t)
	if err := apiextensions.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	command := func(args ...string) {
		t.Helper()
		if _, err := run(helm, append(args, "--namespace", "crem-system", "--kubeconfig", file)...); err != nil {
			t.Fatalf("helm %s: %v", strings.Join(args, " "), err)
		}
	}
	hasField := func() bool {
		t.Helper()
		crd := &apiextensions.CustomResourceDefinition{}
		if err := c.Get(ctx, client.ObjectKey{Name: "cremprofiles.crem.dev"}, crd); err != nil {
			t.Fatal(err)
		}
		_, has := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["lossModel"]
		return has
	}

	command("upgrade", "--install", "crem", olderChart(t), "--create-namespace")
	if hasField() {
		t.Fatal("the older chart has the field already")
	}
	eventually(t, "a profile", func() error {
		return client.IgnoreAlreadyExists(c.Create(ctx, &v1alpha1.CREMProfile{ObjectMeta: metav1.ObjectMeta{Name: "standard"}}))
	})

	command("upgrade", "--install", "crem", root+"/charts/crem", "--create-namespace", "--set", "agent.memory=2Gi")
	if !hasField() {
		t.Error("the upgrade left the CRD as it was")
	}
	ds := &appsv1.DaemonSet{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: "crem-system", Name: "crem-agent"}, ds); err != nil || !slices.Contains(ds.Spec.Template.Spec.Containers[0].Args, "--memory=2Gi") {
		t.Errorf("%v, %v", err, ds.Spec.Template.Spec.Containers)
	}

	command("uninstall", "crem", "--no-hooks")
	left := &rbacv1.ClusterRoleList{}
	if err := c.List(ctx, left, client.MatchingLabels{"app.kubernetes.io/part-of": "crem"}); err != nil || len(left.Items) != 0 {
		t.Errorf("%v, %d ClusterRoles are left", err, len(left.Items))
	}
	sets := &appsv1.DaemonSetList{}
	if err := c.List(ctx, sets); err != nil || len(sets.Items) != 0 {
		t.Errorf("%v, %d DaemonSets are left", err, len(sets.Items))
	}
	if err := c.Get(ctx, client.ObjectKey{Name: "standard"}, &v1alpha1.CREMProfile{}); err != nil {
		t.Errorf("the profile of a person: %v", err)
	}
}

// olderChart is the chart as it might have been, with a profile that has no lossModel.
func olderChart(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"crem", "crem-crds"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(root+"/charts/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "crem-crds", "templates", "cremprofiles.yaml")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before := string(raw)
	older := strings.ReplaceAll(before, "lossModel:", "formerModel:")
	if older == before || os.WriteFile(file, []byte(older), 0o600) != nil {
		t.Fatal("there is no lossModel to take away")
	}
	return filepath.Join(dir, "crem")
}

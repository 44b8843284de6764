// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func agentOf(t *testing.T, set ...string) *appsv1.DaemonSet {
	t.Helper()
	return as[appsv1.DaemonSet](t, find(t, render(t, set...), "DaemonSet", "crem-agent"))
}

// TestAgentHasNoMoreThanItNeeds is the whole of what the agent may do on a node.
func TestAgentHasNoMoreThanItNeeds(t *testing.T) {
	ds := agentOf(t)
	pod := ds.Spec.Template.Spec
	if !pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Errorf("hostNetwork %v, hostPID %v, hostIPC %v: only the first is needed", pod.HostNetwork, pod.HostPID, pod.HostIPC)
	}
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("%d containers, %d init containers", len(pod.Containers), len(pod.InitContainers))
	}
	c := pod.Containers[0]
	if c.Name != "agent" || c.Command[0] != "/crem-agent" {
		t.Errorf("kubectl crem looks for the container agent with /crem-agent, this is %s %v", c.Name, c.Command)
	}
	sc := c.SecurityContext
	if *sc.Privileged || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || *sc.RunAsUser != 0 || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("security context %+v", sc)
	}
	if diff := cmp.Diff(&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"BPF", "NET_ADMIN", "NET_RAW"}}, sc.Capabilities); diff != "" {
		t.Error(diff)
	}
	with := agentOf(t, "agent.realtimeWorkers=true").Spec.Template.Spec.Containers[0]
	if !slices.Contains(with.SecurityContext.Capabilities.Add, "SYS_NICE") || !slices.Contains(with.Args, "--realtime=true") || !slices.Contains(c.Args, "--realtime=false") {
		t.Error("the capability SYS_NICE and the flag --realtime go together")
	}
	var paths []string
	for _, v := range pod.Volumes {
		if v.HostPath == nil {
			t.Errorf("volume %s is no path of the node", v.Name)
			continue
		}
		paths = append(paths, v.HostPath.Path)
	}
	if diff := cmp.Diff([]string{"/sys/fs/bpf", "/var/lib/crem", "/run/crem"}, paths); diff != "" {
		t.Error(diff)
	}
}

// TestCapabilitiesHaveTheirReason: in the chart and in config/, each with a comment on its line.
func TestCapabilitiesHaveTheirReason(t *testing.T) {
	line := regexp.MustCompile(`(?m)^ +- ([A-Z][A-Z_]+)( +# .+)?$`)
	for _, file := range []string{"charts/crem/templates/agent/daemonset.yaml", "config/agent/daemonset.yaml"} {
		raw, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := line.FindAllStringSubmatch(string(raw), -1)
		if len(found) < 3 {
			t.Fatalf("%s: %v", file, found)
		}
		for _, m := range found {
			if m[2] == "" {
				t.Errorf("%s: %s has no reason", file, m[1])
			}
		}
	}
}

// TestAgentRollsOutWithCare is how an upgrade touches the nodes.
func TestAgentRollsOutWithCare(t *testing.T) {
	ds := agentOf(t)
	pod := ds.Spec.Template.Spec
	if got := ds.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "10%" {
		t.Errorf("maxUnavailable %s", got)
	}
	ready := pod.Containers[0].ReadinessProbe
	if ds.Spec.MinReadySeconds <= ready.PeriodSeconds {
		t.Errorf("minReadySeconds %d is not longer than the readiness probe's period of %d s: a bad version would not stop the rollout", ds.Spec.MinReadySeconds, ready.PeriodSeconds)
	}
	if *pod.TerminationGracePeriodSeconds > 10 {
		t.Errorf("terminationGracePeriodSeconds %d", *pod.TerminationGracePeriodSeconds)
	}
	if pod.PriorityClassName != "system-node-critical" || len(pod.Tolerations) != 1 || pod.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Errorf("priority %q, tolerations %v", pod.PriorityClassName, pod.Tolerations)
	}
	if ready.HTTPGet.Path != "/readyz" || pod.Containers[0].LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("probes %v %v", ready.HTTPGet, pod.Containers[0].LivenessProbe.HTTPGet)
	}
	if _, ok := pod.Containers[0].Resources.Limits[corev1.ResourceCPU]; ok {
		t.Error("a limit of the processor makes traffic pass unprotected")
	}
	local := agentOf(t, "agent.metrics.address=Localhost").Spec.Template.Spec.Containers[0]
	for _, p := range []*corev1.Probe{local.StartupProbe, local.LivenessProbe, local.ReadinessProbe} {
		if p.HTTPGet.Host != "127.0.0.1" {
			t.Errorf("with agent.metrics.address Localhost a probe goes to %q", p.HTTPGet.Host)
		}
	}
	if !slices.Contains(local.Args, "--metrics-addr=127.0.0.1:9464") {
		t.Errorf("%v", local.Args)
	}
}

// TestPodsOfTheControlPlaneAreRestricted: the operator, the hook and the test pass the pod security standard "restricted".
func TestPodsOfTheControlPlaneAreRestricted(t *testing.T) {
	all := render(t)
	for name, pod := range map[string]corev1.PodSpec{
		"operator": as[appsv1.Deployment](t, find(t, all, "Deployment", "crem-operator")).Spec.Template.Spec,
		"cleanup":  as[batchv1.Job](t, find(t, all, "Job", "crem-cleanup")).Spec.Template.Spec,
		"test":     as[corev1.Pod](t, find(t, all, "Pod", "crem-test")).Spec,
	} {
		ps, cs := pod.SecurityContext, pod.Containers[0].SecurityContext
		if !*ps.RunAsNonRoot || *ps.RunAsUser == 0 || ps.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			*cs.AllowPrivilegeEscalation || !*cs.ReadOnlyRootFilesystem || len(cs.Capabilities.Add) != 0 || !slices.Equal(cs.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v %+v", name, ps, cs)
		}
		if pod.HostNetwork || pod.HostPID || len(pod.Volumes) != 0 {
			t.Errorf("%s: hostNetwork %v, hostPID %v, volumes %v", name, pod.HostNetwork, pod.HostPID, pod.Volumes)
		}
	}
}

func TestOperatorSurvivesANode(t *testing.T) {
	all := render(t)
	d := as[appsv1.Deployment](t, find(t, all, "Deployment", "crem-operator"))
	if *d.Spec.Replicas != 2 || len(d.Spec.Template.Spec.TopologySpreadConstraints) != 1 {
		t.Errorf("%d replicas, spread %v", *d.Spec.Replicas, d.Spec.Template.Spec.TopologySpreadConstraints)
	}
	pdb := as[policyv1.PodDisruptionBudget](t, find(t, all, "PodDisruptionBudget", "crem-operator"))
	if pdb.Spec.MaxUnavailable.IntValue() != 1 || *pdb.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
		t.Errorf("%+v", pdb.Spec)
	}
	if diff := cmp.Diff(d.Spec.Selector, pdb.Spec.Selector); diff != "" {
		t.Error(diff)
	}
}

// TestG10_NoWebhookAndNoSecret (G10): nothing of ours can refuse what people do because it is away, and there is no certificate to expire.
func TestG10_NoWebhookAndNoSecret(t *testing.T) {
	for _, u := range render(t, everything...) {
		switch u.GetKind() {
		case "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "Secret", "APIService":
			t.Errorf("%s %s", u.GetKind(), u.GetName())
		case "CustomResourceDefinition":
			if strategy, _, _ := nested(u.Object, "spec", "conversion", "strategy"); strategy != nil && strategy != "None" {
				t.Errorf("%s has conversion %v", u.GetName(), strategy)
			}
		}
	}
}

// TestRights: who may do what. No wildcard, no secrets, no exec; agents write three things only.
func TestRights(t *testing.T) {
	for _, u := range render(t, everything...) {
		if u.GetKind() != "ClusterRole" && u.GetKind() != "Role" {
			continue
		}
		for _, r := range as[rbacv1.ClusterRole](t, u).Rules {
			for _, list := range [][]string{r.APIGroups, r.Resources, r.Verbs} {
				if slices.Contains(list, "*") {
					t.Errorf("%s %s has a wildcard: %v", u.GetKind(), u.GetName(), r)
				}
			}
			for _, resource := range r.Resources {
				if slices.Contains([]string{"secrets", "pods/exec", "nodes/proxy", "serviceaccounts/token"}, resource) {
					t.Errorf("%s %s: %s", u.GetKind(), u.GetName(), resource)
				}
			}
			writes := slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains([]string{"get", "list", "watch"}, v) })
			if u.GetName() == "crem-agent" && writes && !slices.Equal(r.Resources, []string{"cremnodes/status"}) && !slices.Equal(r.Resources, []string{"leases"}) &&
				(!slices.Equal(r.Resources, []string{"events"}) || !slices.Equal(r.Verbs, []string{"create"})) {
				t.Errorf("an agent writes %v", r.Resources)
			}
		}
	}
}

// TestCleanupEndsInTime: helm waits five minutes by default; the job ends before, even if its image cannot be pulled.
func TestCleanupEndsInTime(t *testing.T) {
	all := render(t, "cleanup.deadlineSeconds=240")
	job := as[batchv1.Job](t, find(t, all, "Job", "crem-cleanup"))
	if *job.Spec.ActiveDeadlineSeconds > 300 || !slices.Contains(job.Spec.Template.Spec.Containers[0].Args, "--deadline=240s") {
		t.Errorf("deadline %d, %v", *job.Spec.ActiveDeadlineSeconds, job.Spec.Template.Spec.Containers[0].Args)
	}
	if job.Annotations["helm.sh/hook"] != "pre-delete" {
		t.Errorf("%v", job.Annotations)
	}
	for _, u := range render(t, "cleanup.enabled=false") {
		if strings.Contains(u.GetName(), "cleanup") {
			t.Errorf("%s %s is there without cleanup", u.GetKind(), u.GetName())
		}
	}
}

// TestCRDsAreKept: an uninstalled release keeps the policy of its users, unless they want otherwise; and CRDs are upgraded as all else.
func TestCRDsAreKept(t *testing.T) {
	count := func(set ...string) (kept, all int) {
		for _, u := range render(t, set...) {
			if u.GetKind() == "CustomResourceDefinition" {
				all++
				if u.GetAnnotations()["helm.sh/resource-policy"] == "keep" {
					kept++
				}
			}
		}
		return kept, all
	}
	for _, c := range []struct {
		set       []string
		kept, all int
	}{{nil, 4, 4}, {[]string{"crds.keep=false"}, 0, 4}, {[]string{"crds.enabled=false"}, 0, 0}} {
		if kept, all := count(c.set...); kept != c.kept || all != c.all {
			t.Errorf("%v: %d of %d kept", c.set, kept, all)
		}
	}
}

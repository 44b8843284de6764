// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

const (
	componentLabel  = "app.kubernetes.io/component"
	cleanupPods     = "node-cleanup"
	agentContainer  = "agent"
	pollPeriod      = time.Second
	objectsReserve  = 5 * time.Second // of the deadline, for the objects after the nodes
	operatorLease   = "crem-operator"
	namesInSentence = 20
)

// UninstallOptions name what is taken away.
type UninstallOptions struct {
	Namespace, DaemonSet, Deployment string
	// Deadline is the longest that it may take.
	Deadline time.Duration
}

// uninstaller says what it does and what it could not do, and goes on: half an installation is no reason to leave the other half.
type uninstaller struct {
	UninstallOptions
	client client.Client
	out    io.Writer
}

// Uninstall stops operator and agents and takes what agents left off the nodes. It returns within the deadline.
func Uninstall(ctx context.Context, c client.Client, o UninstallOptions, out io.Writer) {
	ctx, cancel := context.WithTimeout(ctx, o.Deadline)
	defer cancel()
	u := &uninstaller{UninstallOptions: o, client: c, out: out}
	agents := u.stop(ctx)
	nodes, stop := context.WithTimeout(ctx, max(o.Deadline-objectsReserve, o.Deadline/2))
	u.clean(nodes, agents)
	stop()
	u.objects(ctx)
}

func (u *uninstaller) say(format string, values ...any) {
	_, _ = fmt.Fprintf(u.out, format+"\n", values...)
}

// tolerable errors mean that there is nothing to do.
func tolerable(err error) bool {
	return err == nil || apierrors.IsNotFound(err) || meta.IsNoMatchError(err)
}

// stop deletes what makes pods: the operator first, so that it does not write again what is deleted later. It gives the agents' DaemonSet as it
// was, nil if there is none.
func (u *uninstaller) stop(ctx context.Context) *appsv1.DaemonSet {
	in := metav1.ObjectMeta{Namespace: u.Namespace, Name: u.Deployment}
	if err := u.client.Delete(ctx, &appsv1.Deployment{ObjectMeta: in}, client.PropagationPolicy(metav1.DeletePropagationBackground)); !tolerable(err) {
		u.say("The operator was not stopped: %v.", err)
	}
	agents := &appsv1.DaemonSet{}
	if err := u.client.Get(ctx, client.ObjectKey{Namespace: u.Namespace, Name: u.DaemonSet}, agents); err != nil {
		if !tolerable(err) {
			u.say("The agents are not known: %v.", err)
		}
		return nil
	}
	return agents
}

// clean runs crem-agent uninstall on every node that ran an agent, when that agent is gone.
func (u *uninstaller) clean(ctx context.Context, agents *appsv1.DaemonSet) {
	if agents == nil {
		u.say("There is no DaemonSet %s/%s: no node is cleaned.", u.Namespace, u.DaemonSet)
		return
	}
	selector := client.MatchingLabels(agents.Spec.Selector.MatchLabels)
	pending := map[string]bool{}
	running, err := u.nodesOf(ctx, selector)
	if err != nil {
		u.say("The agents' pods are not known, no node is cleaned: %v.", err)
		return
	}
	for node := range running {
		pending[node] = true
	}
	if err := u.client.Delete(ctx, agents, client.PropagationPolicy(metav1.DeletePropagationBackground)); !tolerable(err) {
		u.say("The agents were not stopped, no node is cleaned: %v.", err)
		return
	}
	u.say("Agents are stopped on %d nodes.", len(pending))
	total, said := len(pending), map[string]bool{}
	for made := map[string]bool{}; len(pending) > 0; {
		u.step(ctx, agents, selector, pending, made, said)
		if len(pending) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			u.say("%d of %d nodes are clean. Not reached: %s. Run crem-agent uninstall there when they are back; until then their programs pass every packet.",
				total-len(pending), total, names(pending))
			u.removePods(ctx)
			return
		case <-time.After(pollPeriod):
		}
	}
	u.say("%d of %d nodes are clean.", total, total)
	u.removePods(ctx)
}

// step makes the pods that can be made and notes those that are done.
func (u *uninstaller) step(ctx context.Context, agents *appsv1.DaemonSet, selector client.MatchingLabels, pending, made, said map[string]bool) {
	running, err := u.nodesOf(ctx, selector)
	if err != nil {
		return // the next step asks again, until the deadline
	}
	pods := &corev1.PodList{}
	if err := u.client.List(ctx, pods, client.InNamespace(u.Namespace), client.MatchingLabels{componentLabel: cleanupPods}); err != nil {
		return
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase == corev1.PodSucceeded {
			delete(pending, p.Spec.NodeName)
		}
	}
	for node := range pending {
		if running[node] || made[node] {
			continue
		}
		if err := u.client.Create(ctx, cleanupPod(agents, node)); err == nil {
			made[node] = true
		} else if !said[err.Error()] {
			said[err.Error()] = true
			u.say("Node %s is not cleaned yet: %v.", node, err)
		}
	}
}

// nodesOf gives the nodes on which pods of a selector are.
func (u *uninstaller) nodesOf(ctx context.Context, selector client.MatchingLabels) (map[string]bool, error) {
	pods := &corev1.PodList{}
	if err := u.client.List(ctx, pods, client.InNamespace(u.Namespace), selector); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	nodes := map[string]bool{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			nodes[p.Spec.NodeName] = true
		}
	}
	return nodes, nil
}

// cleanupPod is the agent's pod with another command, bound to a node without the scheduler's help.
func cleanupPod(agents *appsv1.DaemonSet, node string) *corev1.Pod {
	spec := *agents.Spec.Template.Spec.DeepCopy()
	no := false
	spec.NodeName, spec.RestartPolicy, spec.AutomountServiceAccountToken = node, corev1.RestartPolicyOnFailure, &no
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	spec.NodeSelector, spec.Affinity = nil, nil
	for i := range spec.Containers {
		c := &spec.Containers[i]
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe, c.Ports = nil, nil, nil, nil
		if c.Name == agentContainer {
			c.Args = uninstallArgs(c.Args)
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: agents.Name + "-cleanup-", Namespace: agents.Namespace, Labels: map[string]string{
			"app.kubernetes.io/name": "crem", componentLabel: cleanupPods,
		}},
		Spec: spec,
	}
}

// uninstallArgs keeps the places that the agent was told.
func uninstallArgs(args []string) []string {
	out := []string{"uninstall"}
	for _, a := range args {
		if strings.HasPrefix(a, "--pin-dir=") || strings.HasPrefix(a, "--socket=") || strings.HasPrefix(a, "--state-dir=") {
			out = append(out, a)
		}
	}
	return out
}

// removePods removes the pods that cleaned, at once where the node does not answer. It has its own few seconds, since the deadline may be over.
func (u *uninstaller) removePods(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), objectsReserve/2)
	defer cancel()
	pods := &corev1.PodList{}
	if err := u.client.List(ctx, pods, client.InNamespace(u.Namespace), client.MatchingLabels{componentLabel: cleanupPods}); err != nil {
		u.say("Pods that cleaned were not listed: %v.", err)
		return
	}
	for i := range pods.Items {
		if err := u.client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); !tolerable(err) {
			u.say("Pod %s was not deleted: %v.", pods.Items[i].Name, err)
		}
	}
}

// objects deletes what the operator and the agents wrote.
func (u *uninstaller) objects(ctx context.Context) {
	for kind, object := range map[string]client.Object{v1alpha1.KindNode: &v1alpha1.CREMNode{}, v1alpha1.KindEndpointSlice: &v1alpha1.CREMEndpointSlice{}} {
		if err := u.client.DeleteAllOf(ctx, object); !tolerable(err) {
			u.say("Objects of kind %s were not deleted: %v.", kind, err)
		}
	}
	leases := &coordinationv1.LeaseList{}
	if err := u.client.List(ctx, leases, client.InNamespace(u.Namespace)); err != nil {
		u.say("Leases were not listed: %v.", err)
		return
	}
	for i := range leases.Items {
		l := &leases.Items[i]
		if l.Labels[v1alpha1.ComponentLabel] != v1alpha1.ComponentAgent && l.Name != operatorLease {
			continue
		}
		if err := u.client.Delete(ctx, l); !tolerable(err) {
			u.say("Lease %s was not deleted: %v.", l.Name, err)
		}
	}
	u.say("Objects that the operator and the agents wrote are deleted. CREMDomains and CREMProfiles stay; kubectl delete cremdomains,cremprofiles --all removes them.")
}

// names lists names for a sentence.
func names(set map[string]bool) string {
	all := make([]string, 0, len(set))
	for name := range set {
		all = append(all, name)
	}
	slices.Sort(all)
	if more := len(all) - namesInSentence; more > 0 {
		return strings.Join(all[:namesInSentence], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}

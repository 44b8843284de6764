// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crem.dev/crem/api/v1alpha1"
	crem "crem.dev/crem/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"crem.dev/crem/internal/render"
	"crem.dev/crem/internal/served"
)

// task is one piece of work of the status controller: the first visit of an object, or, when it names none, a look at everything.
type task struct{ kind, name string }

var everything = task{}

// statusReconciler keeps the statuses of all domains and profiles. It looks at all nodes at once, a while after something changed, because each
// status is a summary over all nodes.
type statusReconciler struct {
	client   client.Client
	policies *policies
	options  Options
	events   events.EventRecorder
	changes  *debounce
	hold     *steady
	sites    *siteViews
	silences *silences
	round    uint64
}

// Reconcile does one task. There is one worker.
func (r *statusReconciler) Reconcile(ctx context.Context, t task) (reconcile.Result, error) {
	if t != everything {
		return reconcile.Result{}, r.firstVisit(ctx, t)
	}
	if left := r.changes.wait(time.Now()); left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	next, err := r.survey(ctx)
	if err != nil {
		r.changes.touch(time.Now())
		return reconcile.Result{}, err
	}
	if next.IsZero() {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: max(time.Until(next), r.options.StatusQuiet)}, nil
}

// firstVisit says that the object was seen, before anything is known of it.
func (r *statusReconciler) firstVisit(ctx context.Context, t task) error {
	key := client.ObjectKey{Name: t.name}
	if t.kind == v1alpha1.KindDomain {
		var d v1alpha1.CREMDomain
		if err := r.client.Get(ctx, key, &d); err != nil {
			return client.IgnoreNotFound(err)
		}
		if len(d.Status.Conditions) > 0 {
			return nil
		}
		c := conditions{generation: d.Generation, now: metav1.Now()}
		return r.writeDomain(ctx, &d, v1alpha1.CREMDomainStatus{ObservedGeneration: d.Generation, Conditions: c.first()}, false)
	}
	var p v1alpha1.CREMProfile
	if err := r.client.Get(ctx, key, &p); err != nil {
		return client.IgnoreNotFound(err)
	}
	if len(p.Status.Conditions) > 0 {
		return nil
	}
	c := conditions{generation: p.Generation, now: metav1.Now()}
	return r.writeProfile(ctx, &p, v1alpha1.CREMProfileStatus{ObservedGeneration: p.Generation, Conditions: c.first()})
}

// survey computes all statuses and writes those that differ. One that can not be written does not stop the others.
func (r *statusReconciler) survey(ctx context.Context) (time.Time, error) {
	w, err := r.world(ctx)
	if err != nil {
		return time.Time{}, err
	}
	r.round++
	s := look(w, r.hold, r.round)
	surveySeconds.Observe(time.Since(w.now).Seconds())

	var errs []error
	var stalledDomains, stalledProfiles int
	now := metav1.NewTime(w.now.Truncate(time.Second))
	for i := range w.policy.objs.Domains {
		name := w.policy.objs.Domains[i].Name
		var d v1alpha1.CREMDomain
		if err := r.client.Get(ctx, client.ObjectKey{Name: name}, &d); err != nil {
			errs = append(errs, client.IgnoreNotFound(err))
			continue
		}
		if d.Generation != w.policy.objs.Domains[i].Generation {
			r.sites.met(&d, r.round)
			continue // it changed meanwhile; its event brings us here again
		}
		sites, due := r.sites.show(&d, s.domains[name], w.now, r.round)
		s.lookAgain(due)
		status := domainStatus(&d, s.domains[name], s.problems[render.Ref{Kind: v1alpha1.KindDomain, Name: name}], sites, now)
		if isStalled(status.Conditions) {
			stalledDomains++
		}
		errs = append(errs, r.writeDomain(ctx, &d, status, s.domains[name].heard))
	}
	for i := range w.policy.objs.Profiles {
		name := w.policy.objs.Profiles[i].Name
		var p v1alpha1.CREMProfile
		if err := r.client.Get(ctx, client.ObjectKey{Name: name}, &p); err != nil {
			errs = append(errs, client.IgnoreNotFound(err))
			continue
		}
		if p.Generation != w.policy.objs.Profiles[i].Generation {
			continue
		}
		status := profileStatus(&p, s.problems[render.Ref{Kind: v1alpha1.KindProfile, Name: name}], now)
		if isStalled(status.Conditions) {
			stalledProfiles++
		}
		errs = append(errs, r.writeProfile(ctx, &p, status))
	}
	r.sites.forget(r.round)
	export(s, stalledDomains, stalledProfiles)
	if err := errors.Join(errs...); err != nil {
		return time.Time{}, err // an API server that is away, or just back, is not asked for a write for each node
	}
	more, err := r.tellSilence(ctx, s.silent, now)
	if more {
		s.lookAgain(w.now)
	}
	return s.next, err
}

// world lists what the caches hold.
func (r *statusReconciler) world(ctx context.Context) (world, error) {
	p, err := r.policies.get(ctx)
	if err != nil {
		return world{}, err
	}
	nodes := nodeMetadataList()
	var cremNodes v1alpha1.CREMNodeList
	var leases coordinationv1.LeaseList
	for _, list := range []client.ObjectList{nodes, &cremNodes, &leases} {
		if err := r.client.List(ctx, list); err != nil {
			return world{}, fmt.Errorf("list: %w", err)
		}
	}
	w := world{policy: p, nodes: nodes.Items, cremNodes: make(map[string]*v1alpha1.CREMNode, len(cremNodes.Items)), leases: make(map[string]*coordinationv1.Lease, len(leases.Items)), now: time.Now()}
	for i := range cremNodes.Items {
		w.cremNodes[cremNodes.Items[i].Name] = &cremNodes.Items[i]
	}
	for i := range leases.Items {
		w.leases[leases.Items[i].Name] = &leases.Items[i]
	}
	return w, nil
}

func isStalled(list []metav1.Condition) bool {
	return meta.IsStatusConditionTrue(list, v1alpha1.ConditionStalled)
}

// writeDomain writes the status if it says something new, and an event for what changed for people. heard says that agents report.
func (r *statusReconciler) writeDomain(ctx context.Context, d *v1alpha1.CREMDomain, status v1alpha1.CREMDomainStatus, heard bool) error {
	status, err := served.Status(r.options.Served, v1alpha1.KindDomain, status)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(d.Status, status) {
		return nil
	}
	c, err := configuration[crem.CREMDomainStatusApplyConfiguration](status)
	if err != nil {
		return err
	}
	// With the UID an object that was replaced meanwhile is left alone.
	err = r.client.Status().Apply(ctx, crem.CREMDomain(d.Name).WithUID(d.UID).WithStatus(c), asOperator, client.ForceOwnership)
	if err == nil {
		r.tellSuspended(d, status.Sites, heard)
	}
	return r.written(v1alpha1.KindDomain, d, d.Status.Conditions, status.Conditions, err)
}

// tellSuspended tells by events where repairs are suspended that were not, and the other way round, unless no agent is heard any more that could tell.
func (r *statusReconciler) tellSuspended(d *v1alpha1.CREMDomain, sites []v1alpha1.SiteHealth, heard bool) {
	for _, s := range sites {
		was := slices.ContainsFunc(d.Status.Sites, func(o v1alpha1.SiteHealth) bool { return o.Name == s.Name && o.RepairsSuspended })
		switch {
		case s.RepairsSuspended && !was:
			r.events.Eventf(d, nil, corev1.EventTypeWarning, v1alpha1.ReasonRepairsSuspended, "SuspendRepairs",
				"Flows to site %s are left to RDMA: over 10 %% of their packets are lost or over 50 %% marked; repair the path, or find what congests it. Repairs start again ten seconds after that ends.", s.Name)
		case was && !s.RepairsSuspended && heard:
			r.events.Eventf(d, nil, corev1.EventTypeNormal, v1alpha1.ReasonRepairsResumed, "ResumeRepairs", "No flow to site %s is left to RDMA any more.", s.Name)
		}
	}
}

func (r *statusReconciler) writeProfile(ctx context.Context, p *v1alpha1.CREMProfile, status v1alpha1.CREMProfileStatus) error {
	status, err := served.Status(r.options.Served, v1alpha1.KindProfile, status)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(p.Status, status) {
		return nil
	}
	c, err := configuration[crem.CREMProfileStatusApplyConfiguration](status)
	if err != nil {
		return err
	}
	err = r.client.Status().Apply(ctx, crem.CREMProfile(p.Name).WithUID(p.UID).WithStatus(c), asOperator, client.ForceOwnership)
	return r.written(v1alpha1.KindProfile, p, p.Status.Conditions, status.Conditions, err)
}

// written counts a write of a status and tells of transitions by events.
func (r *statusReconciler) written(kind string, about runtime.Object, old, conditions []metav1.Condition, err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone or another one; the cache will tell
	}
	if err := count(kind+" status", err); err != nil {
		return fmt.Errorf("apply the status of a %s: %w", kind, err)
	}
	for _, of := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionReady} {
		was, is := meta.FindStatusCondition(old, of), meta.FindStatusCondition(conditions, of)
		if is == nil || is.Status == metav1.ConditionUnknown || (was != nil && was.Status == is.Status) || (was == nil && is.Status == metav1.ConditionTrue) {
			continue
		}
		if is.Reason == v1alpha1.ReasonRenderPending || is.Reason == v1alpha1.ReasonNodesPending {
			continue // work in progress is no news
		}
		level, word := corev1.EventTypeNormal, ""
		if is.Status != metav1.ConditionTrue {
			level, word = corev1.EventTypeWarning, "Not"
		}
		r.events.Eventf(about, nil, level, is.Reason, word+of, "%s", is.Message)
	}
	return nil
}

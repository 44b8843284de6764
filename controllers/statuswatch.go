// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crem.dev/crem/api/v1alpha1"
)

type taskQueue = workqueue.TypedRateLimitingInterface[task]

// setup watches everything that a status depends on.
func (r *statusReconciler) setup(mgr ctrl.Manager) error {
	c, err := controller.NewTyped("status", mgr, controller.TypedOptions[task]{Reconciler: r, MaxConcurrentReconciles: 1, ReconciliationTimeout: time.Minute})
	if err != nil {
		return err
	}
	cache := mgr.GetCache()
	for _, s := range []source.TypedSource[task]{
		source.TypedKind(cache, &v1alpha1.CREMDomain{}, onPolicyChange[*v1alpha1.CREMDomain](r, v1alpha1.KindDomain)),
		source.TypedKind(cache, &v1alpha1.CREMProfile{}, onPolicyChange[*v1alpha1.CREMProfile](r, v1alpha1.KindProfile)),
		source.TypedKind(cache, nodeMetadata(), onChange(r, func(old, obj *metav1.PartialObjectMetadata) bool {
			return old.UID != obj.UID || !maps.Equal(old.Labels, obj.Labels)
		})),
		source.TypedKind(cache, &v1alpha1.CREMNode{}, onChange(r, func(old, obj *v1alpha1.CREMNode) bool {
			return old.ResourceVersion != obj.ResourceVersion
		})),
		// The heartbeat of an agent that is known to be alive is no news.
		source.TypedKind(cache, &coordinationv1.Lease{}, onChange(r, func(old, _ *coordinationv1.Lease) bool {
			return !time.Now().Before(leaseEnd(old))
		})),
	} {
		if err := c.Watch(s); err != nil {
			return err
		}
	}
	return nil
}

// changed has everything looked at soon.
func (r *statusReconciler) changed(q taskQueue) {
	r.changes.touch(time.Now())
	q.AddAfter(everything, r.options.StatusQuiet)
}

// onChange has everything looked at when an object came, went, or changed in a way that matters.
func onChange[T client.Object](r *statusReconciler, matters func(old, obj T) bool) handler.TypedEventHandler[T, task] {
	return handler.TypedFuncs[T, task]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[T], q taskQueue) { r.changed(q) },
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[T], q taskQueue) { r.changed(q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q taskQueue) {
			if matters(e.ObjectOld, e.ObjectNew) {
				r.changed(q)
			}
		},
	}
}

// onPolicyChange also visits a new object at once. A change of a status that is not the operator's doing is looked at as well; after one of its
// own the look finds nothing to write.
func onPolicyChange[T client.Object](r *statusReconciler, kind string) handler.TypedEventHandler[T, task] {
	return handler.TypedFuncs[T, task]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q taskQueue) {
			q.Add(task{kind, e.Object.GetName()})
			r.changed(q)
		},
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[T], q taskQueue) { r.changed(q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q taskQueue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				r.changed(q)
			}
		},
	}
}

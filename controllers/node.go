// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crem.dev/crem/api/v1alpha1"
)

// nodeWorkers render nodes at the same time. Each waits for the API server most of the time; with them a changed profile reaches thousands of
// nodes in seconds.
const nodeWorkers = 16

// nodeReconciler keeps the CREMNode of each Node as planNode says.
type nodeReconciler struct {
	client   client.Client
	live     client.Reader // asks the API server itself
	policies *policies
	options  Options
}

func (r *nodeReconciler) setup(mgr ctrl.Manager) error {
	c, err := controller.New("node", mgr, controller.Options{Reconciler: r, MaxConcurrentReconciles: nodeWorkers, ReconciliationTimeout: time.Minute})
	if err != nil {
		return err
	}
	cache := mgr.GetCache()
	for _, s := range []source.Source{
		source.Kind(cache, nodeMetadata(), handler.TypedFuncs[*metav1.PartialObjectMetadata, reconcile.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*metav1.PartialObjectMetadata], q queue) {
				r.enqueue(q, e.Object.Name)
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*metav1.PartialObjectMetadata], q queue) {
				r.enqueue(q, e.Object.Name)
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q queue) {
				if e.ObjectOld.UID != e.ObjectNew.UID || !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels) {
					r.enqueue(q, e.ObjectNew.Name)
				}
			},
		}),
		source.Kind(cache, &v1alpha1.CREMNode{}, handler.TypedFuncs[*v1alpha1.CREMNode, reconcile.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.CREMNode], q queue) {
				r.enqueue(q, e.Object.Name)
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1alpha1.CREMNode], q queue) {
				r.enqueue(q, e.Object.Name)
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.CREMNode], q queue) {
				if specOrMetadataChanged(e.ObjectOld, e.ObjectNew) {
					r.enqueue(q, e.ObjectNew.Name)
				}
			},
		}),
		source.Kind(cache, &v1alpha1.CREMDomain{}, onSpecChange[*v1alpha1.CREMDomain](r.enqueueAll)),
		source.Kind(cache, &v1alpha1.CREMProfile{}, onSpecChange[*v1alpha1.CREMProfile](r.enqueueAll)),
	} {
		if err := c.Watch(s); err != nil {
			return err
		}
	}
	return nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// specOrMetadataChanged says whether more than the status changed.
func specOrMetadataChanged(old, obj *v1alpha1.CREMNode) bool {
	return old.UID != obj.UID || old.Generation != obj.Generation || (old.DeletionTimestamp == nil) != (obj.DeletionTimestamp == nil) ||
		ownerNode(old.OwnerReferences) != ownerNode(obj.OwnerReferences) || !maps.Equal(old.Annotations, obj.Annotations)
}

// onSpecChange calls what for each object that came, went, or got another generation, as the objects of people do.
func onSpecChange[T client.Object](what func(context.Context, queue)) handler.TypedEventHandler[T, reconcile.Request] {
	return handler.TypedFuncs[T, reconcile.Request]{
		CreateFunc: func(ctx context.Context, _ event.TypedCreateEvent[T], q queue) { what(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.TypedDeleteEvent[T], q queue) { what(ctx, q) },
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[T], q queue) {
			if specChanged(e.ObjectOld, e.ObjectNew) {
				what(ctx, q)
			}
		},
	}
}

// specChanged says whether an object that people write says something new, its own end included.
func specChanged(old, obj client.Object) bool {
	return old.GetUID() != obj.GetUID() || old.GetGeneration() != obj.GetGeneration() ||
		(old.GetDeletionTimestamp() == nil) != (obj.GetDeletionTimestamp() == nil)
}

// enqueue gathers what happens to a node within a short time: the queue keeps one entry a node, with the earliest time.
func (r *nodeReconciler) enqueue(q queue, name string) {
	q.AddAfter(requestFor(name), r.options.NodeDelay)
}

// enqueueAll looks at all nodes, and at all CREMNodes, of which some may have no node. Looking costs no request; only what differs is written.
func (r *nodeReconciler) enqueueAll(ctx context.Context, q queue) {
	nodes := nodeMetadataList()
	var cremNodes v1alpha1.CREMNodeList
	for _, list := range []client.ObjectList{nodes, &cremNodes} {
		if err := r.client.List(ctx, list); err != nil {
			log.FromContext(ctx).Error(err, "Nodes can not be listed, they are looked at when they change")
			return
		}
	}
	for i := range nodes.Items {
		r.enqueue(q, nodes.Items[i].Name)
	}
	for i := range cremNodes.Items {
		r.enqueue(q, cremNodes.Items[i].Name)
	}
}

// Reconcile brings one CREMNode to what planNode says.
func (r *nodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p, err := r.policies.get(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	node := nodeMetadata()
	if err := r.client.Get(ctx, req.NamespacedName, node); apierrors.IsNotFound(err) {
		node = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("get node: %w", err)
	}
	have := &v1alpha1.CREMNode{}
	if err := r.client.Get(ctx, req.NamespacedName, have); apierrors.IsNotFound(err) {
		have = nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("get CREMNode: %w", err)
	}
	plan := planNode(p, req.Name, node, have, r.options.CollectAfter, time.Now())
	switch {
	case plan.write != nil:
		err = r.write(ctx, req.Name, plan.write)
	case plan.remove:
		err = r.remove(ctx, have, node == nil)
	}
	if apierrors.IsConflict(err) {
		// The object was removed or replaced since the cache saw it. The cache will tell.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: plan.after}, nil
}

func (r *nodeReconciler) write(ctx context.Context, name string, in *nodeIntent) error {
	c, err := nodeConfiguration(name, in)
	if err != nil {
		return err
	}
	if err := count("CREMNode", r.client.Apply(ctx, c, asOperator, client.ForceOwnership)); err != nil {
		return fmt.Errorf("apply CREMNode: %w", err)
	}
	log.FromContext(ctx).V(1).Info("CREMNode applied", "domains", len(in.spec.Domains), "unused", !in.unusedSince.IsZero())
	return nil
}

// remove deletes a CREMNode that was marked long enough ago. That its node is gone must be true of the API server itself, not only of a cache
// that may be behind.
func (r *nodeReconciler) remove(ctx context.Context, have *v1alpha1.CREMNode, gone bool) error {
	if gone {
		err := r.live.Get(ctx, types.NamespacedName{Name: have.Name}, nodeMetadata())
		if err == nil {
			return nil // the node is back; its event is on the way
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("ask for the node: %w", err)
		}
	}
	err := r.client.Delete(ctx, &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: have.Name}}, client.Preconditions{UID: &have.UID})
	if err := count("CREMNode", client.IgnoreNotFound(err)); err != nil {
		return fmt.Errorf("delete CREMNode: %w", err)
	}
	log.FromContext(ctx).Info("CREMNode removed that nothing needs", "nodeGone", gone)
	if !gone {
		return nil
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: r.options.Namespace, Name: have.Name}}
	if r.client.Get(ctx, client.ObjectKeyFromObject(lease), lease) != nil {
		return nil // the cache has no Lease of an agent by this name
	}
	if err := count("Lease", client.IgnoreNotFound(r.client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID}))); err != nil {
		return fmt.Errorf("delete the Lease of the agent: %w", err)
	}
	return nil
}

// nodeMetadata asks for metadata only: labels are all that the operator needs of a Node.
func nodeMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
}

func nodeMetadataList() *metav1.PartialObjectMetadataList {
	return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
}

// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crem.dev/crem/api/v1alpha1"
	crem "crem.dev/crem/api/v1alpha1/applyconfiguration/api/v1alpha1"
	"crem.dev/crem/internal/render"
)

// sliceReconciler keeps the CREMEndpointSlice objects of each profile that selects pods.
type sliceReconciler struct {
	client  client.Client
	options Options
	pods    *podWatches
}

func (r *sliceReconciler) setup(mgr ctrl.Manager) error {
	pods, err := client.NewWithWatch(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return fmt.Errorf("make a client to watch pods: %w", err)
	}
	r.pods = &podWatches{source: pods, watches: map[podQuery]*podWatch{}, queries: map[string]podQuery{}}
	c, err := controller.New("endpointslice", mgr, controller.Options{Reconciler: r, ReconciliationTimeout: time.Minute})
	if err != nil {
		return err
	}
	cache := mgr.GetCache()
	for _, s := range []source.Source{
		// Watches of pods begin and end with profiles: they live as long as the controller and put their work into its queue.
		source.Func(func(ctx context.Context, q queue) error {
			r.pods.run(ctx, func(profiles []string) { r.enqueue(q, profiles...) })
			return nil
		}),
		// Somebody waits for what a profile says. Only what happens to pods and slices is gathered.
		source.Kind(cache, &v1alpha1.CREMProfile{}, handler.TypedFuncs[*v1alpha1.CREMProfile, reconcile.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.CREMProfile], q queue) {
				q.Add(requestFor(e.Object.Name))
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1alpha1.CREMProfile], q queue) {
				q.Add(requestFor(e.Object.Name))
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.CREMProfile], q queue) {
				if specChanged(e.ObjectOld, e.ObjectNew) {
					q.Add(requestFor(e.ObjectNew.Name))
				}
			},
		}),
		source.Kind(cache, &v1alpha1.CREMEndpointSlice{}, handler.TypedFuncs[*v1alpha1.CREMEndpointSlice, reconcile.Request]{
			CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1alpha1.CREMEndpointSlice], q queue) {
				r.enqueue(q, profilesOf(e.Object)...)
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1alpha1.CREMEndpointSlice], q queue) {
				r.enqueue(q, profilesOf(e.Object)...)
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1alpha1.CREMEndpointSlice], q queue) {
				if e.ObjectOld.ResourceVersion != e.ObjectNew.ResourceVersion {
					r.enqueue(q, append(profilesOf(e.ObjectOld), profilesOf(e.ObjectNew)...)...)
				}
			},
		}),
		source.Kind(cache, namespaceMetadata(), handler.TypedFuncs[*metav1.PartialObjectMetadata, reconcile.Request]{
			CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*metav1.PartialObjectMetadata], q queue) {
				r.enqueueSelecting(q)
			},
			DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[*metav1.PartialObjectMetadata], q queue) {
				r.enqueueSelecting(q)
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q queue) {
				if !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels) {
					r.enqueueSelecting(q)
				}
			},
		}),
	} {
		if err := c.Watch(s); err != nil {
			return err
		}
	}
	return nil
}

// profilesOf names the profiles that a slice says it is of; they differ when someone changed it, or when a name is too long for a label.
func profilesOf(s *v1alpha1.CREMEndpointSlice) []string {
	return []string{string(s.Profile), s.Labels[v1alpha1.ProfileLabel]}
}

// isOf says whether a slice says that it is of a profile.
func isOf(s *v1alpha1.CREMEndpointSlice, profile string) bool {
	return string(s.Profile) == profile || s.Labels[v1alpha1.ProfileLabel] == v1alpha1.ProfileLabelValue(profile)
}

func (r *sliceReconciler) enqueue(q queue, profiles ...string) {
	for _, name := range profiles {
		if name != "" {
			q.AddAfter(requestFor(name), r.options.SliceDelay)
		}
	}
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// enqueueSelecting looks at the profiles that select pods.
func (r *sliceReconciler) enqueueSelecting(q queue) {
	r.pods.mu.Lock()
	profiles := slices.Collect(maps.Keys(r.pods.queries))
	r.pods.mu.Unlock()
	r.enqueue(q, profiles...)
}

// Reconcile brings the slices of one profile to the addresses of the pods that it selects.
func (r *sliceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var profile v1alpha1.CREMProfile
	err := r.client.Get(ctx, req.NamespacedName, &profile)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("get profile: %w", err)
	}
	var all v1alpha1.CREMEndpointSliceList
	if err := r.client.List(ctx, &all); err != nil {
		return reconcile.Result{}, fmt.Errorf("list slices: %w", err)
	}
	have := slices.DeleteFunc(slices.Clone(all.Items), func(s v1alpha1.CREMEndpointSlice) bool {
		return !isOf(&s, req.Name) || s.DeletionTimestamp != nil
	})
	total := 0
	for i := range all.Items {
		total += len(all.Items[i].Addresses)
	}
	sliceAddresses.Set(float64(total))

	if err != nil || profile.DeletionTimestamp != nil || !render.SelectsPods(&profile) || len(render.ValidateProfile(&profile)) > 0 {
		r.pods.release(req.Name)
		profile.Name = req.Name
		return reconcile.Result{}, r.apply(ctx, &profile, have, nil)
	}
	want, synced, err := r.addresses(ctx, &profile)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !synced { // what is not known yet is no reason to take an address away
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil
	}
	return reconcile.Result{}, r.apply(ctx, &profile, have, want)
}

// addresses gives the addresses of the pods that a profile selects, sorted; synced says whether all pods are known.
func (r *sliceReconciler) addresses(ctx context.Context, profile *v1alpha1.CREMProfile) (list []string, synced bool, err error) {
	q, err := queryOf(profile.Spec.Selector)
	if err != nil {
		return nil, false, fmt.Errorf("read the selector: %w", err)
	}
	watch, err := r.pods.need(profile.Name, q)
	if err != nil || !watch.informer.HasSynced() {
		return nil, false, err
	}
	chosen, err := r.namespaces(ctx, profile.Spec.Selector.NamespaceSelector)
	if err != nil {
		return nil, false, err
	}
	known := map[string]bool{}
	for _, obj := range watch.informer.GetStore().List() {
		pod, ok := obj.(*podAddresses)
		if !ok || (chosen != nil && !chosen[pod.namespace]) {
			continue
		}
		for _, a := range pod.addresses {
			known[a.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(known)), true, nil
}

// namespaces gives the names of those that a selector chooses, nil for all.
func (r *sliceReconciler) namespaces(ctx context.Context, selector *metav1.LabelSelector) (map[string]bool, error) {
	if selector == nil || (len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0) {
		return nil, nil
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("read the selector: %w", err)
	}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NamespaceList"}}
	if err := r.client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	chosen := map[string]bool{}
	for i := range list.Items {
		if s.Matches(labels.Set(list.Items[i].Labels)) {
			chosen[list.Items[i].Name] = true
		}
	}
	return chosen, nil
}

// apply writes what differs.
func (r *sliceReconciler) apply(ctx context.Context, profile *v1alpha1.CREMProfile, have []v1alpha1.CREMEndpointSlice, want []string) error {
	slices.SortFunc(have, func(a, b v1alpha1.CREMEndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	var now []addressSlice
	taken, foreign := map[string]bool{}, map[string]bool{}
	for i := range have {
		s := &have[i]
		taken[s.Name] = true
		var list []string
		for _, a := range s.Addresses {
			list = append(list, string(a))
		}
		now = append(now, addressSlice{s.Name, list})
		foreign[s.Name] = string(s.Profile) != profile.Name || s.Labels[v1alpha1.ProfileLabel] != v1alpha1.ProfileLabelValue(profile.Name) || !ownedBy(s.OwnerReferences, profile)
	}
	next := 0
	change := assign(now, want, v1alpha1.MaxSliceAddresses, func() string {
		for ; taken[sliceName(profile.Name, next)]; next++ {
		}
		name := sliceName(profile.Name, next)
		taken[name] = true
		return name
	})
	change.restore(now, foreign)
	for _, s := range change.write {
		if err := r.write(ctx, profile, s); err != nil {
			return err
		}
	}
	for i := range have {
		if !slices.Contains(change.remove, have[i].Name) {
			continue
		}
		gone := &v1alpha1.CREMEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: have[i].Name}}
		err := r.client.Delete(ctx, gone, client.Preconditions{UID: &have[i].UID})
		if apierrors.IsConflict(err) {
			err = nil // replaced meanwhile; the cache will tell
		}
		if err := count("CREMEndpointSlice", client.IgnoreNotFound(err)); err != nil {
			return fmt.Errorf("delete slice: %w", err)
		}
	}
	if n := len(change.write) + len(change.remove); n > 0 {
		log.FromContext(ctx).V(1).Info("Slices written", "addresses", len(want), "written", len(change.write), "removed", len(change.remove))
	}
	return nil
}

// restore also writes slices whose label, profile or owner someone changed.
func (a *assignment) restore(have []addressSlice, foreign map[string]bool) {
	for _, s := range have {
		named := func(other addressSlice) bool { return other.name == s.name }
		if foreign[s.name] && !slices.ContainsFunc(a.write, named) && !slices.Contains(a.remove, s.name) {
			a.write = append(a.write, s)
		}
	}
}

func (r *sliceReconciler) write(ctx context.Context, profile *v1alpha1.CREMProfile, s addressSlice) error {
	c := crem.CREMEndpointSlice(s.name).
		WithLabels(map[string]string{v1alpha1.ProfileLabel: v1alpha1.ProfileLabelValue(profile.Name)}).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind(v1alpha1.KindProfile).WithName(profile.Name).WithUID(profile.UID)).
		WithProfile(v1alpha1.ObjectName(profile.Name))
	for _, a := range s.addresses {
		c.WithAddresses(v1alpha1.NodeAddress(a))
	}
	if err := count("CREMEndpointSlice", r.client.Apply(ctx, c, asOperator, client.ForceOwnership)); err != nil {
		return fmt.Errorf("apply slice: %w", err)
	}
	return nil
}

func ownedBy(refs []metav1.OwnerReference, profile *v1alpha1.CREMProfile) bool {
	return slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return ref.UID == profile.UID })
}

// sliceName gives the name of a profile's slice. Only a very long name of a profile is cut, and then told apart by a digest.
func sliceName(profile string, n int) string {
	const most = 230
	if len(profile) > most {
		h := fnv.New64a()
		_, _ = h.Write([]byte(profile))
		profile = fmt.Sprintf("%s-%x", strings.TrimRight(profile[:most-20], "-."), h.Sum64())
	}
	return fmt.Sprintf("%s-%d", profile, n)
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
}

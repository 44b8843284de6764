// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"encoding/json"
	"hash/fnv"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// Scheme knows the kinds that the operator reads and writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// CacheOptions are those of the manager's cache: exactly the objects that the controllers read, without what they do not read. Nothing of
// it is changed after it was cached, so reading needs no copies.
func CacheOptions(o Options) cache.Options {
	shared := true
	agents := labels.SelectorFromSet(labels.Set{v1alpha1.ComponentLabel: v1alpha1.ComponentAgent})
	return cache.Options{
		ReaderFailOnMissingInformer:  true,
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: &shared,
		ByObject: map[client.Object]cache.ByObject{
			nodeMetadata():                {Transform: stripNode},
			namespaceMetadata():           {Transform: stripNode},
			&v1alpha1.CREMNode{}:          {Transform: newInterner().transform},
			&coordinationv1.Lease{}:       {Namespaces: map[string]cache.Config{o.Namespace: {LabelSelector: agents}}},
			&v1alpha1.CREMDomain{}:        {},
			&v1alpha1.CREMProfile{}:       {},
			&v1alpha1.CREMEndpointSlice{}: {},
		},
	}
}

// stripNode keeps what identifies a Node or Namespace, and its labels.
func stripNode(in any) (any, error) {
	if obj, ok := in.(*metav1.PartialObjectMetadata); ok {
		obj.ManagedFields, obj.Annotations, obj.Finalizers, obj.OwnerReferences = nil, nil, nil, nil
	}
	return in, nil
}

// interner lets CREMNodes of equal spec share one in memory: thousands of nodes of one domain have the same.
type interner struct {
	mu    sync.Mutex
	specs map[uint64]v1alpha1.CREMNodeSpec
}

// maxSpecs bounds what an interner remembers; beyond, it starts anew.
const maxSpecs = 256

func newInterner() *interner { return &interner{specs: map[uint64]v1alpha1.CREMNodeSpec{}} }

var _ toolscache.TransformFunc = (*interner)(nil).transform

func (i *interner) transform(in any) (any, error) {
	obj, ok := in.(*v1alpha1.CREMNode)
	if !ok {
		return in, nil
	}
	obj.ManagedFields = nil
	text, err := json.Marshal(&obj.Spec)
	if err != nil {
		return in, nil // it is cached as it is
	}
	h := fnv.New64a()
	_, _ = h.Write(text)
	i.mu.Lock()
	defer i.mu.Unlock()
	if spec, known := i.specs[h.Sum64()]; known && equalSpecs(&spec, &obj.Spec) {
		obj.Spec = spec
		return obj, nil
	}
	if len(i.specs) >= maxSpecs {
		clear(i.specs)
	}
	i.specs[h.Sum64()] = obj.Spec
	return obj, nil
}

// Add adds all controllers to a manager that has CacheOptions and Scheme. They run while the manager leads.
func Add(mgr ctrl.Manager, o Options) error {
	writer := olderServer{mgr.GetClient(), o.Served}
	p := &policies{reader: writer}
	nodes := &nodeReconciler{client: writer, live: mgr.GetAPIReader(), policies: p, options: o}
	if err := nodes.setup(mgr); err != nil {
		return err
	}
	statuses := &statusReconciler{
		client: writer, policies: p, options: o, events: mgr.GetEventRecorder("crem-operator"),
		changes: &debounce{quiet: o.StatusQuiet, most: o.StatusMost},
		hold:    &steady{hold: o.Hold, failed: map[nodeInDomain]failure{}},
		sites:   &siteViews{period: o.SitePeriod, domains: map[string]*siteView{}}, silences: &silences{},
	}
	if err := statuses.setup(mgr); err != nil {
		return err
	}
	slices := &sliceReconciler{client: writer, options: o}
	return slices.setup(mgr)
}

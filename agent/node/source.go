// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"crem.dev/crem/api/v1alpha1"
)

// source watches this node's CREMNode and the endpoint slices of the profiles whose pods its rules ask for, and nothing else.
type source struct {
	client  rest.Interface
	node    string
	log     logr.Logger
	changed func()

	mu        sync.Mutex
	ctx       context.Context // of run; watches are started later, too
	own       *watched
	slices    *watched // nil while no rule asks for pods
	next      *watched // takes the place of slices when it is complete
	connected bool
	failure   string // as it was logged last
}

// watched is one informer with its own end.
type watched struct {
	store    cache.Store
	synced   func() bool
	stop     context.CancelFunc
	selector string
}

// start begins to watch; the watches end with ctx.
func (s *source) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
	name := fields.OneTermEqualSelector(metav1.ObjectNameField, s.node).String()
	s.own = s.watch(resourceNodes, &v1alpha1.CREMNode{}, func(o *metav1.ListOptions) { o.FieldSelector = name })
}

// observe gives the CREMNode, nil if there is none, and the slices. It is false until everything that the node's spec needs was read once.
func (s *source) observe() (*v1alpha1.CREMNode, []*v1alpha1.CREMEndpointSlice, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own == nil || !s.own.synced() {
		return nil, nil, false
	}
	var node *v1alpha1.CREMNode
	for _, x := range s.own.store.List() {
		if n, ok := x.(*v1alpha1.CREMNode); ok && n.Name == s.node {
			node = n
		}
	}
	var names []string
	if node != nil {
		for _, name := range podProfiles(&node.Spec) {
			names = append(names, string(name))
		}
	}
	if !s.follow(names) {
		return node, nil, false
	}
	var list []*v1alpha1.CREMEndpointSlice
	if s.slices != nil {
		for _, x := range s.slices.store.List() {
			if e, ok := x.(*v1alpha1.CREMEndpointSlice); ok {
				list = append(list, e)
			}
		}
	}
	slices.SortFunc(list, func(a, b *v1alpha1.CREMEndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return node, list, true
}

// follow watches the slices of these profiles, and reports whether all of them were read.
func (s *source) follow(names []string) bool {
	if len(names) == 0 {
		s.slices.end()
		s.next.end()
		s.slices, s.next = nil, nil
		return true
	}
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = v1alpha1.ProfileLabelValue(name) // a name may be longer than a label
	}
	selector := v1alpha1.ProfileLabel + " in (" + strings.Join(values, ",") + ")"
	if s.slices != nil && s.slices.selector == selector {
		s.next.end()
		s.next = nil
		return s.slices.synced()
	}
	if s.next == nil || s.next.selector != selector {
		s.next.end()
		s.next = s.watch(resourceSlices, &v1alpha1.CREMEndpointSlice{}, func(o *metav1.ListOptions) { o.LabelSelector = selector })
		s.next.selector = selector
	}
	if !s.next.synced() {
		return false
	}
	s.slices.end()
	s.slices, s.next = s.next, nil
	return true
}

func (w *watched) end() {
	if w != nil {
		w.stop()
	}
}

// watch starts an informer. It asks again by itself, later each time, while the API server does not answer.
func (s *source) watch(resource string, kind runtime.Object, narrow func(*metav1.ListOptions)) *watched {
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			narrow(&o)
			list, err := s.client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Get()
			s.heard(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			narrow(&o)
			o.Watch = true
			w, err := s.client.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec).Watch(ctx)
			s.heard(ctx, err)
			return w, err
		},
	}, s.client)
	quiet := logr.Discard() // what fails is said by heard, once
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		Logger: &quiet, ListerWatcher: lw, ObjectType: kind, Transform: stripManagedFields,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { s.changed() }, UpdateFunc: func(any, any) { s.changed() }, DeleteFunc: func(any) { s.changed() },
		},
	})
	ctx, stop := context.WithCancel(logr.NewContext(s.ctx, quiet))
	go informer.RunWithContext(ctx)
	go func() { // completeness without any object is a change, too
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			s.changed()
		}
	}()
	return &watched{store: store, synced: informer.HasSynced, stop: stop}
}

func stripManagedFields(x any) (any, error) {
	if o, ok := x.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return x, nil
}

// heard notes whether the API server answers, and logs when that changes.
func (s *source) heard(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && !s.connected:
		s.connected, s.failure = true, ""
		s.log.Info("API server answers")
	case err != nil && (s.connected || s.failure == ""):
		s.connected, s.failure = false, err.Error()
		s.log.Info("API server does not answer as it should, the last good configuration stays in force", "error", err.Error())
	}
}

// answers reports whether the API server answered last time.
func (s *source) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected
}

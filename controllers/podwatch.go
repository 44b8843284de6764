// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// podQuery is what the API server is asked for: only pods that a profile may select ever reach the operator.
type podQuery struct {
	labels    string // selector in its canonical text, empty: every pod
	namespace string // empty: every namespace
}

// queryOf gives the query of a profile that selects pods. A namespace is part of it when the selector names one; other selectors of namespaces are
// compared with the namespaces' labels here.
func queryOf(s *v1alpha1.FlowSelector) (podQuery, error) {
	q := podQuery{}
	if s.PodSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.PodSelector)
		if err != nil {
			return podQuery{}, err
		}
		q.labels = selector.String()
	}
	if n := s.NamespaceSelector; n != nil && len(n.MatchExpressions) == 0 && len(n.MatchLabels) == 1 {
		q.namespace = n.MatchLabels[corev1.LabelMetadataName]
	}
	return q, nil
}

// podWatches are the watches of pods, one a query, shared by the profiles that ask the same.
type podWatches struct {
	source client.WithWatch

	mu      sync.Mutex
	ctx     context.Context         // of the controller's life, within which watches run
	changed func(profiles []string) // called by handlers, without the lock
	watches map[podQuery]*podWatch
	queries map[string]podQuery // by profile
}

type podWatch struct {
	informer toolscache.SharedIndexInformer
	stop     context.CancelFunc
}

// run says how long watches may live and whom they tell of changes.
func (w *podWatches) run(ctx context.Context, changed func(profiles []string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx, w.changed = ctx, changed
}

// need gives the watch that a profile needs from now on, and stops the one that it needed before.
func (w *podWatches) need(profile string, q podQuery) (*podWatch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old, had := w.queries[profile]; had && old != q {
		w.drop(profile)
	}
	w.queries[profile] = q
	if have := w.watches[q]; have != nil {
		return have, nil
	}
	informer := toolscache.NewSharedIndexInformerWithOptions(w.listWatch(q), &corev1.Pod{}, toolscache.SharedIndexInformerOptions{ObjectDescription: "pods that profiles select"})
	if err := informer.SetTransform(stripPod); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { podsCached.Inc(); w.tell(q) },
		DeleteFunc: func(any) { podsCached.Dec(); w.tell(q) },
		UpdateFunc: func(old, obj any) {
			a, isPod := old.(*podAddresses)
			b, both := obj.(*podAddresses)
			if !isPod || !both || !slices.Equal(a.addresses, b.addresses) {
				w.tell(q)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	ctx, stop := context.WithCancel(w.ctx)
	go informer.RunWithContext(ctx)
	w.watches[q] = &podWatch{informer: informer, stop: stop}
	return w.watches[q], nil
}

// release ends what a profile needed.
func (w *podWatches) release(profile string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(profile)
}

func (w *podWatches) drop(profile string) {
	q, had := w.queries[profile]
	if !had {
		return
	}
	delete(w.queries, profile)
	for _, other := range w.queries {
		if other == q {
			return
		}
	}
	if watch := w.watches[q]; watch != nil {
		watch.stop()
		podsCached.Sub(float64(len(watch.informer.GetStore().ListKeys())))
		delete(w.watches, q)
	}
}

// tell calls for the profiles of a query.
func (w *podWatches) tell(q podQuery) {
	var profiles []string
	w.mu.Lock()
	for profile, its := range w.queries {
		if its == q {
			profiles = append(profiles, profile)
		}
	}
	changed := w.changed
	w.mu.Unlock()
	changed(profiles)
}

// listWatch asks for the pods of a query that have not ended.
func (w *podWatches) listWatch(q podQuery) *toolscache.ListWatch {
	selector, err := labels.Parse(q.labels)
	if err != nil {
		selector = labels.Nothing() // the text is a selector's own
	}
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{
			Namespace: q.namespace, LabelSelector: selector, Raw: &o,
			FieldSelector: fields.AndSelectors(
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
				fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
			),
		}
	}
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			var pods corev1.PodList
			err := w.source.List(ctx, &pods, options(o))
			return &pods, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return w.source.Watch(ctx, &corev1.PodList{}, options(o))
		},
	}
}

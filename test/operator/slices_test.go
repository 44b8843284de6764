// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// long says that tests may take the time that their guarantees name.
func long() bool { return os.Getenv("CREM_LONG") == "1" }

// pods makes running pods with one address each, and removes them after the test.
func pods(t *testing.T, in, prefix string, n int, labels map[string]string, edit ...func(int, *corev1.Pod)) {
	t.Helper()
	t.Cleanup(func() {
		if err := patiently(context.Background(), func() error {
			return api.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace(in), client.GracePeriodSeconds(0))
		}); err != nil {
			t.Error(err)
		}
	})
	work := make(chan int)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range work {
				pod(t, in, fmt.Sprintf("%s-%d", prefix, i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), labels, func(p *corev1.Pod) {
					for _, e := range edit {
						e(i, p)
					}
				})
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	workers.Wait()
}

func pod(t *testing.T, in, name, address string, labels map[string]string, edit func(*corev1.Pod)) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.test/rdma"}}}}
	if edit != nil {
		edit(p)
	}
	if err := patiently(t.Context(), func() error { return client.IgnoreAlreadyExists(api.Create(t.Context(), p)) }); err != nil {
		t.Error(err)
		return
	}
	if p.Status.Phase = corev1.PodRunning; address != "" {
		p.Status.PodIP, p.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	}
	if p.Spec.HostNetwork {
		p.Status.HostIP, p.Status.HostIPs = address, []corev1.HostIP{{IP: address}}
	}
	if err := patiently(t.Context(), func() error { return api.Status().Update(t.Context(), p) }); err != nil {
		t.Error(err)
	}
}

// patiently tries again: a machine that does other things loses connections.
func patiently(ctx context.Context, do func() error) error {
	var err error
	for range 5 {
		if err = do(); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
	return err
}

// slicesOf gives the slices of a profile and all their addresses.
func slicesOf(t *testing.T, profile string) ([]v1alpha1.CREMEndpointSlice, map[string]bool, error) {
	var list v1alpha1.CREMEndpointSliceList
	if err := api.List(t.Context(), &list, client.MatchingLabels{v1alpha1.ProfileLabel: v1alpha1.ProfileLabelValue(profile)}); err != nil {
		return nil, nil, err
	}
	all := map[string]bool{}
	for _, s := range list.Items {
		for _, a := range s.Addresses {
			if all[string(a)] {
				return nil, nil, fmt.Errorf("%s is in two slices", a)
			}
			all[string(a)] = true
		}
	}
	return list.Items, all, nil
}

func wantAddresses(t *testing.T, profile string, n int) func() error {
	return func() error {
		slices, all, err := slicesOf(t, profile)
		if err != nil || len(all) != n {
			return fmt.Errorf("%d addresses in %d slices of %s, not %d (%v)", len(all), len(slices), profile, n, err)
		}
		return nil
	}
}

func wantExactly(t *testing.T, profile string, want ...string) func() error {
	return func() error {
		_, all, err := slicesOf(t, profile)
		if err != nil || len(all) != len(want) {
			return fmt.Errorf("%v, not %v (%v)", all, want, err)
		}
		for _, a := range want {
			if !all[a] {
				return fmt.Errorf("no %s in %v", a, all)
			}
		}
		return nil
	}
}

// TestSlicesOf1200Pods: three slices, one write for one pod, nothing rewritten by churn that it does not concern, no growth after it.
func TestSlicesOf1200Pods(t *testing.T) {
	clean(t)
	r := start(t, quick())
	p := profile("kv-cache")
	p.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "kv-cache")}
	create(t, p)
	pods(t, "default", "kv", 1200, map[string]string{"app": "kv-cache"}, func(i int, p *corev1.Pod) {
		if i >= 20 {
			p.Labels = map[string]string{"app": "kv-cache", "batch": "short"}
		}
	})
	pods(t, "default", "foreign", 50, map[string]string{"app": "web"})
	within(t, 2*patience, wantAddresses(t, "kv-cache", 1200))
	r.settle(t)
	slices, _, _ := slicesOf(t, "kv-cache")
	if len(slices) != 3 {
		t.Errorf("%d slices", len(slices))
	}
	for _, s := range slices {
		if len(s.Addresses) > v1alpha1.MaxSliceAddresses || s.OwnerReferences[0].UID != p.UID || s.Profile != "kv-cache" {
			t.Errorf("%s: %d addresses, owner %v", s.Name, len(s.Addresses), s.OwnerReferences)
		}
	}
	cost := func(what string, most int, do func()) {
		t.Helper()
		before := len(r.written())
		do()
		r.settle(t)
		if n := len(r.written()) - before; n > most {
			t.Errorf("%s: %d writes", what, n)
		}
	}
	cost("one pod starts", 1, func() {
		pod(t, "default", "late", "10.1.100.1", map[string]string{"app": "kv-cache"}, nil)
		within(t, patience, wantAddresses(t, "kv-cache", 1201))
	})
	cost("one pod ends", 1, func() {
		remove(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kv-7"}})
		within(t, patience, wantAddresses(t, "kv-cache", 1200))
	})
	cost("foreign pods come and go", 0, func() {
		pod(t, "default", "stranger", "10.1.100.2", map[string]string{"app": "web"}, nil)
		remove(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign-1"}})
	})
	// Most pods go: few slices stay.
	if err := patiently(t.Context(), func() error {
		return api.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("default"), client.MatchingLabels{"batch": "short"}, client.GracePeriodSeconds(0))
	}); err != nil {
		t.Fatal(err)
	}
	remove(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}})
	within(t, 2*patience, func() error {
		slices, all, err := slicesOf(t, "kv-cache")
		if err != nil || len(all) != 19 || len(slices) > 2 {
			return fmt.Errorf("%d addresses in %d slices (%v)", len(all), len(slices), err)
		}
		return nil
	})
	remove(t, p)
	within(t, patience, wantAddresses(t, "kv-cache", 0))
}

// TestSlicesFollowSelectors: which pods count, and with which addresses.
func TestSlicesFollowSelectors(t *testing.T) {
	clean(t)
	start(t, quick())
	ctx := context.Background()
	for name, tier := range map[string]string{"gold": "gold", "silver": "silver"} {
		err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tier": tier}}})
		if client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	rdma := map[string]string{"app": "rdma"}
	none := func(t *testing.T, in string) { pods(t, in, "x", 0, nil) } // for its cleanup
	none(t, "gold")
	none(t, "silver")
	both := profile("both")
	both.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "rdma"), NamespaceSelector: labelled("tier", "gold")}
	named := profile("named")
	named.Spec.Selector = &v1alpha1.FlowSelector{NamespaceSelector: labelled(corev1.LabelMetadataName, "silver")}
	long := profile(strings.Repeat("long.", 40) + "name")
	long.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"rdma", "other"}}}}}
	create(t, both, named, long)
	pod(t, "gold", "plain", "10.1.0.1", rdma, nil)
	pod(t, "gold", "other", "10.1.0.2", map[string]string{"app": "other"}, nil)
	pod(t, "silver", "plain", "10.1.0.3", rdma, nil)
	pod(t, "gold", "multus", "10.1.0.4", rdma, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"name":"cni","ips":["10.1.0.4"],"default":true},{"name":"rdma","interface":"net1","ips":["10.1.9.4","fd00:1::4"]}]`}
	})
	pod(t, "gold", "host", "192.0.2.7", rdma, func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	pod(t, "gold", "hostplus", "192.0.2.8", rdma, func(p *corev1.Pod) {
		p.Spec.HostNetwork = true
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"ips":["192.0.2.8","10.1.9.8"]}]`}
	})
	pod(t, "gold", "broken", "10.1.0.5", rdma, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"ips":["127.0.0.1","not an address","::ffff:10.1.9.5"`}
	})
	within(t, patience, wantExactly(t, "both", "10.1.0.1", "10.1.0.4", "10.1.9.4", "fd00:1::4", "10.1.9.8", "10.1.0.5"))
	within(t, patience, wantExactly(t, "named", "10.1.0.3"))
	within(t, patience, wantExactly(t, long.Name, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.9.4", "fd00:1::4", "10.1.9.8", "10.1.0.5"))

	// A pod that has ended has no address any more, although it is still there.
	ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gold", Name: "plain"}}
	if err := api.Get(ctx, client.ObjectKeyFromObject(ended), ended); err != nil {
		t.Fatal(err)
	}
	ended.Status.Phase = corev1.PodSucceeded
	if err := api.Status().Update(ctx, ended); err != nil {
		t.Fatal(err)
	}
	// A namespace gets another label.
	change(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "silver"}}, func(n *corev1.Namespace) { n.Labels["tier"] = "gold" })
	within(t, patience, wantExactly(t, "both", "10.1.0.3", "10.1.0.4", "10.1.9.4", "fd00:1::4", "10.1.9.8", "10.1.0.5"))
	change(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "silver"}}, func(n *corev1.Namespace) { n.Labels["tier"] = "silver" })
	// Another selector, then none.
	change(t, both, func(p *v1alpha1.CREMProfile) { p.Spec.Selector.PodSelector = labelled("app", "other") })
	within(t, patience, wantExactly(t, "both", "10.1.0.2"))
	change(t, both, func(p *v1alpha1.CREMProfile) { p.Spec.Selector = nil })
	within(t, patience, wantAddresses(t, "both", 0))
}

// TestSlicesAreRestored: what someone does to a slice is undone.
func TestSlicesAreRestored(t *testing.T) {
	clean(t)
	start(t, quick())
	p := profile("p")
	p.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "rdma")}
	create(t, p)
	pods(t, "default", "r", 3, map[string]string{"app": "rdma"})
	within(t, patience, wantAddresses(t, "p", 3))
	slice := func() *v1alpha1.CREMEndpointSlice {
		list, _, err := slicesOf(t, "p")
		if err != nil || len(list) == 0 {
			t.Fatalf("%v %v", list, err)
		}
		return &list[0]
	}
	for what, do := range map[string]func(){
		"deleted":            func() { remove(t, slice()) },
		"emptied":            func() { change(t, slice(), func(s *v1alpha1.CREMEndpointSlice) { s.Addresses = nil }) },
		"of another label":   func() { change(t, slice(), func(s *v1alpha1.CREMEndpointSlice) { s.Labels = nil }) },
		"of another profile": func() { change(t, slice(), func(s *v1alpha1.CREMEndpointSlice) { s.Profile = "q" }) },
	} {
		do()
		time.Sleep(time.Second)
		within(t, patience, wantAddresses(t, "p", 3))
		if slice().Profile != "p" {
			t.Errorf("%s: of %s", what, slice().Profile)
		}
	}
}

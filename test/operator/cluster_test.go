// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crem.dev/crem/api/v1alpha1"
)

// figure is one entry of build/scale.json.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal,omitempty"`
	Met   *bool   `json:"met,omitempty"`
}

// figures are what make scale shows.
type figures struct {
	t    *testing.T
	list []figure
}

func (f *figures) note(name string, value float64, unit string) {
	f.t.Helper()
	f.t.Logf("%s: %.4g %s", name, value, unit)
	f.list = append(f.list, figure{Name: name, Value: value, Unit: unit})
}

// atMost notes a figure with its bound.
func (f *figures) atMost(name string, value, most float64, unit string) {
	f.t.Helper()
	f.note(name, value, unit)
	met := value <= most
	one := &f.list[len(f.list)-1]
	one.Goal, one.Met = fmt.Sprintf("<= %g", most), &met
	if !met {
		f.t.Errorf("%s: %g %s, at most %g", name, value, unit, most)
	}
}

func (f *figures) write(path string) {
	text, err := json.MarshalIndent(f.list, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		f.t.Error(err)
	}
}

// A large AI cluster on the real API server.
const (
	clusterNodes     = 5000
	clusterGateways  = 64
	clusterEndpoints = 20000  // pods with RDMA
	clusterForeign   = 100000 // pods that have nothing to do with it
)

// TestScaleOfACluster: the operator in a large cluster, of whose nodes and pods few are its own. CREM_SCALE names the file for the figures; make scale
// runs it. CREM_SCALE_FOREIGN sets another number of foreign pods, for a machine with less memory.
func TestScaleOfACluster(t *testing.T) {
	out := os.Getenv("CREM_SCALE")
	if out == "" {
		t.Skip("takes many minutes: make scale runs it")
	}
	if server == nil {
		t.Fatal("there is no API server")
	}
	foreign := clusterForeign
	if s := os.Getenv("CREM_SCALE_FOREIGN"); s != "" {
		foreign, _ = strconv.Atoi(s)
	}
	f := &figures{t: t}
	defer f.write(out)
	began := time.Now()
	progress := func(what string) { t.Logf("%4.0f s  %s", time.Since(began).Seconds(), what) }

	kv := profile("kv-cache")
	kv.Spec.Selector = &v1alpha1.FlowSelector{PodSelector: labelled("app", "kv-cache")}
	standard := profile("standard")
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"}
	create(t, kv, standard, d)
	all(clusterNodes, func(i int) {
		if i < clusterGateways {
			create(t, node(fmt.Sprintf("n%d", i), "gw=1"))
		} else {
			create(t, node(fmt.Sprintf("n%d", i)))
		}
	})
	progress("nodes are there")
	all(foreign, func(i int) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("foreign-%d", i), Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{NodeName: fmt.Sprintf("n%d", i%clusterNodes), Containers: []corev1.Container{{Name: "c", Image: "example.test/web"}}}}
		if err := patiently(t.Context(), func() error { return client.IgnoreAlreadyExists(api.Create(t.Context(), p)) }); err != nil {
			t.Error(err)
		}
	})
	progress("foreign pods are there")
	all(clusterEndpoints, func(i int) {
		pod(t, "default", fmt.Sprintf("kv-%d", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), map[string]string{"app": "kv-cache"}, nil)
	})
	progress("endpoints are there")
	f.note("nodes", clusterNodes, "nodes")
	f.note("gateways", clusterGateways, "nodes")
	f.note("RDMA endpoints", clusterEndpoints, "pods")
	f.note("foreign pods", float64(foreign), "pods")

	start := time.Now()
	p := launch(t)
	p.wantReady(t, http.StatusOK, "ok")
	p.written(t, `kind="CREMNode"`, 0, clusterGateways)
	within(t, 5*time.Minute, wantAddresses(t, "kv-cache", clusterEndpoints))
	f.note("start of the operator to all nodes rendered and all endpoints listed", time.Since(start).Seconds(), "s")
	for i := range clusterGateways {
		heartbeatFor(t, fmt.Sprintf("n%d", i), time.Now(), time.Hour)
	}
	stop := fakeAgents(t)
	defer stop()
	within(t, time.Minute, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))

	time.Sleep(10 * time.Second) // in which the last statuses are written
	before := p.writes(t, "")
	churn(t, time.Minute)
	f.atMost("writes in a minute at rest, while foreign pods come and go and agents renew Leases", float64(p.writes(t, "")-before), 0, "writes")

	before = p.writes(t, "")
	create(t, node("one-more", "gw=1"))
	within(t, patience, wantDomains(t, "one-more", "d"))
	heartbeatFor(t, "one-more", time.Now(), time.Hour)
	time.Sleep(10 * time.Second) // longer than a status waits
	f.atMost("writes for a new gateway that reports", float64(p.writes(t, "")-before), 3, "writes")

	began = time.Now()
	change(t, standard, func(p *v1alpha1.CREMProfile) { p.Spec.K = 64 })
	within(t, time.Minute, wantApplied(t, 64))
	f.atMost("a changed profile to all gateways' reports", time.Since(began).Seconds(), 10, "s")

	began = time.Now()
	pod(t, "default", "late", "10.1.200.1", map[string]string{"app": "kv-cache"}, nil)
	within(t, time.Minute, wantAddresses(t, "kv-cache", clusterEndpoints+1))
	f.note("a new endpoint to its slice", time.Since(began).Seconds(), "s")
	f.atMost("resident set of the operator, at most", float64(p.memory(t, "VmHWM")), 256, "MiB")
	p.stop(t)
}

// fakeAgents report every generation of their nodes' objects as applied, as soon as they see it.
func fakeAgents(t *testing.T) (stop func()) {
	t.Helper()
	w, err := client.NewWithWatch(server, client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events, err := w.Watch(ctx, &v1alpha1.CREMNodeList{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			if n, ok := e.Object.(*v1alpha1.CREMNode); ok && n.Status.AppliedGeneration != n.Generation {
				state(t, n.Name, metav1.ConditionTrue, v1alpha1.ReasonReady)
			}
		}
	}()
	return func() { cancel(); events.Stop(); <-done }
}

// churn lets foreign pods come and go, ten a second, and agents renew Leases.
func churn(t *testing.T, how time.Duration) {
	t.Helper()
	for i, end := 0, time.Now().Add(how); time.Now().Before(end); i++ {
		name := fmt.Sprintf("churn-%d", i)
		pod(t, "default", name, fmt.Sprintf("10.2.%d.%d", i/250, i%250+1), map[string]string{"app": "web"}, nil)
		if err := api.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
		heartbeatFor(t, fmt.Sprintf("n%d", i%clusterGateways), time.Now(), time.Hour)
		time.Sleep(100 * time.Millisecond)
	}
}

// wantApplied says that every gateway has been told k, and has reported that generation.
func wantApplied(t *testing.T, k int32) func() error {
	return func() error {
		var list v1alpha1.CREMNodeList
		if err := api.List(t.Context(), &list); err != nil {
			return err
		}
		for i := range list.Items {
			n := &list.Items[i]
			told := false
			for _, p := range n.Spec.Profiles {
				told = told || p.Name == "standard" && p.K == k
			}
			if !told || n.Status.AppliedGeneration != n.Generation {
				return fmt.Errorf("%s: generation %d, applied %d, told of k = %d: %v", n.Name, n.Generation, n.Status.AppliedGeneration, k, told)
			}
		}
		return nil
	}
}

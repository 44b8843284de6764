// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	apix "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"crem.dev/crem/api/v1alpha1"
)

// crdScheme knows custom resource definitions.
func crdScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := apix.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestG15FiveThousandNodes: the real program with 5,000 Nodes that report: its memory, and the time from a changed profile to the last node.
func TestG15FiveThousandNodes(t *testing.T) {
	if !long() {
		t.Skip("takes minutes: CREM_LONG=1 runs it")
	}
	clean(t)
	const n = 5000
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"}
	standard := profile("standard")
	create(t, standard, d)
	p := launch(t)
	p.wantReady(t, http.StatusOK, "ok")
	all(n, func(i int) { create(t, node(fmt.Sprintf("n%d", i), "gw=1")) })
	told := func(k int32) func() error {
		return func() error {
			var list v1alpha1.CREMNodeList
			if err := api.List(t.Context(), &list); err != nil {
				return err
			}
			count := 0
			for i := range list.Items {
				if s := list.Items[i].Spec; len(s.Profiles) == 1 && s.Profiles[0].K == k {
					count++
				}
			}
			if count != n {
				return fmt.Errorf("%d nodes of %d are told k = %d", count, n, k)
			}
			return nil
		}
	}
	within(t, 5*time.Minute, told(32))
	all(n, func(i int) { report(t, fmt.Sprintf("n%d", i), metav1.ConditionTrue, v1alpha1.ReasonReady) })
	began := time.Now()
	change(t, standard, func(p *v1alpha1.CREMProfile) { p.Spec.K = 64 })
	within(t, 5*time.Minute, told(64))
	took := time.Since(began)
	t.Logf("a changed profile reached %d nodes in %s; resident now %d MiB, at most %d MiB", n, took.Round(time.Millisecond), p.memory(t, "VmRSS"), p.memory(t, "VmHWM"))
	if took > 10*time.Second {
		t.Errorf("a changed profile takes %s", took)
	}
	if most := p.memory(t, "VmHWM"); most > 256 {
		t.Errorf("resident set %d MiB", most)
	}
	p.stop(t)
}

// all does something n times, 16 at a time.
func all(n int, do func(int)) {
	work := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range work {
				do(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	workers.Wait()
}

// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
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

// nodesAtScale is the number that the guarantees are given for.
const nodesAtScale = 5000

// TestG15FiveThousandNodes: the real program with 5,000 Nodes that report: its memory, the time from a changed profile to the last node, the writes of one node's
// event, and none at rest.
func TestG15FiveThousandNodes(t *testing.T) {
	if !long() {
		t.Skip("takes minutes: make test-long runs it")
	}
	clean(t)
	d := domain("d", 52000, "wan0", labelled("gw", "1"))
	d.Spec.ProfileRef = &v1alpha1.ProfileReference{Name: "standard"}
	standard := profile("standard")
	create(t, standard, d)
	p := launch(t)
	p.wantReady(t, http.StatusOK, "ok")
	all(nodesAtScale, func(i int) { create(t, node(fmt.Sprintf("n%d", i), "gw=1")) })
	p.written(t, `kind="CREMNode"`, 0, nodesAtScale)
	wantTold(t, 32)
	all(nodesAtScale, func(i int) {
		heartbeatFor(t, fmt.Sprintf("n%d", i), time.Now(), time.Hour)
		state(t, fmt.Sprintf("n%d", i), metav1.ConditionTrue, v1alpha1.ReasonReady)
	})
	within(t, time.Minute, wantDomain(t, "d", map[string]string{v1alpha1.ConditionReady: "True/Ready"}))

	atRest(t, p)
	nodeEvent(t, p)

	before, used, began := p.writes(t, `kind="CREMNode"`), loadNow(t), time.Now()
	change(t, standard, func(p *v1alpha1.CREMProfile) { p.Spec.K = 64 })
	p.written(t, `kind="CREMNode"`, before, nodesAtScale+1) // one more came by the event
	took := time.Since(began)
	spent := loadNow(t).since(used)
	wantTold(t, 64)
	t.Logf("a changed profile reached %d nodes in %s, %.0f a second; processors: %s", nodesAtScale, took.Round(10*time.Millisecond), nodesAtScale/took.Seconds(), spent.over(took))
	t.Logf("resident now %d MiB, at most %d MiB", p.memory(t, "VmRSS"), p.memory(t, "VmHWM"))
	if most := p.memory(t, "VmHWM"); most > 256 {
		t.Errorf("resident set %d MiB", most)
	}
	if took > 10*time.Second {
		spent.wantMachineBusy(t, took)
	}
	p.stop(t)
}

// atRest: while agents renew Leases nothing is written.
func atRest(t *testing.T, p *program) {
	t.Helper()
	time.Sleep(5 * time.Second) // in which the last statuses are written
	before := p.writes(t, "")
	for end, i := time.Now().Add(time.Minute), 0; time.Now().Before(end); i++ {
		heartbeatFor(t, fmt.Sprintf("n%d", i%nodesAtScale), time.Now(), time.Hour)
		time.Sleep(20 * time.Millisecond) // fifty Leases a second
	}
	n := p.writes(t, "") - before
	t.Logf("%d writes in a minute at rest", n)
	if n > 0 {
		t.Errorf("%d writes at rest", n)
	}
}

// nodeEvent: a node that comes and reports costs a handful of writes, however many there are.
func nodeEvent(t *testing.T, p *program) {
	t.Helper()
	before := p.writes(t, "")
	create(t, node("one-more", "gw=1"))
	within(t, patience, wantDomains(t, "one-more", "d"))
	heartbeatFor(t, "one-more", time.Now(), time.Hour)
	state(t, "one-more", metav1.ConditionTrue, v1alpha1.ReasonReady)
	time.Sleep(10 * time.Second) // longer than a status waits
	n := p.writes(t, "") - before
	t.Logf("a new node that reports costs %d writes", n)
	if n < 1 || n > 3 {
		t.Errorf("a node's event costs %d writes", n)
	}
}

// wantTold fails when some node is told another k.
func wantTold(t *testing.T, k int32) {
	t.Helper()
	var list v1alpha1.CREMNodeList
	if err := api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if s := list.Items[i].Spec; len(s.Profiles) != 1 || s.Profiles[0].K != k {
			t.Errorf("CREMNode %s is not told k = %d", list.Items[i].Name, k)
		}
	}
	if len(list.Items) < nodesAtScale {
		t.Errorf("%d CREMNodes", len(list.Items))
	}
}

// writes gives how many writes the program has counted, of series that have a label.
func (p *program) writes(t *testing.T, label string) (n int) {
	t.Helper()
	_, body, err := get("http://" + p.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "} "); strings.HasPrefix(name, "crem_operator_writes_total{") && strings.Contains(name, label) {
			one, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(err)
			}
			n += one
		}
	}
	return n
}

// written waits until the program has written n times more. It asks the program: to list thousands of objects again and again would be most of the API
// server's work.
func (p *program) written(t *testing.T, label string, before, n int) {
	t.Helper()
	within(t, 5*time.Minute, func() error {
		if now := p.writes(t, label); now < before+n {
			return fmt.Errorf("%d writes of %d", now-before, n)
		}
		return nil
	})
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

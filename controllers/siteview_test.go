// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crem.dev/crem/api/v1alpha1"
)

// says is a tally of what nodes say of a site named west.
func says(sites ...v1alpha1.SiteHealth) *tally {
	t := &tally{}
	for _, s := range sites {
		s.Name = "west"
		t.addSites(&v1alpha1.NodeItemStatus{Sites: []v1alpha1.SiteHealth{s}})
	}
	return t
}

// TestSiteViews: sums, the worst class, the median over flows; the first values at once, others a period later; spec changes at once.
func TestSiteViews(t *testing.T) {
	d := testDomain("d", 52000, nil)
	v := &siteViews{period: time.Minute, domains: map[string]*siteView{}}
	at := noon
	shows := func(after time.Duration, t0 *tally, want string, due time.Duration) {
		t.Helper()
		at = at.Add(after)
		list, next := v.show(&d, t0, at, 1)
		got := ""
		for _, s := range list {
			got += fmt.Sprintf("%s %d %s %d;", s.Name, s.Flows, s.Loss, s.RTTMilliseconds)
		}
		if got != want || (due == 0) != next.IsZero() || due != 0 && !next.Equal(at.Add(due)) {
			t.Errorf("%q next %v, not %q next in %v", got, next, want, due)
		}
	}
	many := says(v1alpha1.SiteHealth{Flows: 90, Loss: v1alpha1.LossNone, RTTMilliseconds: 20}, v1alpha1.SiteHealth{Flows: 15, Loss: v1alpha1.LossMedium, RTTMilliseconds: 90},
		v1alpha1.SiteHealth{Flows: 1, Loss: "OfALaterVersion"})
	shows(0, says(), "west 0 Unknown 0;", 0)
	shows(time.Second, many, "west 110 Medium 20;", 0)
	shows(time.Second, says(), "west 110 Medium 20;", 59*time.Second)
	shows(time.Second, many, "west 110 Medium 20;", 0)
	shows(57*time.Second, says(), "west 110 Medium 20;", time.Second)
	shows(time.Second, says(), "west 0 Unknown 0;", 0)
	d.Spec.Sites = append(slices.Clone(d.Spec.Sites), v1alpha1.Site{Name: "north"})
	shows(time.Second, says(), "north 0 Unknown 0;west 0 Unknown 0;", 0)
	if v.forget(2); len(v.domains) != 0 {
		t.Error("a domain that is gone is remembered")
	}
	// Another operator goes on from what is shown.
	d.Status.Sites = []v1alpha1.SiteHealth{{Name: "west", Flows: 9, Loss: v1alpha1.LossLow, RTTMilliseconds: 5}, {Name: "gone", Flows: 1}}
	shows(0, many, "north 0 Unknown 0;west 9 Low 5;", time.Minute)
}

// TestSuspendedRepairsAreShownAtOnce: those of any node, within the period too; not that they are over.
func TestSuspendedRepairsAreShownAtOnce(t *testing.T) {
	d := testDomain("d", 52000, nil)
	v := &siteViews{period: time.Minute, domains: map[string]*siteView{}}
	good, bad := v1alpha1.SiteHealth{Flows: 9, Loss: v1alpha1.LossHigh}, v1alpha1.SiteHealth{Flows: 8, Loss: v1alpha1.LossHigh, RepairsSuspended: true}
	for _, step := range []struct {
		after time.Duration
		nodes *tally
		want  bool
	}{{0, says(good, good), false}, {time.Second, says(bad, good), true}, {time.Second, says(good, good), true}, {time.Minute + time.Second, says(good, good), false}} {
		list, _ := v.show(&d, step.nodes, noon.Add(step.after), 1)
		if len(list) != 1 || list[0].RepairsSuspended != step.want {
			t.Errorf("after %v: %+v", step.after, list)
		}
	}
}

// TestSilences: each node's silence is said once, at most so many after one look, and again only when its agent was heard meanwhile.
func TestSilences(t *testing.T) {
	var silent []silentNode
	for i := range 2*maxSilenced + 10 {
		silent = append(silent, silentNode{have: &v1alpha1.CREMNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("u", i))}}})
	}
	silent[0].have.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonAgentNotReporting}} // by the operator before
	s := &silences{}
	var sizes []int
	for range 4 {
		list, more := s.news(silent)
		sizes = append(sizes, len(list))
		if more != (len(sizes) < 3) {
			t.Errorf("look %d: more is %v", len(sizes), more)
		}
		for _, n := range list {
			s.said[string(n.have.UID)] = true
		}
	}
	if !slices.Equal(sizes, []int{100, 100, 9, 0}) {
		t.Errorf("%v nodes a look", sizes)
	}
	silent[0].have.Status.Conditions[0].Status = metav1.ConditionTrue // its agent writes all the same
	if list, _ := s.news(silent); len(list) != 0 {
		t.Errorf("said again: %s", list[0].have.Name)
	}
	s.news(silent[1:])
	if list, _ := s.news(silent); len(list) != 1 || list[0].have.Name != "n0" {
		t.Errorf("silent once more: %v", list)
	}
}

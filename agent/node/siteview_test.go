// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
)

// seen are the totals of one site after some packets with a loss.
func seen(flows int, rtt, loss float64, packets uint64) []agentapi.Site {
	return []agentapi.Site{{Domain: "backbone", Name: "west", Protected: flows, SRTT: rtt, Loss: loss, Expected: packets, Lost: uint64(loss * float64(packets))}}
}

// TestSiteViewChangesRarely: the first figures are shown at once, others at most once a minute, and none that are nearly the same.
func TestSiteViewChangesRarely(t *testing.T) {
	d := &spec().Domains[0]
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	var v siteView
	shows := func(when int, want string) {
		t.Helper()
		got := ""
		for _, s := range v.of(d) {
			got += string(s.Name) + " " + string(s.Loss)
			if s.Flows != 12 && s.Flows != 40 || s.RTTMilliseconds != 21 && s.RTTMilliseconds != 0 {
				t.Errorf("after %d s: %+v", when, s)
			}
		}
		if got != want {
			t.Errorf("after %d s: %q, not %q", when, got, want)
		}
	}
	v.look(at(0), seen(0, 0, 0, 0))
	shows(0, "")
	v.look(at(10), seen(12, 0.0205, 0.1, 100))
	shows(10, "west Unknown") // hundred packets tell nothing
	v.look(at(20), seen(12, 0.0205, 0.01, 10_000))
	shows(20, "west Unknown") // known, and a minute has not passed
	v.look(at(70), seen(12, 0.0205, 0.01, 20_000))
	shows(70, "west Medium")
	for i := range 60 { // ten minutes in which nothing happens but noise
		v.look(at(80+10*i), seen(12+i%2, 0.0205+float64(i%3)*1e-4, 0.01, uint64(30_000+10_000*i)))
		shows(80+10*i, "west Medium")
	}
	changed := v.changed
	if !changed.Equal(at(70)) {
		t.Errorf("changed after %v", changed.Sub(start))
	}
	v.look(at(700), seen(40, 0.0205, 0.01, 700_000))
	if !v.changed.Equal(at(700)) || v.of(d)[0].Flows != 40 {
		t.Errorf("more flows are not shown: %+v", v.of(d))
	}
	v.look(at(710), seen(0, 0, 0.01, 700_000))
	shows(710, "west Medium")
	v.look(at(760), seen(0, 0, 0.01, 700_000))
	shows(760, "")
}

// TestSiteLossIsJudgedByCounts: losses are counted, not guessed from a moment; few packets do not change a class that is known.
func TestSiteLossIsJudgedByCounts(t *testing.T) {
	trace := siteTrace{loss: v1alpha1.LossUnknown}
	for _, step := range []struct {
		expected, lost uint64
		want           v1alpha1.LossClass
	}{
		{999, 0, v1alpha1.LossUnknown}, {1000, 0, v1alpha1.LossNone}, {2000, 2, v1alpha1.LossNone}, // two losses are no measurement
		{20_000, 20, v1alpha1.LossMedium}, {2_000_000, 20, v1alpha1.LossMedium}, {2_020_000, 20, v1alpha1.LossNone},
		{2_020_400, 40, v1alpha1.LossHigh}, // 20 of 400: at once
		{100, 0, v1alpha1.LossHigh},        // the data path began anew
	} {
		trace.look(&agentapi.Site{Protected: 1, Expected: step.expected, Lost: step.lost})
		if trace.loss != step.want {
			t.Errorf("%d of %d: %s, not %s", step.lost, step.expected, trace.loss, step.want)
		}
	}
}

// TestSuspendedRepairsAreShownAtOnce: also within a minute of another change, and when no flow is protected any more; that they are sent again is
// shown after two looks, a minute after the last change.
func TestSuspendedRepairsAreShownAtOnce(t *testing.T) {
	d := &spec().Domains[0]
	start := time.Now()
	var v siteView
	look := func(seconds, protected, suspended int, want string) {
		t.Helper()
		sites := seen(protected, 0.02, 0.01, uint64(10_000*(1+seconds)))
		sites[0].Suspended = suspended
		v.look(start.Add(time.Duration(seconds)*time.Second), sites)
		got := ""
		for _, s := range v.of(d) {
			got += fmt.Sprint(s.Flows, s.RepairsSuspended)
		}
		if got != want {
			t.Errorf("after %d s: %q, not %q", seconds, got, want)
		}
	}
	look(0, 3, 0, "3 false")
	look(10, 2, 1, "2 true")
	look(20, 0, 3, "2 true") // the rest has time
	look(70, 0, 3, "0 true")
	look(130, 1, 0, "1 true") // a flow that was closed is tried again
	look(140, 0, 3, "1 true")
	look(200, 3, 0, "3 true")
	look(210, 3, 0, "3 true") // it is over, and a minute has not passed
	look(260, 3, 0, "3 false")
}

// TestSuspendedRepairsAreOfADomain: two domains may have sites of one name.
func TestSuspendedRepairsAreOfADomain(t *testing.T) {
	start := time.Now()
	both := func(suspended ...int) []agentapi.Site {
		sites := append(seen(3, 0.02, 0.01, 1000), seen(3, 0.02, 0.01, 1000)...)
		for i := range sites {
			sites[i].Domain, sites[i].Suspended = fmt.Sprint("domain", i), suspended[i]
		}
		return sites
	}
	var v siteView
	v.look(start, both(1, 0))
	v.look(start.Add(time.Second), both(1, 1))
	if !v.shown[siteOf{"domain1", "west"}].RepairsSuspended {
		t.Errorf("%+v", v.shown)
	}
}

// TestSuspensionsAreLoggedOnce: a line for each site where they begin and end.
func TestSuspensionsAreLoggedOnce(t *testing.T) {
	var lines []string
	said := transitions{log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})}
	for _, suspended := range []int{0, 2, 1, 0, 0} {
		sites := seen(1, 0.02, 0.01, 1000)
		sites[0].Suspended = suspended
		said.suspensions(sites)
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"site"="west" "flows"=2`) || !strings.Contains(lines[1], "Repairs resumed") {
		t.Errorf("%q", lines)
	}
}

// TestSiteViewGoesOn: an agent that starts shows what it showed before, until it knows better.
func TestSiteViewGoesOn(t *testing.T) {
	d := &spec().Domains[0]
	was := v1alpha1.SiteHealth{Name: "west", Flows: 12, Loss: v1alpha1.LossLow, RTTMilliseconds: 21}
	status := []v1alpha1.NodeItemStatus{{Name: d.Name, Sites: []v1alpha1.SiteHealth{was, {Name: "gone", Flows: 1, Loss: v1alpha1.LossNone}}}}
	start := time.Now()
	var v siteView
	v.look(start, seen(0, 0, 0, 0))
	v.recall(start, status)
	v.look(start.Add(10*time.Second), seen(0, 0, 0, 0))
	if list := v.of(d); len(list) != 1 || list[0] != was {
		t.Fatalf("%+v", list)
	}
	v.recall(start, nil) // later statuses are its own
	v.look(start.Add(70*time.Second), seen(12, 0.0205, 0, 0))
	if list := v.of(d); len(list) != 1 || list[0].Flows != 12 || list[0].RTTMilliseconds != 21 {
		t.Fatalf("%+v", list)
	}
}

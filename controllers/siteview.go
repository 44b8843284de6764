// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/sitehealth"
)

// siteTotal adds up what the nodes of a domain say of one other site.
type siteTotal struct {
	flows int
	loss  v1alpha1.LossClass
	stops bool          // some flows are left to RDMA
	rtts  map[int32]int // flows by the round-trip time that their nodes show
}

// addSites adds what one node says. A node whose agent does not report says nothing any more.
func (t *tally) addSites(item *v1alpha1.NodeItemStatus) {
	for i := range item.Sites {
		s := &item.Sites[i]
		total := t.sites[s.Name]
		if total == nil {
			total = &siteTotal{loss: v1alpha1.LossUnknown, rtts: map[int32]int{}}
			if t.sites == nil {
				t.sites = map[v1alpha1.SiteName]*siteTotal{}
			}
			t.sites[s.Name] = total
		}
		total.flows += int(s.Flows)
		total.loss = sitehealth.Worse(total.loss, s.Loss)
		total.stops = total.stops || s.RepairsSuspended
		if s.RTTMilliseconds > 0 {
			total.rtts[s.RTTMilliseconds] += int(s.Flows)
		}
	}
}

// median gives the round-trip time that half of the flows do not exceed; 0 when none was measured.
func (t *siteTotal) median() time.Duration {
	all := 0
	for _, flows := range t.rtts {
		all += flows
	}
	below := 0
	for _, ms := range slices.Sorted(maps.Keys(t.rtts)) {
		if below += t.rtts[ms]; 2*below >= all {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return 0
}

// siteViews are what the statuses of the domains show of their other sites. Each is rewritten at most once in a period, whatever else its status tells, but for repairs that are suspended. They belong to one goroutine.
type siteViews struct {
	period  time.Duration
	domains map[string]*siteView
}

type siteView struct {
	shown   []v1alpha1.SiteHealth // by name
	changed time.Time             // zero: never
	round   uint64                // in which the domain was last looked at
}

// show gives what to show of a domain, and when that may be another; zero: when the nodes say something new. An operator that starts goes on from what the status shows.
func (v *siteViews) show(d *v1alpha1.CREMDomain, t *tally, now time.Time, round uint64) ([]v1alpha1.SiteHealth, time.Time) {
	view := v.domains[string(d.UID)]
	if view == nil {
		view = &siteView{shown: d.Status.Sites}
		if len(view.shown) > 0 {
			view.changed = now
		}
		v.domains[string(d.UID)] = view
	}
	view.round = round
	view.shown = sitesOf(d, view.shown)
	next := make([]v1alpha1.SiteHealth, 0, len(view.shown))
	for _, shown := range view.shown {
		next = append(next, t.siteHealth(shown))
	}
	if slices.Equal(view.shown, next) {
		return view.shown, time.Time{}
	}
	if due := view.changed.Add(v.period); !view.changed.IsZero() && now.Before(due) && !sitehealth.Suspends(view.shown, next) {
		return view.shown, due
	}
	view.shown, view.changed = next, now
	return next, time.Time{}
}

// siteHealth gives what to show of a site instead of what is shown.
func (t *tally) siteHealth(shown v1alpha1.SiteHealth) v1alpha1.SiteHealth {
	total := t.sites[shown.Name]
	if total == nil {
		return v1alpha1.SiteHealth{Name: shown.Name, Loss: v1alpha1.LossUnknown}
	}
	return v1alpha1.SiteHealth{
		Name: shown.Name, Flows: sitehealth.Flows(shown.Flows, total.flows), Loss: total.loss, RTTMilliseconds: sitehealth.RTT(shown.RTTMilliseconds, total.median()),
		RepairsSuspended: total.stops,
	}
}

// sitesOf gives an entry for each other site of a domain, by name, with what was shown of it.
func sitesOf(d *v1alpha1.CREMDomain, shown []v1alpha1.SiteHealth) []v1alpha1.SiteHealth {
	list := make([]v1alpha1.SiteHealth, 0, len(d.Spec.Sites))
	for i := range d.Spec.Sites {
		name := d.Spec.Sites[i].Name
		if name == d.Spec.Site {
			continue
		}
		one := v1alpha1.SiteHealth{Name: name, Loss: v1alpha1.LossUnknown}
		if at := slices.IndexFunc(shown, func(s v1alpha1.SiteHealth) bool { return s.Name == name }); at >= 0 {
			one = shown[at]
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b v1alpha1.SiteHealth) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// met keeps what is shown of a domain that can not be looked at now.
func (v *siteViews) met(d *v1alpha1.CREMDomain, round uint64) {
	if view := v.domains[string(d.UID)]; view != nil {
		view.round = round
	}
}

// forget drops domains that the round did not meet.
func (v *siteViews) forget(round uint64) {
	maps.DeleteFunc(v.domains, func(_ string, view *siteView) bool { return view.round != round })
}

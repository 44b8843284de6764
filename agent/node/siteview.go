// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"crem.dev/crem/api/v1alpha1"
	"crem.dev/crem/internal/agentapi"
	"crem.dev/crem/internal/sitehealth"
)

// A loss is judged when enough is known of it: so many losses that their number is near what it is on the average, or so many packets that fewer losses are
// below the lowest class's border for sure. As long as nothing was ever judged, a glance is better than nothing.
const (
	enoughLosses  = 20
	enoughPackets = 2_000_000
	glancePackets = 1000
)

// rttWeight is that of one look in the smoothed round-trip time, as RFC 6298 has it for a sample.
const rttWeight = 1.0 / 8

// suspendedLooks is how many looks in a row must find no flow left to RDMA before repairs count as sent again.
const suspendedLooks = 2

// siteOf names another site of a domain.
type siteOf struct{ domain, site string }

// siteView is what the status shows of the other sites: coarse, of sites with flows that are protected or left to RDMA, and changed at most once in sitehealth.Period, all of it at
// the same time; that repairs are suspended is shown at once. It belongs to one goroutine.
type siteView struct {
	shown   map[siteOf]v1alpha1.SiteHealth
	changed time.Time // zero: never
	sites   map[siteOf]*siteTrace
}

// siteTrace is what was seen of one site since its loss was judged.
type siteTrace struct {
	rtt            float64 // seconds, smoothed over looks; 0: none yet
	expected, lost uint64  // totals when the loss was judged last
	loss           v1alpha1.LossClass
	suspended      int // looks for which repairs count as suspended: a flow that was closed for it is tried again every other minute
}

// recall begins with what the status says already, so that an agent that restarts does not say that there are no flows before they are protected again. It says
// whether it did.
func (v *siteView) recall(now time.Time, domains []v1alpha1.NodeItemStatus) bool {
	if !v.changed.IsZero() {
		return false
	}
	shown := map[siteOf]v1alpha1.SiteHealth{}
	for _, d := range domains {
		for _, s := range d.Sites {
			shown[siteOf{string(d.Name), string(s.Name)}] = s
		}
	}
	if len(shown) > 0 {
		v.shown, v.changed = shown, now
	}
	return len(shown) > 0
}

// look takes the present figures.
func (v *siteView) look(now time.Time, sites []agentapi.Site) {
	next := map[siteOf]v1alpha1.SiteHealth{}
	traces := make(map[siteOf]*siteTrace, len(sites))
	for i := range sites {
		s := &sites[i]
		key := siteOf{s.Domain, s.Name}
		shown := v.shown[key]
		trace := v.sites[key]
		if trace == nil {
			trace = &siteTrace{loss: cmp.Or(shown.Loss, v1alpha1.LossUnknown)}
		}
		traces[key] = trace
		trace.look(s)
		if s.Protected > 0 || trace.suspended > 0 {
			next[key] = v1alpha1.SiteHealth{
				Name: v1alpha1.SiteName(s.Name), Flows: sitehealth.Flows(shown.Flows, s.Protected), Loss: trace.loss,
				RTTMilliseconds:  sitehealth.RTT(shown.RTTMilliseconds, time.Duration(trace.rtt*float64(time.Second))),
				RepairsSuspended: trace.suspended > 0,
			}
		}
	}
	v.sites = traces
	if maps.Equal(v.shown, next) {
		return
	}
	if v.changed.IsZero() || now.Sub(v.changed) >= sitehealth.Period || v.suspends(next) {
		v.shown, v.changed = next, now
	}
}

// suspends says whether repairs towards a site are suspended for which that is not shown. People must know at once.
func (v *siteView) suspends(next map[siteOf]v1alpha1.SiteHealth) bool {
	for key, s := range next {
		if s.RepairsSuspended && !v.shown[key].RepairsSuspended {
			return true
		}
	}
	return false
}

func (t *siteTrace) look(s *agentapi.Site) {
	if t.suspended = max(t.suspended-1, 0); s.Suspended > 0 {
		t.suspended = suspendedLooks
	}
	switch {
	case s.Protected == 0 || s.SRTT <= 0:
		t.rtt = 0
	case t.rtt == 0:
		t.rtt = s.SRTT
	default:
		t.rtt += rttWeight * (s.SRTT - t.rtt)
	}
	if s.Expected < t.expected || s.Lost < t.lost { // the data path began anew
		t.expected, t.lost = 0, 0
	}
	expected, lost := s.Expected-t.expected, s.Lost-t.lost
	enough := lost >= enoughLosses || expected >= enoughPackets
	if enough || t.loss == v1alpha1.LossUnknown && expected >= glancePackets {
		t.loss = sitehealth.Loss(t.loss, float64(lost)/float64(expected))
	}
	if enough {
		t.expected, t.lost = s.Expected, s.Lost
	}
}

// of gives what to show of a domain's other sites, by name; sites that its configuration does not have any more are left out.
func (v *siteView) of(d *v1alpha1.NodeDomain) []v1alpha1.SiteHealth {
	var list []v1alpha1.SiteHealth
	for i := range d.Sites {
		if s, known := v.shown[siteOf{string(d.Name), string(d.Sites[i].Name)}]; known && d.Sites[i].Name != d.Site {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.SiteHealth) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

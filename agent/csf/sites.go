// SPDX-License-Identifier: Apache-2.0

package csf

// maxUntold is how many reports of a site a worker keeps while others have what is known of it.
const maxUntold = 64

// KnownSite is what the flows of a node know of the loss towards another site (Section 5.3, rule 3): a new flow begins with it. The zero value is a site
// of which nothing is known.
type KnownSite struct{ loss lossEstimate }

// SharedSite is a KnownSite that the workers of a node share. Try calls f with it, or returns false at once while another worker has it: no worker ever
// waits for another one.
type SharedSite interface {
	Try(f func(*KnownSite)) bool
}

// ownSite is that of an Env that shares none.
type ownSite struct{ known KnownSite }

func (s *ownSite) Try(f func(*KnownSite)) bool {
	f(&s.known)
	return true
}

// siteView is a site as one worker sees it.
type siteView struct {
	of     SharedSite
	meet   func(*KnownSite) // exchange, made once
	loss   lossEstimate     // as it was when this worker had it last
	untold []interval       // reports that are not in it yet
}

// exchange takes what this worker has heard to the others, and what they know to the view.
func (v *siteView) exchange(k *KnownSite) {
	for _, i := range v.untold {
		k.loss.add(i)
	}
	v.untold = v.untold[:0]
	v.loss = k.loss
}

// learn takes a report. With too many of them untold it is left out.
func (v *siteView) learn(i interval) {
	if len(v.untold) < maxUntold {
		v.untold = append(v.untold, i)
	}
	v.of.Try(v.meet)
}

// site is the view of a site, nil if it has no name.
func (e *Env) site(name string) *siteView {
	if name == "" {
		return nil
	}
	v := e.sites[name]
	if v != nil {
		return v
	}
	if e.sites == nil {
		e.sites = make(map[string]*siteView)
	}
	v = &siteView{of: &ownSite{}, untold: make([]interval, 0, maxUntold)}
	if e.Site != nil {
		v.of = e.Site(name)
	}
	v.meet = v.exchange
	e.sites[name] = v
	return v
}

// path returns what is known about the loss towards a site, nil if it is not named.
func (e *Env) path(name string) *lossEstimate {
	v := e.site(name)
	if v == nil {
		return nil
	}
	v.of.Try(v.meet)
	return &v.loss
}

// learn makes a flow's report known to the flows that come after it.
func (e *Env) learn(name string, i interval) {
	if v := e.site(name); v != nil {
		v.learn(i)
	}
}

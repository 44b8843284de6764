// SPDX-License-Identifier: Apache-2.0

package csf

import "sync"

// maxUntold is how many reports of a site a worker keeps while others have what is known of it.
const maxUntold = 64

// Sites is what the flows of a node know of the loss towards other sites, whichever worker they are on (Section 5.3, rule 3): a new flow begins
// with it. It is safe for concurrent use, and no worker ever waits for another one.
type Sites struct {
	mu sync.Mutex // between workers, for one access to the map
	of map[string]*knownSite
}

// knownSite is what all workers know of a site.
type knownSite struct {
	mu   sync.Mutex // only ever tried: whoever has it may be kept waiting by the kernel
	loss lossEstimate
}

// NewSites returns what a node without flows knows.
func NewSites() *Sites { return &Sites{of: make(map[string]*knownSite)} }

func (s *Sites) find(name string) *knownSite {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of[name]
	if k == nil {
		k = &knownSite{}
		s.of[name] = k
	}
	return k
}

// siteView is a site as one worker sees it.
type siteView struct {
	of     *knownSite
	loss   lossEstimate // as it was when nobody else had it
	untold []interval   // reports that are not in it yet
}

// look brings the view up to date, and what this worker has heard to the others. It does neither while another worker does the same.
func (v *siteView) look() {
	if !v.of.mu.TryLock() {
		return
	}
	for _, i := range v.untold {
		v.of.loss.add(i)
	}
	v.untold = v.untold[:0]
	v.loss = v.of.loss
	v.of.mu.Unlock()
}

// learn takes a report. With too many of them untold it is left out.
func (v *siteView) learn(i interval) {
	if len(v.untold) < maxUntold {
		v.untold = append(v.untold, i)
	}
	v.look()
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
	if e.Sites == nil {
		e.Sites = NewSites()
	}
	if e.sites == nil {
		e.sites = make(map[string]*siteView)
	}
	v = &siteView{of: e.Sites.find(name), untold: make([]interval, 0, maxUntold)}
	e.sites[name] = v
	return v
}

// path returns what is known about the loss towards a site, nil if it is not named.
func (e *Env) path(name string) *lossEstimate {
	v := e.site(name)
	if v == nil {
		return nil
	}
	v.look()
	return &v.loss
}

// learn makes a flow's report known to the flows that come after it.
func (e *Env) learn(name string, i interval) {
	if v := e.site(name); v != nil {
		v.learn(i)
	}
}

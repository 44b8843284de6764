// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"

	"crem.dev/crem/agent/csf"
)

// knownSites is what the flows of all workers know of the loss towards other sites. A new flow begins with it on whatever worker it is.
type knownSites struct {
	mu sync.Mutex // between workers, for one access to the map; each asks once for a site
	of map[string]*knownSite
}

// knownSite is a site. Its lock is only ever tried: the kernel may keep whoever has it waiting.
type knownSite struct {
	mu    sync.Mutex
	known csf.KnownSite
}

func newKnownSites() *knownSites { return &knownSites{of: make(map[string]*knownSite)} }

func (s *knownSites) site(name string) csf.SharedSite {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.of[name]
	if k == nil {
		k = &knownSite{}
		s.of[name] = k
	}
	return k
}

// Try calls f if no other worker has the site.
func (k *knownSite) Try(f func(*csf.KnownSite)) bool {
	if !k.mu.TryLock() {
		return false
	}
	defer k.mu.Unlock()
	f(&k.known)
	return true
}

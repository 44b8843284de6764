// SPDX-License-Identifier: Apache-2.0

package engine

import "net/netip"

// Pods is an immutable set of addresses. To change it is to make a configuration with another one.
type Pods struct{ set map[netip.Addr]struct{} }

// NewPods makes a set.
func NewPods(addresses []netip.Addr) *Pods {
	p := &Pods{set: make(map[netip.Addr]struct{}, len(addresses))}
	for _, a := range addresses {
		p.set[a] = struct{}{}
	}
	return p
}

// Has reports whether a is in the set. It does not allocate.
func (p *Pods) Has(a netip.Addr) bool {
	_, ok := p.set[a]
	return ok
}

// Len is the number of addresses.
func (p *Pods) Len() int { return len(p.set) }

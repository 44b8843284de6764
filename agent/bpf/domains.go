// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Domain is what the ingress program must know of a CREM domain.
type Domain struct {
	ID    uint32 // any number that no other domain has
	Ports []uint16
	// Members are the addresses that may send CREM messages: sites, gateways, reporters.
	Members []netip.Prefix
	// Served are the endpoints of our own site: messages to them are taken from the path.
	Served []netip.Prefix
}

const (
	domainBits = 32
	mappedBits = 96 // of an IPv4-mapped address before the IPv4 address
)

func newPrefix(domain uint32, p netip.Prefix) cremPrefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += mappedBits
	}
	return cremPrefix{Len: uint32(domainBits + bits), Domain: domain, Addr: p.Masked().Addr().As16()}
}

// boundary is the content of the boundary's maps.
type boundary struct {
	ports   map[uint16]uint32
	members map[cremPrefix]uint32
	served  map[cremPrefix]uint32
	local   map[cremAddress]uint32
}

func newBoundary(domains []Domain, local []netip.Addr) (boundary, error) {
	b := boundary{map[uint16]uint32{}, map[cremPrefix]uint32{}, map[cremPrefix]uint32{}, map[cremAddress]uint32{}}
	ids := map[uint32]bool{}
	for _, d := range domains {
		if ids[d.ID] {
			return b, fmt.Errorf("bpf: two domains with number %d", d.ID)
		}
		ids[d.ID] = true
		for _, port := range d.Ports {
			if other, ok := b.ports[port]; ok {
				return b, fmt.Errorf("bpf: port %d of domain %d is used by domain %d", port, d.ID, other)
			}
			b.ports[port] = d.ID
		}
		for prefixes, to := range map[*[]netip.Prefix]map[cremPrefix]uint32{&d.Members: b.members, &d.Served: b.served} {
			for _, p := range *prefixes {
				if !p.IsValid() || p.Addr().Is4In6() {
					return b, fmt.Errorf("bpf: prefix %v of domain %d", p, d.ID)
				}
				to[newPrefix(d.ID, p)] = 1
			}
		}
	}
	for _, a := range local {
		if !a.IsValid() {
			return b, errors.New("bpf: local address without value")
		}
		b.local[cremAddress{Addr: a.As16()}] = 1
	}
	return b, nil
}

// SetDomains makes the boundary that of domains; local are the addresses of this node, whose messages go to its sockets.
// It changes only what differs, and what is in both the old and the new setting holds at every moment. New prefixes come
// before new ports, so that no message of a member is dropped on the way. Errors: two domains with one port or number,
// an invalid prefix (nothing is changed then), or the kernel's refusal.
func (o *Objects) SetDomains(domains []Domain, local []netip.Addr) error {
	b, err := newBoundary(domains, local)
	if err != nil {
		return err
	}
	c, err := o.compare(&b)
	if err != nil {
		return err
	}
	o.wanted.boundary = nil // what is half done is nobody else's change
	if err := c.carryOut(); err != nil {
		return err
	}
	o.wanted.boundary = &b
	return nil
}

// boundaryChange is what makes the boundary's maps the wanted ones.
type boundaryChange struct {
	members, served *change[cremPrefix, uint32]
	locals          *change[cremAddress, uint32]
	ports           *change[uint16, uint32]
}

// compare reads the boundary's maps.
func (o *Objects) compare(b *boundary) (c boundaryChange, err error) {
	k := &o.kernel
	if c.members, err = difference(k.CremMembers, b.members); err != nil {
		return c, err
	}
	if c.served, err = difference(k.CremServed, b.served); err != nil {
		return c, err
	}
	if c.locals, err = difference(k.CremLocal, b.local); err != nil {
		return c, err
	}
	c.ports, err = difference(k.CremPorts, b.ports)
	return c, err
}

func (c *boundaryChange) carryOut() error {
	return inTurn(c.members.add, c.locals.add, c.served.add, c.ports.add, c.ports.remove, c.served.remove, c.locals.remove, c.members.remove)
}

// inTurn takes steps up to the first that fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// found gives a sentence for each map that is not as wanted.
func (c *boundaryChange) found() (list []string) {
	for _, m := range []struct {
		what         string
		put, removed int
	}{
		{"addresses that may send CREM messages", len(c.members.put), len(c.members.forget)},
		{"addresses that are served on the path", len(c.served.put), len(c.served.forget)},
		{"addresses of this node", len(c.locals.put), len(c.locals.forget)},
		{"CREM ports", len(c.ports.put), len(c.ports.forget)},
	} {
		if m.put+m.removed > 0 {
			list = append(list, fmt.Sprintf("of the %s %d were missing or wrong, %d not ours", m.what, m.put, m.removed))
		}
	}
	return list
}

// change is what makes a map's content the wanted one.
type change[K, V comparable] struct {
	to     *ebpf.Map
	put    map[K]V
	forget []K
}

func difference[K, V comparable](m *ebpf.Map, want map[K]V) (*change[K, V], error) {
	c := &change[K, V]{to: m, put: map[K]V{}}
	have := map[K]V{}
	var key K
	var value V
	it := m.Iterate()
	for it.Next(&key, &value) {
		have[key] = value
	}
	if err := it.Err(); err != nil {
		return nil, explain(err, "read %s", m)
	}
	for key, value := range want {
		if old, ok := have[key]; !ok || old != value {
			c.put[key] = value
		}
	}
	for key := range have {
		if _, ok := want[key]; !ok {
			c.forget = append(c.forget, key)
		}
	}
	return c, nil
}

func (c *change[K, V]) add() error {
	for key, value := range c.put {
		if err := c.to.Put(&key, &value); err != nil {
			return explain(err, "add to %s", c.to)
		}
	}
	return nil
}

func (c *change[K, V]) remove() error {
	for i := range c.forget {
		if err := c.to.Delete(&c.forget[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain(err, "remove from %s", c.to)
		}
	}
	return nil
}

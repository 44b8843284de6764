// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"net/netip"
	"slices"
)

// maxSteps bounds the work for one need. A set of policies that needs more is not judged to cover it.
const maxSteps = 20_000

// uncovered gives the parts of n that no ESP policy covers, in the order of addresses; none when all of n is covered. Policies are asked as the kernel
// asks them: the smallest priority first. Where two have the same, the worse one is taken to come first.
func uncovered(n need, policies []Policy) []need {
	var list []*Policy
	for i := range policies {
		if policies[i].concerns(n) {
			list = append(list, &policies[i])
		}
	}
	slices.SortStableFunc(list, func(a, b *Policy) int {
		switch {
		case a.Priority != b.Priority:
			if a.Priority < b.Priority {
				return -1
			}
			return 1
		case a.rank() != b.rank():
			return a.rank() - b.rank()
		}
		return 0
	})
	c := cover{steps: maxSteps}
	c.part(n, list)
	return c.missing
}

// rank orders policies of one priority from the worst to the best.
func (p *Policy) rank() int {
	switch {
	case !p.safe():
		return 0
	case p.Blocks:
		return 1
	}
	return 2
}

type cover struct {
	steps   int
	missing []need
}

// part judges one part of the need by the policies that concern it, the first one first. A policy that takes some of its addresses splits it; one that
// takes some of its packets by other marks than addresses counts only if it is bad.
func (c *cover) part(n need, list []*Policy) {
	if c.steps--; c.steps < 0 {
		c.miss(n)
		return
	}
	for i, p := range list {
		switch {
		case !p.safe() && (!p.certain(n) || within(p.Src, n.src) && within(p.Dst, n.dst)):
			c.miss(n) // all of it, or a part that is not told apart by addresses, passes in clear
			return
		case !p.certain(n):
			continue // what it protects is protected; the rest is for later ones
		case within(p.Src, n.src) && within(p.Dst, n.dst):
			if p.Blocks {
				c.miss(n) // nothing leaks, and nothing passes either
			}
			return
		}
		c.split(n, p, list[i:])
		return
	}
	c.miss(n)
}

// split halves the need along the address in which the policy is narrower, and judges the halves.
func (c *cover) split(n need, p *Policy, list []*Policy) {
	lower, upper := n, n
	if !within(p.Src, n.src) {
		lower.src, upper.src = halves(n.src)
	} else {
		lower.dst, upper.dst = halves(n.dst)
	}
	c.part(lower, concerning(lower, list))
	c.part(upper, concerning(upper, list))
}

func concerning(n need, list []*Policy) []*Policy {
	var some []*Policy
	for _, p := range list {
		if p.concerns(n) {
			some = append(some, p)
		}
	}
	return some
}

// miss notes a part, and joins it with the one before when they are halves of one.
func (c *cover) miss(n need) {
	for len(c.missing) > 0 {
		joined, ok := join(c.missing[len(c.missing)-1], n)
		if !ok {
			break
		}
		c.missing = c.missing[:len(c.missing)-1]
		n = joined
	}
	c.missing = append(c.missing, n)
}

func join(a, b need) (need, bool) {
	switch {
	case a.src == b.src:
		if p, ok := parent(a.dst, b.dst); ok {
			a.dst = p
			return a, true
		}
	case a.dst == b.dst:
		if p, ok := parent(a.src, b.src); ok {
			a.src = p
			return a, true
		}
	}
	return need{}, false
}

// parent is the prefix whose halves a and b are.
func parent(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 {
		return netip.Prefix{}, false
	}
	p := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	lower, upper := halves(p)
	return p, lower == a && upper == b
}

// halves splits a prefix that is longer than an address.
func halves(p netip.Prefix) (lower, upper netip.Prefix) {
	bits := p.Bits()
	raw := p.Addr().AsSlice()
	raw[bits/8] |= 1 << (7 - bits%8)
	a, _ := netip.AddrFromSlice(raw) // of the length that it had
	return netip.PrefixFrom(p.Addr(), bits+1), netip.PrefixFrom(a, bits+1)
}

// SPDX-License-Identifier: Apache-2.0

package ipsec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// rocePort is the UDP destination port of every packet of RoCEv2 and MRC.
const rocePort = 4791

// Site is one site of a domain.
type Site struct {
	Name     string
	Prefixes []netip.Prefix
	Gateways []netip.Addr
}

// Facts are what must be known of a domain and of this node.
type Facts struct {
	Port   uint16       // the CREM port
	VeRoCE uint16       // the UDP port of veRoCE, 0 where its flows are not protected
	Own    Site         // the site of this node
	Others []Site       // the other sites
	Local  []netip.Addr // all addresses of this node
	// IfIDs are those of the devices by which packets to and from a prefix of another site, or a gateway there (as the prefix
	// of one address), go: the if_id of an XFRM interface, 0 for every other device. A prefix that is not in it: 0.
	IfIDs map[netip.Prefix][]uint32
}

// ifIDs are those under which packets to and from a prefix must be covered.
func (f *Facts) ifIDs(p netip.Prefix) []uint32 {
	if ids, ok := f.IfIDs[p]; ok {
		return ids
	}
	return []uint32{0}
}

// Verdict says whether a domain is protected.
type Verdict struct {
	// Missing are selectors that no policy covers, and what else keeps IPsec from protecting the domain, in words. Empty: it is protected.
	Missing []string
	// Messages: the CREM messages that this node sends are covered, whatever else is missing.
	Messages bool
}

// OK reports whether the domain is protected.
func (v *Verdict) OK() bool { return len(v.Missing) == 0 }

// shown is how many selectors a sentence names.
const shown = 3

// String is a sentence for people: what is missing.
func (v *Verdict) String() string {
	if v.OK() {
		return ""
	}
	s := strings.Join(v.Missing[:min(shown, len(v.Missing))], "; ")
	if more := len(v.Missing) - shown; more > 0 {
		s += fmt.Sprintf("; and %d more", more)
	}
	return s
}

// Check decides whether the policies cover the domain: CREM messages between this node's gateway addresses and those of the other sites, and RDMA
// packets between the prefixes of the own site and those of the others, each in both directions, for each address family that both ends have, and under
// the if_id of each device by which they go.
func Check(policies []Policy, f Facts) Verdict {
	needs, problems := f.needs()
	v := Verdict{Missing: problems, Messages: len(problems) == 0}
	for _, n := range needs {
		for _, part := range uncovered(n, policies) {
			v.Missing = append(v.Missing, "no ESP policy covers "+part.String())
			v.Messages = v.Messages && (!n.message || n.dir != Out)
		}
	}
	return v
}

// needs are the sets of packets that must be covered, and in sentences why there is more to do.
func (f *Facts) needs() (needs []need, problems []string) {
	mine := slices.DeleteFunc(slices.Clone(f.Own.Gateways), func(a netip.Addr) bool { return !slices.Contains(f.Local, a) })
	if len(mine) == 0 {
		problems = append(problems, fmt.Sprintf("none of this node's addresses is among the gateways of site %s: name there the address that the policies protect", f.Own.Name))
	}
	flows := false
	for _, other := range f.Others {
		if len(other.Gateways) == 0 {
			problems = append(problems, fmt.Sprintf("site %s names no gateways: CREM messages that are taken on their path are in no policy's selector, so name its gateways", other.Name))
		}
		met := false
		for _, a := range mine {
			for _, b := range other.Gateways {
				if a.Is4() != b.Is4() {
					continue
				}
				met = true
				one, two, port := host(a), host(b), Exactly(f.Port)
				for _, id := range f.ifIDs(two) {
					needs = append(needs, need{Out, one, two, port, port, true, id}, need{In, two, one, port, port, true, id})
				}
			}
		}
		if !met && len(mine) > 0 && len(other.Gateways) > 0 {
			problems = append(problems, fmt.Sprintf("this node and the gateways of site %s have no address family in common: name gateways of the same family", other.Name))
		}
		for _, p := range f.Own.Prefixes {
			for _, q := range other.Prefixes {
				if p.Addr().Is4() == q.Addr().Is4() {
					needs = append(needs, f.flow(p, q, rocePort)...)
					if f.VeRoCE != 0 {
						needs = append(needs, f.flow(p, q, f.VeRoCE)...)
					}
					flows = true
				}
			}
		}
	}
	if !flows {
		problems = append(problems, fmt.Sprintf("site %s and the other sites have no address family in common, so there is no flow to protect", f.Own.Name))
	}
	return needs, problems
}

// flow is what RDMA packets between two prefixes to a UDP port need: what comes is forwarded, or for this node itself.
func (f *Facts) flow(own, other netip.Prefix, port uint16) []need {
	var list []need
	to := Exactly(port)
	for _, id := range f.ifIDs(other) {
		list = append(list, need{Out, own, other, Ports{}, to, false, id}, need{Forward, other, own, Ports{}, to, false, id})
		for _, a := range f.Local {
			if own.Contains(a) {
				list = append(list, need{In, other, host(a), Ports{}, to, false, id})
			}
		}
	}
	return list
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

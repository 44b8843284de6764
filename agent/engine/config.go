// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/csf"
	"crem.dev/crem/agent/roce"
)

// Config is what the packet workers obey. It is immutable: a change is a new Config, given to Apply.
type Config struct {
	Generation int64
	Domains    []Domain
	// Provisional: this is what was wanted last, and may not be all that is wanted now. Programs that an earlier agent left on interfaces which are no
	// uplinks here stay until a configuration comes that is not provisional.
	Provisional bool
}

// Domain is one CREMDomain as it concerns this node.
type Domain struct {
	Name      string
	Port      uint16         // the CREM port (Section 3); never 0
	Site      string         // name of this node's own entry in Sites
	Sites     []Site         // all sites, the own one included
	Reporters []netip.Prefix // the only senders of PATH_REPORT that are believed (Section 11)
	// ReportDrops makes the node a Path Reporter of what its uplinks dropped (Section 8.2).
	ReportDrops bool
	Uplinks     []string // interface names; empty: the interfaces that route to other sites
	Rules       []Rule   // most specific first; the first rule that takes a flow decides; no rule: not protected
	WAN         *WAN     // nil: no flow travels in a tunnel
	// RequireIPsec: nothing is protected, and no HELLO sent or answered, without XFRM policies (Section 11).
	RequireIPsec bool
	// MaxRepairBandwidth bounds the node's repair traffic in bits per second (Section 10); 0: no bound.
	MaxRepairBandwidth int64
	// Transports are those whose flows are protected beside RoCEv2's. What two domains of a node say of the same transport must agree; the first one that
	// names it decides.
	Transports roce.Transports

	security security // of a domain with RequireIPsec; filled in by the engine
}

// Site is one site of a domain.
type Site struct {
	Name     string
	Prefixes []netip.Prefix
	Gateways []netip.Addr // empty: HELLO goes to the flow's destination and is taken on the path
}

// WAN is the tunnels of a domain (docs/wan-ecn.md).
type WAN struct {
	Sites         []string // other sites that tunnels lead to
	Compatibility bool     // outer headers are Not-ECT always
	PathMTU       int      // octets of the largest IP packet between gateways; 0: the uplinks'
	LeastRate     int64    // octets per second that congestion leaves every flow
	Queue         Queue    // of the uplink, by which outer headers are marked; the zero value: by none
	Measure       bool     // loss and change of delay by Alternate Marking
}

// Queue is two thresholds of an average queue, in octets; Severe is over Early.
type Queue struct{ Early, Severe int64 }

// Rule says which profile protects which flows.
type Rule struct {
	Profile      *Profile
	Sources      []netip.Prefix // empty: any source of the own site
	Pods         *Pods          // nil: any; else the flow's end in the own site must be one of them
	Destinations []string       // names of sites; empty: every other site
}

// Profile is a CREMProfile resolved to numbers. CSF.PathMTU is set by the engine from the uplink, and where CRF.HoldBytes is 0, it and ReplayBytes from
// maxHold and the memory of a worker.
type Profile struct {
	Name string
	CSF  csf.Params
	CRF  crf.Params
}

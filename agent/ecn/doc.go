// SPDX-License-Identifier: Apache-2.0

// Package ecn is ECN in a managed WAN domain between the sites: what an agent does as ingress PE, as marking node and as egress
// PE of IP-in-IP tunnels. docs/wan-ecn.md says what it is for and where its rules come from; everything here is off by default.
//
// Where to find a rule:
//
//	codepoint.go  the ECN field
//	table.go      outer field at the ingress, inner field at the egress (RFC 6040, with the early warning of the domain)
//	header.go     fields of IPv4 and IPv6 headers, checksums
//	tunnel.go     encapsulation: outer headers written
//	egress.go     decapsulation: outer headers read, ECN of the inner packet set
//	mtu.go        what is left for the inner packet
//	notice.go     odd combinations, limited for logging
//	marker.go     two thresholds on the average queue
//	cnp.go        the in-domain congestion notification packet (CNP): layout and parser
//	lease.go      the message by which two gateways agree on a tunnel
//	readings.go   the message of what arrived by a tunnel, flow by flow
//	sender.go     CNPs of a marking node, limited
//	receiver.go   which CNPs an ingress PE believes
//	reaction.go   what an ingress PE does for a flow: repair share, tunnel rate, congested flag
//	stats.go      reasons and counters
//
// The package is pure: time is an argument, randomness is injected, nothing allocates per packet, and every table has a bound.
// Nothing here is safe for concurrent use; each worker has its own.
package ecn

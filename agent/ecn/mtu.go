// SPDX-License-Identifier: Apache-2.0

package ecn

import "net/netip"

// Overhead returns the octets that a tunnel to remote adds to a packet: one outer header without options.
func Overhead(remote netip.Addr) int {
	if remote.Is4() {
		return ipv4Len
	}
	return ipv6Len
}

// InnerMTU returns the octets that are left for the inner packet, header included, on a path with an IP MTU of path octets.
// options is what else is added to the outer header, such as an AltMark option; 0 if nothing is left.
func InnerMTU(path int, remote netip.Addr, options int) int {
	return max(path-Overhead(remote)-options, 0)
}

// NeededMTU returns the path MTU in octets that an inner packet of inner octets needs.
func NeededMTU(inner int, remote netip.Addr, options int) int {
	return inner + Overhead(remote) + options
}

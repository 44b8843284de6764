// SPDX-License-Identifier: Apache-2.0

package wire

import "crem.dev/crem/agent/roce"

const (
	lengthPrefix = 2 // of a source symbol (Section 4.1)
	invariantCRC = 4
	ipv4Header   = 20
	ipv6Header   = 40
	udpHeader    = 8
)

// NeededMTU is the IP MTU of an uplink, in octets, over which every REPAIR of packets of an RDMA MTU fits with the don't-fragment bit
// set (Section 4): the largest source packet of RC, a WRITE in one packet with immediate data, with its length prefix, and the
// largest head of a REPAIR of a block of k. IPsec needs more.
func NeededMTU(rdmaMTU, k int, ipv6 bool) int {
	symbol := (roce.WriteOnlyImm.HeaderLen() + rdmaMTU + invariantCRC + lengthPrefix + 3) &^ 3
	ip := ipv4Header
	if ipv6 {
		ip = ipv6Header
	}
	return ip + udpHeader + RepairOverhead(k, true, true) + symbol
}

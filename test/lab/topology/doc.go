// SPDX-License-Identifier: Apache-2.0

// Package topology makes the lab: two sites with a host and a gateway each, and a WAN between the gateways, as five network namespaces of one machine.
//
//	hostA eth0 --- lan0 gwA wan0 --- a0 (wan) b0 --- wan0 gwB lan0 --- eth0 hostB
//	10.1.0.2     10.1.0.1  192.0.2.1          198.51.100.1  10.2.0.1     10.2.0.2
//	fd00:1::2    fd00:1::1  2001:db8:a::1    2001:db8:b::1  fd00:2::1    fd00:2::2
//
// The namespace wan has no address: a program joins its two interfaces. All neighbours are static and all offloads off, so that every frame is one that a
// wire carries and no frame is there but those of the test.
//
// Namespaces have no names and no files. Each belongs to one thread of this process and ends with it, and so do the programs that run there: nothing is left
// behind, however the process ends.
package topology

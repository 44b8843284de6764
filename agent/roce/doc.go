// SPDX-License-Identifier: Apache-2.0

// Package roce reads and rebuilds RoCEv2 packets: Ethernet, IPv4 or IPv6, UDP port 4791, InfiniBand Base
// Transport Header (BTH) and its extension headers, payload, invariant CRC (ICRC).
//
// It knows what CREM needs and no more: 24-bit PSN arithmetic (psn.go), opcodes and their PSN spaces
// (opcode.go), a view of one frame (packet.go), what an answer confirms (aeth.go), the ICRC (icrc.go) and the
// IPv4 Identification that it covers (template.go), the headers of a restored packet (head.go), and whether
// restored octets can have been a source packet at all (plausible.go).
//
// The package is pure: no clock, no goroutine, no I/O, no allocation per packet.
package roce

// SPDX-License-Identifier: Apache-2.0

// Package wire is the CREM messages (Section 9): for each type X a struct, ParseX and Append.
//
// Parsing is strict where two ends could understand different things: a message whose Length is not that of the
// datagram, or not exactly the size that its type, flags and counts give, is refused. It is lenient where the protocol leaves
// room to grow: reserved bits, unknown flags and bits past k in a bitmap are ignored, and sent as zero.
//
// Nothing allocates. What a parsed message has of variable length (symbol, ranges, dropped PSNs) aliases the datagram and is
// valid as long as that is; Append copies everything. The caller keeps a message within the path MTU, so well below the
// 65535 octets that Length can name.
package wire

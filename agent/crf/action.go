// SPDX-License-Identifier: Apache-2.0

package crf

import "net/netip"

// ActionKind says what an Action asks for.
type ActionKind uint8

const (
	// Send asks to send a CREM message.
	Send ActionKind = iota
	// Inject asks to put a packet into the uplink's receive path.
	Inject
)

// Action is one thing that a Flow wants done. Actions must be done in the order of the slice; all octets in them are valid
// until Pool.Reclaim.
type Action struct {
	Kind ActionKind

	// Send: the message Msg goes to To, from the CREM port of address From (the zero Addr: the kernel chooses), with the
	// flow's DSCP and ECT(0) as TOS, and the don't-fragment bit set.
	To   netip.AddrPort
	From netip.Addr
	TOS  uint8
	Msg  []byte

	// Inject: the packet is Head followed by Payload: Ethernet, IP and UDP header, then BTH to ICRC. It is either one that
	// arrived held, unchanged, or one that was restored.
	Head, Payload []byte
}

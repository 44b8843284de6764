// SPDX-License-Identifier: Apache-2.0

// Package bridge joins two Ethernet interfaces by two wan.Lines: what arrives at one leaves at the other as late, as often and as seldom as the line
// says. It is the WAN of the lab, in one thread.
//
// A frame waits in the slot of the receive ring where the kernel put it and is sent from there: user space never copies it. It is dated by the
// kernel's receive time, so that a late wake-up of this thread does not lengthen the path unless it exceeds the delay.
package bridge

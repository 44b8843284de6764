// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// The invariant CRC that is put together from parts is that of the whole packet.
func TestNumberedPacketsAreValid(t *testing.T) {
	h := frames.Headers{Src: netip.MustParseAddr("10.1.0.2"), Dst: netip.MustParseAddr("10.2.0.2"), TOS: 2}
	for _, data := range []int{1024, 4096} {
		n := newNumbered(h, data)
		frame := append([]byte(nil), n.model...)
		for _, psn := range []roce.PSN{0, 1, 0xff, 0x100, 0x12345, 0xabcdef, 0xffffff, 0x400} {
			n.set(frame, psn)
			p, reason := roce.Parse(frame)
			if reason != roce.OK || !roce.CheckICRC(&p) || p.PSN() != psn || p.AckReq() != (psn%askEvery == 0) {
				t.Errorf("%d octets, %v: %v, PSN %v, ICRC right %v, AckReq %v", data, psn, reason, p.PSN(), roce.CheckICRC(&p), p.AckReq())
			}
		}
		if frame[len(frame)-5]++; func() bool { p, _ := roce.Parse(frame); return roce.CheckICRC(&p) }() {
			t.Error("a changed packet has a right ICRC")
		}
	}
}

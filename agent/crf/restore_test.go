// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"testing"
	"time"

	"crem.dev/crem/agent/fec"
)

func TestSection6_1_LostPacketRestoredInOrder(t *testing.T) {
	for name, opts := range map[string][]option{"IPv4": nil, "IPv6": {ipv6}, "no digest": {noDigest}} {
		t.Run(name, func(t *testing.T) {
			w := configured(t, fec.Cauchy, 8, 2, opts...)
			w.packets(100, 8, 103, 105)
			if got := w.psns(); len(got) != 3 {
				t.Fatalf("before the repairs: %v", got)
			}
			w.repair(w.src.repair(100, 8, 0))
			if len(w.out) != 3 {
				t.Fatalf("one symbol for two losses gave %v", w.psns())
			}
			w.repair(w.src.repair(100, 8, 1))
			w.wantOrder(100, 8)
			w.wait(time.Second)
			w.packets(108, 8)
			w.wantOrder(100, 16)
			if len(w.requests()) != 0 {
				t.Error("asked for a block that was complete")
			}
			if s := w.f.Stats(); s.Restored != 2 || s.Decodes != 1 || s.Blocks != 1 || s.Completed != 1 || s.MemoryOctets > 9*cellOctets(testT) {
				t.Errorf("%+v", *s)
			}
		})
	}
}

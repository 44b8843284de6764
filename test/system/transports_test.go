// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"crem.dev/crem/agent/roce"
)

// TestSection4_4_ProtectedIfTheDomainSaysSo: a stream of veRoCE or MRC, each packet with a source port of its own, passes as it is until spec.transports
// names its transport. From then on what the path loses is restored, with source port and Identification, every octet of it; the books balance.
func TestSection4_4_ProtectedIfTheDomainSaysSo(t *testing.T) {
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		t.Run(transport.String(), func(t *testing.T) {
			w := newWorld(t, options{path: lossy(), profile: `{k: 32}`})
			w.discard(w.lab.HostB)
			s := w.stream(streamOptions{rate: 3000, transport: transport})
			s.moves(3000)
			for _, g := range []*gateway{w.a, w.b} {
				if n := len(g.flows("csf")) + len(g.flows("crf")); n > 0 {
					t.Fatalf("%s: %d flows without the domain's word", g.ns.Name, n)
				}
			}
			w.o.domain = fmt.Sprintf("  transports: {%s: {}}\n", strings.ToLower(transport.String()))
			for _, g := range []*gateway{w.a, w.b} {
				g.writeDomain(true)
				g.signal(syscall.SIGHUP)
			}
			w.awaitProtecting(1)
			before := w.lostOnPath()
			s.moves(10_000)
			sent, got := s.end()
			f, lost := w.b.one("crf"), w.lostOnPath()
			missing, restored := sent-got.distinct, int(f.Restored)
			t.Logf("%d sent, %d lost on the path, %d of them before there was protection, %d restored, %d missing, %d twice, %d out of order", sent, lost, before, restored, missing, got.twice, got.order)
			if restored*2 < lost-before || f.Transport != transport.String() || f.Held > 0 {
				t.Errorf("%+v", f)
			}
			if missing+restored-got.twice != lost {
				t.Errorf("%d missing and %d restored (%d of them twice there) are not the %d lost", missing, restored, got.twice, lost)
			}
			by := w.a.status().Flows.ProtectedBy
			if by[transport.String()] != 1 || by[roce.RoCEv2.String()] != 0 {
				t.Errorf("protected flows by transport: %v", by)
			}
		})
	}
}

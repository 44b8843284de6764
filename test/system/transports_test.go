// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestMultipathTransfers: RDMA WRITEs by endpoints that speak veRoCE or MRC, over 2 % of loss, both ways at once. The transport repairs by itself what CREM
// does not restore in time, which is less than half of what it repairs without; whoever was first, every message is complete and every octet right.
// The unsettled numbers are those of the domain: its agents free blocks by acknowledgements, and tell retransmissions by their flag.
func TestMultipathTransfers(t *testing.T) {
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		t.Run(transport.String(), func(t *testing.T) {
			alone := multipathTransfer(t, transport, false, false)
			for _, ipv6 := range []bool{false, true} {
				if again := multipathTransfer(t, transport, ipv6, true); again*2 > alone {
					t.Errorf("IPv6 %v: the transport sent %.4f of its packets again, and %.4f without CREM", ipv6, again, alone)
				}
			}
		})
	}
}

// multipathTransfer transfers both ways, and returns which part of their packets the endpoints sent again.
func multipathTransfer(t *testing.T, transport roce.Transport, ipv6, protected bool) (again float64) {
	o := rdma()
	o.Transport, o.Multipath.SACK, o.Multipath.RetransmissionBit, o.Multipath.RTT = transport, 0xe1, 4, 10*time.Millisecond
	setup := options{path: lossy(), domain: `  transports:
    veroce: {sackOpcode: 0xe1, retransmissionBit: 4}
    mrc: {retransmissionBit: 4}
`}
	setup.path.Loss = 0.02
	if protected {
		setup.profile = proactive
	}
	w := newWorld(t, setup)
	there, back := w.transfer(o, ipv6, false), w.transfer(o, ipv6, true)
	for _, d := range []*done{there.end(), back.end()} {
		t.Logf("protected %v, IPv6 %v: %d messages in %.1f ms each, %d NAKs, %d timeouts, sent over needed %.4f", protected, ipv6,
			d.requester.Messages, d.requester.MCT.Mean, d.requester.NAKs, d.requester.Timeouts, d.requester.SentOverNeeded)
		again += (d.requester.SentOverNeeded - 1) / 2
	}
	if !protected {
		return again
	}
	flagged, repeated := uint64(0), uint64(0)
	for _, g := range []*gateway{w.a, w.b} {
		csf, crf := g.one("csf"), g.one("crf")
		flagged, repeated = flagged+crf.Counters["late_flagged_as_retransmission"], repeated+csf.Counters["retransmitted"]
		if csf.Transport != transport.String() || crf.Transport != transport.String() || crf.Restored == 0 || crf.Held > 0 || csf.Counters["blocks_acked"] == 0 {
			t.Errorf("%s: %+v, %+v", g.ns.Name, csf, crf)
		}
		t.Logf("%s: restored %d, blocks freed by acknowledgements %d", g.ns.Name, crf.Restored, csf.Counters["blocks_acked"])
	}
	if flagged == 0 {
		t.Errorf("none of %d retransmissions was told by its flag", repeated)
	}
	return again
}

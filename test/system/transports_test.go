// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/sim/rc"
	"crem.dev/crem/test/lab/calm"
	"crem.dev/crem/test/lab/endpoint"
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
				leftOut := calm.Judge(t, func() (wrong, disturbed string) {
					if again := multipathTransfer(t, transport, ipv6, true); again*2 > alone {
						wrong = fmt.Sprintf("IPv6 %v: the transport sent %.4f of its packets again, and %.4f without CREM", ipv6, again, alone)
					}
					return wrong, ""
				})
				if leftOut != "" {
					t.Skip(leftOut)
				}
			}
		})
	}
}

// unsettled are the numbers of veRoCE and MRC that both ends and both agents go by here.
const unsettled = `  transports:
    veroce: {sackOpcode: 0xe1, responseACKOpcode: 0xe2, responseSACKOpcode: 0xe3, retransmissionBit: 4}
    mrc: {retransmissionBit: 4}
`

// multipathWorld is a lossy path with or without CREM, and endpoints of a transport.
func multipathWorld(t *testing.T, transport roce.Transport, protected bool) (*world, endpoint.Options) {
	t.Helper()
	o := rdma()
	o.Transport = transport
	m := &o.Multipath
	m.SACK, m.ResponseACK, m.ResponseSACK, m.RetransmissionBit, m.RTT = 0xe1, 0xe2, 0xe3, 4, 10*time.Millisecond
	setup := options{path: lossy(), domain: unsettled}
	setup.path.Loss = 0.02
	if protected {
		setup.profile = proactive
	}
	return newWorld(t, setup), o
}

// Section 4.4, rules 2, 3 and 6: RDMA READs by endpoints that speak veRoCE, over 2 % of loss. Requests and responses are two flows, in PSN spaces and with
// acknowledgements of their own; those of responses free the blocks of the gateway that responses leave by. The responder repeats less than half of what
// it repeats without CREM, and every octet that was read is right.
func TestVeRoCEReads(t *testing.T) {
	read := func(protected bool) (again float64, w *world) {
		w, o := multipathWorld(t, roce.VeRoCE, protected)
		o.Op = rc.Read
		d := w.transfer(o, false, false).end()
		again = d.responder.SentOverNeeded - 1
		t.Logf("protected %v: %d messages in %.1f ms each, responses sent over needed %.4f, requests %.4f", protected, d.requester.Messages, d.requester.MCT.Mean,
			d.responder.SentOverNeeded, d.requester.SentOverNeeded)
		if d.responder.Needed < 1000 {
			t.Errorf("%d responses", d.responder.Needed)
		}
		return again, w
	}
	alone, _ := read(false)
	leftOut := calm.Judge(t, func() (wrong, disturbed string) {
		again, w := read(true)
		if again*2 > alone {
			wrong = fmt.Sprintf("the responder sent %.4f of its packets again, and %.4f without CREM", again, alone)
		}
		requests, responses := w.a.one("csf"), w.b.one("csf")
		if requests.Space != roce.Request.String() || responses.Space != roce.Response.String() || responses.Counters["blocks_acked"] == 0 {
			t.Errorf("requests %+v, responses %+v", requests, responses)
		}
		f := w.a.one("crf")
		if f.Restored == 0 || f.Held > 0 || f.Space != responses.Space || f.Transport != roce.VeRoCE.String() {
			t.Errorf("responses arrive: %+v", f)
		}
		t.Logf("responses: restored %d, blocks freed by acknowledgements %d", f.Restored, responses.Counters["blocks_acked"])
		return wrong, ""
	})
	if leftOut != "" {
		t.Skip(leftOut)
	}
}

// multipathTransfer transfers both ways, and returns which part of their packets the endpoints sent again.
func multipathTransfer(t *testing.T, transport roce.Transport, ipv6, protected bool) (again float64) {
	w, o := multipathWorld(t, transport, protected)
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

// TestSection4_4_SwitchedOff: a transport that the domain no longer names is let go, by agents that are told, and by agents that find in pinned maps what those
// before them left there, killed before they were told. Its flows end at both ends, the kernel keeps no entry of them, and each packet passes once, in order.
func TestSection4_4_SwitchedOff(t *testing.T) {
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		t.Run(transport.String(), func(t *testing.T) {
			w := newWorld(t, options{wire: true, profile: `{k: 32}`})
			w.discard(w.lab.HostB)
			s := w.stream(streamOptions{rate: 3000, transport: transport})
			named := fmt.Sprintf("  transports: {%s: {}}\n", strings.ToLower(transport.String()))
			gateways := []*gateway{w.a, w.b}
			say := func(domain string, then func(g *gateway)) {
				w.o.domain = domain
				for _, g := range gateways {
					g.writeDomain(true)
					then(g)
				}
			}
			told := func(g *gateway) { g.signal(syscall.SIGHUP) }
			ended := func(when string) {
				t.Helper()
				w.eventually("no flow of it, "+when, func() bool {
					for _, g := range gateways {
						if flows, recognised := g.kernelFlows(); flows+recognised+len(g.flows("crf"))+len(g.protecting("csf")) > 0 {
							return false
						}
					}
					return true
				})
				s.moves(3000)
				for _, g := range gateways {
					g.wantPrograms(1, when)
				}
			}
			protected := func(then func(g *gateway)) {
				t.Helper()
				say(named, then)
				w.awaitProtecting(1)
				if flows, recognised := w.b.kernelFlows(); flows != 1 || recognised == 0 {
					t.Fatalf("the kernel has %d flows, recognises %d", flows, recognised)
				}
				s.moves(3000)
			}
			protected(told)
			say("", told)
			ended("agents are told")
			protected(told)
			for _, g := range gateways {
				g.kill()
			}
			if flows, _ := w.b.kernelFlows(); flows != 1 {
				t.Fatalf("%d flows are left of an agent that was killed", flows)
			}
			s.moves(3000)
			say("", func(g *gateway) {
				g.start()
				g.awaitAttached()
			})
			ended("agents are new")
			protected(told)
			sent, got := s.end()
			if got.distinct != sent || got.order > 0 || got.twice > 0 {
				t.Errorf("%d packets lost (%v), %d out of order, %d twice", sent-got.distinct, got.missing(sent), got.order, got.twice)
			}
		})
	}
}

// kernelFlows returns how many flows the pinned maps of a gateway have, and how many of the transports beside RoCEv2 they say are recognised.
func (g *gateway) kernelFlows() (flows, recognised int) {
	g.w.t.Helper()
	g.w.do(g.ns, func() error {
		open := func(name string) (*ebpf.Map, error) {
			found, err := filepath.Glob("/sys/fs/bpf/crem/maps-*/" + name)
			if err != nil || len(found) != 1 {
				return nil, fmt.Errorf("pinned maps %s: %v, %w", name, found, err)
			}
			return ebpf.LoadPinnedMap(found[0], &ebpf.LoadPinOptions{ReadOnly: true})
		}
		index, err := open("crem_flow_index")
		if err != nil {
			return err
		}
		defer index.Close()
		var key, value []byte
		entries := index.Iterate()
		for entries.Next(&key, &value) {
			flows++
		}
		transports, err := open("crem_transports")
		if err != nil {
			return errors.Join(err, entries.Err())
		}
		defer transports.Close()
		var settings [2]uint16 // port of veRoCE, MRC
		err = transports.Lookup(uint32(0), &settings)
		for _, on := range settings {
			if on != 0 {
				recognised++
			}
		}
		return errors.Join(err, entries.Err())
	})
	return flows, recognised
}

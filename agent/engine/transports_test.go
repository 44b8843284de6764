// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/crf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/agent/wire"
)

// Section 4.4, rules 3 and 6: where the domain says so, flows of veRoCE and MRC are protected by themselves; what the path loses is restored octet for octet,
// with the source port of every packet, and their acknowledgements free what the sender keeps.
func TestSection4_4_MultipathRestored(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
			w := newWorld(t, sh, setting{immediate: true, multipath: true})
			q := w.connectAs(transport, 1000)
			for _, r := range q.requests {
				r.protect()
				for range 20 {
					r.trickle(5)
					w.nodes[r.from].lose.sources = 1
					r.trickle(6)
					r.repeat(r.next.Add(-3), 2, true)
				}
				w.pass(time.Second)
				r.all()
				if r.restored < 20 {
					t.Errorf("%v: %d packets restored", transport, r.restored)
				}
				f := r.sender()
				if f.back == nil || f.machine.Stats().BlocksAcked == 0 {
					t.Errorf("%v: acknowledgements are not understood: %+v", transport, f.machine.Stats())
				}
				if id := f.describe().ID; !strings.HasSuffix(id, "/"+transport.String()) {
					t.Errorf("the flow is called %s", id)
				}
			}
			w.check()
			w.finish()
		}
	})
}

// Section 4.4, rules 2 and 6: responses of veRoCE are a flow with acknowledgements of its own. Those of the requests that the same queue pair sends at the same
// PSNs confirm none of them.
func TestSection4_4_ResponsesOfVeRoCE(t *testing.T) {
	workers(t, func(t *testing.T, sh shape) {
		w := newWorld(t, sh, setting{immediate: true, multipath: true})
		q := w.connectAs(roce.VeRoCE, 1000)
		both := []*stream{q.requests[east], q.responses[east]}
		for _, s := range both {
			s.protect()
		}
		for range 20 {
			for _, s := range both {
				s.trickle(11)
			}
			w.nodes[east].lose.sources = 1
			both[1].trickle(1)
		}
		w.pass(time.Second)
		for i, s := range both {
			s.all()
			f := s.sender()
			if f.back == nil || f.back.key.space != s.key.Space || f.machine.Stats().BlocksAcked == 0 {
				t.Errorf("%v: acknowledgements are not understood: %+v", s.key, f.machine.Stats())
			}
			if i == 1 && s.restored < 20 {
				t.Errorf("%d responses restored", s.restored)
			}
		}
		w.check()
		w.finish()
	})
}

// Section 4.4, rule 3: a HELLO without the digest is as one for a kind that is not known. It takes the place of nothing.
func TestSection4_4_NoDigestNoFlow(t *testing.T) {
	w := newWorld(t, shape{workers: 1, seed: 1}, setting{immediate: true, multipath: true, onPath: true})
	s := w.connectAs(roce.MRC, 1000).requests[east]
	s.protect()
	old := s.receiver()
	h := wire.Hello{Flow: descriptor(s.key), Schemes: 3, MaxK: 255, MaxM: 4, MaxT: 9000, MTU: rdmaMTU, Nonce: 7}
	for _, extensions := range []uint16{0, wire.ExtDigest} {
		h.Extensions = extensions
		w.message(netip.AddrPortFrom(s.key.Src, cremPort), s.key.Dst, cremPort, h.Append(nil))
		w.pass(10 * time.Millisecond)
		if r := s.receiver(); (r == old) != (extensions == 0) {
			t.Errorf("extensions %#x: replaced %v", extensions, r != old)
		}
	}
}

// Section 4.4, rule 5: a domain that does not say so protects no flow of them, neither one that leaves nor one that arrives, although the node reads them.
func TestSection4_4_TheOwnDomainSays(t *testing.T) {
	cfg := required()
	cfg.Domains[0].RequireIPsec = false
	cfg.Domains = append(cfg.Domains, Domain{Name: "other", Port: 52001, Transports: worldTransports})
	d := &cfg.Domains[0]
	for _, says := range []bool{false, true} {
		if says {
			d.Transports = worldTransports
		}
		for _, transport := range roce.AllTransports() {
			out, in := flow("10.1.0.5", "10.2.0.5"), flow("10.2.0.5", "10.1.0.5")
			out.Transport, in.Transport = transport, transport
			want := says || transport == roce.RoCEv2
			if got := cfg.judge("wan0", out).profile != nil; got != want {
				t.Errorf("%v leaves, the domain says so %v: protected %v", transport, says, got)
			}
			if got := cfg.receivingProfile(d, in) != nil; got != want {
				t.Errorf("%v arrives, the domain says so %v: protected %v", transport, says, got)
			}
		}
	}
}

// Section 4.4, rule 6: an acknowledgement confirms packets of its own transport and space.
func TestSection4_4_WhoseAcknowledgement(t *testing.T) {
	f := &sendFlow{key: roce.FlowKey{Transport: roce.VeRoCE, Space: roce.Response}}
	for _, k := range wire.Kinds() {
		transport, space, _ := k.Space()
		key := backKey{transport: transport, space: space}
		if got := key.of(f); got != (k == wire.KindVeRoCEResponse) {
			t.Errorf("%v: %v", k, got)
		}
	}
}

// Section 4.4, rule 4: the kernel holds no packet of these kinds, whatever the profile says.
func TestSection4_4_NeverHeld(t *testing.T) {
	for _, transport := range roce.AllTransports() {
		want := packet.InOrder
		if transport.Multipath() {
			want = packet.Immediate
		}
		if got := modeOf(&Profile{CRF: crf.Params{Delivery: crf.InOrder}}, roce.FlowKey{Transport: transport}); got != want {
			t.Errorf("%v: %v", transport, got)
		}
	}
}

// Section 4.4, rule 5: without the domain's word they pass as if there were no agent, and nothing is recognised.
func TestSection4_4_OffByDefault(t *testing.T) {
	w := newWorld(t, shape{workers: 1, seed: 1}, setting{immediate: true})
	for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
		s := w.connectAs(transport, 1000).requests[east]
		s.trickle(20)
		w.pass(time.Second)
		s.all()
		if f := s.sender(); f != nil {
			t.Errorf("%v: %+v", transport, f.describe())
		}
	}
	w.finish()
}

// A transport that a domain gives up is let go, and one that two domains read in two ways is protected for the first alone.
func TestTransportsOfDomains(t *testing.T) {
	w := newWorld(t, shape{workers: 1, seed: 1}, setting{immediate: true, multipath: true})
	s := w.connectAs(roce.MRC, 1000).requests[east]
	s.protect()
	for _, n := range w.nodes {
		var told []string
		n.recognise = func(r packet.Recognised) { // the kernel lets go of it when no worker has a flow of it any more
			kept := r.MRC && r.VeRoCEPort != 0
			for _, k := range n.engine.workers {
				obeys := k.seenSnap.Load() == n.engine.numbers && n.engine.snap.Load().cfg.Generation == n.numbers
				told = append(told, fmt.Sprintf("recognised %v, obeyed %v", kept, obeys))
			}
		}
		n.apply(setting{immediate: true})
		if want := []string{"recognised true, obeyed false", "recognised false, obeyed true"}; !slices.Equal(told, want) {
			t.Errorf("%s: %q, want %q", siteNames[n.site], told, want)
		}
	}
	s.trickle(5)
	w.pass(100 * time.Millisecond)
	if f := s.sender(); f.machine != nil || !strings.Contains(f.verdict.why, "does not protect MRC") {
		t.Errorf("%+v", f.describe())
	}
	if r := s.receiver(); r != nil && r.machine.State().String() != "Closed" {
		t.Errorf("%+v", r.describe())
	}
	w.finish()

	c := Config{Domains: []Domain{{Transports: worldTransports}, {Transports: worldTransports}, {}}}
	c.Domains[1].Transports.MRC.Retransmission, c.Domains[1].Transports.VeRoCE.Retransmission = 0x10, 0x10
	all := c.transports()
	for i, want := range []bool{true, false, false} {
		for _, transport := range []roce.Transport{roce.VeRoCE, roce.MRC} {
			if got := c.protects(&c.Domains[i], transport); got != want {
				t.Errorf("domain %d protects %v: %v", i, transport, got)
			}
		}
		if !c.protects(&c.Domains[i], roce.RoCEv2) {
			t.Errorf("domain %d does not protect RoCEv2", i)
		}
	}
	c.Domains[2].Port = worldTransports.VeRoCE.Port
	if c.transports().VeRoCE.Enabled || c.protects(&c.Domains[0], roce.VeRoCE) {
		t.Error("a CREM port is taken for that of veRoCE")
	}
	// Section 11: where IPsec is required, policies must cover veRoCE's port too.
	if a, b := c.Domains[0].ipsecFacts(nil), c.Domains[2].ipsecFacts(nil); a.VeRoCE != worldTransports.VeRoCE.Port || b.VeRoCE != 0 {
		t.Errorf("policies are asked for with port %d of veRoCE, and %d", a.VeRoCE, b.VeRoCE)
	}
	without := Config{Domains: []Domain{{}}}
	if got := without.until(&all); got.VeRoCE != all.VeRoCE || got.MRC != all.MRC {
		t.Errorf("until workers obey %+v is recognised", got)
	}
	without.Domains[0].Port = worldTransports.VeRoCE.Port
	if got := without.until(&all); got.VeRoCE.Enabled || !got.MRC.Enabled {
		t.Errorf("on a CREM port %+v is recognised", got)
	}
	other := Config{Domains: []Domain{{Transports: worldTransports}}}
	other.Domains[0].Transports.VeRoCE.Port, other.Domains[0].Transports.MRC.Retransmission = 4795, 0x20
	if got := other.until(&all); got != all {
		t.Errorf("until workers obey another port, %+v is recognised", got)
	}
	if got := other.until(&without.Domains[0].Transports); got != other.Domains[0].Transports || other.until(nil) != got {
		t.Errorf("%+v is recognised, want what is new", got)
	}
	r := recognised(&all)
	if !r.MRC || r.VeRoCEPort != roce.VeRoCEPort || r.VeRoCEAnswers != [4]uint8{0x11, 0x18, 0x19, 0x1a} || recognised(&roce.Transports{}).VeRoCEPort != 0 {
		t.Errorf("%+v", r)
	}
}

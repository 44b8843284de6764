// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/roce"
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
		n.apply(setting{immediate: true})
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
	c.Domains[1].Transports.MRC.Retransmission = 0x10
	all := c.transports()
	for i, want := range []bool{true, false, false} {
		if got := c.protects(&c.Domains[i], roce.MRC); got != want {
			t.Errorf("domain %d protects MRC: %v", i, got)
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
	r := recognised(&all)
	if !r.MRC || r.VeRoCEPort != roce.VeRoCEPort || r.VeRoCEAnswers != [4]uint8{0x11, 0x18, 0x19, 0x1a} || recognised(&roce.Transports{}).VeRoCEPort != 0 {
		t.Errorf("%+v", r)
	}
}

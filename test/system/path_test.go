// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"crem.dev/crem/agent/wire"
	"crem.dev/crem/test/lab/calm"
	"crem.dev/crem/test/lab/topology"
	"crem.dev/crem/test/lab/wan"
)

// TestSection5_1_HelloOnThePath: no site has gateways configured, so HELLO goes from the flow's source to its destination. The gateway on the path takes
// it, answers from the destination's address, and goes on taking what is sent there; the sender's gateway takes the answers. Flows of both IP versions are
// protected, each by messages of its own version.
func TestSection5_1_HelloOnThePath(t *testing.T) {
	w := newWorld(t, options{path: lossy(), profile: proactive, gateways: [2]string{noGateways, noGateways}})
	tap := w.sniff()
	o := rdma()
	four, six := w.transfer(o, false, false), w.transfer(o, true, false)
	four.end()
	six.end()
	for _, to := range []netip.Addr{topology.HostB4, topology.HostB6} {
		protected := false
		for _, f := range w.a.flows("csf") {
			if f.Destination == to.String() && f.Space == "request" {
				protected = f.State == "Protecting"
				if f.Peer != netip.AddrPortFrom(to, cremPort).String() {
					t.Errorf("%s: the peer is %s, want the destination itself", f.ID, f.Peer)
				}
			}
		}
		restored := uint64(0)
		for _, f := range w.b.flows("crf") {
			if f.Destination == to.String() {
				restored += f.Restored
			}
		}
		if !protected || restored == 0 {
			t.Errorf("flow to %v: protected %v, %d packets restored", to, protected, restored)
		}
	}
	seen := map[string]int{}
	for _, m := range tap.stop() {
		if h, err := wire.ParseHeader(m.payload); err == nil {
			seen[h.Type.String()+" from "+m.from.String()+" to "+m.to.String()]++
		}
	}
	for _, want := range []string{
		"HELLO from 10.1.0.2 to 10.2.0.2", "HELLO_ACK from 10.2.0.2 to 10.1.0.2", "LOSS_REPORT from 10.2.0.2 to 10.1.0.2",
		"HELLO from fd00:1::2 to fd00:2::2", "HELLO_ACK from fd00:2::2 to fd00:1::2", "LOSS_REPORT from fd00:2::2 to fd00:1::2",
	} {
		if seen[want] == 0 {
			t.Errorf("no %s on the path: %v", want, seen)
		}
	}
	if st := w.b.status(); st.Counters["kernel_path_taken"] == 0 || st.Counters["kernel_boundary_source"] > 0 {
		t.Errorf("counters %s", nonzero(st.Counters))
	}
}

// TestG12_Section4_PathMTUTooSmall: the uplink has the MTU of the access network, so packets of RoCE MTU 4096 pass, and their repairs would not: the flow is
// not protected, the status says so with both numbers, and the traffic is what it is without agents.
func TestG12_Section4_PathMTUTooSmall(t *testing.T) {
	w := newWorld(t, options{
		lanMTU: 4200, wanMTU: 4200, path: wan.Settings{Delay: wan.Duration(time.Millisecond)}, profile: proactive,
		gateways: [2]string{topology.GwA6.String(), topology.GwB6.String()},
	})
	o := rdma()
	o.Duration, o.Config.MTU = time.Second, 4096
	running := w.transfer(o, true, false)
	w.a.awaitFlow("csf", "the flow is seen", func(f agentFlow) bool { return f.Counters != nil && f.State == "Idle" })
	d := running.end()
	s, f := w.a.status(), w.a.one("csf")
	if s.MTUTooSmall.Flows != 1 || s.MTUTooSmall.Have != 4200 || s.MTUTooSmall.Need != 4220 {
		t.Errorf("status says %+v", s.MTUTooSmall)
	}
	if f.State != "Idle" || !strings.Contains(f.Why, "4220") || !strings.Contains(f.Why, "4200") {
		t.Errorf("the flow is %s: %s", f.State, f.Why)
	}
	if d.requester.NAKs+d.requester.Timeouts > 0 || d.requester.SentOverNeeded != 1 {
		t.Errorf("the traffic was touched: %+v", d.requester)
	}
	if n := len(w.b.flows("crf")); n != 0 {
		t.Errorf("%d flows at the receiver's gateway", n)
	}
}

// TestReorderingIsNoLoss: packets that overtake each other within the tolerance of Section 7.1 cause no request, no report of loss, and no restoration;
// the receiver gets them in order.
func TestReorderingIsNoLoss(t *testing.T) {
	w := newWorld(t, options{path: wan.Settings{Delay: wan.Duration(20 * time.Millisecond)}, profile: proactive})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 5000, swap: 64})
	w.awaitProtecting(1)
	leftOut := calm.Judge(t, func() (wrong, disturbed string) {
		s.moves(500) // what the machine did before this round has come to its end
		before, had := w.arrivals(), s.received()
		s.moves(10_000)
		got, c := s.received(), since(before, w.arrivals())
		t.Logf("%d out of order; %s", got.order-had.order, nonzero(c))
		requests := c["block_requests"] + c["range_requests"]
		// Before the flow is protected, and while the kernel program has not heard from its worker, packets pass as they come.
		unprotected := int(c["kernel_unregistered"] + c["kernel_open_stale"] + c["released_not_protected"])
		switch {
		case requests+c["lost"]+c["restored"] > 0:
			wrong = fmt.Sprintf("%d requests, %d reported lost, %d restored", requests, c["lost"], c["restored"])
		case c["reordered"] < 100:
			wrong = fmt.Sprintf("%d packets seen reordered", c["reordered"])
		case got.order-had.order > unprotected:
			wrong = fmt.Sprintf("%d packets out of order, at most %d of them not protected", got.order-had.order, unprotected)
		}
		return wrong, ""
	})
	if sent, got := s.end(); got.distinct != sent {
		t.Errorf("%d packets lost (%v)", sent-got.distinct, got.missing(sent))
	}
	if leftOut != "" {
		t.Skip(leftOut)
	}
}

// arrivals are the counters of the gateway where the only flow arrives, and of the flow there.
func (w *world) arrivals() map[string]uint64 {
	all := map[string]uint64{}
	maps.Copy(all, w.b.status().Counters)
	maps.Copy(all, w.b.one("crf").Counters)
	return all
}

// since is what was counted from one moment to another.
func since(before, now map[string]uint64) map[string]uint64 {
	d := map[string]uint64{}
	for name, n := range now {
		d[name] = n - before[name]
	}
	return d
}

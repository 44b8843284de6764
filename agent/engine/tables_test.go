// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

// The heap against a search through all, over random operations.
func TestDeadlinesAgainstSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var d deadlines
	all := make([]*timed, 50)
	want := make([]time.Duration, len(all))
	for i := range all {
		all[i], want[i] = &timed{place: -1}, roce.Never
	}
	for range 20000 {
		i := r.IntN(len(all))
		want[i] = time.Duration(r.IntN(1000))
		if r.IntN(4) == 0 {
			want[i] = roce.Never
		}
		d.set(all[i], want[i])
		earliest := roce.Never
		for _, at := range want {
			earliest = min(earliest, at)
		}
		if d.next() != earliest {
			t.Fatalf("next is %v, want %v", d.next(), earliest)
		}
		for place, x := range d.heap {
			if x.place != place {
				t.Fatalf("entry at %d thinks it is at %d", place, x.place)
			}
		}
	}
}

func sender(newest roce.PSN) *sendFlow { return &sendFlow{newest: newest, upto: newest, packets: 1} }

// An ACK is matched only after it fitted one flow alone several times; two flows that both fit are never guessed between.
func TestPairingNeedsProof(t *testing.T) {
	p := newPairing()
	a, b := sender(1000), sender(500000)
	key := backKey{local: netip.MustParseAddr("10.1.0.2"), remote: netip.MustParseAddr("10.2.0.2"), qpn: 17}
	flows := []*sendFlow{a, b}
	for i := range pairingVotes {
		got := p.match(0, key, roce.PSN(900+i), flows)
		if want := i == pairingVotes-1; (got == a) != want || got == b {
			t.Fatalf("vote %d: matched %v", i, got)
		}
	}
	if q, ok := a.localQPN(); !ok || q != 17 {
		t.Errorf("local QPN is %v, %v", q, ok)
	}
	if got := p.match(0, key, 499000, flows); got != nil {
		t.Error("an ACK of another PSN range was matched to the old flow: the QP number is in use again")
	}

	close2 := []*sendFlow{sender(1000), sender(1010)}
	key.qpn = 18
	for range 10 {
		if p.match(0, key, 990, close2) != nil {
			t.Fatal("two flows fit, and one was chosen")
		}
	}
}

// A queue pair that only reads shows no RDMA MTU. The last response to its newest request names a PSN that this request consumed.
func TestPairingOfAReader(t *testing.T) {
	f, key := &sendFlow{}, backKey{local: netip.MustParseAddr("10.1.0.2"), remote: netip.MustParseAddr("10.2.0.2"), qpn: 17}
	p := newPairing()
	for i := range 8 {
		frame := frames.RoCE{
			Headers: frames.Headers{Src: key.local, Dst: key.remote}, Opcode: roce.ReadRequest, PSN: uint32(100 + 16*i), DMALength: 64 << 10,
		}.Frame()
		pkt, reason := roce.Parse(frame)
		if reason != roce.OK {
			t.Fatal(reason)
		}
		f.note(&pkt)
		got := p.match(0, key, pkt.PSN().Add(15), []*sendFlow{f})
		if want := i >= pairingVotes-1; (got == f) != want {
			t.Fatalf("response %d: matched %v", i, got)
		}
	}
	if f.sent(100 + 8*16*16) {
		t.Error("a PSN that no request can have consumed counts as sent")
	}
}

// Two queue pairs whose PSNs are close: the older PSNs fit both, the newer ones just one, and then the older ones just the other.
func TestPairingByElimination(t *testing.T) {
	p := newPairing()
	a, b := sender(1000), sender(1010)
	flows := []*sendFlow{a, b}
	toA := backKey{local: netip.MustParseAddr("10.1.0.2"), remote: netip.MustParseAddr("10.2.0.2"), qpn: 17}
	toB := toA
	toB.qpn = 18
	for i := range pairingVotes {
		if p.match(0, toA, 995, flows) != nil {
			t.Fatal("two flows fit, and one was chosen")
		}
		if got, want := p.match(0, toB, 1005, flows), i == pairingVotes-1; (got == b) != want {
			t.Fatalf("vote %d: matched %v", i, got)
		}
	}
	for i := range pairingVotes {
		if got, want := p.match(0, toA, 995, flows), i == pairingVotes-1; (got == a) != want || got == b {
			t.Fatalf("vote %d: matched %v", i, got)
		}
	}
	p.expire(2 * pairingIdle)
	if _, ok := a.localQPN(); ok || b.back != nil {
		t.Error("a proof outlived the name")
	}
}

func TestPairingForgetsEndedFlows(t *testing.T) {
	p := newPairing()
	a := sender(1000)
	key := backKey{local: netip.MustParseAddr("10.1.0.2"), remote: netip.MustParseAddr("10.2.0.2"), qpn: 17}
	for range pairingVotes {
		p.match(0, key, 900, []*sendFlow{a})
	}
	a.gone = true
	if p.match(0, key, 901, nil) != nil {
		t.Error("an ended flow was matched")
	}
	p.forget(a)
	if len(p.back) != 0 {
		t.Error("the pair is still remembered")
	}
}

func TestSureRangesFollowReadRequests(t *testing.T) {
	var s sureRanges
	if !s.add(100, 16) || s.from != 100 || s.to != 116 {
		t.Fatalf("first range %v..%v", s.from, s.to)
	}
	if !s.add(116, 16) || s.to != 132 {
		t.Fatalf("a contiguous request extends the range, have %v", s.to)
	}
	if s.add(200, 8) || s.add(208, 8) || s.n != 1 {
		t.Fatalf("a later range waits and is extended, have %d waiting", s.n)
	}
	if s.passed(120) {
		t.Error("still inside")
	}
	if !s.passed(131) || s.from != 200 || s.to != 216 {
		t.Errorf("after the last response the next range is in force, have %v..%v", s.from, s.to)
	}
	if !s.passed(215) || s.from != s.to {
		t.Errorf("nothing is expected, have %v..%v", s.from, s.to)
	}
	for i := range 100 {
		s.add(roce.PSN(1000+100*i), 1)
	}
	if s.n != len(s.waiting) {
		t.Errorf("%d ranges wait, bound is %d", s.n, len(s.waiting))
	}
}

// Section 11: each sender address may have a bounded number of flows and HELLOs a second.
func TestSection11_HelloLimits(t *testing.T) {
	h := newHelloLimits()
	from := netip.MustParseAddr("198.51.100.1")
	n := 0
	for h.admit(0, from) {
		n++
	}
	if n != helloBurst {
		t.Errorf("a burst of %d was admitted, want %d", n, helloBurst)
	}
	if !h.admit(time.Second/helloRate, from) || h.admit(time.Second/helloRate, from) {
		t.Error("the rate is not as it is written")
	}
	if !h.admit(0, netip.MustParseAddr("198.51.100.2")) {
		t.Error("another address has limits of its own")
	}
	now, admitted := time.Duration(0), n+1
	for range 10 * flowsPerPeer {
		now += time.Second
		if h.admit(now, from) {
			admitted++
		}
	}
	if admitted != flowsPerPeer {
		t.Errorf("%d flows, want at most %d", admitted, flowsPerPeer)
	}
	h.done(from)
	if !h.admit(now+time.Second, from) {
		t.Error("an ended flow makes room")
	}
}

func TestNoncesRememberTheLatest(t *testing.T) {
	var n nonces
	for i := range uint64(100) {
		n.add(i + 1)
		if !n.has(i + 1) {
			t.Fatalf("nonce %d forgotten at once", i+1)
		}
	}
	if n.has(1) || n.has(0) {
		t.Error("only the latest are remembered, and zero never was")
	}
}

func TestJudge(t *testing.T) {
	prefix := netip.MustParsePrefix
	addr := netip.MustParseAddr
	profile, narrow := &Profile{Name: "wide"}, &Profile{Name: "narrow"}
	d := Domain{
		Name: "backbone", Port: 52000, Site: "east", Uplinks: []string{"wan0"},
		Sites: []Site{
			{Name: "east", Prefixes: []netip.Prefix{prefix("10.1.0.0/16"), prefix("fd00:1::/32")}, Gateways: []netip.Addr{addr("192.0.2.1")}},
			{Name: "west", Prefixes: []netip.Prefix{prefix("10.2.0.0/16"), prefix("fd00:2::/32")}},
			{Name: "north", Prefixes: []netip.Prefix{prefix("10.3.0.0/16")}},
		},
		Rules: []Rule{{Profile: narrow, Sources: []netip.Prefix{prefix("10.1.1.0/24")}, Destinations: []string{"west"}}, {Profile: profile}},
	}
	c := &Config{Domains: []Domain{d}}
	for _, x := range []struct{ name, uplink, src, dst, want string }{
		{"the most specific rule takes it", "wan0", "10.1.1.5", "10.2.0.5", "narrow"},
		{"another destination", "wan0", "10.1.1.5", "10.3.0.5", "wide"},
		{"another source", "wan0", "10.1.2.5", "10.2.0.5", "wide"},
		{"IPv6", "wan0", "fd00:1::5", "fd00:2::5", "wide"},
		{"inside the own site", "wan0", "10.1.2.5", "10.1.3.5", ""},
		{"transit", "wan0", "10.3.0.5", "10.2.0.5", ""},
		{"another uplink", "wan1", "10.1.1.5", "10.2.0.5", ""},
		{"an unknown destination", "wan0", "10.1.1.5", "8.8.8.8", ""},
	} {
		v := c.judge(x.uplink, roce.FlowKey{Src: addr(x.src), Dst: addr(x.dst), QPN: 17})
		got := ""
		if v.profile != nil {
			got = v.profile.Name
		}
		if got != x.want || (got == "") != (v.why != "") {
			t.Errorf("%s: profile %q (%s), want %q", x.name, got, v.why, x.want)
		}
	}
	key := roce.FlowKey{Src: addr("10.1.1.5"), Dst: addr("10.2.0.5"), QPN: 17}
	c.Domains[0].RequireIPsec = true
	if v := c.judge("wan0", key); v.profile != nil {
		t.Error("ipsec Required without a policy must not protect anything")
	}
	if got := peersOf(&d, &d.Sites[1], key); len(got) != 1 || got[0] != netip.MustParseAddrPort("10.2.0.5:52000") {
		t.Errorf("without gateways HELLO goes to the destination, got %v", got)
	}
	for a, want := range map[string]bool{"192.0.2.1": true, "10.2.9.9": true, "198.51.100.7": false} {
		if d.inside(addr(a)) != want {
			t.Errorf("inside(%s) is %v", a, !want)
		}
	}
}

// Section 11: a message counts for a flow only from its peer, and only at the address that the flow uses here. A CLOSE that a stranger provokes from the
// peer is sent to the stranger's address and taken on the path: with the flow's ID in it, and from the peer.
func TestSection11_MessageForAnotherEndpoint(t *testing.T) {
	addr := netip.MustParseAddr
	gateway, peer, endpoint, stranger := addr("192.0.2.1"), addr("198.51.100.1"), addr("10.1.0.2"), addr("10.1.0.77")
	w := &worker{snap: &snapshot{local: map[netip.Addr]bool{gateway: true}}}
	for _, tc := range []struct {
		what           string
		from, to, uses netip.Addr
		want           bool
		why            drop
	}{
		{"from the peer to the gateway", peer, gateway, netip.Addr{}, true, 0},
		{"from the peer to the endpoint whose flow went by the path", peer, endpoint, endpoint, true, 0},
		{"from another than the peer", stranger, gateway, netip.Addr{}, false, dropWrongPeer},
		{"taken from the path, for a flow that uses the gateway's address", peer, stranger, netip.Addr{}, false, dropWrongAddress},
		{"taken from the path for another endpoint", peer, stranger, endpoint, false, dropWrongAddress},
	} {
		w.drops = [numDrops]uint64{}
		m := packet.Message{From: netip.AddrPortFrom(tc.from, 52000), To: tc.to}
		if got := w.belongs(&m, peer, tc.uses); got != tc.want || !got && w.drops[tc.why] != 1 {
			t.Errorf("%s: %v, drops %v", tc.what, got, w.drops)
		}
	}
}

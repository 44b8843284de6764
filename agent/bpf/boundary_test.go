// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/packet/fake"
	"crem.dev/crem/test/frames"
)

func addrs(s ...string) (a []netip.Addr) {
	for _, s := range s {
		a = append(a, netip.MustParseAddr(s))
	}
	return a
}

func prefixes(s ...string) (p []netip.Prefix) {
	for _, s := range s {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

var (
	twoDomains = []bpf.Domain{
		{ID: 1, Ports: []uint16{port}, Members: prefixes("10.1.0.0/16", "10.2.0.0/16", "fd00:1::/32", "fd00:2::/32", "192.0.2.1/32", "198.51.100.1/32"),
			Served: prefixes("10.2.0.0/16", "fd00:2::/32")},
		{ID: 2, Ports: []uint16{port + 1}, Members: prefixes("172.16.0.0/12"), Served: prefixes("172.16.9.0/24")},
	}
	ownAddrs = addrs("10.2.0.1", "198.51.100.1", "fd00:2::1")
)

// repair is a CREM message of a type with a Flow ID.
func repair(kind byte, flow uint32, octets int) []byte {
	b := make([]byte, octets)
	b[0] = 0x10 | kind
	binary.BigEndian.PutUint16(b[2:], uint16(octets))
	binary.BigEndian.PutUint32(b[4:], flow)
	return b
}

func (w *twin) setDomains(domains []bpf.Domain, local []netip.Addr) {
	w.t.Helper()
	if err := w.real.SetDomains(domains, local); err != nil {
		w.t.Fatal(err)
	}
	w.model.SetDomains(domains, local)
}

// Section 11, rule 3: a message to the CREM port from outside the domain is dropped, agent or not; one to an endpoint of our own
// site is taken from the path while there is an agent; every other datagram passes.
func TestSection11_BoundaryAndPath(t *testing.T) {
	type datagram = frames.Headers
	d := func(src, dst string, port uint16) datagram {
		return datagram{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), DstPort: port}
	}
	with := func(d datagram, change func(*datagram)) datagram { change(&d); return d }
	for _, c := range []struct {
		name     string
		datagram datagram
		segment  int
		want     bpf.Reason
		verdict  fake.Verdict
		dead     fake.Verdict // without an agent
	}{
		{"to the gateway", d("192.0.2.1", "198.51.100.1", port), 0, 0, fake.Pass, fake.Pass},
		{"from outside", d("203.0.113.7", "198.51.100.1", port), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"from outside to an endpoint", d("203.0.113.7", "10.2.0.9", port), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"from outside to somebody else", d("203.0.113.7", "203.0.113.8", port), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"IPv6 from outside", d("fd00:3::1", "fd00:2::9", port), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"another port", d("203.0.113.7", "10.2.0.9", 53), 0, 0, fake.Pass, fake.Pass},
		{"from another domain", d("172.16.1.1", "10.2.0.9", port), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"of the other domain", d("172.16.1.1", "172.16.9.9", port+1), 0, bpf.PathTaken, fake.Drop, fake.Pass},
		{"to an endpoint", d("192.0.2.1", "10.2.0.9", port), 0, bpf.PathTaken, fake.Drop, fake.Pass},
		{"IPv6 to an endpoint", d("fd00:1::9", "fd00:2::9", port), 0, bpf.PathTaken, fake.Drop, fake.Pass},
		{"to this node inside its site", d("192.0.2.1", "10.2.0.1", port), 0, 0, fake.Pass, fake.Pass},
		{"in transit", d("10.2.0.7", "10.1.0.9", port), 0, 0, fake.Pass, fake.Pass},
		{"super-packet to an endpoint", d("192.0.2.1", "10.2.0.9", port), 100, bpf.PathTaken, fake.Drop, fake.Pass},
		{"IPv6 super-packet to an endpoint", d("fd00:1::9", "fd00:2::9", port), 64, bpf.PathTaken, fake.Drop, fake.Pass},
		{"first fragment", with(d("192.0.2.1", "198.51.100.1", port), func(d *datagram) { d.MoreFragments = true }), 0, bpf.BoundaryFragment, fake.Drop, fake.Drop},
		{"IPv6 first fragment", with(d("fd00:1::9", "fd00:2::9", port), func(d *datagram) { d.MoreFragments = true }), 0, bpf.BoundaryFragment, fake.Drop, fake.Drop},
		{"outside behind options", with(d("203.0.113.7", "198.51.100.1", port), func(d *datagram) { d.Options = 8 }), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"IPv6 outside behind options", with(d("fd00:3::1", "fd00:2::9", port), func(d *datagram) { d.Options = 7 }), 0, bpf.BoundarySource, fake.Drop, fake.Drop},
		{"options to an endpoint", with(d("192.0.2.1", "10.2.0.9", port), func(d *datagram) { d.Options = 4 }), 0, bpf.PathPassed, fake.Pass, fake.Pass},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEveryLink(t, 3, func(t *testing.T, w *twin) {
				w.setDomains(twoDomains, ownAddrs)
				for kind, octets := range map[byte]int{1: 520, 2: 64, 9: 12} {
					frame := c.datagram.Frame(repair(kind, 7, octets))
					if octets == 12 && c.segment == 0 {
						frame = append(frame, make([]byte, 6)...) // as Ethernet pads short frames
					}
					if got := w.ingress(frame, min(c.segment, octets)); got != c.verdict {
						t.Errorf("type %d: verdict %v", kind, got)
					}
					w.drain()
				}
				w.compareStats()
				if s := w.model.Stats(); c.want != 0 && s[c.want] == 0 {
					t.Errorf("%v not counted: %v", c.want, s)
				}
				w.beat(false)
				if got := w.ingress(c.datagram.Frame(repair(1, 7, 520)), c.segment); got != c.dead {
					t.Errorf("without an agent: verdict %v", got)
				}
				w.compareStats()
			})
		})
	}
}

// Taken messages of a super-packet are the messages that its sender cut it from, each whole.
func TestTakenSuperPacket(t *testing.T) {
	onEveryLink(t, 1, func(t *testing.T, w *twin) {
		w.setDomains(twoDomains, ownAddrs)
		const size, n, last = 90, 5, 33
		var payload []byte
		for i := range n {
			payload = append(payload, repair(1, uint32(i), size)...)
		}
		payload = append(payload, repair(1, n, last)...)
		h := frames.Headers{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("10.2.0.9"), DstPort: port}
		w.ingress(h.Frame(payload), size)
		var got [16]packet.Frame
		if k := w.rings[0].Next(got[:]); k != n+1 {
			t.Fatalf("%d messages", k)
		}
		for i, f := range got[:n+1] {
			message := f.Data[14+20+8:]
			want := size
			if i == n {
				want = last
			}
			if len(message) != want || binary.BigEndian.Uint32(message[4:]) != uint32(i) || f.Flags != packet.Taken|packet.Segment || f.Domain != 1 {
				t.Errorf("message %d: %d octets, flags %x, domain %d", i, len(message), f.Flags, f.Domain)
			}
		}
	})
}

// A full ring drops messages of the path, not the program.
func TestTakenRingFull(t *testing.T) {
	w := newTwin(t, 1)
	w.setDomains(twoDomains, ownAddrs)
	h := frames.Headers{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("10.2.0.9"), DstPort: port}
	for range ringSize + 3 {
		w.ingress(h.Frame(repair(2, 0, 64)), 0)
	}
	w.compareStats()
	if s := w.model.Stats(); s[bpf.PathDropped] != 3 {
		t.Errorf("%d dropped", s[bpf.PathDropped])
	}
	w.drain()
	w.ingress(h.Frame(repair(2, 0, 64)), 0)
	w.drain()
}

// A change of the domains takes what is new and lets go what is old, and a wrong one changes nothing.
func TestSetDomainsChanges(t *testing.T) {
	w := newTwin(t, 1)
	w.setDomains(twoDomains, ownAddrs)
	from := func(src, dst string, port uint16) fake.Verdict {
		t.Helper()
		h := frames.Headers{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), DstPort: port}
		return w.ingress(h.Frame(repair(2, 0, 64)), 0)
	}
	if from("172.16.1.1", "203.0.113.1", port) != fake.Drop {
		t.Error("a member of the other domain passed")
	}
	w.setDomains([]bpf.Domain{{ID: 1, Ports: []uint16{port, port + 7}, Members: prefixes("172.16.0.0/12")}}, addrs("10.9.9.9"))
	if from("172.16.1.1", "203.0.113.1", port) != fake.Pass || from("172.16.1.1", "203.0.113.1", port+7) != fake.Pass {
		t.Error("a new member was dropped")
	}
	if from("10.1.0.1", "203.0.113.1", port) != fake.Drop {
		t.Error("a former member passed")
	}
	if from("10.1.0.1", "203.0.113.1", port+1) != fake.Pass {
		t.Error("the port of a former domain is guarded")
	}
	for _, wrong := range [][]bpf.Domain{
		{{ID: 1, Ports: []uint16{port}}, {ID: 2, Ports: []uint16{port}}},
		{{ID: 1}, {ID: 1}},
		{{ID: 1, Members: []netip.Prefix{{}}}},
		{{ID: 1, Served: prefixes("::ffff:10.0.0.0/104")}},
	} {
		if err := w.real.SetDomains(wrong, nil); err == nil {
			t.Errorf("%+v taken", wrong)
		}
	}
	if from("172.16.1.1", "203.0.113.1", port) != fake.Pass {
		t.Error("a wrong setting changed the boundary")
	}
	w.setDomains(nil, nil)
	if from("10.1.0.1", "203.0.113.1", port) != fake.Pass {
		t.Error("the boundary stayed without a domain")
	}
}

// Injected frames are turned round on their way out and let through without their mark on their way in; without the
// mark nothing happens.
func TestMarkedFrames(t *testing.T) {
	w := newTwin(t, 1)
	h := frames.Headers{Src: hostA, Dst: hostB}
	frame := h.Frame(make([]byte, 64))
	const redirect = 7
	if verdict, _ := w.real.Run(t, bpf.Egress, frame, bpf.DefaultMark, 0); verdict != redirect {
		t.Errorf("egress with mark: %d", verdict)
	}
	for _, mark := range []uint32{0, bpf.DefaultMark ^ 1, 0x0f00} {
		if verdict, after := w.real.Run(t, bpf.Egress, frame, mark, 0); verdict != tcxNext || after != mark {
			t.Errorf("egress with mark %#x: %d, mark %#x after it", mark, verdict, after)
		}
	}
	if verdict, after := w.real.Run(t, bpf.Ingress, frame, bpf.DefaultMark, 0); verdict != tcxNext || after != 0 {
		t.Errorf("ingress with mark: %d, mark %#x after it", verdict, after)
	}
	if s, err := w.real.Stats(); err != nil || s[bpf.Redirected] != 1 || s[bpf.Turned] != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

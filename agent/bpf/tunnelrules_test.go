// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

var (
	otherMAC = frames.MAC{2, 0, 0, 0, 0, 9}
	pairOf4  = bpf.TunnelFlow{Src: netip.MustParseAddr("10.2.0.6"), Dst: netip.MustParseAddr("10.9.0.9"), QPN: 0x77}
)

// passes reports what the host's frame became, and gives the frame that leaves by the uplink.
func (w *tunnelWorld) passes(frame []byte) (got []byte, became bpf.Passage) {
	w.t.Helper()
	before := w.stats().Passages
	w.hostSends(frame)
	got = w.seen()
	return got, w.became(before)
}

// became is the one passage that was counted since; Passages: none was.
func (w *tunnelWorld) became(before [bpf.Passages]uint64) bpf.Passage {
	w.t.Helper()
	one := bpf.Passage(bpf.Passages)
	for i, n := range w.stats().Passages {
		switch n - before[i] {
		case 0:
		case 1:
			if one == bpf.Passage(bpf.Passages) {
				one = bpf.Passage(i)
				continue
			}
			fallthrough
		default:
			w.t.Fatalf("more than one packet was counted: %v, before %v", w.stats().Passages, before)
		}
	}
	return one
}

// Fail open: flows take the uplink and the next hop of the last request, whatever their own route says; with a request that took another way
// the tunnel waits for the answer.
func TestWANECN_FlowsTakeTheWayOfTheRequest(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.node.Route("10.9.0.9/32", "10.1.0.7")
	w.node.Neighbour("up0", "10.1.0.7", net.HardwareAddr(otherMAC[:]).String())
	w.set(tunnelPlan(0, tunnel4))
	frame := fromHost(false, 2, 1, 512).Frame()
	if got, became := w.passes(frame); became != bpf.PlainNoLease || !bytes.Equal(got[:6], otherMAC[:]) {
		t.Errorf("before a lease: %v, to %x", became, got[:6])
	}
	begin := packet.Now()
	if at := w.tunnels.Asked(tunnel4); at != 0 {
		t.Errorf("asked at %v, and no request has left", at)
	}
	w.open(tunnel4)
	if at := w.tunnels.Asked(tunnel4); at < begin || at > packet.Now() {
		t.Errorf("asked at %v, began at %v", at, begin)
	}
	if got, became := w.passes(frame); became != bpf.Encapsulated || !bytes.Equal(got[:6], farMAC[:]) {
		t.Errorf("in the tunnel: %v, to %x, want the next hop of the request", became, got[:6])
	}

	w.node.Neighbour("up0", "10.1.0.5", net.HardwareAddr(otherMAC[:]).String())
	w.ask(tunnel4)
	if until, _ := w.tunnels.Leased(tunnel4); until != 0 {
		t.Error("a lease outlives its next hop")
	}
	w.tunnels.Lease(tunnel4, packet.Now()+time.Minute)

	inside := 0
	w.node.Do(func() {
		in0, err := net.InterfaceByName("in0")
		if err != nil {
			t.Fatal(err)
		}
		inside = in0.Index
		if _, err := w.tunnels.Attach(inside); err != nil {
			t.Fatal(err)
		}
	})
	w.node.Route("10.9.0.10/32", "10.2.0.6")
	r := fromHost(false, 2, 1, 512)
	r.Dst = netip.MustParseAddr("10.9.0.10")
	before, host := w.stats().Passages, w.listenRaw()
	w.hostSends(r.Frame())
	if got := host.next(soon); !bytes.Equal(got, forwarded(r.Frame())) || w.became(before) != bpf.PlainUplink {
		t.Errorf("by another uplink: %v, %x", w.became(before), got)
	}

	w.node.Route("10.1.0.5/32", "10.2.0.7")
	w.node.Neighbour("in0", "10.2.0.7", net.HardwareAddr(otherMAC[:]).String()) // the same next hop by another uplink
	w.request(tunnel4, 8)
	if until, ifindex := w.tunnels.Leased(tunnel4); until != 0 || ifindex != inside {
		t.Errorf("leased until %v by interface %d, want that the lease ended with a request by %d", until, ifindex, inside)
	}
}

// Fail open: to an octet, what is as long as the tunnel's largest packet goes in.
func TestWANECN_MTUToTheOctet(t *testing.T) {
	w := newTunnelWorld(t, "")
	for missing, want := range []bpf.Passage{bpf.Encapsulated, bpf.PlainTooBig} {
		for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
			tunnel.MTU = 20 + 1300 // a tunnel of less is none
			r := fromHost(false, 2, 1, 1300-20-8-12-4)
			if tunnel.Remote.Is6() {
				tunnel.MTU += 20
			}
			tunnel.MTU -= missing
			r.QPN += uint32(tunnel.MTU) // a flow of its own
			w.set(tunnelPlan(0, tunnel))
			w.open(tunnel)
			frame := r.Frame()
			if len(frame) != 14+1300 {
				t.Fatalf("%d octets", len(frame))
			}
			if _, became := w.passes(frame); became != want {
				t.Errorf("%d octets missing in a tunnel to %v: %v, want %v", missing, tunnel.Remote, became, want)
			}
		}
	}
}

// Fail open: a flow that has left the tunnel, for a packet that did not fit, comes back a minute later.
func TestWANECN_WideFlowsComeBack(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	frame := fromHost(false, 2, 1, 512).Frame()
	for ago, want := range map[time.Duration]bpf.Passage{50 * time.Second: bpf.PlainTooBig, time.Minute: bpf.Encapsulated} {
		w.tunnels.DidNotFit(t, pairOf4, packet.Now()-ago)
		if _, became := w.passes(frame); became != want {
			t.Errorf("%v after it did not fit: %v, want %v", ago, became, want)
		}
	}
}

// Fail open: where the kernel makes no room for the outer header a flow leaves as it was, and a request, whose answer would open the
// tunnel, not at all.
func TestWANECN_NoRoom(t *testing.T) {
	w := newTunnelWorld(t, "")
	tunnel := tunnel4
	const large = 20000 // the kernel makes no packet larger than about 16000 octets
	tunnel.MTU = large
	for _, end := range []struct {
		ns   *netns.NS
		name string
	}{{w.far, "far0"}, {w.node, "up0"}, {w.node, "in0"}, {w.host, "host0"}} {
		end.ns.Do(func() {
			link, err := netlink.LinkByName(end.name)
			if err == nil {
				err = netlink.LinkSetMTU(link, large)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	w.set(tunnelPlan(0, tunnel))
	w.open(tunnel)
	frame := fromHost(false, 2, 1, large-100).Frame()
	if got, became := w.passes(frame); became != bpf.PlainRefused || !bytes.Equal(got[14:], forwarded(frame)) {
		t.Errorf("%v: %x", became, got[:64])
	}
	before, asked := w.stats().Passages, w.tunnels.Asked(tunnel)
	w.request(tunnel, large-100)
	if got := w.seenWithin(never); got != nil || w.became(before) != bpf.PlainRefused || w.tunnels.Asked(tunnel) != asked {
		t.Errorf("a request that does not fit: %v, left %x", w.became(before), got)
	}
}

// WAN ECN, spoofing: only packets from endpoints of the own site go into a tunnel; the other end would drop others.
func TestWANECN_OnlyTheOwnSiteEnters(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel6))
	w.open(tunnel6)
	for src, want := range map[string]bpf.Passage{
		"fd00:2::6": bpf.Encapsulated, "fd00:9::6": bpf.Passage(bpf.Passages), "fd00:3::6": bpf.Passage(bpf.Passages),
	} {
		r := fromHost(true, 2, 1, 512)
		r.Src = netip.MustParseAddr(src)
		got, became := w.passes(r.Frame())
		if plain := bytes.Equal(got[14:], forwarded(r.Frame())); became != want || plain == (want == bpf.Encapsulated) {
			t.Errorf("from %s: counted as %v, as it was %v", src, became, plain)
		}
	}
}

// WAN ECN, ingress action: a flow may send its rate, and as much at once as its limit allows; time without packets is not saved up.
func TestWANECN_RateOfAFlow(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	frame := fromHost(false, 2, 1, 1024).Frame()
	octets := time.Duration(len(frame) - 14)
	rate := 8*octets/(packet.Now()/time.Second) + 1 // so slow that the test's own time does not count, and nothing is from before the machine was up
	each := octets * time.Second / rate
	if err := w.tunnels.Limit(pairOf4, int64(rate), 3*each+each/2, packet.Now()+time.Hour); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bpf.Passage{bpf.Encapsulated, bpf.Encapsulated, bpf.Encapsulated, bpf.OverRate, bpf.OverRate} {
		if _, became := w.passes(frame); became != want {
			t.Errorf("packet %d: %v, want %v", i, became, want)
		}
	}
}

// WAN ECN, egress at the boundary: marks of a flow are told each tellEvery and no more often, and a mark for which there is no room is counted;
// the packets come all the same.
func TestWANECN_MarksAreToldNotTooOften(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(-1, tunnel6))
	there := w.oracle(tunnel6, true)
	send := func(qpn uint32) {
		r := toHost(false, uint8(ecn.ECT0), 1)
		r.QPN = qpn
		p, _ := there.Encapsulate(nil, r.Frame()[14:])
		ecn.SetCodepoint(p, ecn.CE)
		w.sendPacket(p, true)
	}
	const every = 5 * time.Millisecond
	begin := packet.Now()
	for packet.Now() < begin+3*every {
		send(1)
	}
	send(2)
	told := 0
	for {
		m, err := w.tunnels.ReadMark()
		if err != nil {
			t.Fatal(err)
		}
		if m.Flow.QPN == 2 {
			break
		}
		told++
	}
	if most := 1 + int((packet.Now()-begin)/every); told < 2 || told > most {
		t.Errorf("%d marks told in %v, at most %d are allowed", told, packet.Now()-begin, most)
	}

	host := w.listenRaw()
	for host.next(never) != nil {
	}
	before := w.stats().Passages
	const flows = 5000 // more than the ring has room for
	for i := range uint32(flows) {
		send(100 + i)
		if got := host.next(soon); got == nil || binary.BigEndian.Uint32(got[20+8+4:]) != 100+i {
			t.Fatalf("packet %d has not come, but %x", i, got)
		}
	}
	if s := w.stats().Passages; s[bpf.MarkUntold] == 0 || s[bpf.Decapsulated]-before[bpf.Decapsulated] != flows {
		t.Errorf("%v, before %v", s, before)
	}
}

// Tunnels of a plan come and go without end: an entry is used again, and knows no way and no lease of before.
func TestWANECN_EntriesAreUsedAgain(t *testing.T) {
	w := newTunnelWorld(t, "")
	for i := range 300 { // more than there are entries
		tunnel := tunnel4
		tunnel.Port += uint16(i % 2)
		w.set(tunnelPlan(0, tunnel))
		if until, ifindex := w.tunnels.Leased(tunnel); until != 0 || ifindex != 0 || w.tunnels.Asked(tunnel) != 0 {
			t.Fatalf("tunnel %d begins with a lease until %v by interface %d", i, until, ifindex)
		}
		if i%10 == 0 {
			w.request(tunnel, 8)
		}
		w.tunnels.Lease(tunnel, packet.Now()+time.Hour)
	}
}

// Fail open: uninstalling waits for promises, also those of another version, at most ten seconds whatever was promised, and removes nothing if it is interrupted.
func TestWANECN_UninstallWaits(t *testing.T) {
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	tunnels, err := bpf.LoadTunnels(bpf.TunnelConfig{PinDir: pinDir})
	if err != nil {
		t.Fatal(err)
	}
	promised := packet.Now() + time.Hour
	tunnels.Promise(promised)
	if err := tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(pinDir, "tunnels", "maps-*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.Rename(found[0], filepath.Join(pinDir, "tunnels", "maps-other")); err != nil { // as of another version
		t.Fatal(err)
	}
	if tunnels, err = bpf.LoadTunnels(bpf.TunnelConfig{PinDir: pinDir}); err != nil {
		t.Fatal(err)
	}
	if got := tunnels.Promised(); got != promised {
		t.Errorf("an agent of another version knows of a promise until %v, want %v", got, promised)
	}
	if err := tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	if err := bpf.Uninstall(interrupted, pinDir); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	if until, err := bpf.PromisedTo(pinDir); err != nil || until == 0 {
		t.Errorf("interrupted: the promise is removed, %v", err)
	}
	synctest.Test(t, func(t *testing.T) { // its ten seconds are over at once
		begin := time.Now()
		if err := bpf.Uninstall(t.Context(), pinDir); err != nil {
			t.Error(err)
		}
		if waited := time.Since(begin); waited != 10*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
	if _, err := os.Stat(pinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

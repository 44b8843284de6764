// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

// tunnelWorld is a world whose node is a gateway with a tunnel to the far end in each IP version, and hosts of another site behind that:
//
//	(10.9.0.9) far (10.1.0.5) === up0 [node, 10.1.0.1] in0 --- host (10.2.0.6)
type tunnelWorld struct {
	*world
	tunnels  *bpf.Tunnels
	wire     int // raw socket that sees what arrives at the far end
	hostSend int // raw socket of the host
	host0    int
}

const cremPort = 52000

var (
	tunnel4 = bpf.Tunnel{Local: netip.MustParseAddr("10.1.0.1"), Remote: netip.MustParseAddr("10.1.0.5"), Port: cremPort, MTU: mtu}
	tunnel6 = bpf.Tunnel{Local: netip.MustParseAddr("fd00:1::1"), Remote: netip.MustParseAddr("fd00:1::5"), Port: cremPort, MTU: mtu}
)

func tunnelPlan(use int, tunnels ...bpf.Tunnel) bpf.TunnelPlan {
	return bpf.TunnelPlan{
		Own:   prefixes("10.2.0.0/24", "fd00:2::/64"),
		Sites: []bpf.TunnelSite{{Prefixes: prefixes("10.9.0.0/24", "fd00:9::/64"), Tunnels: tunnels, Use: use}},
	}
}

func newTunnelWorld(t *testing.T, pinDir string) *tunnelWorld {
	t.Helper()
	return newTunnelWorldOf(t, bpf.TunnelConfig{PinDir: pinDir})
}

func newTunnelWorldOf(t *testing.T, c bpf.TunnelConfig) *tunnelWorld {
	t.Helper()
	w := &tunnelWorld{world: newWorld(t)}
	w.node.Route("10.9.0.0/24", "10.1.0.5")
	w.node.Route("fd00:9::/64", "fd00:1::5")
	for _, a := range []string{"10.1.0.5", "fd00:1::5"} {
		w.node.Neighbour("up0", a, net.HardwareAddr(farMAC[:]).String())
	}
	w.host.Route("10.9.0.0/24", "10.2.0.1")
	w.host.Route("fd00:9::/64", "fd00:2::1")
	w.loadTunnels(c)
	raw := func(ifindex int) int {
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex})
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	w.far.Do(func() { w.wire = raw(w.far0) })
	w.host.Do(func() {
		i, err := net.InterfaceByName("host0")
		if err != nil {
			t.Fatal(err)
		}
		w.host0 = i.Index
		w.hostSend = raw(w.host0)
	})
	return w
}

func (w *tunnelWorld) loadTunnels(c bpf.TunnelConfig) {
	w.t.Helper()
	var err error
	if w.tunnels, err = bpf.LoadTunnels(c); err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) {
			w.t.Fatalf("the verifier refuses:\n%+v", verifier)
		}
		w.t.Fatal(err)
	}
	tunnels := w.tunnels
	w.t.Cleanup(func() { _ = tunnels.Close() }) // some tests have closed it
	w.node.Do(func() {
		if _, err := w.tunnels.Attach(w.up); err != nil {
			w.t.Fatal(err)
		}
	})
}

func (w *tunnelWorld) set(p bpf.TunnelPlan) {
	w.t.Helper()
	if err := w.tunnels.Set(p); err != nil {
		w.t.Fatal(err)
	}
}

// open asks through a tunnel, and opens it as the answer would.
func (w *tunnelWorld) open(tunnel bpf.Tunnel) []byte {
	w.t.Helper()
	request := w.ask(tunnel)
	w.tunnels.Lease(tunnel, packet.Now()+time.Minute)
	return request
}

// ask sends a request and returns the frame that leaves.
func (w *tunnelWorld) ask(tunnel bpf.Tunnel) []byte {
	w.t.Helper()
	w.request(tunnel, 8)
	return w.seen()
}

// request sends a request of so many octets.
func (w *tunnelWorld) request(tunnel bpf.Tunnel, size int) {
	w.t.Helper()
	w.node.Do(func() {
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: tunnel.Local.AsSlice(), Port: int(tunnel.Port)}, &net.UDPAddr{IP: tunnel.Remote.AsSlice(), Port: int(tunnel.Port)})
		if err != nil {
			w.t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(append([]byte{0x1d}, make([]byte, size-1)...)); err != nil {
			w.t.Fatal(err)
		}
	})
}

// seen is the next IP frame, but for neighbour discovery, that the far end gets.
func (w *tunnelWorld) seen() []byte {
	w.t.Helper()
	if f := w.seenWithin(soon); f != nil {
		return f
	}
	w.t.Fatal("nothing has come")
	return nil
}

func (w *tunnelWorld) seenWithin(d time.Duration) []byte {
	w.t.Helper()
	buf := make([]byte, 1<<16)
	for end := time.Now().Add(d); time.Now().Before(end); {
		tv := unix.NsecToTimeval(int64(time.Until(end) + time.Microsecond))
		if err := unix.SetsockoptTimeval(w.wire, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			w.t.Fatal(err)
		}
		n, from, err := unix.Recvfrom(w.wire, buf, 0)
		if err != nil {
			continue
		}
		outgoing := from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
		f := buf[:n]
		multicast := f[0]&1 != 0 // also memberships of groups, which are behind a hop-by-hop header
		if outgoing || multicast || f[12] == 0x08 && f[13] != 0 || f[12] == 0x86 && f[20] == unix.IPPROTO_ICMPV6 || f[12] != 0x08 && f[12] != 0x86 {
			continue
		}
		return bytes.Clone(f)
	}
	return nil
}

// fromHost is a RoCEv2 packet of the own site to the other.
func fromHost(v6 bool, tos uint8, psn uint32, data int) frames.RoCE {
	r := source(psn)
	r.SrcMAC, r.DstMAC = frames.MAC{2, 0, 0, 0, 0, 4}, frames.MAC{2, 0, 0, 0, 0, 3}
	r.Src, r.Dst, r.TOS, r.Data = netip.MustParseAddr("10.2.0.6"), netip.MustParseAddr("10.9.0.9"), tos, make([]byte, data)
	if v6 {
		r.Src, r.Dst, r.Checksum = netip.MustParseAddr("fd00:2::6"), netip.MustParseAddr("fd00:9::9"), true
	}
	return r
}

// toHost is one of the other site to the own.
func toHost(v6 bool, tos uint8, psn uint32) frames.RoCE {
	r := fromHost(v6, tos, psn, 256)
	r.Src, r.Dst = netip.MustParseAddr("10.9.0.9"), netip.MustParseAddr("10.2.0.6")
	if v6 {
		r.Src, r.Dst = netip.MustParseAddr("fd00:9::9"), netip.MustParseAddr("fd00:2::6")
	}
	return r
}

func (w *tunnelWorld) hostSends(frame []byte) {
	w.t.Helper()
	if err := unix.Sendto(w.hostSend, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.host0}); err != nil {
		w.t.Fatal(err)
	}
}

// forwarded is the packet of a frame after a router.
func forwarded(frame []byte) []byte {
	p := bytes.Clone(frame[14:])
	if p[0]>>4 == 6 {
		p[7]--
		return p
	}
	p[8]--
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], frames.Checksum(p[:20]))
	return p
}

// asOracle brings an outer header to what the oracle writes: Identification and so the checksum are free (RFC 6864).
func asOracle(p []byte) []byte {
	p = bytes.Clone(p)
	if p[0]>>4 == 4 {
		p[4], p[5], p[10], p[11] = 0, 0, 0, 0
	}
	return p
}

func (w *tunnelWorld) stats() bpf.TunnelStats {
	w.t.Helper()
	s, err := w.tunnels.Stats()
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *tunnelWorld) oracle(t bpf.Tunnel, reversed bool) *ecn.Tunnel {
	w.t.Helper()
	c := ecn.TunnelConfig{Local: t.Local, Remote: t.Remote, HopLimit: 64, MTU: t.MTU}
	if t.Compatibility {
		c.Mode = ecn.Compatibility
	}
	if reversed {
		c.Local, c.Remote = c.Remote, c.Local
	}
	o, err := ecn.NewTunnel(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func compatible(t bpf.Tunnel) bpf.Tunnel {
	t.Compatibility = true
	return t
}

// WAN ECN, encapsulation behaviours: the kernel writes what agent/ecn writes, in all four pairs of IP versions, both modes, every field.
func TestWANECN_KernelEncapsulates(t *testing.T) {
	w := newTunnelWorld(t, "")
	for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6, compatible(tunnel4), compatible(tunnel6)} {
		w.set(tunnelPlan(0, tunnel))
		w.open(tunnel)
		oracle := w.oracle(tunnel, false)
		for _, v6 := range []bool{false, true} {
			for field := range uint8(4) {
				frame := fromHost(v6, 0x68|field, 7, 1024).Frame()
				w.hostSends(frame)
				got := w.seen()
				want, why := oracle.Encapsulate(nil, forwarded(frame))
				if why != ecn.DropNone {
					t.Fatal(why)
				}
				if !bytes.Equal(asOracle(got[14:]), asOracle(want)) || tunnel.Remote.Is4() && frames.Checksum(got[14:34]) != 0 {
					t.Errorf("%+v, inner IPv6 %v, field %d:\n%x, want\n%x", tunnel, v6, field, got[14:], want)
				}
				if !bytes.Equal(got[:6], farMAC[:]) {
					t.Errorf("to %x", got[:6])
				}
			}
		}
	}
}

// WAN ECN, decapsulation behaviours: the kernel leaves what agent/ecn leaves, for every cell, in all four pairs of IP versions.
func TestWANECN_KernelDecapsulates(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(-1, tunnel4, tunnel6))
	host := w.listenRaw()
	var want bpf.TunnelStats
	for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
		there, here := w.oracle(tunnel, true), w.oracle(tunnel, false)
		for _, v6 := range []bool{false, true} {
			for cell := range 16 {
				inner, outer := ecn.Codepoint(cell>>2), ecn.Codepoint(cell&3)
				r := toHost(v6, 0x68|uint8(inner), uint32(cell))
				p, why := there.Encapsulate(nil, r.Frame()[14:])
				if why != ecn.DropNone {
					t.Fatal(why)
				}
				ecn.SetCodepoint(p, outer)
				w.sendPacket(p, tunnel.Remote.Is6())
				left, verdict, _ := here.Decapsulate(bytes.Clone(p))
				want.Cells[inner][outer]++
				if verdict.Light {
					want.Passages[bpf.Light]++
				}
				if verdict.Drop {
					want.Passages[bpf.InNotECT]++
					if got := host.next(never); got != nil {
						t.Errorf("inner %v, outer %v came: %x", inner, outer, got)
					}
					continue
				}
				want.Passages[bpf.Decapsulated]++
				if got := host.next(soon); !bytes.Equal(got, forwarded(append(make([]byte, 14), left...))) {
					t.Errorf("outer IPv6 %v, inner IPv6 %v, inner %v, outer %v:\n%x, want\n%x", tunnel.Remote.Is6(), v6, inner, outer, got, left)
				}
			}
		}
	}
	if got := w.stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// rawHost sees the RoCEv2 packets that come to the host.
type rawHost struct {
	w *tunnelWorld
}

func (w *tunnelWorld) listenRaw() rawHost { return rawHost{w} }

func (h rawHost) next(d time.Duration) []byte {
	buf := make([]byte, 16384)
	for end := time.Now().Add(d); time.Now().Before(end); {
		tv := unix.NsecToTimeval(int64(time.Until(end) + time.Microsecond))
		if err := unix.SetsockoptTimeval(h.w.hostSend, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			h.w.t.Fatal(err)
		}
		n, from, err := unix.Recvfrom(h.w.hostSend, buf, 0)
		if err != nil || from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		f := buf[:n]
		if f[12] == 0x08 && f[13] == 0 && f[23] == 17 || f[12] == 0x86 && f[20] == 17 {
			return bytes.Clone(f[14:])
		}
	}
	return nil
}

// sendPacket puts an IP packet on the wire towards the uplink.
func (w *tunnelWorld) sendPacket(p []byte, v6 bool) {
	w.t.Helper()
	frame := append(append(append([]byte{}, upMAC[:]...), farMAC[:]...), 0x08, 0x00)
	if v6 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	w.send(append(frame, p...))
}

// Nothing goes into a tunnel that the other end has not answered for, and nothing is lost when its lease ends.
func TestWANECN_NothingWithoutLease(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	sent := fromHost(false, 2, 1, 512).Frame()
	expect := func(step string, tunnelled bool) {
		t.Helper()
		w.hostSends(sent)
		got := w.seen()
		if plain := bytes.Equal(got[14:], forwarded(sent)); plain == tunnelled {
			t.Errorf("%s: %x", step, got)
		}
	}
	expect("before a request", false)
	w.tunnels.Lease(tunnel4, packet.Now()+time.Minute)
	expect("no request has shown the way", false)
	if request := w.ask(tunnel4); request[23] != 4 {
		t.Errorf("the request did not leave in the tunnel: %x", request)
	}
	expect("a request ends what was said of another way", false)
	w.tunnels.Lease(tunnel4, packet.Now()+time.Minute)
	expect("answered", true)
	w.ask(tunnel4)
	expect("asked again the same way", true)
	w.tunnels.Lease(tunnel4, packet.Now())
	expect("the lease has ended", false)
	w.open(tunnel4)
	w.set(tunnelPlan(-1, tunnel4))
	expect("the site has no tunnel any more", false)
	s := w.stats().Passages
	if s[bpf.Encapsulated] != 2 || s[bpf.PlainNoLease] != 3 || s[bpf.PlainUplink] != 1 {
		t.Errorf("%v", s)
	}
}

// What does not fit leaves as it is, and so does the rest of its flow: half a flow in a tunnel would be reordered.
func TestWANECN_MTUEdge(t *testing.T) {
	w := newTunnelWorld(t, "")
	for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
		tunnel.MTU = 1400
		w.set(tunnelPlan(0, tunnel))
		w.open(tunnel)
		for _, v6 := range []bool{false, true} {
			room := 1400 - 20 - 20 - 8 - 12 - 4
			if v6 {
				room -= 20
			}
			if tunnel.Remote.Is6() {
				room -= 20
			}
			room &^= 3
			name := fmt.Sprintf("outer IPv6 %v, inner IPv6 %v", tunnel.Remote.Is6(), v6)
			base := uint32(0x100)
			if tunnel.Remote.Is6() {
				base = 0x200
			}
			in := func(qpn uint32, data int) bool {
				before := w.stats().Passages[bpf.Encapsulated]
				r := fromHost(v6, 2, 1, data)
				r.QPN = qpn
				w.hostSends(r.Frame())
				w.seen()
				return w.stats().Passages[bpf.Encapsulated] > before
			}
			if !in(base, room) {
				t.Errorf("%s: what just fits is not tunnelled", name)
			}
			if in(base, room+4) {
				t.Errorf("%s: too big is tunnelled", name)
			}
			if in(base, 64) {
				t.Errorf("%s: the rest of a flow that does not fit is tunnelled", name)
			}
			if !in(base+1, 64) {
				t.Errorf("%s: another flow is not tunnelled", name)
			}
		}
	}
}

// What does not belong into a tunnel is dropped with its reason; tunnels of others are left alone.
func TestWANECN_StrangersInTunnels(t *testing.T) {
	w := newTunnelWorld(t, "")
	plan := tunnelPlan(-1, tunnel4, tunnel6)
	plan.Sites = append(plan.Sites, bpf.TunnelSite{Prefixes: prefixes("10.8.0.0/24"), Use: -1})
	w.set(plan)
	there, host := w.oracle(tunnel4, true), w.listenRaw()
	good := func() []byte {
		p, _ := there.Encapsulate(nil, toHost(false, 2, 1).Frame()[14:])
		return p
	}
	redo := func(p []byte) []byte {
		binary.BigEndian.PutUint16(p[10:], 0)
		binary.BigEndian.PutUint16(p[10:], frames.Checksum(p[:20]))
		return p
	}
	inner := func(change func(r *frames.RoCE)) []byte {
		r := toHost(false, 2, 1)
		change(&r)
		p, _ := there.Encapsulate(nil, r.Frame()[14:])
		return p
	}
	cut := good()
	cut[2], cut[22] = cut[2]+1, cut[22]+1 // 256 octets more than there are
	message := func(src, dst netip.Addr) []byte {
		return inner(func(r *frames.RoCE) { r.Opcode, r.DstPort, r.Src, r.Dst = 0x1d, cremPort, src, dst })
	}
	endpoint := netip.MustParseAddr("10.9.0.9")
	for name, c := range map[string]struct {
		packet []byte
		want   bpf.Passage
	}{
		"outer options":                  {func() []byte { p := good(); p[0] = 0x46; return redo(p) }(), bpf.InMalformed},
		"more octets than there are":     {redo(cut), bpf.InMalformed},
		"source of a third site":         {inner(func(r *frames.RoCE) { r.Src = netip.MustParseAddr("10.8.0.8") }), bpf.InForeign},
		"a request of an endpoint":       {message(endpoint, tunnel4.Local), bpf.InForeign},
		"a request to an endpoint":       {message(tunnel4.Remote, netip.MustParseAddr("10.2.0.6")), bpf.InForeign},
		"a request":                      {message(tunnel4.Remote, tunnel4.Local), bpf.Decapsulated},
		"checksum":                       {func() []byte { p := good(); p[10] ^= 1; return p }(), bpf.InChecksum},
		"fragment":                       {func() []byte { p := good(); p[6] = 0x20; return redo(p) }(), bpf.InFragment},
		"later fragment":                 {func() []byte { p := good(); p[7] = 1; return redo(p) }(), bpf.InFragment},
		"length":                         {func() []byte { p := good(); p[3]--; return redo(p) }(), bpf.InMalformed},
		"inner length":                   {func() []byte { p := good(); p[23]--; return p }(), bpf.InMalformed},
		"inner version":                  {func() []byte { p := good(); p[9] = 41; return redo(p) }(), bpf.InMalformed},
		"inner options":                  {inner(func(r *frames.RoCE) { r.Options = 4 }), bpf.InMalformed},
		"inner fragment":                 {inner(func(r *frames.RoCE) { r.MoreFragments = true }), bpf.InMalformed},
		"source of the own site":         {inner(func(r *frames.RoCE) { r.Src = netip.MustParseAddr("10.2.0.7") }), bpf.InForeign},
		"source of no site":              {inner(func(r *frames.RoCE) { r.Src = netip.MustParseAddr("203.0.113.1") }), bpf.InForeign},
		"to the other site":              {inner(func(r *frames.RoCE) { r.Dst = netip.MustParseAddr("10.9.0.10") }), bpf.InForeign},
		"another port":                   {inner(func(r *frames.RoCE) { r.DstPort = 22 }), bpf.InForeign},
		"a CREM message of an endpoint":  {inner(func(r *frames.RoCE) { r.DstPort = cremPort }), bpf.InForeign},
		"a CREM message not of a tunnel": {inner(func(r *frames.RoCE) { r.DstPort, r.Src, r.Dst = cremPort, tunnel4.Remote, tunnel4.Local }), bpf.InForeign},
	} {
		before := w.stats().Passages
		w.sendPacket(c.packet, false)
		w.sendPacket(good(), false)
		if host.next(soon) == nil { // what was sent before it has been judged
			t.Fatalf("%s: a good packet behind it has not come", name)
		}
		before[c.want]++
		before[bpf.Decapsulated]++ // the good one
		if after := w.stats().Passages; after != before {
			t.Errorf("%s: %v, want one more %v", name, after, c.want)
		}
	}
	before := w.stats()
	others := good()
	others[15] = 6 // from 10.1.0.6
	w.sendPacket(redo(others), false)
	w.sendPacket(good(), false)
	if host.next(soon) == nil {
		t.Fatal("a good packet has not come")
	}
	before.Passages[bpf.Decapsulated]++
	before.Cells[2][2]++
	if got := w.stats(); got != before {
		t.Errorf("a tunnel of others: %+v, want %+v", got, before)
	}
}

// A flow over the rate that congestion left it is marked CE where it can be, never dropped, and free again when the limit ends.
func TestWANECN_OverRateIsMarked(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	flow := bpf.TunnelFlow{Src: netip.MustParseAddr("10.2.0.6"), Dst: netip.MustParseAddr("10.9.0.9"), QPN: 0x77}
	field := func(tos uint8) (outer, inner uint8) {
		w.hostSends(fromHost(false, tos, 1, 1024).Frame())
		got := w.seen()
		return got[15] & 3, got[35] & 3
	}
	limit := func(until time.Duration) {
		t.Helper()
		if err := w.tunnels.Limit(flow, 1000, time.Second, until); err != nil { // a packet of this size a second
			t.Fatal(err)
		}
	}
	limit(packet.Now() + time.Minute)
	var marked int
	for range 3 {
		if outer, inner := field(2); outer == 3 && inner == 3 {
			marked++
		} else if outer != 2 || inner != 2 {
			t.Errorf("outer %d, inner %d", outer, inner)
		}
	}
	if marked < 2 {
		t.Errorf("%d of 3 packets marked", marked)
	}
	if outer, inner := field(0); outer != 0 || inner != 0 {
		t.Errorf("Not-ECT: outer %d, inner %d", outer, inner)
	}
	limit(packet.Now())
	if outer, inner := field(2); outer != 2 || inner != 2 {
		t.Errorf("after the limit: outer %d, inner %d", outer, inner)
	}
	limit(packet.Now() + time.Minute)
	if err := w.tunnels.Unlimit(flow); err != nil {
		t.Fatal(err)
	}
	if outer, inner := field(2); outer != 2 || inner != 2 {
		t.Errorf("without a limit: outer %d, inner %d", outer, inner)
	}
	s := w.stats().Passages
	if s[bpf.OverRate] != uint64(marked) || s[bpf.OverRateNotECT] != 1 {
		t.Errorf("%v", s)
	}
}

// Marks that were made in the tunnel are told, each level once in a while; CE that the inner packet brought along is not.
func TestWANECN_MarksAreTold(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(-1, tunnel6))
	there := w.oracle(tunnel6, true)
	send := func(inner, outer ecn.Codepoint) {
		p, _ := there.Encapsulate(nil, toHost(false, uint8(inner), 1).Frame()[14:])
		ecn.SetCodepoint(p, outer)
		w.sendPacket(p, true)
	}
	send(ecn.CE, ecn.CE)
	send(ecn.ECT0, ecn.ECT0)
	send(ecn.CE, ecn.ECT1)
	send(ecn.ECT0, ecn.ECT1)
	send(ecn.ECT0, ecn.CE)
	want := bpf.Mark{
		Flow:  bpf.TunnelFlow{Src: netip.MustParseAddr("10.9.0.9"), Dst: netip.MustParseAddr("10.2.0.6"), QPN: 0x77},
		Local: tunnel6.Local, Remote: tunnel6.Remote,
	}
	for _, severe := range []bool{false, true} {
		got, err := w.tunnels.ReadMark()
		if want.Severe = severe; err != nil || got != want {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
	}
	for range 1000 {
		send(ecn.ECT0, ecn.CE)
	}
	if err := w.tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.tunnels.ReadMark(); err == nil {
		t.Error("a mark after the end")
	}
}

// crem_ingress sees the inner packet, whichever set of programs was there first.
func TestWANECN_DecapsulatedBeforeTheHold(t *testing.T) {
	for _, first := range []string{"tunnels", "objects"} {
		w := newTunnelWorld(t, "")
		w.set(tunnelPlan(-1, tunnel4))
		o := w.load(bpf.Config{})
		w.attach(o) // after the programs of tunnels, and before them
		if first == "tunnels" {
			w.node.Do(func() {
				if _, err := w.tunnels.Attach(w.up); err != nil {
					t.Fatal(err)
				}
			})
		} else {
			if err := o.Detach(w.up); err != nil {
				t.Fatal(err)
			}
			if err := w.tunnels.Detach(w.up); err != nil {
				t.Fatal(err)
			}
			w.attach(o)
			w.node.Do(func() {
				if _, err := w.tunnels.Attach(w.up); err != nil {
					t.Fatal(err)
				}
			})
		}
		r := toHost(false, 2, 5)
		if _, err := o.RegisterFlow(packet.FlowKey{Src: r.Src, Dst: r.Dst, QPN: r.QPN}, 0, 1024, packet.Immediate); err != nil {
			t.Fatal(err)
		}
		o.Beat(0, packet.Now())
		p, _ := w.oracle(tunnel4, true).Encapsulate(nil, r.Frame()[14:])
		w.sendPacket(p, false)
		if got := psnOf(t, nextFrame(t, o.Ring(0))); got != 5 {
			t.Errorf("%s first: PSN %d", first, got)
		}
	}
}

// An agent that is gone: what comes through the tunnel is taken, flows leave as they are when the lease ends; uninstalling waits until no
// other site sends any more, and leaves nothing.
func TestWANECN_WithoutAgent(t *testing.T) {
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	w := newTunnelWorld(t, pinDir)
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	promised := packet.Now() + 300*time.Millisecond
	w.tunnels.Promise(promised)
	w.tunnels.Promise(promised / 2)
	if err := w.tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	host := w.listenRaw()
	p, _ := w.oracle(tunnel4, true).Encapsulate(nil, toHost(true, 2, 5).Frame()[14:])
	w.sendPacket(p, false)
	if host.next(soon) == nil {
		t.Error("a tunnelled packet has not come")
	}
	sent := fromHost(false, 2, 1, 512).Frame()
	w.hostSends(sent)
	if got := w.seen(); got[23] != 4 {
		t.Errorf("within the lease: %x", got)
	}
	w.loadTunnels(bpf.TunnelConfig{PinDir: pinDir}) // an agent comes, and with it new leases
	w.hostSends(sent)
	if got := w.seen(); !bytes.Equal(got[14:], forwarded(sent)) {
		t.Errorf("a new agent: %x", got)
	}
	w.sendPacket(p, false)
	if host.next(soon) == nil {
		t.Error("a new agent does not take what its predecessor promised to take")
	}
	if got := w.tunnels.Promised(); got != promised {
		t.Errorf("promised until %v, want %v", got, promised)
	}
	if err := w.tunnels.Close(); err != nil {
		t.Fatal(err)
	}
	if err := bpf.Uninstall(t.Context(), pinDir); err != nil {
		t.Fatal(err)
	}
	if now := packet.Now(); now < promised {
		t.Errorf("uninstalled %v too early", promised-now)
	}
	if _, err := os.Stat(pinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	w.node.Do(func() {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if on, err := link.QueryPrograms(link.QueryOptions{Target: w.up, Attach: at}); err != nil || len(on.Programs) != 0 {
				t.Errorf("%v: %v, %v", at, on, err)
			}
		}
	})
}

// A plan that contradicts itself changes nothing.
func TestWANECN_PlansThatContradictThemselves(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	small, mixed := tunnel4, tunnel4
	small.MTU, mixed.Remote = 1000, tunnel6.Remote
	for _, p := range []bpf.TunnelPlan{tunnelPlan(1, tunnel4), tunnelPlan(0, tunnel4, compatible(tunnel4)), tunnelPlan(0, small), tunnelPlan(0, mixed)} {
		if err := w.tunnels.Set(p); err == nil {
			t.Errorf("%+v is taken", p)
		}
	}
	if until, ifindex := w.tunnels.Leased(tunnel4); until < packet.Now() || ifindex != w.up {
		t.Errorf("leased until %v by %d", until, ifindex)
	}
}

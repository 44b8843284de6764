// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

func pair(t *testing.T, seed uint64, p Path) (*Network, *Node, *Node) {
	t.Helper()
	n := NewNetwork(seed)
	a := n.Node(NodeConfig{Workers: 2, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00:1::1")}, Behind: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	b := n.Node(NodeConfig{Workers: 2, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("fd00:2::1")}, Behind: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}})
	n.SetPath(a, b, p)
	return n, a, b
}

func source(psn uint32, op roce.Opcode) []byte {
	return frames.RoCE{
		Headers: frames.Headers{Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("10.2.0.6"), TOS: 2},
		Opcode:  op, QPN: 7, PSN: psn, Data: make([]byte, 200),
	}.Frame()
}

// A frame of an endpoint is tapped on its way out, and comes after the path's delay, with what the path did to it.
func TestNetworkDelivers(t *testing.T) {
	n, a, b := pair(t, 1, Path{Delay: 10 * time.Millisecond, CE: 1})
	worker := packet.PairWorker(netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.2.0.6"), 2)
	a.Transmit(source(1, roce.SendOnly))
	a.Transmit(source(2, roce.ReadRequest))
	var f [4]packet.Frame
	if k := a.Taps()[worker].Next(f[:]); k != 2 || f[0].Flags != packet.Outgoing || !bytes.Equal(f[0].Data, source(1, roce.SendOnly)) {
		t.Errorf("%d tapped: %+v", k, f[0])
	}
	n.Advance(10*time.Millisecond - 1)
	if d := b.Delivered(); len(d) != 0 || n.InFlight() != 2 {
		t.Errorf("%d came early", len(d))
	}
	n.Advance(1)
	d := b.Delivered()
	if len(d) != 2 || d[0][15]&3 != 3 || frames.Checksum(d[0][14:34]) != 0 {
		t.Errorf("%d came: %x", len(d), d)
	}
	if k := b.Taps()[worker].Next(f[:]); k != 1 || f[0].Flags != packet.Cut || len(f[0].Data) != 128 {
		t.Errorf("%d tapped: %+v", k, f[0])
	}
	if _, ok := b.Program().Seen(packet.FlowKey{Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("10.2.0.6"), QPN: 7}); !ok {
		t.Error("not seen")
	}
}

// Loss, duplicates and lateness are those of the seed, in every run the same, and about as many as asked for.
func TestNetworkImpairs(t *testing.T) {
	run := func(seed uint64) (psns []uint32) {
		n, a, b := pair(t, seed, Path{Delay: time.Millisecond, Loss: 0.1, Duplicate: 0.1, Late: 0.1})
		for psn := range uint32(1000) {
			a.Transmit(source(psn, roce.SendOnly))
			n.Advance(10 * time.Microsecond)
		}
		n.Advance(time.Second)
		for _, f := range b.Delivered() {
			psns = append(psns, binary.BigEndian.Uint32(f[50:])&0xffffff)
		}
		return psns
	}
	one, again, other := run(1), run(1), run(2)
	same := func(a, b []uint32) bool {
		if len(a) != len(b) {
			return false
		}
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !same(one, again) || same(one, other) {
		t.Error("not determined by the seed")
	}
	seen := map[uint32]int{}
	late, twice := 0, 0
	for i, psn := range one {
		seen[psn]++
		if seen[psn] == 2 {
			twice++
		}
		if i > 0 && psn < one[i-1] {
			late++
		}
	}
	if lost := 1000 - len(seen); lost < 60 || lost > 140 || twice < 50 || twice > 140 || late < 50 {
		t.Errorf("%d lost, %d twice, %d late", 1000-len(seen), twice, late)
	}
}

// Messages go to the socket of their worker with TOS and addresses; too long ones are counted where they are sent, and lost
// on a path that is narrower.
func TestNetworkSockets(t *testing.T) {
	n, a, b := pair(t, 1, Path{MTU: 1400})
	from, to := a.Sockets(52000), b.Sockets(52000)
	for _, dst := range []string{"198.51.100.1", "fd00:2::1"} {
		for flow := range uint32(4) {
			msg := make([]byte, 64)
			msg[0] = 0x11
			binary.BigEndian.PutUint32(msg[4:], flow)
			from[1].Send(netip.AddrPortFrom(netip.MustParseAddr(dst), 52000), packet.Source{}, 0xba, msg)
			from[1].Flush()
			n.Advance(0)
			var m [2]packet.Message
			if k := to[flow%2].Recv(m[:]); k != 1 || !bytes.Equal(m[0].Data, msg) || m[0].TOS != 0xba || m[0].To.String() != dst || m[0].From.Port() != 52000 {
				t.Errorf("%s, flow %d: %d, %+v", dst, flow, k, m[0])
			}
		}
	}
	peer := netip.MustParseAddrPort("198.51.100.1:52000")
	from[0].Send(peer, packet.Source{Addr: netip.MustParseAddr("10.1.0.5")}, 0, make([]byte, 1450))
	from[0].Send(peer, packet.Source{Addr: netip.MustParseAddr("10.1.0.5")}, 0, make([]byte, 1473))
	from[0].Flush()
	n.Advance(time.Second)
	var m [2]packet.Message
	if k := to[0].Recv(m[:]); k != 0 {
		t.Errorf("%d came over a narrow path", k)
	}
	if s := from[0].Stats(); s.TooBig != 1 || s.Sent != 1 {
		t.Errorf("%+v", s)
	}
}

// Use of a frame after Release shows.
func TestReleasedFramesArePoisoned(t *testing.T) {
	n, a, b := pair(t, 1, Path{})
	key := packet.FlowKey{Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("10.2.0.6"), QPN: 7}
	if _, err := b.Program().RegisterFlow(key, 1, 1024, packet.InOrder); err != nil {
		t.Fatal(err)
	}
	a.Transmit(source(1, roce.SendOnly))
	n.Advance(0)
	ring := b.Program().Ring(1)
	var f [2]packet.Frame
	if k := ring.Next(f[:]); k != 1 || ring.Backlog() != 1 {
		t.Fatalf("%d frames, backlog %d", k, ring.Backlog())
	}
	ring.Release()
	if f[0].Data[0] != 0xdb || ring.Backlog() != 0 {
		t.Error("not poisoned, or not released")
	}
}

// Injected frames are delivered in order, parts joined.
func TestInjector(t *testing.T) {
	_, _, b := pair(t, 1, Path{})
	j := b.Injector()
	j.Inject(b.Ifindex(), []byte{1, 2}, []byte{3})
	j.Inject(b.Ifindex(), []byte{4}, nil)
	if len(b.Delivered()) != 0 {
		t.Error("before Flush")
	}
	j.Flush()
	if d := b.Delivered(); len(d) != 2 || !bytes.Equal(d[0], []byte{1, 2, 3}) || !bytes.Equal(d[1], []byte{4}) || j.Stats().Sent != 2 {
		t.Errorf("%v", d)
	}
}

// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/netns"
)

const port = 52000

// message is a CREM message of a type with a Flow ID, filled with a value.
func message(kind byte, flow uint32, octets int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, octets)
	b[0] = 0x10 | kind
	binary.BigEndian.PutUint16(b[2:], uint16(octets))
	binary.BigEndian.PutUint32(b[4:], flow)
	return b
}

func openSockets(t testing.TB, ns *netns.NS, c packet.SocketConfig) []packet.Socket {
	t.Helper()
	c.Port, c.IPv4, c.IPv6 = port, true, true
	var sockets []packet.Socket
	ns.Do(func() {
		var err error
		if sockets, err = packet.OpenSockets(c); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		for _, s := range sockets {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return sockets
}

// receive waits for n messages, copied.
func receive(t testing.TB, s packet.Socket, n int) (all []packet.Message) {
	t.Helper()
	poller := packet.NewPoller(s.FDs()...)
	for end := time.Now().Add(soon); len(all) < n && time.Now().Before(end); poller.Wait(10 * time.Millisecond) {
		var batch [5]packet.Message
		for _, m := range batch[:s.Recv(batch[:])] {
			m.Data = append([]byte{}, m.Data...)
			all = append(all, m)
		}
	}
	if len(all) != n {
		t.Fatalf("%d messages, want %d", len(all), n)
	}
	return all
}

func send(s packet.Socket, to string, tos uint8, msgs ...[]byte) {
	for _, m := range msgs {
		s.Send(netip.AddrPortFrom(netip.MustParseAddr(to), port), packet.Source{}, tos, m)
	}
	s.Flush()
}

// REPAIR goes to the worker of its Flow ID, everything else to the first; TOS and both addresses are told.
func TestSocketSteersAndTells(t *testing.T) {
	w := newWorld(t, 1500)
	const workers = 3
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: workers})
	for _, c := range []struct{ to, from string }{{"10.1.0.1", "10.1.0.5"}, {"fd00:1::1", "fd00:1::5"}} {
		for flow := range uint32(9) {
			const repair, hello = 1, 2
			send(far, c.to, 0xb8|2, message(repair, 0xfffffff0+flow, 100, byte(flow)))
			m := receive(t, node[(0xfffffff0+flow)%workers], 1)[0]
			want := packet.Message{
				Data: message(repair, 0xfffffff0+flow, 100, byte(flow)), From: netip.AddrPortFrom(netip.MustParseAddr(c.from), port),
				To: netip.MustParseAddr(c.to), TOS: 0xba, Ifindex: w.up,
			}
			if !bytes.Equal(m.Data, want.Data) || m.From != want.From || m.To != want.To || m.TOS != want.TOS || m.Ifindex != want.Ifindex {
				t.Errorf("got %+v, want %+v", m, want)
			}
			send(far, c.to, 0, message(hello, 0xfffffff0+flow, 60, 1), []byte{1})
			if m := receive(t, node[0], 2); m[0].TOS != 0 || len(m[1].Data) != 1 {
				t.Errorf("%+v", m)
			}
		}
		send(node[2], c.from, 3, message(1, 5, 77, 9))
		if m := receive(t, far, 1)[0]; m.TOS != 3 || m.From.Addr().String() != c.to || m.From.Port() != port {
			t.Errorf("%+v", m)
		}
	}
}

// Runs of equal messages leave as segments of one call and arrive each whole and in order, with the run's TOS, among
// messages that end a run: another length, destination, source or TOS.
func TestSocketSegments(t *testing.T) {
	w := newWorld(t, 1500)
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	for _, to := range []string{"10.1.0.5", "fd00:1::5"} {
		send(node, to, 0, message(2, 0, 60, 0)) // finds the neighbour: while that is unknown the kernel keeps only a few
		receive(t, far, 1)
		var want [][]byte
		var tos []uint8
		put := func(size, n int, t uint8) {
			for range n {
				want = append(want, message(1, uint32(len(want)), size, byte(len(want))))
				tos = append(tos, t)
			}
		}
		put(1000, 5, 2)
		put(400, 1, 2) // the last of a run may be shorter
		put(400, 3, 2)
		put(800, 2, 2)
		put(800, 2, 0xb8)
		put(1400, 70, 2) // more than a super-packet takes
		put(100, 1, 2)
		put(1200, 150, 2)
		for i, m := range want {
			node.Send(netip.AddrPortFrom(netip.MustParseAddr(to), port), packet.Source{}, tos[i], m)
		}
		before := node.Stats()
		node.Flush()
		for i, m := range receive(t, far, len(want)) {
			if !bytes.Equal(m.Data, want[i]) || m.TOS != tos[i] {
				t.Fatalf("message %d: %d octets, TOS %x; want %d, %x", i, len(m.Data), m.TOS, len(want[i]), tos[i])
			}
		}
		s := node.Stats()
		if s.Sent < uint64(len(want)) || s.Failed+s.TooBig != 0 || s.Segmented-before.Segmented < 100 {
			t.Errorf("%+v", s)
		}
	}
}

// Section 4.1, rule 3: the don't-fragment bit is set, so a message over the MTU is not sent but counted, also within a run.
func TestSection4_1_TooBig(t *testing.T) {
	w := newWorld(t, 1400)
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	for _, c := range []struct {
		to    string
		fits  int
		total uint64
	}{{"10.1.0.5", 1400 - 28, 3}, {"fd00:1::5", 1400 - 48, 6}} {
		big, fits := message(1, 1, c.fits+1, 7), message(1, 2, c.fits, 8)
		send(node, c.to, 0, big, fits, big, big, fits, fits)
		for _, m := range receive(t, far, 3) {
			if !bytes.Equal(m.Data, fits) {
				t.Errorf("%d octets", len(m.Data))
			}
		}
		if s := node.Stats(); s.TooBig != c.total || s.Failed != 0 || s.Sent != c.total {
			t.Errorf("%+v", s)
		}
	}
}

// A CRF that answers on the path sends from the endpoint's address (Section 5.1, rule 7).
func TestSocketForeignSource(t *testing.T) {
	w := newWorld(t, 1500)
	w.far.Route("10.2.0.0/16", "10.1.0.1")
	w.far.Route("fd00:2::/64", "fd00:1::1")
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	for to, from := range map[string]string{"10.1.0.5": "10.2.3.4", "fd00:1::5": "fd00:2::99"} {
		for range 2 {
			node.Send(netip.AddrPortFrom(netip.MustParseAddr(to), port), packet.Source{Addr: netip.MustParseAddr(from)}, 2, message(3, 4, 64, 1))
		}
		node.Flush()
		for _, m := range receive(t, far, 2) {
			if m.From != netip.AddrPortFrom(netip.MustParseAddr(from), port) {
				t.Errorf("from %v, want %s", m.From, from)
			}
		}
	}
}

// A message that is held to an interface leaves by it (Section 11, rule 6: its policies cover it, no other's); over IPv4 whatever the
// routes say.
func TestSection11_SocketHeldToInterface(t *testing.T) {
	for _, c := range []struct{ to, from string }{{"10.1.0.5", "192.0.2.1"}, {"fd00:9::5", "2001:db8::1"}} {
		w := newWorld(t, 1500) // a route to the IPv4 address leads to the far host
		tunnel, index := netns.TUN(t, 1400, netns.End{NS: w.node, Name: "ipsec0", Addrs: []string{"192.0.2.1/32", "2001:db8::1/128", "fd00:9::1/64"}})
		node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
		to, from := netip.AddrPortFrom(netip.MustParseAddr(c.to), port), netip.MustParseAddr(c.from)
		node.Send(to, packet.Source{Addr: from, Ifindex: index}, 2, message(3, 4, 64, 1))
		node.Flush()
		buf := make([]byte, 2048)
		if err := tunnel.SetReadDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := tunnel.Read(buf)
			if err != nil {
				t.Fatalf("to %s: the message has not left by the interface: %v", c.to, err)
			}
			if bytes.Contains(buf[:n], to.Addr().AsSlice()) && bytes.Contains(buf[:n], from.AsSlice()) {
				break // not what the kernel itself sends to its neighbours
			}
		}
		if s := node.Stats(); s.Sent != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// What can't be sent is counted and doesn't stop what follows.
func TestSocketFailures(t *testing.T) {
	w := newWorld(t, 1500)
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1, MaxMessage: 200})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	unrouted := netip.MustParseAddrPort("192.0.2.1:52000")
	ok := netip.MustParseAddrPort("10.1.0.5:52000")
	node.Send(unrouted, packet.Source{}, 0, message(1, 1, 100, 1))
	node.Send(ok, packet.Source{}, 0, message(1, 2, 100, 2))
	node.Send(unrouted, packet.Source{}, 0, message(1, 3, 100, 3))
	node.Send(unrouted, packet.Source{}, 0, message(1, 4, 100, 4))
	node.Send(ok, packet.Source{}, 0, message(1, 5, 100, 5))
	node.Send(ok, packet.Source{}, 0, message(1, 6, 201, 6)) // longer than the receiver takes
	node.Send(ok, packet.Source{}, 0, message(1, 7, 200, 7))
	node.Flush()
	m := receive(t, far, 3)
	if m[0].Data[20] != 2 || m[1].Data[20] != 5 || m[2].Data[20] != 7 {
		t.Errorf("%v %v %v", m[0].Data[20], m[1].Data[20], m[2].Data[20])
	}
	if s := node.Stats(); s.Failed != 3 || s.Sent != 4 {
		t.Errorf("%+v", s)
	}
	if s := far.Stats(); s.Truncated != 1 || s.Received != 3 {
		t.Errorf("%+v", s)
	}
}

// Where the kernel can't cut super-packets (with IPsec on the way, or without checksums as here), runs are sent one by one.
func TestSocketWithoutSegmentation(t *testing.T) {
	w := newWorld(t, 1500)
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	if err := unix.SetsockoptInt(node.FDs()[0], unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	var msgs [][]byte
	for i := range 20 {
		msgs = append(msgs, message(1, uint32(i), 500, byte(i)))
	}
	for range 2 { // the second time it doesn't even try
		send(node, "10.1.0.5", 2, msgs...)
		for i, m := range receive(t, far, len(msgs)) {
			if !bytes.Equal(m.Data, msgs[i]) || m.TOS != 2 {
				t.Errorf("message %d: %d octets", i, len(m.Data))
			}
		}
	}
	if s := node.Stats(); s.Segmented != 0 || s.Failed != 0 || s.Sent != 40 {
		t.Errorf("%+v", s)
	}
}

func TestSocketDoesNotAllocate(t *testing.T) {
	w := newWorld(t, 1500)
	far := openSockets(t, w.far, packet.SocketConfig{Workers: 1})[0]
	node := openSockets(t, w.node, packet.SocketConfig{Workers: 1})[0]
	to, from := netip.MustParseAddrPort("[fd00:1::5]:52000"), netip.MustParseAddr("fd00:1::1")
	to4, from4 := netip.MustParseAddrPort("10.1.0.5:52000"), netip.MustParseAddr("10.1.0.1")
	msg := message(1, 1, 1000, 1)
	batch := make([]packet.Message, 16)
	got := 0
	if n := testing.AllocsPerRun(50, func() {
		for range 8 {
			node.Send(to, packet.Source{Addr: from}, 2, msg)
			node.Send(to4, packet.Source{Addr: from4}, 2, msg)
		}
		node.Flush()
		got += far.Recv(batch)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if got == 0 {
		t.Error("nothing received")
	}
}

func TestSocketErrors(t *testing.T) {
	for _, c := range []packet.SocketConfig{{Workers: 1, IPv4: true}, {Port: port, IPv4: true}, {Port: port, Workers: 1}} {
		if _, err := packet.OpenSockets(c); err == nil {
			t.Errorf("%+v opened", c)
		}
	}
	w := newWorld(t, 1500)
	w.node.Do(func() {
		other, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if _, err := packet.OpenSockets(packet.SocketConfig{Port: port, Workers: 2, IPv4: true, IPv6: true}); err == nil {
			t.Error("a port that another program has was opened")
		}
	})
}

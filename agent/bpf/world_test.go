// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

// world is a remote host behind the uplink of a gateway node, and a host of the gateway's own site:
//
//	far (10.1.0.5) --- up0 [node] in0 --- host (10.2.0.6)
type world struct {
	t               testing.TB
	far, node, host *netns.NS
	up              int // interface index of up0 in node
	bare            bool
	far0            int // of the far end
	sender          int // raw socket on the far end
}

var (
	farMAC = frames.MAC{2, 0, 0, 0, 0, 1}
	upMAC  = frames.MAC{2, 0, 0, 0, 0, 2}
)

const (
	inMAC   = "02:00:00:00:00:03"
	hostMAC = "02:00:00:00:00:04"
	mtu     = 4200
)

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, far: netns.New(t), node: netns.New(t), host: netns.New(t)}
	w.far0, w.up = netns.Link(t, mtu,
		netns.End{NS: w.far, Name: "far0", MAC: net.HardwareAddr(farMAC[:]).String(), Addrs: []string{"10.1.0.5/24", "fd00:1::5/64"}},
		netns.End{NS: w.node, Name: "up0", MAC: net.HardwareAddr(upMAC[:]).String(), Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}})
	w.addHost()
	w.far.Route("10.2.0.0/24", "10.1.0.1")
	w.far.Route("fd00:2::/64", "fd00:1::1")
	w.far.Do(func() {
		var err error
		if w.sender, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { unix.Close(w.sender) })
	return w
}

// addHost adds the host of the own site, and makes the node a router.
func (w *world) addHost() {
	w.t.Helper()
	netns.Link(w.t, mtu,
		netns.End{NS: w.node, Name: "in0", MAC: inMAC, Addrs: []string{"10.2.0.1/24", "fd00:2::1/64"}},
		netns.End{NS: w.host, Name: "host0", MAC: hostMAC, Addrs: []string{"10.2.0.6/24", "fd00:2::6/64"}})
	w.node.Forward()
	for _, a := range []string{"10.2.0.6", "fd00:2::6"} {
		w.node.Neighbour("in0", a, hostMAC)
	}
	w.host.Route("10.1.0.0/24", "10.2.0.1")
	w.host.Route("fd00:1::/64", "fd00:2::1")
}

// load loads the programs and attaches them to the uplink.
func (w *world) load(c bpf.Config) *bpf.Objects {
	w.t.Helper()
	if c.Workers == 0 {
		c.Workers = 1
	}
	c.SlotOctets = mtu + 14
	o, err := bpf.Load(c)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := o.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return o
}

func (w *world) attach(o *bpf.Objects) (a bpf.Attachment) {
	w.t.Helper()
	w.node.Do(func() {
		var err error
		if a, err = o.Attach(w.up, w.bare); err != nil {
			w.t.Fatal(err)
		}
	})
	return a
}

func (w *world) injector() packet.Injector {
	w.t.Helper()
	var j packet.Injector
	w.node.Do(func() {
		var err error
		if j, err = packet.OpenInjector(packet.InjectorConfig{Mark: bpf.DefaultMark}); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() { j.Close() })
	return j
}

// send puts a frame on the wire towards the uplink.
func (w *world) send(frame []byte) {
	w.t.Helper()
	if err := w.trySend(frame); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) trySend(frame []byte) error {
	return unix.Sendto(w.sender, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.far0})
}

// source is a source packet from far to host.
func source(psn uint32) frames.RoCE {
	return frames.RoCE{
		Headers: frames.Headers{SrcMAC: farMAC, DstMAC: upMAC, Src: netip.MustParseAddr("10.1.0.5"), Dst: netip.MustParseAddr("10.2.0.6"), TOS: 2},
		Opcode:  roce.WriteMiddle, QPN: 0x77, PSN: psn, Data: make([]byte, 1024),
	}
}

func source6(psn uint32) frames.RoCE {
	r := source(psn)
	r.Src, r.Dst, r.Checksum = netip.MustParseAddr("fd00:1::5"), netip.MustParseAddr("fd00:2::6"), true
	return r
}

func keyOf(r frames.RoCE) packet.FlowKey {
	space, _ := r.Opcode.Space()
	return packet.FlowKey{Src: r.Src, Dst: r.Dst, QPN: r.QPN, Response: space == roce.Response}
}

// arrivals are the RoCEv2 packets that the host receives.
type arrivals struct {
	t    testing.TB
	conn *net.UDPConn
	buf  [9216]byte
}

func (w *world) listen() *arrivals {
	w.t.Helper()
	a := &arrivals{t: w.t}
	w.host.Do(func() {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: roce.Port})
		if err != nil {
			w.t.Fatal(err)
		}
		if err := conn.SetReadBuffer(32 << 20); err != nil {
			w.t.Fatal(err)
		}
		a.conn = conn
	})
	w.t.Cleanup(func() { a.conn.Close() })
	return a
}

// next is the PSN of the next packet that arrives within d.
func (a *arrivals) next(d time.Duration) (psn uint32, ok bool) {
	a.t.Helper()
	if err := a.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		a.t.Fatal(err)
	}
	n, err := a.conn.Read(a.buf[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, false
	}
	if err != nil || n < 16 {
		a.t.Fatalf("%d octets, %v", n, err)
	}
	return binary.BigEndian.Uint32(a.buf[8:]) & 0xffffff, true
}

const (
	soon  = 5 * time.Second       // for what must come
	never = 30 * time.Millisecond // for what must not
)

// expect wants exactly these PSNs, in this order.
func (a *arrivals) expect(psns ...uint32) {
	a.t.Helper()
	for _, want := range psns {
		got, ok := a.next(soon)
		if !ok {
			a.t.Fatalf("PSN %d has not come", want)
		}
		if got != want {
			a.t.Fatalf("PSN %d came, want %d", got, want)
		}
	}
	if got, ok := a.next(never); ok {
		a.t.Fatalf("PSN %d came, want no more", got)
	}
}

// frame waits for the next frame of a ring.
func nextFrame(t testing.TB, r packet.Ring) packet.Frame {
	t.Helper()
	var f [1]packet.Frame
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if r.Next(f[:]) == 1 {
			return f[0]
		}
	}
	t.Fatal("no frame in the ring")
	return packet.Frame{}
}

func psnOf(t testing.TB, f packet.Frame) uint32 {
	t.Helper()
	p, reason := roce.Parse(f.Data)
	if reason != roce.OK {
		t.Fatal(reason)
	}
	return uint32(p.PSN())
}

// headOf cuts a frame for the injector.
func headOf(frame []byte) (head, payload []byte) {
	n := 14 + 20 + 8
	if frame[12] == 0x86 {
		n = 14 + 40 + 8
	}
	return frame[:n], frame[n:]
}

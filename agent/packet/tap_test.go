// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

// Outgoing RoCEv2 packets are copied whole, of incoming ones only those that acknowledge or ask, cut; nothing else is,
// and no injected frame.
func TestTapDirections(t *testing.T) {
	for _, ends := range [][2]string{{"10.2.0.6", "10.3.0.7"}, {"fd00:2::6", "fd00:3::7"}} {
		w := newWorld(t, 4200)
		tap := w.taps(1, 128)[0]
		var in, out [][]byte
		var want []roce.Opcode
		for op := range 256 {
			p := packetOf(ends[1], ends[0], roce.Opcode(op), uint32(op))
			in = append(in, p.Frame())
			if acknowledges(&packet.Recognised{}, roce.Port, roce.Opcode(op)) {
				want = append(want, roce.Opcode(op))
			}
		}
		other := packetOf(ends[0], ends[1], roce.SendOnly, 1)
		other.DstPort = 4792
		late := packetOf(ends[0], ends[1], roce.SendOnly, 1)
		late.FragmentOffset = 512
		big := packetOf(ends[0], ends[1], roce.SendOnly, 5)
		big.Data = bytes.Repeat([]byte{7}, 4000)
		out = append(out, other.Frame(), late.Headers.Frame(make([]byte, 100)), big.Frame())
		marked := packetOf(ends[0], ends[1], roce.SendOnly, 6).Frame()
		before := packet.Now()
		w.raw(w.node, w.up, mark, marked)
		w.raw(w.node, w.up, mark+1, packetOf(ends[0], ends[1], roce.SendOnly, 8).Frame())
		w.outgoing(out...)
		w.incoming(in...)
		got := collect(t, tap, len(want)+2)
		for i, f := range got[:2] {
			p, reason := roce.Parse(f.Data)
			if reason != roce.OK || f.Flags != packet.Outgoing || f.Len != len(f.Data) || f.Ifindex != w.up || f.Flow != packet.NoFlow {
				t.Errorf("outgoing %d: %v, %+v", i, reason, f)
			}
			if i == 1 && (p.PSN() != 5 || !bytes.Equal(f.Data, big.Frame())) {
				t.Errorf("outgoing frame differs")
			}
			if f.Time < before-time.Second || f.Time > packet.Now()+time.Second {
				t.Errorf("frame at %v, now %v", f.Time, packet.Now())
			}
		}
		for i, f := range got[2:] {
			at := 14 + 20 + 8
			if f.Data[12] == 0x86 {
				at += 20
			}
			if op := roce.Opcode(f.Data[at]); op != want[i] || f.Flags != packet.Cut || len(f.Data) != 128 || f.Len <= 128 {
				t.Errorf("incoming %v, want %v; flags %x, %d of %d octets", op, want[i], f.Flags, len(f.Data), f.Len)
			}
		}
		if s := tap.Stats(); s.Frames != uint64(len(got)) || s.Dropped != 0 || s.Bad != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// The tap of an uplink without Ethernet headers gives the same frames, behind a header of zeros with the EtherType.
func TestBareTap(t *testing.T) {
	for _, ends := range [][2]string{{"10.2.0.6", "10.3.0.7"}, {"fd00:2::6", "fd00:3::7"}} {
		w := &world{t: t, node: netns.New(t)}
		var far *os.File
		far, w.up = netns.TUN(t, 4200, netns.End{NS: w.node, Name: "up0", Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}})
		tap := w.openTaps(packet.TapConfig{Workers: 1, Bare: true, BlockOctets: 1 << 16, Blocks: 128})[0]
		big := packetOf(ends[0], ends[1], roce.SendOnly, 5)
		big.Data = bytes.Repeat([]byte{7}, 4000)
		other := packetOf(ends[0], ends[1], roce.SendOnly, 6)
		other.DstPort = 4792
		protocol := map[bool]uint16{false: unix.ETH_P_IP, true: unix.ETH_P_IPV6}[big.Src.Is6()]
		w.node.Do(func() {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			for _, p := range []frames.RoCE{other, big} {
				to := &unix.SockaddrLinklayer{Ifindex: w.up, Protocol: protocol>>8 | protocol<<8}
				if err := unix.Sendto(fd, p.Frame()[14:], 0, to); err != nil {
					t.Fatal(err)
				}
			}
		})
		for _, op := range []roce.Opcode{roce.SendOnly, roce.Acknowledge, roce.ReadRequest} {
			if _, err := far.Write(packetOf(ends[1], ends[0], op, 9).Frame()[14:]); err != nil {
				t.Fatal(err)
			}
		}
		got := collect(t, tap, 3)
		bare := func(p frames.RoCE) []byte {
			return append(append(make([]byte, 12), byte(protocol>>8), byte(protocol)), p.Frame()[14:]...)
		}
		if f := got[0]; f.Flags != packet.Outgoing || !bytes.Equal(f.Data, bare(big)) || f.Len != len(f.Data) || f.Ifindex != w.up {
			t.Errorf("outgoing: flags %x, %d octets of %d: % x", f.Flags, len(f.Data), f.Len, f.Data[:64])
		}
		for i, op := range []roce.Opcode{roce.Acknowledge, roce.ReadRequest} {
			f, whole := got[1+i], bare(packetOf(ends[1], ends[0], op, 9))
			if f.Flags != packet.Cut || f.Len != len(whole) || !bytes.Equal(f.Data, whole[:14+128]) {
				t.Errorf("incoming %v: flags %x, %d octets of %d, want %d: % x", op, f.Flags, len(f.Data), f.Len, len(whole), f.Data[:64])
			}
		}
	}
}

// Both directions of a pair of hosts come to the worker that PairWorker names, from the first frame on.
func TestTapFanout(t *testing.T) {
	const workers = 3
	w := newWorld(t, 1500)
	taps := w.taps(workers, 128)
	var want [workers]int
	var out, in [][]byte
	for i := range 30 {
		a, b := fmt.Sprintf("10.2.0.%d", i+1), fmt.Sprintf("10.3.%d.9", i%7)
		if i%2 == 1 {
			a, b = fmt.Sprintf("fd00:2::%x:%d", i*911, i+1), fmt.Sprintf("fd00:%d::9", i%7)
		}
		worker := packet.PairWorker(netip.MustParseAddr(a), netip.MustParseAddr(b), workers)
		if worker != packet.PairWorker(netip.MustParseAddr(b), netip.MustParseAddr(a), workers) {
			t.Fatalf("%s and %s: the directions differ", a, b)
		}
		out = append(out, packetOf(a, b, roce.SendOnly, uint32(worker)).Frame())
		in = append(in, packetOf(b, a, roce.Acknowledge, uint32(worker)).Frame())
		want[worker] += 2
	}
	w.outgoing(out...)
	w.incoming(in...)
	for worker, tap := range taps {
		if want[worker] == 0 {
			t.Fatalf("worker %d has no pair: choose other addresses", worker)
		}
		for _, f := range collect(t, tap, want[worker]) {
			at := 14 + 20 + 8 + 8
			if f.Data[12] == 0x86 {
				at += 20
			}
			if got := binary.BigEndian.Uint32(f.Data[at:]) & 0xffffff; got != uint32(worker) {
				t.Errorf("worker %d has a frame of %d", worker, got)
			}
		}
	}
}

// What must not be coded is marked: VLAN, super-packets. A checksum that was left to the device is finished.
func TestTapMarksFrames(t *testing.T) {
	w := newWorld(t, 1500)
	tap := w.taps(1, 128)[0]
	p := packetOf("10.1.0.1", "10.1.0.5", roce.SendOnly, 3)
	p.VLAN = []uint16{42}
	fragment := packetOf("10.1.0.1", "10.1.0.5", roce.SendOnly, 4)
	fragment.MoreFragments = true
	w.outgoing(p.Frame(), fragment.Frame())

	var conn, listener *net.UDPConn
	w.far.Do(func() { // or the far kernel would answer that nobody listens
		var err error
		if listener, err = net.ListenUDP("udp", &net.UDPAddr{Port: roce.Port}); err != nil {
			t.Fatal(err)
		}
	})
	defer listener.Close()
	w.node.Do(func() {
		var err error
		if conn, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP("10.1.0.5"), Port: roce.Port}); err != nil {
			t.Fatal(err)
		}
	})
	defer conn.Close()
	payload := packetOf("10.1.0.1", "10.1.0.5", roce.SendOnly, 5).Frame()[42:]
	if _, err := conn.Write(payload); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, unix.CmsgSpace(2))
	oob[0], oob[8], oob[12] = byte(unix.CmsgLen(2)), unix.SOL_UDP, unix.UDP_SEGMENT
	binary.LittleEndian.PutUint16(oob[16:], uint16(len(payload)))
	if _, _, err := conn.WriteMsgUDP(bytes.Repeat(payload, 3), oob, nil); err != nil {
		t.Skipf("needs UDP_SEGMENT: %v", err)
	}

	// A tag inside of the frame is not RoCEv2 for the filter; one that a device would insert is told by its flag.
	got := collect(t, tap, 3)
	if _, reason := roce.Parse(got[0].Data); reason != roce.Fragment || got[0].Flags != packet.Outgoing {
		t.Errorf("fragment: %v, flags %x", reason, got[0].Flags)
	}
	if got[1].Flags != packet.Outgoing|packet.PartialChecksum {
		t.Errorf("local packet: flags %x", got[1].Flags)
	}
	udp := got[1].Data[34:]
	pseudo := append(append([]byte{}, got[1].Data[26:34]...), 0, 17, udp[4], udp[5])
	if sum := frames.Checksum(append(pseudo, udp...)); sum != 0 || udp[6]|udp[7] == 0 {
		t.Errorf("checksum off by %#x", sum)
	}
	if !bytes.Equal(got[1].Data[42:], payload) {
		t.Error("payload changed")
	}
	if got[2].Flags&(packet.Outgoing|packet.GSO) != packet.Outgoing|packet.GSO {
		t.Errorf("super-packet: flags %x", got[2].Flags)
	}

	// The receiving side has the tag taken off.
	farTap := openTap(t, w.far, w.far0)
	reply := packetOf("10.1.0.1", "10.1.0.5", roce.Acknowledge, 5)
	reply.VLAN = []uint16{42}
	w.outgoing(reply.Frame())
	if f := collect(t, farTap, 1)[0]; f.Flags != packet.VLAN|packet.Cut {
		t.Errorf("tagged frame: flags %x", f.Flags)
	}
}

func openTap(t *testing.T, ns *netns.NS, ifindex int) packet.Tap {
	t.Helper()
	var taps []packet.Tap
	ns.Do(func() {
		var err error
		if taps, err = packet.OpenTaps(packet.TapConfig{Ifindex: ifindex, Workers: 1, Mark: mark}); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { taps[0].Close() })
	return taps[0]
}

// Frames stay valid until Release over several blocks; what finds no room meanwhile is counted, and the ring goes on after
// Release.
func TestTapRelease(t *testing.T) {
	w := newWorld(t, 4200)
	// The kernel must not end a block for its age while the test is slow.
	tap := w.openTaps(packet.TapConfig{Workers: 1, BlockOctets: 1 << 16, Blocks: 4, Retire: 100 * time.Millisecond})[0]
	send := func(first, n int) {
		t.Helper()
		var out [][]byte
		for i := range n {
			p := packetOf("10.2.0.6", "10.3.0.7", roce.SendOnly, uint32(first+i))
			p.Data = bytes.Repeat([]byte{byte(first + i)}, 4000)
			out = append(out, p.Frame())
		}
		w.outgoing(out...)
	}
	send(0, 100) // 400 KB
	var got []packet.Frame
	batch := make([]packet.Frame, 7)
	poller := packet.NewPoller(tap.FD())
	for poller.Wait(300*time.Millisecond) && len(got) < 100 {
		n := tap.Next(batch)
		if n == 0 {
			break
		}
		got = append(got, batch[:n]...)
	}
	if len(got) < 40 || len(got) >= 100 {
		t.Fatalf("%d frames without Release", len(got))
	}
	for i, f := range got {
		p, reason := roce.Parse(f.Data)
		if reason != roce.OK || int(p.PSN()) != i || p.Data()[3999] != byte(i) {
			t.Fatalf("frame %d: %v", i, reason)
		}
	}
	lost := 100 - len(got)
	if n := tap.Next(batch); n != 0 {
		t.Errorf("%d frames out of nothing", n)
	}
	tap.Release()
	if s := tap.Stats(); s.Dropped != uint64(lost) || s.Frames != uint64(len(got)) {
		t.Errorf("%+v, want %d dropped", s, lost)
	}
	for round := range 5 {
		send(100*round, 30)
		for i, f := range collect(t, tap, 30) {
			if p, _ := roce.Parse(f.Data); int(p.PSN()) != 100*round+i {
				t.Fatalf("round %d: PSN %v at %d", round, p.PSN(), i)
			}
		}
	}
	if s := tap.Stats(); s.Dropped != uint64(lost) {
		t.Errorf("%+v after Release", s)
	}
}

func TestTapDoesNotAllocate(t *testing.T) {
	w := newWorld(t, 1500)
	tap := w.taps(1, 128)[0]
	w.outgoing(slices.Repeat([][]byte{packetOf("10.2.0.6", "10.3.0.7", roce.SendOnly, 1).Frame()}, 50)...)
	batch := make([]packet.Frame, 8)
	poller := packet.NewPoller(tap.FD())
	seen := 0
	if n := testing.AllocsPerRun(50, func() {
		poller.Wait(time.Millisecond)
		seen += tap.Next(batch)
		tap.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if seen != 50 {
		t.Errorf("%d frames", seen)
	}
}

// An interface that goes down and comes back: the tap goes on, and waiting for it does not turn into a busy loop.
func TestTapSurvivesLinkDown(t *testing.T) {
	w := newWorld(t, 1500)
	tap := w.taps(1, 128)[0]
	poller := packet.NewPoller(tap.FD())
	set := func(up bool) {
		t.Helper()
		w.node.Do(func() {
			link, err := netlink.LinkByName("up0")
			if err != nil {
				t.Fatal(err)
			}
			if up {
				err = netlink.LinkSetUp(link)
			} else {
				err = netlink.LinkSetDown(link)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	set(false)
	poller.Wait(time.Second) // tells of the error
	early := 0
	for range 3 {
		if start := time.Now(); poller.Wait(5*time.Millisecond) || time.Since(start) < 5*time.Millisecond {
			early++
		}
	}
	if early > 1 {
		t.Errorf("%d of 3 waits ended early", early)
	}
	set(true)
	w.outgoing(packetOf("10.2.0.6", "10.3.0.7", roce.SendOnly, 1).Frame())
	collect(t, tap, 1)
}

// A closed descriptor is no longer waited for.
func TestPollerClosedDescriptor(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	poller := packet.NewPoller(pipe[0])
	if _, err := unix.Write(pipe[1], []byte{1}); err != nil {
		t.Fatal(err)
	}
	if !poller.Wait(soon) {
		t.Error("readable, but not told")
	}
	unix.Close(pipe[0])
	for range 2 {
		if poller.Wait(0) {
			t.Error("a closed descriptor is readable")
		}
	}
}

func TestTapErrors(t *testing.T) {
	netns.NeedRoot(t)
	if _, err := packet.OpenTaps(packet.TapConfig{Ifindex: 999999, Workers: 2, Mark: mark}); err == nil {
		t.Error("an interface that is not there was tapped")
	}
	if _, err := packet.OpenTaps(packet.TapConfig{Ifindex: 1}); err == nil {
		t.Error("no worker")
	}
}

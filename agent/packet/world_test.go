// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

const (
	mark = 0x4352454d
	soon = 5 * time.Second
)

var (
	farMAC = frames.MAC{2, 0, 0, 0, 0, 1}
	upMAC  = frames.MAC{2, 0, 0, 0, 0, 2}
)

// world is a node and what its uplink leads to.
type world struct {
	t         testing.TB
	far, node *netns.NS
	far0, up  int // interface indices
}

func newWorld(t testing.TB, mtu int) *world {
	t.Helper()
	w := &world{t: t, far: netns.New(t), node: netns.New(t)}
	w.far0, w.up = netns.Link(t, mtu,
		netns.End{NS: w.far, Name: "far0", MAC: net.HardwareAddr(farMAC[:]).String(), Addrs: []string{"10.1.0.5/24", "fd00:1::5/64"}},
		netns.End{NS: w.node, Name: "up0", MAC: net.HardwareAddr(upMAC[:]).String(), Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}})
	return w
}

// raw sends frames on an interface, with a mark if it is not 0.
func (w *world) raw(ns *netns.NS, ifindex int, mark int, all ...[]byte) {
	w.t.Helper()
	ns.Do(func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		defer unix.Close(fd)
		if mark != 0 {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
				w.t.Fatal(err)
			}
		}
		for _, frame := range all {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: ifindex}); err != nil {
				w.t.Fatal(err)
			}
		}
	})
}

// incoming sends frames to the node, outgoing from it.
func (w *world) incoming(all ...[]byte) { w.t.Helper(); w.raw(w.far, w.far0, 0, all...) }
func (w *world) outgoing(all ...[]byte) { w.t.Helper(); w.raw(w.node, w.up, 0, all...) }

func (w *world) taps(workers, blocks int) []packet.Tap {
	w.t.Helper()
	return w.openTaps(packet.TapConfig{Workers: workers, BlockOctets: 1 << 16, Blocks: blocks})
}

func (w *world) openTaps(c packet.TapConfig) []packet.Tap {
	w.t.Helper()
	c.Ifindex, c.Mark = w.up, mark
	var taps []packet.Tap
	w.node.Do(func() {
		var err error
		if taps, err = packet.OpenTaps(c); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() {
		for _, t := range taps {
			if err := t.Close(); err != nil {
				w.t.Error(err)
			}
		}
	})
	return taps
}

// collect takes n frames from a tap, copied, and waits a little for more that must not come.
func collect(t testing.TB, tap packet.Tap, n int) (all []packet.Frame) {
	t.Helper()
	poller := packet.NewPoller(tap.FD())
	end := time.Now().Add(soon)
	for quiet := 0; quiet < 3 && time.Now().Before(end); {
		var batch [3]packet.Frame
		k := tap.Next(batch[:])
		for _, f := range batch[:k] {
			f.Data = append([]byte{}, f.Data...)
			all = append(all, f)
		}
		if k == 0 {
			tap.Release()
			if !poller.Wait(10*time.Millisecond) && len(all) >= n {
				quiet++
			}
		}
	}
	if len(all) != n {
		t.Fatalf("%d frames, want %d: %+v", len(all), n, all)
	}
	return all
}

func packetOf(src, dst string, op roce.Opcode, psn uint32) frames.RoCE {
	return frames.RoCE{
		Headers: frames.Headers{SrcMAC: upMAC, DstMAC: farMAC, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst)},
		Opcode:  op, QPN: 0x77, PSN: psn, Data: make([]byte, 256),
	}
}

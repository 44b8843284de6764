// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/netns"
)

// newBareWorld is a world whose uplink has no Ethernet header: a TUN device, of which the test holds the far end.
func newBareWorld(t testing.TB) (*world, *os.File) {
	t.Helper()
	w := &world{t: t, node: netns.New(t), host: netns.New(t), bare: true}
	var far *os.File
	far, w.up = netns.TUN(t, mtu, netns.End{NS: w.node, Name: "up0", Addrs: []string{"10.1.0.1/24", "fd00:1::1/64"}})
	w.addHost()
	return w, far
}

// Packets of a bare uplink are judged, copied behind a header of zeros, held, and put back in order, as those of an uplink
// with Ethernet headers are. Here the IP header is at the front; TestProgramAgreesWithModel has it behind another one.
func TestBareUplink(t *testing.T) {
	for name, c := range map[string]struct {
		source func(uint32) frames.RoCE
		proto  []byte
	}{"IPv4": {source, []byte{0x08, 0x00}}, "IPv6": {source6, []byte{0x86, 0xdd}}} {
		t.Run(name, func(t *testing.T) {
			w, far := newBareWorld(t)
			o := w.load(bpf.Config{})
			w.attach(o)
			host, ring, inject := w.listen(), o.Ring(0), w.injector()
			index, err := o.RegisterFlow(keyOf(c.source(0)), 0, 1024, packet.InOrder)
			if err != nil {
				t.Fatal(err)
			}
			beatFor(o, time.Hour)
			arrive := func(psn uint32) {
				t.Helper()
				if _, err := far.Write(c.source(psn).Frame()[14:]); err != nil {
					t.Fatal(err)
				}
			}
			taken := func(psn uint32) packet.Frame {
				t.Helper()
				f := nextFrame(t, ring)
				want := append(append(make([]byte, 12), c.proto...), c.source(psn).Frame()[14:]...)
				if !bytes.Equal(f.Data, want) || f.Len != len(want) || f.Ifindex != w.up {
					t.Fatalf("PSN %d: %d octets of %d, want %d:\n% x\n% x", psn, len(f.Data), f.Len, len(want), f.Data[:64], want[:64])
				}
				return f
			}
			arrive(100)
			arrive(101)
			host.expect(100, 101)
			taken(100)
			taken(101)
			arrive(103)
			host.expect()
			held := taken(103)
			if held.Flags&packet.Held == 0 {
				t.Fatalf("flags %x", held.Flags)
			}
			restored := append(append(make([]byte, 12), c.proto...), c.source(102).Frame()[14:]...)
			for _, frame := range [][]byte{restored, held.Data} {
				head, payload := headOf(frame)
				inject.Inject(w.up, head, payload)
			}
			inject.Flush()
			host.expect(102, 103)
			w.waitFor(o, bpf.Turned, 2) // the injected packets are through
			if !o.HandBack(index, 1, 104, false) {
				t.Fatal("the kernel does not take the flow back")
			}
			arrive(104)
			host.expect(104)
			if s, err := o.Stats(); err != nil || s[bpf.Redirected] != 2 || s[bpf.Turned] != 2 || s[bpf.Held] != 1 || s[bpf.PassedInOrder] != 3 {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

// Section 11, rule 3, and Section 5.1, rule 5, on a bare uplink: the boundary is kept, and messages for an endpoint are taken.
func TestSection11_BareBoundary(t *testing.T) {
	w, far := newBareWorld(t)
	o := w.load(bpf.Config{})
	w.attach(o)
	w.serve(o)
	beatFor(o, time.Hour)
	arrive := func(src, dst string) {
		t.Helper()
		h := frames.Headers{Src: addrs(src)[0], Dst: addrs(dst)[0], DstPort: port}
		if _, err := far.Write(h.Frame(repair(2, 7, 64))[14:]); err != nil {
			t.Fatal(err)
		}
	}
	arrive("203.0.113.9", "10.2.0.1")
	arrive("2001:db8::9", "fd00:2::6")
	w.waitFor(o, bpf.BoundarySource, 2)
	for _, to := range [][2]string{{"10.1.0.5", "10.2.0.6"}, {"fd00:1::5", "fd00:2::6"}} {
		arrive(to[0], to[1])
		f := nextFrame(t, o.Ring(0))
		if message := f.Data[len(f.Data)-64:]; f.Flags&packet.Taken == 0 || f.Domain != 9 || !bytes.Equal(message, repair(2, 7, 64)) {
			t.Errorf("to %s: flags %x, % x", to[1], f.Flags, message)
		}
	}
}

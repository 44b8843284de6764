// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

func (w *world) waitFor(o *bpf.Objects, r bpf.Reason, n uint64) {
	w.t.Helper()
	var s bpf.Stats
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		var err error
		if s, err = o.Stats(); err != nil {
			w.t.Fatal(err)
		}
		if s[r] == n {
			return
		}
	}
	w.t.Fatalf("%v is %d, want %d; %v", r, s[r], n, s)
}

// A packet behind a VLAN tag belongs to another interface and passes; a tag with VLAN 0 is only a priority, and the
// packet is protected and guarded like one without.
func TestVLANOnTheWire(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{})
	w.attach(o)
	if err := o.SetDomains([]bpf.Domain{{ID: 1, Ports: []uint16{port}, Members: prefixes("10.1.0.0/24")}}, nil); err != nil {
		t.Fatal(err)
	}
	index, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	beatFor(o, time.Hour)
	tagged := source(1)
	tagged.VLAN = []uint16{100}
	w.send(tagged.Frame())
	w.waitFor(o, bpf.PassVLAN, 1)
	if !packet.Word(o.Word(index).Load()).Learn() {
		t.Error("the flow learned from another VLAN")
	}
	tagged.VLAN = []uint16{3 << 13} // priority 3
	w.send(tagged.Frame())
	w.waitFor(o, bpf.PassedInOrder, 1)

	outside := frames.Headers{
		SrcMAC: farMAC, DstMAC: upMAC, Src: addrs("203.0.113.9")[0], Dst: addrs("10.1.0.1")[0], DstPort: port, VLAN: []uint16{5 << 13},
	}
	w.send(outside.Frame(repair(2, 0, 64)))
	w.waitFor(o, bpf.BoundarySource, 1)
}

// farSocket is an ordinary UDP socket of the far host, connected to an address of the own site.
func (w *world) farSocket(to string, port int) *net.UDPConn {
	w.t.Helper()
	var conn *net.UDPConn
	w.far.Do(func() {
		var err error
		if conn, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(to), Port: port}); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// sendSegments sends one super-packet.
func sendSegments(t *testing.T, conn *net.UDPConn, payload []byte, segment int) {
	t.Helper()
	oob := make([]byte, unix.CmsgSpace(2))
	oob[0], oob[8], oob[12] = byte(unix.CmsgLen(2)), unix.SOL_UDP, unix.UDP_SEGMENT
	binary.LittleEndian.PutUint16(oob[16:], uint16(segment))
	if _, _, err := conn.WriteMsgUDP(payload, oob, nil); err != nil {
		t.Skipf("needs UDP_SEGMENT: %v", err)
	}
}

// A super-packet of RoCEv2 (one that a device would cut) passes, and is never taken for one packet.
func TestGSOOnTheWire(t *testing.T) {
	w := newWorld(t)
	o := w.load(bpf.Config{})
	w.attach(o)
	index, err := o.RegisterFlow(keyOf(source(0)), 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	beatFor(o, time.Hour)
	host := w.listen()
	var payload []byte
	for psn := range uint32(3) {
		_, p := headOf(source(200 + psn).Frame())
		payload = append(payload, p...)
	}
	sendSegments(t, w.farSocket("10.2.0.6", roce.Port), payload, len(payload)/3)
	host.expect(200, 201, 202)
	w.waitFor(o, bpf.PassGSO, 1)
	if !packet.Word(o.Word(index).Load()).Learn() {
		t.Error("the flow learned from a super-packet")
	}
}

// serve makes the node a gateway of domain 9, with endpoints behind it.
func (w *world) serve(o *bpf.Objects) {
	w.t.Helper()
	if err := o.SetDomains([]bpf.Domain{{
		ID: 9, Ports: []uint16{port}, Members: prefixes("10.0.0.0/8", "fd00::/16"), Served: prefixes("10.2.0.0/24", "fd00:2::/64"),
	}}, addrs("10.2.0.1")); err != nil {
		w.t.Fatal(err)
	}
}

// Section 5.1, rule 5: CREM messages to an endpoint are taken, also out of a super-packet of a real socket.
func TestPathOnTheWire(t *testing.T) {
	for _, to := range []string{"10.2.0.6", "fd00:2::6"} {
		w := newWorld(t)
		o := w.load(bpf.Config{})
		w.attach(o)
		w.serve(o)
		beatFor(o, time.Hour)
		const size, n = 500, 4
		var payload []byte
		for i := range n {
			payload = append(payload, repair(1, uint32(i), size)...)
		}
		sendSegments(t, w.farSocket(to, port), payload, size)
		ring := o.Ring(0)
		for i := range n {
			f := nextFrame(t, ring)
			message := f.Data[len(f.Data)-size:]
			if f.Flags&packet.Taken == 0 || f.Domain != 9 || binary.BigEndian.Uint32(message[4:]) != uint32(i) {
				t.Errorf("%s: message %d: flags %x, %x", to, i, f.Flags, message[:8])
			}
			ring.Release()
		}
		w.waitFor(o, bpf.PathTaken, n)
	}
}

// A packet from a socket of this very machine leaves its UDP checksum to the device. When it is held, and later sent on
// by us, the checksum must be right.
func TestPartialChecksumOnTheWire(t *testing.T) {
	for name, c := range map[string]struct {
		to     string
		source func(uint32) frames.RoCE
	}{"IPv4": {"10.2.0.6", source}, "IPv6": {"fd00:2::6", source6}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := w.load(bpf.Config{})
			w.attach(o)
			host, ring, inject := w.listen(), o.Ring(0), w.injector()
			if _, err := o.RegisterFlow(keyOf(c.source(0)), 0, 1024, packet.InOrder); err != nil {
				t.Fatal(err)
			}
			beatFor(o, time.Hour)
			conn := w.farSocket(c.to, roce.Port)
			for _, psn := range []uint32{1, 5} {
				_, payload := headOf(c.source(psn).Frame())
				if _, err := conn.Write(payload); err != nil {
					t.Fatal(err)
				}
			}
			host.expect(1)
			nextFrame(t, ring)
			f := nextFrame(t, ring)
			if f.Flags != packet.Held|packet.PartialChecksum {
				t.Fatalf("flags %x", f.Flags)
			}
			udp := f.Data[14+20:]
			if c.source(0).Dst.Is6() {
				udp = f.Data[14+40:]
			}
			p := c.source(5)
			pseudo := append(append([]byte{}, p.Src.AsSlice()...), p.Dst.AsSlice()...)
			pseudo = append(pseudo, 0, 17, udp[4], udp[5])
			if sum := frames.Checksum(append(pseudo, udp...)); sum != 0 {
				t.Errorf("checksum off by %#x", sum)
			}
			head, payload := headOf(f.Data)
			inject.Inject(w.up, head, payload)
			inject.Flush()
			host.expect(5) // the host's kernel checks it, too
		})
	}
}

// The programs load with the capabilities that the agent asks for, and say which one is missing.
func TestCapabilities(t *testing.T) {
	if os.Getenv(agentEnv+"_LOAD") != "" {
		o, err := bpf.Load(bpf.Config{Workers: 1, SlotOctets: 1514, RingSlots: 4})
		if err != nil {
			t.Fatal(err)
		}
		o.Close()
		return
	}
	needSetpriv(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(capabilities string) string {
		cmd := exec.Command("setpriv", "--bounding-set", "-all,"+capabilities, "--inh-caps", "-all", self, "-test.run", "^TestCapabilities$")
		cmd.Env = append(os.Environ(), agentEnv+"_LOAD=1")
		out, _ := cmd.CombinedOutput() // what it says is checked below
		return string(out)
	}
	if out := run("+bpf,+net_admin,+net_raw"); !strings.Contains(out, "PASS") {
		t.Errorf("with BPF, NET_ADMIN and NET_RAW: %s", out)
	}
	if out := run("+net_admin,+net_raw"); !strings.Contains(out, "not permitted") || !strings.Contains(out, "the agent needs the capabilities BPF and NET_ADMIN") {
		t.Errorf("without BPF: %s", out)
	}
}

func needSetpriv(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("needs setpriv (util-linux)")
	}
}

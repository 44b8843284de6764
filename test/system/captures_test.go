// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bytes"
	"encoding/binary"
	"net"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
	"crem.dev/crem/test/lab/raw"
	"crem.dev/crem/test/lab/topology"
)

// TestCapturesThatAreNotAWires: RoCEv2 packets that do not pass the uplink as one whole packet on the wire: fragments, behind a VLAN tag, and super-packets
// that a device will cut. Both ends recognise and count them, and pass them; no flow begins, and nothing is coded.
func TestCapturesThatAreNotAWires(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: proactive})
	received := w.listen()
	access, uplink := w.mac(w.lab.GwA, topology.Access), w.mac(w.lab.GwB, topology.Uplink)
	packet := frames.RoCE{
		Headers: frames.Headers{SrcMAC: frames.MAC(topology.MACA), DstMAC: access, Src: topology.HostA4, Dst: topology.HostB4},
		Opcode:  roce.SendOnly, QPN: 0x51, PSN: 7, Data: make([]byte, 512),
	}
	const n = 5

	fragment := packet
	fragment.MoreFragments = true
	w.emit(w.lab.HostA, topology.Device, n, fragment.Frame())
	w.counted("a fragment", func(a, b counts) bool {
		return a.drops["roce_ip_fragment"] == n && b.counters["kernel_pass_fragment"] == n
	})

	// The kernel takes the tag off where the frame arrives; there the program sees it, and the tap, which copies what acknowledges.
	tagged := packet
	tagged.SrcMAC, tagged.DstMAC, tagged.VLAN = w.mac(w.lab.GwA, topology.Uplink), uplink, []uint16{42}
	w.emit(w.lab.GwA, topology.Uplink, n, tagged.Frame())
	tagged.Opcode = roce.Acknowledge
	w.emit(w.lab.GwA, topology.Uplink, n, tagged.Frame())
	w.counted("a VLAN tag", func(_, b counts) bool { return b.drops["vlan"] == n && b.counters["kernel_pass_vlan"] == 2*n })

	w.offloadsOn()
	before := received.count()
	w.superPacket(4)
	w.counted("a super-packet", func(a, b counts) bool {
		return a.drops["super_packet"] == 1 && b.counters["kernel_pass_gso"] == 1
	})
	w.eventually("the super-packet arrives in pieces", func() bool { return received.count() == before+4 })

	for _, g := range []*gateway{w.a, w.b} {
		if flows := append(g.flows("csf"), g.flows("crf")...); len(flows) > 0 {
			t.Errorf("%s: flows began: %+v", g.ns.Name, flows)
		}
		if sent := g.status().Counters["socket_sent"]; sent > 0 {
			t.Errorf("%s: %d CREM messages", g.ns.Name, sent)
		}
	}
	// The same packet whole begins one: the test would see it.
	w.emit(w.lab.HostA, topology.Device, 1, packet.Frame())
	w.eventually("a whole packet begins a flow", func() bool { return len(w.a.flows("csf")) == 1 })
}

// counts are what an agent counted.
type counts struct{ counters, drops map[string]uint64 }

// counted waits until both agents have counted as wanted.
func (w *world) counted(what string, ok func(a, b counts) bool) {
	w.t.Helper()
	var a, b counts
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s: gwA drops %s; gwB drops %s, counters %s", what, nonzero(a.drops), nonzero(b.drops), nonzero(b.counters))
		}
	}()
	w.eventually(what+" is counted at both ends", func() bool {
		sa, sb := w.a.status(), w.b.status()
		a, b = counts{sa.Counters, sa.Drops}, counts{sb.Counters, sb.Drops}
		return ok(a, b)
	})
}

func (w *world) mac(n *topology.Namespace, name string) (mac frames.MAC) {
	w.t.Helper()
	w.do(n, func() error {
		i, err := net.InterfaceByName(name)
		if err == nil {
			mac = frames.MAC(i.HardwareAddr)
		}
		return err
	})
	return mac
}

// emit sends a frame n times on an interface.
func (w *world) emit(n *topology.Namespace, device string, times int, frame []byte) {
	w.t.Helper()
	var out *raw.Sender
	w.do(n, func() (err error) { out, err = openSender(device); return err })
	defer out.Close()
	for range times {
		out.Queue(frame)
	}
	out.Flush()
	if out.Dropped > 0 {
		w.t.Fatalf("%d frames refused on %s", out.Dropped, device)
	}
}

// offloadsOn lets super-packets pass from host A to gateway B.
func (w *world) offloadsOn() {
	w.t.Helper()
	for _, x := range []struct {
		n    *topology.Namespace
		name string
	}{{w.lab.HostA, topology.Device}, {w.lab.GwA, topology.Uplink}, {w.lab.WAN, topology.WANA}, {w.lab.WAN, topology.WANB}} {
		cmd := exec.Command("ethtool", "-K", x.name, "tx", "on", "sg", "on", "gso", "on", "tx-udp-segmentation", "on")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := x.n.Do(cmd.Run); err != nil {
			w.t.Skipf("needs ethtool to turn segmentation on: %v: %s", err, out.String())
		}
	}
}

// superPacket sends so many RoCEv2 packets from host A by one system call.
func (w *world) superPacket(n int) {
	w.t.Helper()
	var conn *net.UDPConn
	w.do(w.lab.HostA, func() (err error) {
		conn, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: topology.HostB4.AsSlice(), Port: roce.Port})
		return err
	})
	defer conn.Close()
	const headers = 14 + 20 + 8
	var payload []byte
	size := 0
	for i := range n {
		p := frames.RoCE{
			Headers: frames.Headers{Src: topology.HostA4, Dst: topology.HostB4}, Opcode: roce.SendOnly, QPN: 0x52, PSN: uint32(i), Data: make([]byte, 512),
		}
		one := p.Frame()[headers:]
		payload, size = append(payload, one...), len(one)
	}
	oob := make([]byte, unix.CmsgSpace(2))
	oob[0], oob[8], oob[12] = byte(unix.CmsgLen(2)), unix.SOL_UDP, unix.UDP_SEGMENT
	binary.NativeEndian.PutUint16(oob[16:], uint16(size))
	if _, _, err := conn.WriteMsgUDP(payload, oob, nil); err != nil {
		w.t.Fatalf("send a super-packet: %v", err)
	}
}

// listener counts the datagrams that reach the RoCEv2 port of host B.
type listener struct{ got chan int }

func (w *world) listen() *listener {
	w.t.Helper()
	var conn *net.UDPConn
	w.do(w.lab.HostB, func() (err error) {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: roce.Port})
		return err
	})
	l := &listener{got: make(chan int, 1)}
	l.got <- 0
	w.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			l.got <- 1 + <-l.got
		}
	}()
	return l
}

func (l *listener) count() int {
	n := <-l.got
	l.got <- n
	return n
}

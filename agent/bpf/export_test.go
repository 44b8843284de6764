// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// skb is struct __sk_buff up to what a test run may set.
type skb struct {
	Len, PktType, Mark, QueueMapping, Protocol, VLANPresent, VLANTCI, VLANProto, Priority uint32
	IngressIfindex, Ifindex, TCIndex                                                      uint32
	CB                                                                                    [5]uint32
	Hash, TCClassid, Data, DataEnd, NAPIID, Family, RemoteIP4, LocalIP4                   uint32
	RemoteIP6, LocalIP6                                                                   [4]uint32
	RemotePort, LocalPort, DataMeta                                                       uint32
	FlowKeys, Timestamp                                                                   uint64
	WireLen, GSOSegs                                                                      uint32
	SK                                                                                    uint64
	GSOSize, TimestampType                                                                uint32
	HWTimestamp                                                                           uint64
}

// Bare names the ingress program of uplinks without Ethernet headers. A test run gives it packets as they are after
// decryption, behind the Ethernet header of another packet.
const Bare Direction = "bare"

// Run gives a frame to a program without any interface. It returns the program's verdict and the frame's mark after it.
func (o *Objects) Run(t testing.TB, direction Direction, frame []byte, mark uint32, segment int) (verdict int32, markAfter uint32) {
	t.Helper()
	program := map[Direction]*ebpf.Program{
		Ingress: o.kernel.CremIngress, Bare: o.kernel.CremBare, Egress: o.kernel.CremEgress,
	}[direction]
	in, out := skb{Mark: mark, GSOSize: uint32(segment)}, skb{}
	options := ebpf.RunOptions{Data: frame, Context: &in, ContextOut: &out, Repeat: 1}
	ret, err := program.Run(&options)
	if err != nil {
		t.Fatalf("run program on %d octets: %v", len(frame), err)
	}
	return int32(ret), out.Mark
}

// Repeat gives a frame to the ingress program n times, one after the other on one CPU.
func (o *Objects) Repeat(t testing.TB, frame []byte, n int) {
	t.Helper()
	if _, err := o.kernel.CremIngress.Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(n)}); err != nil {
		t.Errorf("run program: %v", err)
	}
}

// DidNotFit makes it so that a packet of a flow did not fit its tunnel at a time on the clock of packet.Now.
func (t *Tunnels) DidNotFit(tb testing.TB, f TunnelFlow, at time.Duration) {
	tb.Helper()
	name, when := newFlowName(f), uint64(at)
	if err := t.kernel.CremWanWide.Put(&name, &when); err != nil {
		tb.Fatal(err)
	}
}

// SetUnix makes the time of the programs of tunnels a Unix time, from which it goes on.
func (t *Tunnels) SetUnix(tb testing.TB, at time.Duration) {
	tb.Helper()
	if _, err := t.setTAI(TAI(tb) - at); err != nil {
		tb.Fatal(err)
	}
}

// TAI is the time of CLOCK_TAI.
func TAI(tb testing.TB) time.Duration {
	tb.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_TAI, &now); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// FillCounts leaves no room for another flow that arrives: those that it makes are of other tunnels, and had their last packet in period since.
func (t *Tunnels) FillCounts(tb testing.TB, since uint32) {
	tb.Helper()
	for i := range t.kernel.CremWanArrived.MaxEntries() {
		key, value := wanCountedFlow{Tunnel: mostTunnels + i}, wanFlowCounts{Since: since}
		if err := t.kernel.CremWanArrived.Put(&key, &value); err != nil {
			tb.Fatal(err)
		}
	}
}

// Arrive gives a frame that is dropped to the program of arrivals n times, one after the other on one CPU.
func (t *Tunnels) Arrive(tb testing.TB, frame []byte, n int) {
	tb.Helper()
	if _, err := t.kernel.CremWanIn.Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(n)}); err != nil {
		tb.Error(err)
	}
}

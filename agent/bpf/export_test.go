// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
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

// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/ecn"
	"crem.dev/crem/agent/roce"
	"crem.dev/crem/test/frames"
)

const (
	tunnelVeRoCE  = 4800 // any port but that of RoCEv2
	veroceHeaders = 24   // octets of extension headers
)

// veroceTravels is a plan in which veRoCE travels, or not.
func veroceTravels(named bool, p bpf.TunnelPlan) bpf.TunnelPlan {
	if named {
		p.Sites[0].VeRoCE = tunnelVeRoCE
	}
	return p
}

// veroce is a packet of veRoCE.
func veroce(r frames.RoCE) []byte {
	r.DstPort, r.Extension = tunnelVeRoCE, make([]byte, veroceHeaders)
	return r.Frame()
}

// WAN ECN, encapsulation: veRoCE goes into the tunnel to a site whose domain names its port, in all four pairs of IP versions, as long as it fits. Without
// that it leaves as it is.
func TestWANECN_VeRoCEInTunnels(t *testing.T) {
	w := newTunnelWorld(t, "")
	flows := uint32(0)
	for _, named := range []bool{true, false} {
		for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
			tunnel.MTU = 1400
			w.set(veroceTravels(named, tunnelPlan(0, tunnel)))
			w.open(tunnel)
			for _, v6 := range []bool{false, true} {
				frame := veroce(fromHost(v6, 0x6a, 7, 64))
				got, became := w.passes(frame)
				want, why := w.oracle(tunnel, false).Encapsulate(nil, forwarded(frame))
				if why != ecn.DropNone {
					t.Fatal(why)
				}
				if !named {
					want = forwarded(frame)
				}
				if !bytes.Equal(asOracle(got[14:]), asOracle(want)) || (became == bpf.Encapsulated) != named {
					t.Errorf("named %v, %+v, inner IPv6 %v: %v\n%x, want\n%x", named, tunnel, v6, became, got[14:], want)
				}
				room := 1400 - ecn.Overhead(tunnel.Remote) - 20 - 8 - 12 - veroceHeaders - 4
				if v6 {
					room -= 20
				}
				for _, more := range []int{0, 4} { // RDMA pads to four octets
					flows++
					r := fromHost(v6, 0x6a, 7, room+more)
					r.QPN += flows
					if _, became := w.passes(veroce(r)); (became == bpf.Encapsulated) != (named && more == 0) {
						t.Errorf("named %v, %+v, inner IPv6 %v, %d octets too many: %v", named, tunnel, v6, more, became)
					}
				}
			}
		}
	}
}

// WAN ECN, decapsulation: so does what arrives.
func TestWANECN_VeRoCEOutOfTunnels(t *testing.T) {
	w := newTunnelWorld(t, "")
	host := w.listenRaw()
	for _, named := range []bool{true, false} {
		w.set(veroceTravels(named, tunnelPlan(-1, tunnel4, tunnel6)))
		for _, tunnel := range []bpf.Tunnel{tunnel4, tunnel6} {
			for _, v6 := range []bool{false, true} {
				frame := veroce(toHost(v6, 0x6a, 9))
				p, why := w.oracle(tunnel, true).Encapsulate(nil, frame[14:])
				if why != ecn.DropNone {
					t.Fatal(why)
				}
				before := w.stats().Passages
				w.sendPacket(p, tunnel.Remote.Is6())
				wait := never
				if named {
					wait = soon
				}
				got := host.next(wait)
				switch became := w.became(before); {
				case named && (became != bpf.Decapsulated || !bytes.Equal(got, forwarded(frame))):
					t.Errorf("%+v, inner IPv6 %v: %v\n%x, want\n%x", tunnel, v6, became, got, forwarded(frame))
				case !named && (became != bpf.InForeign || got != nil):
					t.Errorf("%+v, inner IPv6 %v, which is not the domain's: %v\n%x", tunnel, v6, became, got)
				}
			}
		}
	}
}

// Fail open: a super-packet, which a device would cut behind the program, stays outside with all its segments, and is counted.
func TestWANECN_SuperPacketsStayOutside(t *testing.T) {
	w := newTunnelWorld(t, "")
	w.set(tunnelPlan(0, tunnel4))
	w.open(tunnel4)
	const segments = 3
	var payload []byte
	for psn := range uint32(segments) {
		_, p := headOf(fromHost(false, 2, psn, 512).Frame())
		payload = append(payload, p...)
	}
	var conn *net.UDPConn
	w.host.Do(func() {
		var err error
		if conn, err = net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP("10.9.0.9"), Port: roce.Port}); err != nil {
			t.Fatal(err)
		}
	})
	defer conn.Close()
	before := w.stats().Passages
	sendSegments(t, conn, payload, len(payload)/segments)
	if got := w.seen(); got[23] != unix.IPPROTO_UDP || w.became(before) != bpf.PlainSuper {
		t.Errorf("%v: %x", w.became(before), got[:64])
	}
}

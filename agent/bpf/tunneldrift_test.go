// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/netns"
)

// G04: whatever somebody takes away from the programs of tunnels by hand, exchanges, or puts there, is found and made as it was, and told once. Packets go into
// the tunnel again and come out of it, before the hold sees them, also where the program that was taken off is the one behind.
func TestG04_DriftOfTunnelsIsRepaired(t *testing.T) {
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	o, err := bpf.Load(config(pinDir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
	w := newTunnelWorldOf(t, bpf.TunnelConfig{PinDir: pinDir, Uplinks: o})
	w.attach(o)
	repair := func() (found []string) {
		t.Helper()
		w.node.Do(func() { // in the order of the engine
			for _, part := range []func() ([]string, error){o.Repair, w.tunnels.Repair} {
				list, err := part()
				if err != nil {
					t.Error(err)
				}
				found = append(found, list...)
			}
		})
		return found
	}
	if found := repair(); len(found) > 0 {
		t.Fatalf("found %q before there is a plan", found)
	}
	w.set(tunnelPlan(0, tunnel4))
	inner := toHost(false, 2, 5)
	if _, err := o.RegisterFlow(packet.FlowKey{Src: inner.Src, Dst: inner.Dst, QPN: inner.QPN}, 0, 1024, packet.Immediate); err != nil {
		t.Fatal(err)
	}
	arriving, _ := w.oracle(tunnel4, true).Encapsulate(nil, inner.Frame()[14:])
	leaving := fromHost(false, 2, 1, 512).Frame()
	ring := o.Ring(0)
	w.listen() // else the host answers that nobody does
	works := func(after string) {
		t.Helper()
		w.open(tunnel4)
		w.hostSends(leaving)
		if got := w.seen(); got[23] != 4 {
			t.Errorf("after %q a packet leaves outside of the tunnel: %x", after, got[:34])
		}
		o.Beat(0, packet.Now())
		w.sendPacket(arriving, false)
		if got := psnOf(t, nextFrame(t, ring)); got != 5 {
			t.Errorf("after %q the hold sees PSN %d", after, got)
		}
		ring.Release()
		in, _ := w.programs(ebpf.AttachTCXIngress)
		out, _ := w.programs(ebpf.AttachTCXEgress)
		if !slices.Equal(in, []string{"crem_wan_in", "crem_ingress"}) || !slices.Equal(out, []string{"crem_egress", "crem_wan_out"}) {
			t.Errorf("after %q there are %q and %q", after, in, out)
		}
	}
	works("the start")
	if found := repair(); len(found) > 0 {
		t.Fatalf("found %q where nobody changed anything", found)
	}
	uplinks, tunnels := pinFolder{t, pinDir}, pinFolder{t, filepath.Join(pinDir, "tunnels")}
	type step struct {
		harm func()
		says string
	}
	steps := []step{
		{tunnels.empty("crem_wan_ends"), "of the pairs of gateways with a tunnel 1 were missing or wrong, 0 not ours"},
		{tunnels.empty("crem_wan_places"), "of the prefixes that tunnels lead to 4 were missing or wrong, 0 not ours"},
		{func() {
			m := tunnels.pinned("crem_wan_ends")
			if err := m.Put(make([]byte, m.KeySize()), make([]byte, m.ValueSize())); err != nil {
				t.Fatal(err)
			}
		}, "gateways with a tunnel 0 were missing or wrong, 1 not ours"},
		{tunnels.takeOff(w.up, bpf.Ingress), "crem_wan_in on the ingress of up0 had been taken off"},
		{tunnels.takeOff(w.up, bpf.Egress), "crem_wan_out on the egress of up0 had been taken off"},
		{tunnels.exchange(w.up, bpf.Ingress), "crem_wan_in on the ingress of up0 had been exchanged for another program"},
		{tunnels.exchange(w.up, bpf.Egress), "crem_wan_out on the egress of up0 had been exchanged for another program"},
		{tunnels.unpin(w.up, bpf.Egress), "crem_wan_out on the egress of up0 had been left without its pin"},
		{uplinks.takeOff(w.up, bpf.Ingress), "crem_ingress on the ingress of up0 had been taken off"},
		{uplinks.takeOff(w.up, bpf.Egress), "crem_egress on the egress of up0 had been taken off"},
	}
	for _, at := range []int{32, 36, 38, 55, 71} { // MTU, mode, port, local and remote of struct tunnel
		steps = append(steps, step{func() { alter(t, tunnels.pinned("crem_wan_tunnels"), at) }, "the tunnel from 10.1.0.1 to 10.1.0.5 was another one"})
	}
	for _, step := range steps {
		step.harm()
		if found := repair(); len(found) != 1 || !strings.Contains(found[0], step.says) {
			t.Errorf("found %q, want %q", found, step.says)
		}
		if found := repair(); len(found) > 0 {
			t.Errorf("after %q there is still %q", step.says, found)
		}
		works(step.says)
	}
	// An interface that is none of tunnels any more is left alone.
	w.node.Do(func() {
		if err := w.tunnels.Detach(w.up); err != nil {
			t.Error(err)
		}
	})
	if found := repair(); len(found) > 0 || len(w.tunnels.Attached()) > 0 {
		t.Errorf("found %q, attached to %v", found, w.tunnels.Attached())
	}
}

// alter changes an octet of every tunnel's entry that was ever used.
func alter(t *testing.T, m *ebpf.Map, at int) {
	t.Helper()
	for i := range m.MaxEntries() {
		var entry []byte
		if err := m.Lookup(i, &entry); err != nil {
			t.Fatal(err)
		}
		if slices.Max(entry) > 0 {
			entry[at] ^= 1
			if err := m.Put(i, entry); err != nil {
				t.Fatal(err)
			}
		}
	}
}

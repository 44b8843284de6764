// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/bpf"
	"crem.dev/crem/agent/packet"
	"crem.dev/crem/test/netns"
)

// pinFolder is what somebody with a shell can reach.
type pinFolder struct {
	t   *testing.T
	dir string
}

func (p pinFolder) pinned(name string) *ebpf.Map {
	p.t.Helper()
	paths, err := filepath.Glob(filepath.Join(p.dir, "maps-*", name))
	if err != nil || len(paths) != 1 {
		p.t.Fatalf("%s: %q, %v", name, paths, err)
	}
	m, err := ebpf.LoadPinnedMap(paths[0], nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { m.Close() })
	return m
}

func (p pinFolder) empty(name string) func() {
	return func() {
		m := p.pinned(name)
		var key []byte
		for m.NextKey(nil, &key) == nil {
			if err := m.Delete(key); err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

func (p pinFolder) pin(ifindex int, direction bpf.Direction) string {
	return filepath.Join(p.dir, "links", fmt.Sprintf("%d-%s", ifindex, direction))
}

func (p pinFolder) onLink(ifindex int, direction bpf.Direction, harm func(link.Link) error) func() {
	return func() {
		l, err := link.LoadPinnedLink(p.pin(ifindex, direction), nil)
		if err != nil {
			p.t.Fatal(err)
		}
		defer l.Close()
		if err := harm(l); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p pinFolder) takeOff(ifindex int, direction bpf.Direction) func() {
	return p.onLink(ifindex, direction, link.Link.Detach)
}

// fill puts entries into a map until it is full.
func (p pinFolder) fill(name string) {
	m := p.pinned(name)
	for i := range m.MaxEntries() {
		key := make([]byte, m.KeySize())
		binary.NativeEndian.PutUint32(key, i)
		if err := m.Put(key, make([]byte, m.ValueSize())); errors.Is(err, unix.E2BIG) {
			return
		} else if err != nil {
			p.t.Fatal(err)
		}
	}
}

// redirect makes the value of every entry of a map another one.
func (p pinFolder) redirect(name string, value uint32) {
	m := p.pinned(name)
	var keys [][]byte
	key, old := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for it := m.Iterate(); it.Next(&key, &old); {
		keys = append(keys, bytes.Clone(key))
	}
	for _, key := range keys {
		if err := m.Put(key, value); err != nil {
			p.t.Fatal(err)
		}
	}
}

// exchange puts a program in place of ours that lets everything pass.
func (p pinFolder) exchange(ifindex int, direction bpf.Direction) func() {
	return p.onLink(ifindex, direction, func(l link.Link) error {
		const next = -1 // TCX_NEXT
		other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "another", Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()},
		})
		if err != nil {
			return err
		}
		defer other.Close()
		return l.Update(other)
	})
}

func (p pinFolder) unpin(ifindex int, direction bpf.Direction) func() {
	return func() {
		if err := os.Remove(p.pin(ifindex, direction)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// G04: whatever somebody takes away from the kernel by hand, or puts there, is found and made as it was, and told once; nothing else is touched.
func TestG04_DriftIsRepaired(t *testing.T) {
	w := newWorld(t)
	pinDir := filepath.Join(netns.MountBPF(t), "crem")
	c := config(pinDir)
	o := w.load(c)
	w.attach(o)
	members := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	local := []netip.Addr{netip.MustParseAddr("10.2.0.1")}
	if err := o.SetDomains([]bpf.Domain{{ID: 1, Ports: []uint16{52000}, Members: members, Served: members[1:]}}, local); err != nil {
		t.Fatal(err)
	}
	if err := o.SetTransports(packet.Recognised{MRC: true, VeRoCEPort: 4794}); err != nil {
		t.Fatal(err)
	}
	flow := keyOf(source(0))
	index, err := o.RegisterFlow(flow, 0, 1024, packet.InOrder)
	if err != nil {
		t.Fatal(err)
	}
	host := w.listen()
	o.Beat(0, packet.Now())
	w.send(source(1).Frame())
	host.expect(1)
	if word := packet.Word(o.Word(index).Load()); word.Learn() {
		t.Fatalf("the flow's word is %x after a packet", word)
	}
	repair := func() (found []string) {
		t.Helper()
		w.node.Do(func() {
			var err error
			if found, err = o.Repair(); err != nil {
				t.Error(err)
			}
		})
		return found
	}
	if found := repair(); len(found) > 0 {
		t.Fatalf("found %q where nobody changed anything", found)
	}
	pins := pinFolder{t, pinDir}
	for _, step := range []struct {
		harm func()
		says string
	}{
		{pins.empty("crem_members"), "of the addresses that may send CREM messages 2 were missing or wrong, 0 not ours"},
		{pins.empty("crem_served"), "served on the path 1 were"},
		{pins.empty("crem_local"), "addresses of this node 1 were"},
		{pins.empty("crem_ports"), "CREM ports 1 were"},
		{pins.empty("crem_flow_index"), "of the flows that are restored 1 had no entry"},
		{func() { pins.fill("crem_flow_index") }, "entries of flows were not ours"},
		{func() { pins.redirect("crem_flow_index", uint32(index+1)) }, "of the flows that are restored 1 had no entry"},
		{func() {
			if err := pins.pinned("crem_ports").Put(uint16(52001), uint32(1)); err != nil {
				t.Fatal(err)
			}
		}, "CREM ports 0 were missing or wrong, 1 not ours"},
		{func() {
			if err := pins.pinned("crem_transports").Put(uint32(0), make([]byte, pins.pinned("crem_transports").ValueSize())); err != nil {
				t.Fatal(err)
			}
		}, "transports that are recognised"},
		{pins.takeOff(w.up, bpf.Ingress), "crem_ingress on the ingress of up0 had been taken off"},
		{pins.takeOff(w.up, bpf.Egress), "crem_egress on the egress of up0 had been taken off"},
		{pins.exchange(w.up, bpf.Ingress), "crem_ingress on the ingress of up0 had been exchanged"},
		{pins.exchange(w.up, bpf.Egress), "crem_egress on the egress of up0 had been exchanged"},
		{pins.unpin(w.up, bpf.Ingress), "crem_ingress on the ingress of up0 had been left without its pin"},
	} {
		step.harm()
		if found := repair(); len(found) != 1 || !strings.Contains(found[0], step.says) {
			t.Errorf("found %q, want %q", found, step.says)
		}
		if found := repair(); len(found) > 0 {
			t.Errorf("after %q there is still %q", step.says, found)
		}
		w.wantOne()
	}
	// A flow whose entry was away is learnt anew: what passed meanwhile leaves no gap.
	if word := packet.Word(o.Word(index).Load()); !word.Learn() {
		t.Errorf("the flow's word is %x", word)
	}
	o.Beat(0, packet.Now())
	w.send(source(700).Frame())
	host.expect(700)
	if err := o.UnregisterFlow(index); err != nil {
		t.Fatal(err)
	}
	if found := repair(); len(found) > 0 {
		t.Errorf("found %q after a flow ended", found)
	}
	// An interface that is no uplink any more is left alone.
	w.node.Do(func() {
		if err := o.Detach(w.up); err != nil {
			t.Error(err)
		}
	})
	if found := repair(); len(found) > 0 || len(o.Attached()) > 0 {
		t.Errorf("found %q, attached to %v", found, o.Attached())
	}
}

// A map that somebody filled has room again for what belongs there. What cannot be repaired is an error, and is not told as repaired.
func TestG04_OnlyWhatIsRepairedIsTold(t *testing.T) {
	w := newWorld(t)
	pins := pinFolder{t, filepath.Join(netns.MountBPF(t), "crem")}
	o := w.load(config(pins.dir))
	if err := o.SetDomains([]bpf.Domain{{ID: 1, Ports: []uint16{52000}}}, nil); err != nil {
		t.Fatal(err)
	}
	pins.empty("crem_ports")()
	ports := pins.pinned("crem_ports")
	for i := range ports.MaxEntries() {
		if err := ports.Put(uint16(1000+i), uint32(1)); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := o.Repair(); err != nil || len(found) != 1 {
		t.Errorf("a full map: %q, %v", found, err)
	}
	if found, err := o.Repair(); err != nil || len(found) > 0 {
		t.Errorf("afterwards: %q, %v", found, err)
	}
	for _, name := range []string{"crem_ports", "crem_transports"} {
		m := pins.pinned(name)
		if err := m.Put(make([]byte, m.KeySize()), bytes.Repeat([]byte{1}, int(m.ValueSize()))); err != nil {
			t.Fatal(err)
		}
		if err := m.Freeze(); err != nil {
			t.Fatal(err)
		}
		if found, err := o.Repair(); err == nil || len(found) > 0 {
			t.Errorf("%s, which nobody can write: %q, %v", name, found, err)
		}
	}
}

// What the kernel refused half-way is nobody else's change, and what it holds then stays until it is told anew.
func TestG04_WhatTheKernelRefusesIsNoDrift(t *testing.T) {
	w := newWorld(t)
	pins := pinFolder{t, filepath.Join(netns.MountBPF(t), "crem")}
	o := w.load(config(pins.dir))
	few := []bpf.Domain{{ID: 1, Ports: []uint16{52000}}}
	if err := o.SetDomains(few, nil); err != nil {
		t.Fatal(err)
	}
	many := []bpf.Domain{{ID: 1, Members: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	for i := range pins.pinned("crem_ports").MaxEntries() + 1 {
		many[0].Ports = append(many[0].Ports, uint16(1000+i))
	}
	if err := o.SetDomains(many, nil); err == nil {
		t.Fatal("the kernel took more ports than there is room for")
	}
	if found, err := o.Repair(); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
	if err := o.SetDomains(few, nil); err != nil {
		t.Fatal(err)
	}
	pins.empty("crem_ports")()
	if found, err := o.Repair(); err != nil || len(found) != 1 {
		t.Errorf("found %q, %v", found, err)
	}
}

// Workers register flows and end them meanwhile: none of that is taken for drift.
func TestG04_FlowsThatComeAndGoAreNoDrift(t *testing.T) {
	w := newWorld(t)
	o := w.load(config(""))
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		key := keyOf(source(0))
		for { // each time under another index
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			index, err := o.RegisterFlow(key, 0, 1024, packet.InOrder)
			if err == nil {
				err = o.UnregisterFlow(index)
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	for range 2000 {
		if found, err := o.Repair(); err != nil || len(found) > 0 {
			t.Errorf("found %q, %v", found, err)
			break
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

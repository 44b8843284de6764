// SPDX-License-Identifier: Apache-2.0

package system

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// G04: under traffic somebody empties the map of those who may send CREM messages, and takes a program off the uplink. Within a period both are as they were
// and counted, and every packet has passed, once and in order.
func TestG04_DriftIsRepairedUnderTraffic(t *testing.T) {
	w := newWorld(t, options{wire: true, profile: `{k: 32}`})
	w.discard(w.lab.HostB)
	s := w.stream(streamOptions{rate: 3000})
	w.awaitProtecting(1)
	s.moves(3000)
	for i, harm := range []func() error{w.b.forgetMembers, w.b.takeOff} {
		w.b.do(harm)
		w.eventually("what was taken away is there again", func() bool { return w.b.counted("drift_repaired") == uint64(i+1) })
		s.moves(3000)
		w.b.wantPrograms(1, "after the repair")
		w.awaitProtecting(1)
	}
	sent, got := s.end()
	if got.distinct != sent || got.order > 0 || got.twice > 0 {
		t.Errorf("%d packets lost (%v), %d out of order, %d twice", sent-got.distinct, got.missing(sent), got.order, got.twice)
	}
}

func (g *gateway) do(f func() error) {
	g.w.t.Helper()
	g.w.do(g.ns, f)
}

// forgetMembers empties the kernel's table of those who may send CREM messages.
func (g *gateway) forgetMembers() error {
	found, err := filepath.Glob("/sys/fs/bpf/crem/maps-*/crem_members")
	if err != nil || len(found) != 1 {
		return fmt.Errorf("pinned maps: %v, %w", found, err)
	}
	m, err := ebpf.LoadPinnedMap(found[0], nil)
	if err != nil {
		return err
	}
	defer m.Close()
	var key []byte
	for err = m.NextKey(nil, &key); err == nil; err = m.NextKey(nil, &key) {
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// takeOff takes the program off the ingress of the uplink; its pinned link stays, without an interface.
func (g *gateway) takeOff() error {
	found, err := filepath.Glob("/sys/fs/bpf/crem/links/*-ingress")
	if err != nil || len(found) != 1 {
		return fmt.Errorf("pinned links: %v, %w", found, err)
	}
	l, err := link.LoadPinnedLink(found[0], nil)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

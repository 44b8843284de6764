// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"crem.dev/crem/agent/packet"
)

// flow mirrors struct flow of maps.h.
type flow struct {
	word   atomic.Uint64
	sure   atomic.Uint64
	worker uint32
	mtu    atomic.Uint32
	mode   atomic.Uint32
	inside atomic.Uint32
	missed atomic.Uint64
	_      [3]uint64
}

var _ = [1]struct{}{}[unsafe.Sizeof(flow{})-unsafe.Sizeof(cremFlow{})]

const (
	responseSpace  = 1 << 31
	transportShift = 24
	psnMask        = 1<<24 - 1
	psnBits        = 24
	qpnMask        = 1<<24 - 1
	minMTU, maxMTU = 256, 4096
)

func newKey(k packet.FlowKey) cremFlowKey {
	key := cremFlowKey{Src: k.Src.As16(), Dst: k.Dst.As16(), QpnSpace: k.QPN & qpnMask}
	key.QpnSpace |= uint32(k.Transport) << transportShift
	if k.Response {
		key.QpnSpace |= responseSpace
	}
	return key
}

// flow is the inverse of newKey.
func (k *cremFlowKey) flow() packet.FlowKey {
	return packet.FlowKey{
		Src: netip.AddrFrom16(k.Src).Unmap(), Dst: netip.AddrFrom16(k.Dst).Unmap(), QPN: k.QpnSpace & qpnMask,
		Response: k.QpnSpace&responseSpace != 0, Transport: uint8(k.QpnSpace &^ responseSpace >> transportShift),
	}
}

// RegisterFlow implements packet.Holder. Errors: ErrFlowExists, ErrFlowTableFull, a key or parameter out of range, or
// the kernel's refusal.
func (o *Objects) RegisterFlow(key packet.FlowKey, worker, mtu int, mode packet.Mode) (int, error) {
	switch {
	case !key.Src.IsValid() || !key.Dst.IsValid() || key.Src.Is4() != key.Dst.Is4():
		return 0, fmt.Errorf("bpf: flow between %v and %v", key.Src, key.Dst)
	case worker < 0 || worker >= o.config.Workers:
		return 0, fmt.Errorf("bpf: worker %d of %d", worker, o.config.Workers)
	case mtu < minMTU || mtu > maxMTU:
		return 0, fmt.Errorf("bpf: RDMA MTU %d, want %d to %d", mtu, minMTU, maxMTU)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.live[key]; ok {
		return 0, ErrFlowExists
	}
	if len(o.free) == 0 {
		return 0, ErrFlowTableFull
	}
	index := o.free[0]
	f := &o.flows[index]
	f.sure.Store(0)
	f.worker = uint32(worker)
	f.mtu.Store(uint32(mtu))
	f.mode.Store(uint32(mode))
	f.inside.Store(0)
	f.missed.Store(0)
	f.word.Store(uint64(packet.LearnBit))
	k, i := newKey(key), uint32(index)
	if err := o.kernel.CremFlowIndex.Update(&k, &i, ebpf.UpdateNoExist); err != nil {
		return 0, explain(err, "register flow")
	}
	o.free = o.free[1:]
	o.keys[index] = key
	o.live[key] = index
	return index, nil
}

// UnregisterFlow implements packet.Holder. The index is used again as late as possible, since frames of the flow may
// still be in the ring.
func (o *Objects) UnregisterFlow(index int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, ok := o.keys[index]
	if !ok {
		return fmt.Errorf("bpf: no flow has index %d", index)
	}
	k := newKey(key)
	if err := o.kernel.CremFlowIndex.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return explain(err, "unregister flow")
	}
	delete(o.keys, index)
	delete(o.live, key)
	o.free = append(o.free, index)
	return nil
}

// UpdateFlow implements packet.Holder.
func (o *Objects) UpdateFlow(index, mtu int, mode packet.Mode) error {
	if mtu < minMTU || mtu > maxMTU {
		return fmt.Errorf("bpf: RDMA MTU %d, want %d to %d", mtu, minMTU, maxMTU)
	}
	o.mu.Lock()
	_, ok := o.keys[index]
	o.mu.Unlock()
	if !ok {
		return fmt.Errorf("bpf: no flow has index %d", index)
	}
	f := &o.flows[index]
	f.mtu.Store(uint32(mtu))
	if f.mode.Swap(uint32(mode)) != uint32(mode) {
		o.relearn(index)
	}
	return nil
}

// relearn has the program take the flow's next packet for where the flow is, unless it holds.
func (o *Objects) relearn(index int) {
	f := &o.flows[index]
	for {
		w := f.word.Load()
		if f.word.CompareAndSwap(w, uint64(packet.Word(w).Relearn())) {
			return
		}
	}
}

// Word implements packet.Holder.
func (o *Objects) Word(index int) *atomic.Uint64 { return &o.flows[index].word }

// Missed implements packet.Holder.
func (o *Objects) Missed(index int) uint64 { return o.flows[index].missed.Load() }

// SetSure implements packet.Holder.
func (o *Objects) SetSure(index int, from, to uint32) {
	o.flows[index].sure.Store(uint64(from&psnMask) | uint64(to&psnMask)<<psnBits)
}

// HandBack implements packet.Holder. It is also false while injected frames are under way, of whichever worker.
func (o *Objects) HandBack(index int, held uint64, next uint32, inside bool) bool {
	f := &o.flows[index]
	w := packet.Word(f.word.Load())
	if !w.Hold() || w.Held() != held&packet.HeldMask || !o.turns.settled(packet.Now()) {
		return false
	}
	// The program leaves inside alone while it holds.
	f.inside.Store(boolToUint32(inside))
	return f.word.CompareAndSwap(uint64(w), uint64(w.InOrderAt(next)))
}

func boolToUint32(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Beat implements packet.Holder.
func (o *Objects) Beat(worker int, now time.Duration) { o.rings[worker].beat.Store(uint64(now)) }

// SetBypass implements packet.Holder.
func (o *Objects) SetBypass(on bool) {
	for i := range o.rings {
		o.rings[i].bypass.Store(uint64(boolToUint32(on)))
	}
}

// Seen implements packet.Holder.
func (o *Objects) Seen(key packet.FlowKey) (time.Duration, bool) {
	k := newKey(key)
	var last uint64
	if err := o.kernel.CremSeen.Lookup(&k, &last); err != nil {
		return 0, false
	}
	return max(packet.Now()-time.Duration(last), 0), true
}

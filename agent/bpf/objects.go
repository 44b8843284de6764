// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"crem.dev/crem/agent/packet"
)

// Objects are the loaded programs and their maps. It implements packet.Holder. Load, Attach, Detach, SetDomains and
// Close are for one caller at a time.
type Objects struct {
	config Config
	kernel cremObjects
	hooks

	flows  []flow
	rings  []ring
	slots  []byte
	turns  turns
	mapped [][]byte // what Close unmaps
	reused bool

	wanted wanted // what the kernel was told, but for flows

	mu   sync.Mutex
	free []int // unused flow indices, the longest unused first
	keys map[int]packet.FlowKey
	live map[packet.FlowKey]int
}

var _ packet.Holder = (*Objects)(nil)

// Load loads programs and maps. With Config.PinDir it takes over the maps of an earlier agent when their layout is the
// same, forgets that agent's flows, and finds its links; nothing is attached or detached yet.
// Errors are of type *Error.
func Load(config Config) (*Objects, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	o := &Objects{config: config, hooks: newHooks(), keys: map[int]packet.FlowKey{}, live: map[packet.FlowKey]int{}}
	if err := o.load(); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

func (o *Objects) load() error {
	spec, err := o.config.spec()
	if err != nil {
		return err
	}
	var options ebpf.CollectionOptions
	if o.config.PinDir != "" {
		if o.pins, err = openPins(o.config.PinDir, o.config.layout()); err != nil {
			return err
		}
		options.MapReplacements = o.pins.maps(spec)
		o.reused = options.MapReplacements != nil
	}
	err = spec.LoadAndAssign(&o.kernel, &options)
	for _, m := range options.MapReplacements {
		m.Close()
	}
	if err != nil {
		return explain(err, "load programs")
	}
	if err := o.mapMemory(); err != nil {
		return err
	}
	if err := o.forget(); err != nil {
		return err
	}
	if o.pins == nil {
		return nil
	}
	if err := o.pins.save(o.kernel.byName(), o.reused); err != nil {
		return err
	}
	return o.findLinks()
}

// mapMemory maps the arrays that user space shares and touches every page: a first touch inside the packet loop can
// cost tens of microseconds on a virtual machine.
func (o *Objects) mapMemory() error {
	turning, err := o.mmap(o.kernel.CremTurns, memoryOf[turnCounts](1))
	if err != nil {
		return err
	}
	flows, err := o.mmap(o.kernel.CremFlows, memoryOf[flow](o.config.MaxFlows))
	if err != nil {
		return err
	}
	rings, err := o.mmap(o.kernel.CremRings, memoryOf[ring](o.config.Workers))
	if err != nil {
		return err
	}
	o.slots, err = o.mmap(o.kernel.CremSlots, o.config.Workers*o.config.RingSlots*o.config.slotSize())
	if err != nil {
		return err
	}
	o.turns.counts = (*turnCounts)(unsafe.Pointer(unsafe.SliceData(turning)))
	o.flows = unsafe.Slice((*flow)(unsafe.Pointer(unsafe.SliceData(flows))), o.config.MaxFlows)
	o.rings = unsafe.Slice((*ring)(unsafe.Pointer(unsafe.SliceData(rings))), o.config.Workers)
	return nil
}

func (o *Objects) mmap(m *ebpf.Map, octets int) ([]byte, error) {
	memory, err := mapPages(m, octets)
	if err != nil {
		return nil, err
	}
	o.mapped = append(o.mapped, memory)
	return memory[:octets], nil
}

// mapPages maps the pages of an array that has so many octets, and touches them.
func mapPages(m *ebpf.Map, octets int) ([]byte, error) {
	page := os.Getpagesize()
	memory, err := unix.Mmap(m.FD(), 0, (octets+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, explain(err, "map %d octets of %s", octets, m)
	}
	for i := 0; i < octets; i += page {
		// Adding nothing writes the page and disturbs no program that uses it.
		(*atomic.Uint64)(unsafe.Pointer(&memory[i])).Add(0)
	}
	return memory, nil
}

// forget ends what a dead agent left in the maps: its flows pass from here on, its frames are skipped. The boundary
// stays as it was until SetDomains.
func (o *Objects) forget() error {
	for i := range o.rings {
		o.rings[i].beat.Store(0)
	}
	var key cremFlowKey
	var index uint32
	var stale []cremFlowKey
	for it := o.kernel.CremFlowIndex.Iterate(); it.Next(&key, &index); {
		stale = append(stale, key)
	}
	for _, key := range stale {
		if err := o.kernel.CremFlowIndex.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain(err, "forget the flows of an earlier agent")
		}
	}
	o.turns.counts.turned.Store(o.turns.counts.redirected.Load())
	for i := range o.rings {
		r := &o.rings[i]
		r.bypass.Store(0)
		r.cons.Store(r.prod.Load())
	}
	o.free = make([]int, o.config.MaxFlows)
	for i := range o.free {
		o.free[i] = i
	}
	return nil
}

// Reused tells whether Load took over the maps of an earlier agent.
func (o *Objects) Reused() bool { return o.reused }

// Close frees what the process holds. Without PinDir that detaches the programs; with it they stay, and everything
// passes. It must not be called while a worker runs.
func (o *Objects) Close() error {
	var errs []error
	for _, l := range o.links {
		errs = append(errs, l.Close())
	}
	for _, m := range o.mapped {
		errs = append(errs, unix.Munmap(m))
	}
	if o.kernel.CremIngress != nil {
		errs = append(errs, o.kernel.Close())
	}
	if o.pins != nil {
		errs = append(errs, o.pins.close())
	}
	o.links, o.mapped, o.flows, o.rings, o.slots, o.pins = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
)

// DefaultMark is the mark of injected frames ("CREM"). The programs compare all 32 bits, so that no other user of marks,
// who sets some bits of them, is ever mistaken for us.
const DefaultMark = 0x4352454d

// Config sizes the programs and maps of a node. Workers and SlotOctets are required; zero elsewhere takes the default.
type Config struct {
	Workers    int           // packet workers, each with a ring
	SlotOctets int           // largest frame to copy: the largest uplink MTU and 14
	RingSlots  int           // slots of one ring, rounded up to a power of two; default 4096
	MaxFlows   int           // registered flows; default 16384
	MaxSeen    int           // unregistered flows remembered; default 65536
	Mark       uint32        // of injected frames; default DefaultMark
	StaleAfter time.Duration // a worker without a beat for so long is gone; default 10 ms
	PinDir     string        // folder on a BPF file system for links and maps; empty: they end with the process
}

const (
	slotHead  = 64
	slotAlign = 64
	// The verifier bounds the two parts of a taken message each on its own: a head of at most so many octets, and a
	// payload of at most the slot's data.
	slotSlack = 64
	// The kernel's index of an array is 32 bits wide, and a larger ring is a mistake in any case.
	mostRingSlots = 1 << 20
	mostSlotData  = 65536
	mostFlows     = 1 << 22
)

func (c Config) withDefaults() (Config, error) {
	setDefault(&c.RingSlots, 4096)
	setDefault(&c.MaxFlows, 16384)
	setDefault(&c.MaxSeen, 65536)
	if c.Mark == 0 {
		c.Mark = DefaultMark
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = 10 * time.Millisecond
	}
	switch {
	case c.Workers < 1 || c.Workers > 1024:
		return c, fmt.Errorf("bpf: %d workers, want 1 to 1024", c.Workers)
	case c.SlotOctets < 64 || c.SlotOctets > mostSlotData:
		return c, fmt.Errorf("bpf: slots of %d octets, want 64 to %d", c.SlotOctets, mostSlotData)
	case c.RingSlots < 1 || c.RingSlots > mostRingSlots:
		return c, fmt.Errorf("bpf: rings of %d slots, want 1 to %d", c.RingSlots, mostRingSlots)
	case c.MaxFlows < 1 || c.MaxFlows > mostFlows || c.MaxSeen < 1 || c.MaxSeen > mostFlows:
		return c, fmt.Errorf("bpf: %d flows and %d seen, want 1 to %d", c.MaxFlows, c.MaxSeen, mostFlows)
	case c.StaleAfter < 0:
		return c, fmt.Errorf("bpf: heartbeat limit %v is negative", c.StaleAfter)
	}
	size := 1
	for size < c.RingSlots {
		size *= 2
	}
	c.RingSlots = size
	c.SlotOctets = (c.SlotOctets + slotAlign - 1) / slotAlign * slotAlign
	return c, nil
}

func setDefault(v *int, d int) {
	if *v == 0 {
		*v = d
	}
}

// slotSize is the octets of one slot.
func (c Config) slotSize() int { return slotHead + c.SlotOctets + slotSlack }

// layout names everything on which the contents of the maps depend. Maps of another layout are never reused.
func (c Config) layout() string {
	h := sha256.New()
	h.Write(_CremBytes)
	fmt.Fprintf(h, "%d %d %d %d %d", c.Workers, c.SlotOctets, c.RingSlots, c.MaxFlows, c.MaxSeen)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// spec is the collection with the sizes and constants of c.
func (c Config) spec() (*ebpf.CollectionSpec, error) {
	spec, err := loadCrem()
	if err != nil {
		return nil, fmt.Errorf("bpf: embedded programs: %w", err)
	}
	maps := spec.Maps
	maps[cremMapCremFlows].MaxEntries = uint32(c.MaxFlows)
	maps[cremMapCremFlowIndex].MaxEntries = uint32(c.MaxFlows)
	maps[cremMapCremSeen].MaxEntries = uint32(c.MaxSeen)
	maps[cremMapCremRings].MaxEntries = uint32(c.Workers)
	maps[cremMapCremSlots].MaxEntries = uint32(c.Workers * c.RingSlots)
	maps[cremMapCremSlots].ValueSize = uint32(c.slotSize())
	for name, value := range map[string]any{
		cremVarMark: c.Mark, cremVarWorkers: uint32(c.Workers), cremVarRingSlots: uint32(c.RingSlots),
		cremVarSlotOctets: uint32(c.SlotOctets), cremVarStaleNs: uint64(c.StaleAfter),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("bpf: constant %s: %w", name, err)
		}
	}
	return spec, nil
}

// memoryOf is the octets that the array map of n values occupies.
func memoryOf[T any](n int) int { return n * int(unsafe.Sizeof(*new(T))) }

// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync/atomic"
	"time"
	"unsafe"

	"crem.dev/crem/agent/packet"
)

// ring mirrors struct ring of maps.h: the first cache line is written by the programs, the second by user space.
type ring struct {
	prod   atomic.Uint64
	missed atomic.Uint64
	_      [6]uint64
	cons   atomic.Uint64
	beat   atomic.Uint64
	bypass atomic.Uint64
	_      [5]uint64
}

// slot mirrors struct slot of maps.h; the data follow.
type slot struct {
	seq     atomic.Uint64
	ktime   uint64
	len     uint32
	flags   uint32
	ifindex uint32
	flow    uint32
	domain  uint32
	whole   uint32
	_       [3]uint64
}

var (
	_ = [1]struct{}{}[unsafe.Sizeof(ring{})-unsafe.Sizeof(cremRing{})]
	_ = [1]struct{}{}[unsafe.Sizeof(slot{})-slotHead]
)

const (
	noFlow = ^uint32(0)

	slotHeld    = 1
	slotBehind  = 2
	slotLearned = 4
	slotTaken   = 8
	slotSegment = 16
	slotVoid    = 32
)

// frameFlags are the frame's flags for each combination of the slot's.
var frameFlags = func() (t [slotVoid]packet.FrameFlags) {
	for i := range t {
		for bit, flag := range map[int]packet.FrameFlags{
			slotHeld: packet.Held, slotBehind: packet.Behind, slotLearned: packet.Learned,
			slotTaken: packet.Taken, slotSegment: packet.Segment,
		} {
			if i&bit != 0 {
				t[i] |= flag
			}
		}
	}
	return t
}()

// reader takes the slots of one ring in order.
type reader struct {
	ring  *ring
	slots []byte
	size  uint64 // octets of a slot
	mask  uint64 // slots - 1
	next  uint64 // position of the next slot to deliver
}

// Ring is the ring of a worker. There must be no more than one reader of it.
func (o *Objects) Ring(worker int) packet.Ring {
	size := o.config.slotSize()
	octets := o.config.RingSlots * size
	r := &o.rings[worker]
	return &reader{
		ring: r, slots: o.slots[worker*octets : (worker+1)*octets], size: uint64(size),
		mask: uint64(o.config.RingSlots - 1), next: r.cons.Load(),
	}
}

func (r *reader) Next(frames []packet.Frame) int {
	n := 0
	for n < len(frames) {
		at := (r.next & r.mask) * r.size
		s := (*slot)(unsafe.Pointer(&r.slots[at]))
		if s.seq.Load() != r.next+1 {
			break
		}
		r.next++
		if s.flags&slotVoid != 0 || uint64(s.len) > r.size-slotHead-slotSlack {
			continue
		}
		data := r.slots[at+slotHead:]
		r.fill(&frames[n], s, data[:s.len:s.len])
		n++
	}
	return n
}

func (r *reader) fill(f *packet.Frame, s *slot, data []byte) {
	*f = packet.Frame{
		Data: data, Len: int(s.whole), Time: time.Duration(s.ktime), Flags: frameFlags[s.flags&(slotVoid-1)],
		Ifindex: int(s.ifindex), Flow: packet.NoFlow, Domain: s.domain,
	}
	if s.flow != noFlow {
		f.Flow = int(s.flow)
	}
	// What comes from this very machine may leave its checksum to a device that this packet will never see.
	if f.Flags&packet.Held != 0 && packet.FinishChecksum(data) {
		f.Flags |= packet.PartialChecksum
	}
}

func (r *reader) Release() {
	if r.ring.cons.Load() != r.next {
		r.ring.cons.Store(r.next)
	}
}

func (r *reader) Backlog() int { return int(r.ring.prod.Load() - r.ring.cons.Load()) }

func (r *reader) Size() int { return int(r.mask + 1) }

func (r *reader) Missed() uint64 { return r.ring.missed.Load() }

// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"time"

	"crem.dev/crem/agent/packet"
)

// Ring is a worker's ring.
type Ring struct {
	program *Program
	size    int
	beat    time.Duration
	missed  uint64

	slots     []packet.Frame // in use
	delivered int            // of slots
}

var _ packet.Ring = (*Ring)(nil)

func (r *Ring) put(frame []byte, m Meta, index int, flags packet.FrameFlags) {
	data := append([]byte{}, frame...)
	if flags&packet.Held != 0 && packet.FinishChecksum(data) {
		flags |= packet.PartialChecksum
	}
	r.slots = append(r.slots, packet.Frame{
		Data: data, Len: len(data), Time: r.program.now(), Flags: flags, Ifindex: m.Ifindex, Flow: index,
	})
}

// Next implements packet.Ring.
func (r *Ring) Next(frames []packet.Frame) int {
	r.program.mu.Lock()
	defer r.program.mu.Unlock()
	n := copy(frames, r.slots[r.delivered:])
	r.delivered += n
	return n
}

// Release implements packet.Ring.
func (r *Ring) Release() {
	r.program.mu.Lock()
	defer r.program.mu.Unlock()
	for i := range r.delivered {
		poison(r.slots[i].Data)
	}
	r.slots = append([]packet.Frame{}, r.slots[r.delivered:]...)
	r.delivered = 0
}

// Backlog implements packet.Ring.
func (r *Ring) Backlog() int {
	r.program.mu.Lock()
	defer r.program.mu.Unlock()
	return len(r.slots)
}

// Size implements packet.Ring.
func (r *Ring) Size() int { return r.size }

// Missed implements packet.Ring.
func (r *Ring) Missed() uint64 {
	r.program.mu.Lock()
	defer r.program.mu.Unlock()
	return r.missed
}

// poison makes use after Release show.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

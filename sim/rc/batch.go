// SPDX-License-Identifier: Apache-2.0

package rc

// Batch collects frames that machines send, up to a number, in memory of its own. A machine stops at a full batch and wants to be polled again.
type Batch struct {
	mem    []byte
	size   int
	frames [][]byte
}

// NewBatch returns a batch for n frames of at most size octets (Config.FrameSize).
func NewBatch(n, size int) *Batch {
	return &Batch{mem: make([]byte, n*size), size: size, frames: make([][]byte, 0, n)}
}

// Frames returns the frames in the order of sending; they are valid until Reset.
func (b *Batch) Frames() [][]byte { return b.frames }

// Full says that no frame fits any more.
func (b *Batch) Full() bool { return len(b.frames) == cap(b.frames) }

// Reset empties the batch.
func (b *Batch) Reset() { b.frames = b.frames[:0] }

// Slot returns empty memory for the next frame.
func (b *Batch) Slot() []byte {
	at := len(b.frames) * b.size
	return b.mem[at : at : at+b.size]
}

// Add appends a frame that was built in the memory of Slot.
func (b *Batch) Add(frame []byte) { b.frames = append(b.frames, frame) }

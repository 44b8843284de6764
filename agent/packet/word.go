// SPDX-License-Identifier: Apache-2.0

package packet

// Word is the state that a flow shares with the kernel program:
// bit 63 HOLD | bit 62 LEARN | bits 61..24 packets held so far | bits 23..0 expected PSN.
// Both sides change it by compare-and-swap only, so that neither acts on a state that the other has left.
type Word uint64

// Fields of a Word.
const (
	HoldBit    Word = 1 << 63 // packets from the expected PSN on are given to the ring only
	LearnBit   Word = 1 << 62 // take the expected PSN from the next packet
	countShift      = 24
	psnMask    Word = 1<<24 - 1
	// HeldMask bounds the count of held packets, which wraps.
	HeldMask uint64 = 1<<38 - 1
)

// Hold tells whether the flow's packets are held.
func (w Word) Hold() bool { return w&HoldBit != 0 }

// Learn tells whether the next packet sets the expected PSN.
func (w Word) Learn() bool { return w&LearnBit != 0 }

// Held is the number of packets held so far, modulo 2^38.
func (w Word) Held() uint64 { return uint64(w>>countShift) & HeldMask }

// Expected is the PSN that the program expects next.
func (w Word) Expected() uint32 { return uint32(w & psnMask) }

// InOrderAt is w without HOLD and LEARN, expecting the PSN next; the count is kept.
func (w Word) InOrderAt(next uint32) Word {
	return w&^(HoldBit|LearnBit|psnMask) | Word(next)&psnMask
}

// Relearn is w in state LEARN; the count is kept.
func (w Word) Relearn() Word { return w&^(HoldBit|psnMask) | LearnBit }

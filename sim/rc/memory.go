// SPDX-License-Identifier: Apache-2.0

package rc

// remoteKey is the key of the registered memory of every queue pair.
const remoteKey = 0x00c0ffee

// Memory is the registered memory of one end: as many slots as messages may be outstanding. Message n lies at virtual address n x slot size,
// which is slot n modulo slots.
type Memory struct {
	octets []byte
	size   int // of a slot
	slots  int
	seed   uint64
	filled []filled
}

// filled says what a slot holds after its last completed message.
type filled struct {
	number uint64
	size   int
	used   bool
}

// NewMemory returns the memory of a queue pair.
func NewMemory(c *Config) Memory { return Memory{size: c.MaxMessage, slots: c.Depth, seed: c.Seed} }

// Address returns the virtual address of a message's first octet.
func (m *Memory) Address(number uint64) uint64 { return number * uint64(m.size) }

// Slot returns the memory of a message. Memory is registered at the first use, since most ends receive in one role only.
func (m *Memory) Slot(number uint64) []byte {
	if m.octets == nil {
		m.octets = make([]byte, m.size*m.slots)
		m.filled = make([]filled, m.slots)
	}
	i := int(number % uint64(m.slots))
	return m.octets[i*m.size : (i+1)*m.size]
}

// Reopen says that a message is about to arrive in its slot: until it is complete, Audit leaves the slot out.
func (m *Memory) Reopen(number uint64) {
	m.Slot(number) // registered by now
	m.filled[number%uint64(m.slots)].used = false
}

// Complete compares a completed message with what was sent and returns the octets that differ.
func (m *Memory) Complete(number uint64, size int) int {
	s := m.Slot(number)
	m.filled[number%uint64(m.slots)] = filled{number, size, true}
	return Differing(s[:size], m.seed, number)
}

// Audit compares every slot again with the message that completed in it last. The slot of a message that is still arriving is left out.
func (m *Memory) Audit(open uint64, inside bool) (octets int) {
	for i, f := range m.filled {
		if f.used && (!inside || open%uint64(m.slots) != uint64(i)) {
			octets += Differing(m.Slot(f.number)[:f.size], m.seed, f.number)
		}
	}
	return octets
}

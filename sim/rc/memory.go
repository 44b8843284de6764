// SPDX-License-Identifier: Apache-2.0

package rc

// remoteKey is the key of the registered memory of every queue pair.
const remoteKey = 0x00c0ffee

// memory is the registered memory of one end: as many slots as messages may be outstanding. Message n lies at virtual address n x slot size,
// which is slot n modulo slots.
type memory struct {
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

func newMemory(c *Config) memory { return memory{size: c.MaxMessage, slots: c.Depth, seed: c.Seed} }

// address returns the virtual address of a message's first octet.
func (m *memory) address(number uint64) uint64 { return number * uint64(m.size) }

// slot returns the memory of a message. Memory is registered at the first use, since most ends receive in one role only.
func (m *memory) slot(number uint64) []byte {
	if m.octets == nil {
		m.octets = make([]byte, m.size*m.slots)
		m.filled = make([]filled, m.slots)
	}
	i := int(number % uint64(m.slots))
	return m.octets[i*m.size : (i+1)*m.size]
}

// complete compares a completed message with what was sent and returns the octets that differ.
func (m *memory) complete(number uint64, size int) int {
	s := m.slot(number)
	m.filled[number%uint64(m.slots)] = filled{number, size, true}
	return Differing(s[:size], m.seed, number)
}

// audit compares every slot again with the message that completed in it last. The slot of a message that is still arriving is left out.
func (m *memory) audit(open uint64, inside bool) (octets int) {
	for i, f := range m.filled {
		if f.used && (!inside || open%uint64(m.slots) != uint64(i)) {
			octets += Differing(m.slot(f.number)[:f.size], m.seed, f.number)
		}
	}
	return octets
}

// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// clockStep is a change of the clock against the one that never jumps after which the periods around it are not whole.
const clockStep = markingPeriod / 16

// jumped reports whether periods around now are not whole, because the clock made a jump; byTAI if the programs' clock did.
func (m *measuring) jumped(now time.Duration, byTAI bool) bool {
	before := m.offset
	m.offset = m.unix() - now
	step := m.offset - before
	return byTAI || step > clockStep || step < -clockStep
}

// clock brings the programs' clock in line with the system's.
func (t *tunnels) clock() (jumped bool) {
	t.mu.Lock()
	kernel := t.kernel
	t.mu.Unlock()
	if kernel == nil {
		return false
	}
	jumped, _ = kernel.SetClock() // with a wrong one colours do not fit the other end's, which is noticed
	return jumped
}

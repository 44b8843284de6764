// SPDX-License-Identifier: Apache-2.0

package crf

// Unseen tells that packets of the flow may have passed without a copy: the kernel program has failed open, because its ring was full or this side
// came too late. What lies between the newest packet and the next one with a newer PSN then counts as passed, and so does what REPAIRs protect that
// come meanwhile. A sender that goes back sends older packets first, and they say nothing of what passed. It is not waited for, not asked for, and
// not reported: a busy node would look like a lossy path, and open the circuit breaker of its peer. What was lost there all the same is left to the
// transport.
func (f *Flow) Unseen() { f.unseen = true }

// passUnseen settles the positions between the newest packet and p of which nothing has come.
func (f *Flow) passUnseen(p pos) {
	first := f.newest + 1
	if int64(p-first) > int64(f.maxGap()) {
		return
	}
	f.gaps.cut(first, p)
	for q := first; q < p; q++ {
		s := f.win.make(q)
		if s == nil {
			break
		}
		if s.has(q, missing) {
			s.clear(q, missing)
			f.stats.Missing--
			f.uncountLost(s, q)
		}
		if !s.has(q, arrived) && !s.has(q, settled) {
			s.set(q, settled)
			f.stats.Unseen++
		}
	}
	f.top = max(f.top, p)
	for i := f.blockIndex(first); i < len(f.blocks) && f.blocks[i].first < p; {
		b := f.blocks[i]
		if miss := f.win.bits(b.first, b.k, missing); miss.Empty() {
			f.complete(b)
		} else {
			i++
		}
	}
	f.sweep(first, p)
	f.wake()
}

// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"fmt"
	"testing"
)

// check verifies what must hold between calls.
func check(t testing.TB, f *Flow) {
	t.Helper()
	if err := inconsistent(f); err != "" {
		t.Fatal(err)
	}
}

// inconsistent names the first invariant that does not hold.
func inconsistent(f *Flow) string {
	cells, holding, kernelHeld, missed := 0, 0, len(f.hold.again), 0
	for n := f.win.low; n < f.win.high; n++ {
		s := f.win.segment(n)
		if s == nil {
			continue
		}
		inUse := 0
		for p := n * segmentLen; p < (n+1)*segmentLen; p++ {
			c := s.cells[p.index()]
			if c != nil {
				inUse++
			}
			switch {
			case s.has(p, stored) && c == nil:
				return fmt.Sprintf("%v stored without a cell", p.psn())
			case s.has(p, held) && c == nil:
				return fmt.Sprintf("%v held without a cell", p.psn())
			case c != nil && !s.has(p, held) && !f.codes(s, p):
				return fmt.Sprintf("%v keeps a cell for nothing", p.psn())
			case s.has(p, held) && p < f.next:
				return fmt.Sprintf("%v held behind next %v", p.psn(), f.next.psn())
			case s.has(p, missing) && s.has(p, arrived):
				return fmt.Sprintf("%v missing and arrived", p.psn())
			case s.has(p, missing) && p >= f.top:
				return fmt.Sprintf("%v missing beyond top %v", p.psn(), f.top.psn())
			case s.has(p, fromKernel) && !s.has(p, held):
				return fmt.Sprintf("%v from the kernel, not held", p.psn())
			}
			if s.has(p, held) {
				holding++
			}
			if s.has(p, fromKernel) {
				kernelHeld++
			}
			if s.has(p, missing) {
				missed++
				inGap := f.gaps.near(p, 1)
				inBlock := f.openBlock(p) != nil
				if inGap == inBlock {
					return fmt.Sprintf("%v missing: in a gap %v, in an open block %v", p.psn(), inGap, inBlock)
				}
			}
		}
		if inUse != s.inUse {
			return fmt.Sprintf("segment %d uses %d cells, says %d", n, inUse, s.inUse)
		}
		cells += inUse
	}
	cells += len(f.hold.again)
	for _, k := range f.replay.ring {
		if k.cell != nil {
			cells++
		}
	}
	tails := 0
	for i, b := range f.blocks {
		cells += len(b.rows) + len(b.copies)
		if !b.open || i > 0 && f.blocks[i-1].end() > b.first {
			return "open blocks out of order"
		}
		if m := f.win.bits(b.first, b.k, missing); m.Empty() {
			return fmt.Sprintf("open block %v misses nothing", b.first.psn())
		}
		if b.tail {
			tails++
		}
	}
	gapped := 0
	for i, g := range f.gaps {
		gapped += int(g.end - g.first)
		if g.first >= g.end || i > 0 && f.gaps[i-1].end > g.first {
			return "gaps out of order"
		}
		for p := g.first; p < g.end; p++ {
			if !f.win.has(p, missing) {
				return fmt.Sprintf("%v in a gap but not missing", p.psn())
			}
		}
	}
	switch {
	case cells != f.cells:
		return fmt.Sprintf("%d cells in use, says %d", cells, f.cells)
	case holding != f.hold.waiting:
		return fmt.Sprintf("%d positions held, says %d", holding, f.hold.waiting)
	case kernelHeld != f.hold.kernel:
		return fmt.Sprintf("%d packets of the kernel held, says %d", kernelHeld, f.hold.kernel)
	case missed != f.stats.Missing:
		return fmt.Sprintf("%d positions missing, says %d", missed, f.stats.Missing)
	case tails != f.waiting:
		return fmt.Sprintf("%d blocks wait for their tail, says %d", tails, f.waiting)
	case f.hold.waiting > 0 && !f.win.has(f.next, missing):
		return fmt.Sprintf("packets wait, and %v is not missing", f.next.psn())
	case f.next > f.top:
		return "next beyond top"
	case f.state == Closed && f.cells != 0:
		return "closed flow keeps memory"
	case f.hold.waiting == 0 && f.hold.kernel != 0:
		return "further copies wait alone"
	}
	return ""
}

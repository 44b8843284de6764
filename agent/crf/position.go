// SPDX-License-Identifier: Apache-2.0

package crf

import "crem.dev/crem/agent/roce"

// pos is a PSN that does not wrap: its low 24 bits are the PSN. Comparisons are plain, also over a wrap.
type pos int64

// psnSpan is the number of PSNs.
const psnSpan = 1 << 24

// origin leaves room below the first position for blocks that began before it.
const origin pos = 1 << 40

// nowhere is no position.
const nowhere pos = 0

// psn returns the PSN of the position.
func (p pos) psn() roce.PSN { return roce.PSN(p & (psnSpan - 1)) }

// near returns the position of psn that is nearest to ref.
func near(ref pos, psn roce.PSN) pos { return ref + pos(psn.Sub(ref.psn())) }

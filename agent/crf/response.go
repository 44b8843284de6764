// SPDX-License-Identifier: Apache-2.0

package crf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// maxTold bounds the ranges remembered from READ and ATOMIC requests: more cannot be outstanding on a queue pair.
const maxTold = 256

// told is a range of positions that responses will use, from a request seen going the other way.
type told struct{ first, end pos }

// HandleReadRequest tells a flow of the response space that a READ or ATOMIC request was seen going the other way whose answer
// will use the n PSNs from psn on (Section 4.4, rule 2). What lies behind the newest response changes nothing, nor does a request
// before the first response.
func (f *Flow) HandleReadRequest(now time.Duration, psn roce.PSN, n int) {
	if !f.sparse || f.state == Closed || !f.started || n <= 0 || n > psnSpan/2 {
		return
	}
	first := near(f.top, psn)
	t := told{max(first, f.top), first + pos(n)}
	for len(f.told) > 0 && f.told[0].end <= f.top {
		f.told = append(f.told[:0], f.told[1:]...)
	}
	if t.first >= t.end || len(f.told) == maxTold {
		return
	}
	i := len(f.told)
	for i > 0 && f.told[i-1].first > t.first {
		i--
	}
	f.told = append(f.told, told{})
	copy(f.told[i+1:], f.told[i:])
	f.told[i] = t
}

// passOverResponses is passOver in the response space (Section 4.4, rule 2): a PSN may belong to a request that was answered by a
// plain ACK. A gap counts inside one message, and where a request is known to be answered by responses. After FIRST or MIDDLE
// the next PSN is a response for certain; all up to a MIDDLE or LAST are taken to be of the same message. Before a MIDDLE or LAST
// that begins what is known of its message the last PSN is a response for certain: its FIRST, or another MIDDLE.
func (f *Flow) passOverResponses(now time.Duration, p pos, within bool) {
	first := f.top
	if f.inside(f.newestOp) && f.newest+1 == first {
		end := first + 1
		if within {
			end = p
		}
		f.miss(now, first, end)
		first = end
	}
	for _, t := range f.told {
		if lo, hi := max(t.first, first), min(t.end, p); lo < hi {
			f.miss(now, lo, hi)
			first = hi
		}
	}
	if within && first < p {
		f.miss(now, p-1, p)
	}
}

// inside says that a message goes on after a packet of this opcode.
func (f *Flow) inside(op roce.Opcode) bool { return f.started && !op.Ends() }

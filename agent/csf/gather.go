// SPDX-License-Identifier: Apache-2.0

package csf

import (
	"time"

	"crem.dev/crem/agent/roce"
)

// A fabric in front of the CSF that sprays the packets of a multipath transport lets some overtake others, so that a block's last packet may come
// before others of it. Such a block waits, closed, for what was overtaken, about as long as packets were late recently, before it is coded
// (Section 4.4, rule 7). Without reordering nothing waits.

const (
	// maxSkew is the most PSNs that a packet may lie behind the newest one to count as overtaken: what comes later is one sent again.
	maxSkew = 256
	// skewBlocks is for how many blocks, at least, the greatest skew is remembered.
	skewBlocks = 64
	// maxGathering bounds the closed blocks of a flow that wait; over it the oldest is coded as it is. All of them fit into the queue of those with symbols
	// to send, beside the open block and one whose symbols are spread.
	maxGathering = maxQueue - 2
)

// skew is how many PSNs the newest packet was ahead of those that others overtook, at most, lately.
type skew struct {
	most, before int // since the last change of epoch, and in the one before
	blocks       int // since then
}

func (s *skew) add(behind int) { s.most = max(s.most, behind) }

func (s *skew) now() int { return max(s.most, s.before) }

// next counts a block that was closed.
func (s *skew) next() {
	if s.blocks++; s.blocks == skewBlocks {
		*s = skew{before: s.most}
	}
}

// gathering is a closed block that waits for packets that were overtaken.
type gathering struct {
	block *block
	cause CloseCause
	until time.Duration
}

// gather lets a closed block wait if packets of it may still come, else its symbols are scheduled, after those of the blocks before it: from REPAIRs
// of a later block the CRF concludes that there are no more of an earlier one.
func (f *Flow) gather(now time.Duration, b *block, cause CloseCause) {
	b.room = b.k
	f.skew.next()
	if expected := cause == ByCount || cause == ByJump; f.skew.now() == 0 || !expected {
		f.covered = b.start.Add(b.room)
		f.scheduleGathering(now)
		f.schedule(now, b, cause)
		return
	}
	b.room = b.config.k
	f.covered = b.start.Add(b.room)
	if len(f.gathering) == maxGathering {
		f.scheduleFirst(now)
	}
	until := min(now+f.burstGap(), max(now, b.openedAt+f.rtt.min()/2)) // Section 6, rule CSF 4
	f.gathering = append(f.gathering, gathering{block: b, cause: cause, until: until})
	f.armBlocks(until)
	f.ripen(now)
}

// ripen schedules the symbols of the blocks at the head of those that wait which are whole, or of which nothing more is to be expected.
func (f *Flow) ripen(now time.Duration) {
	for len(f.gathering) > 0 {
		g := &f.gathering[0]
		end := g.block.start.Add(g.block.room)
		if !g.block.whole() && f.newest.Sub(end) < f.skew.now() && now < g.until {
			return
		}
		f.scheduleFirst(now)
	}
}

// scheduleFirst schedules the symbols of the block that has waited longest.
func (f *Flow) scheduleFirst(now time.Duration) {
	g := f.gathering[0]
	f.gathering = append(f.gathering[:0], f.gathering[1:]...)
	f.schedule(now, g.block, g.cause)
	if !f.pace.inside {
		f.release() // the message is over: there may be no next block over which to spread
	}
}

// scheduleGathering schedules the symbols of all blocks that wait.
func (f *Flow) scheduleGathering(now time.Duration) {
	for len(f.gathering) > 0 {
		f.scheduleFirst(now)
	}
}

// hurry schedules the symbols of a block that waits, after those of the blocks before it.
func (f *Flow) hurry(now time.Duration, b *block) {
	for i := range f.gathering {
		if f.gathering[i].block == b {
			for range i + 1 {
				f.scheduleFirst(now)
			}
			return
		}
	}
}

// gathers returns the closed block that waits for psn, nil if none does.
func (f *Flow) gathers(psn roce.PSN) *block {
	for i := range f.gathering {
		b := f.gathering[i].block
		if pos := psn.Sub(b.start); pos >= 0 && pos < b.room {
			return b
		}
	}
	return nil
}

// whole reports whether no position of a closed block waits for a packet.
func (b *block) whole() bool {
	seen := b.present.Or(b.barred)
	return seen.Count() >= b.room
}

// ungather takes a block out of those that wait.
func (f *Flow) ungather(b *block) {
	for i := range f.gathering {
		if f.gathering[i].block == b {
			f.gathering = append(f.gathering[:i], f.gathering[i+1:]...)
			return
		}
	}
}

// first is the PSN of the first position of a block that a packet begins. Where packets overtake each other those between the last block and this packet
// are probably on their way.
func (f *Flow) first(psn roce.PSN) roce.PSN {
	if ahead := psn.Sub(f.covered); f.retained.len() > 0 && ahead > 0 && ahead < min(f.skew.now()+1, f.current.k) {
		return f.covered
	}
	return psn
}

// overtaken takes a packet behind the newest one of which no copy was seen before.
func (f *Flow) overtaken(pkt *roce.Packet) {
	if behind := f.newest.Sub(pkt.PSN()); f.transport.Multipath() && !pkt.Retransmitted() && behind <= maxSkew {
		f.skew.add(behind)
	}
}
